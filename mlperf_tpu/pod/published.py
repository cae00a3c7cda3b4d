"""Google's published TPU v3 results, for a forecast to stand beside."""

from __future__ import annotations

import functools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_tpu.spec import Resolved


@dataclass(frozen=True)
class Published:
    """One entry: a system's runs of a benchmark (scripts/published_results.py)."""

    round: str
    system: str
    benchmark: str
    chips: int
    batch: int
    seconds: tuple[float, ...]
    statuses: tuple[str, ...]
    epochs: tuple[float, ...]
    evaluations: tuple[int, ...]
    score_s: float
    init_s: float
    first_block_s: float | None
    block_s: float | None
    epochs_per_block: float | None
    source: str

    @property
    def n_evaluations(self) -> int:
        """Evaluations until the target was met: the median of the runs that met it."""
        return round(statistics.median(n for n, _ in self._met()))

    @property
    def same_length_s(self) -> float:
        """The time to train of the runs of `n_evaluations`, their median: a forecast of
        so many. (`score_s` is a mean over runs of several lengths.)"""
        wanted = self.n_evaluations
        return statistics.median(s for n, s in self._met() if n == wanted)

    def _met(self) -> list[tuple[int, float]]:
        """(evaluations, seconds) of the runs that met the target."""
        runs = zip(self.evaluations, self.seconds, self.statuses, strict=True)
        return [(n, seconds) for n, seconds, status in runs if status == "success"]

    def step_ms(self, steps_per_block: int) -> float | None:
        """The steady block's time a step: what is evaluated in a block is in it."""
        return self.block_s / steps_per_block * 1e3 if self.block_s else None


@functools.cache
def entries() -> tuple[Published, ...]:
    path = Path(__file__).with_name("published.json")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    for row in rows:
        row.update({k: tuple(v) for k, v in row.items() if isinstance(v, list)})
    return tuple(Published(**row) for row in rows)


def published(resolved: Resolved) -> Published | None:
    """The entry that a scale reproduces: its source names round and system."""
    spec = resolved.spec
    for entry in entries():
        named = f"MLPerf {entry.round}, Google {entry.system}"
        same = (entry.benchmark, entry.batch) == (
            spec.rules.benchmark,
            spec.training.global_batch,
        )
        if same and resolved.source == named:
            return entry
    return None
