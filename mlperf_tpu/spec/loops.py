"""Loops that end with the data: how often they run, which no compiled module says."""

from __future__ import annotations

import re
from dataclasses import dataclass

ROWS = 512  # what fills the matrix unit: Google's `max(1, 512 // batch)` steps a block


@dataclass(frozen=True)
class LoopCase:
    """How often loops of unknown end run on batches of one kind.

    share: of all steps; label: what the batches are; trips: (regular expression,
    iterations), of which the first that is found in a loop's name counts.
    """

    share: float
    label: str
    trips: tuple[tuple[str, float], ...]

    def iterations(self, loop: str) -> float | None:
        return next((n for name, n in self.trips if re.search(name, loop)), None)


def steps_a_block(n_steps: int, batch: int) -> int:
    """The fewest steps that divide `n_steps` and make a block of `ROWS` rows; all of
    them where there are no more rows (nn.blocks).

    >>> [steps_a_block(48, batch) for batch in (128, 64, 16, 8)]
    [4, 8, 48, 48]
    """
    wanted = [k for k in range(1, n_steps) if n_steps % k == 0 and k * batch >= ROWS]
    return min(wanted, default=n_steps)
