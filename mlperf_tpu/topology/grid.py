"""The chips of a TPU slice as a grid: its wrap-around, pods and failed chips."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.topology.placement import Chip, Placement, snake


@dataclass(frozen=True)
class Generation:
    """A TPU generation with 2-D grids: a pod's side in chips, and cores a chip."""

    pod_side: int
    cores_per_chip: int


# cloud.google.com/tpu/docs: v2 pod 256 chips (16x16), v3 pod 1024 chips (32x32), both
# 2-D tori, two cores a chip; v5e pod 256 chips (16x16), a 2-D torus, one core a chip.
GENERATIONS = {
    "v2": Generation(16, 2),
    "v3": Generation(32, 2),
    "v5e": Generation(16, 1),
}

# Chips -> columns, rows. 64 to 4096: the grids of Google's v0.6 and v0.7 code and
# launch commands ("host_bounds=32,16,1 chips_per_host=4,2,1" is 128x32). Up to 32: the
# most square grid of that size, wider than high as the others are (assumption).
GRIDS = {
    1: (1, 1),
    2: (2, 1),
    4: (2, 2),
    8: (4, 2),
    16: (4, 4),
    32: (8, 4),
    64: (8, 8),
    128: (16, 8),
    256: (16, 16),
    512: (32, 16),
    1024: (32, 32),
    2048: (64, 32),
    4096: (128, 32),
}

# Chips a replica -> columns x rows: the computation shapes of Google's v0.6 and v0.7
# runs, [1,1,1] and [1,1,2], [1,2,2], [2,2,2], [4,2,2] as x, y, cores.
FOOTPRINTS = {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (4, 2)}


@dataclass(frozen=True)
class Topology:
    """A grid of chips; `pod_columns` is a pod's width where several stand along x.

    A chip is (x, y), column and row, both from 0. Chip ids run along x first:
    id = y * columns + x. A core's device id is chip id * cores_per_chip + core, as
    libtpu numbers the devices of `v3:32x32x1`.
    """

    columns: int
    rows: int
    wrap_x: bool = False
    wrap_y: bool = False
    cores_per_chip: int = 2
    failed: frozenset[Chip] = frozenset()
    pod_columns: int | None = None

    def __post_init__(self) -> None:
        if self.columns < 1 or self.rows < 1:
            raise BadInput(
                f"a topology of {self.columns}x{self.rows} chips has no chips; "
                "give columns x rows, both at least 1"
            )
        for name, wraps, size in (
            ("x", self.wrap_x, self.columns),
            ("y", self.wrap_y, self.rows),
        ):
            if wraps and size < 3:
                raise BadInput(
                    f"wrap-around along {name} of {size} chips: the least is 3, as two "
                    "chips share one link; leave the wrap out"
                )
        for x, y in sorted(self.failed):
            if not (0 <= x < self.columns and 0 <= y < self.rows):
                raise BadInput(
                    f"failed chip {x},{y} lies outside the grid of {self.columns}x"
                    f"{self.rows} chips; x runs from 0 to {self.columns - 1}, "
                    f"y from 0 to {self.rows - 1}"
                )
        if len(self.failed) == self.columns * self.rows:
            raise BadInput(
                f"all {len(self.failed)} chips have failed; at least 1 must be left"
            )

    @classmethod
    def for_chips(cls, chips: int) -> Topology:
        """The v3 grid Google used for so many chips.

        >>> Topology.for_chips(4096).name
        '128x32'
        """
        if chips not in GRIDS:
            raise BadInput(
                f"no TPU v3 grid of {chips} chips; known: "
                f"{', '.join(map(str, GRIDS))}; or name a grid, as v3:24x32"
            )
        return _slice(GENERATIONS["v3"], *GRIDS[chips])

    @classmethod
    def virtual(cls, chips: int, cores_per_chip: int = 1) -> Topology:
        """What virtual devices stand on: the most square torus, wider than high.

        >>> Topology.virtual(8).name, Topology.virtual(7).name
        ('4x2', '7x1')
        """
        rows = next(r for r in range(math.isqrt(chips), 0, -1) if chips % r == 0)
        columns = chips // rows
        return cls(columns, rows, columns > 2, rows > 2, cores_per_chip)

    @classmethod
    def parse(cls, name: str) -> Topology:
        """A topology from its name: `v3:128x32x1`, `8x8`, `v3:6x4:torus`, `v5e:4x4`.

        A dimension wraps where it spans one whole pod; `:torus` and `:mesh` overrule.

        >>> Topology.parse("v3:32x16").wrap_x, Topology.parse("v3:32x16").wrap_y
        (True, False)
        """
        match = re.fullmatch(
            r"(?:(\w+):)?(\d+)x(\d+)(?:x(\d+))?(?::(torus|mesh))?", name
        )
        if match is None:
            raise BadInput(
                f"topology {name!r} is not a name; write generation:columns x rows, "
                "as v3:32x32x1 or 8x8:mesh"
            )
        generation, columns, rows, depth, wrap = match.groups()
        generation = generation or "v3"
        if generation not in GENERATIONS:
            raise BadInput(
                f"topology {name!r}: no 2-D grid generation {generation!r}; "
                f"{nearest(generation, GENERATIONS)}"
            )
        if int(depth or 1) != 1:
            raise BadInput(
                f"topology {name!r} is {depth} chips deep; {generation} grids are 2-D: "
                f"write {generation}:{columns}x{rows}x1"
            )
        grid = _slice(GENERATIONS[generation], int(columns), int(rows))
        if wrap is None:
            return grid
        torus = wrap == "torus"
        return replace(grid, wrap_x=torus, wrap_y=torus, pod_columns=None)

    def with_holes(self, holes: Iterable[str]) -> Topology:
        """The same grid with more failed chips; a hole is `x,y:WxH` or one `x,y`."""
        return replace(self, failed=self.failed.union(*map(parse_hole, holes)))

    def transposed(self) -> Topology:
        """The grid with x and y exchanged; pods stand along x alone and are dropped."""
        return Topology(
            self.rows,
            self.columns,
            self.wrap_y,
            self.wrap_x,
            self.cores_per_chip,
            frozenset((y, x) for x, y in self.failed),
        )

    @property
    def name(self) -> str:
        return f"{self.columns}x{self.rows}"

    @property
    def n_chips(self) -> int:
        """Surviving chips."""
        return self.columns * self.rows - len(self.failed)

    @cached_property
    def chips(self) -> tuple[Chip, ...]:
        """The surviving chips in the order of their ids."""
        grid = ((x, y) for y in range(self.rows) for x in range(self.columns))
        return tuple(chip for chip in grid if chip not in self.failed)

    def chip_id(self, chip: Chip) -> int:
        return chip[1] * self.columns + chip[0]

    def chip_at(self, chip_id: int) -> Chip:
        return chip_id % self.columns, chip_id // self.columns

    def neighbours(self, chip: Chip) -> list[Chip]:
        """The surviving chips one link away: along x, then along y."""
        x, y = chip
        found: list[Chip] = []
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            nx, ny = x + dx, y + dy
            if self.wrap_x:
                nx %= self.columns
            if self.wrap_y:
                ny %= self.rows
            inside = 0 <= nx < self.columns and 0 <= ny < self.rows
            if inside and (nx, ny) not in self.failed:
                found.append((nx, ny))
        return found

    def crosses_pods(self, a: Chip, b: Chip) -> bool:
        """Whether the link between two neighbours runs from one pod to the next."""
        return (
            self.pod_columns is not None
            and a[0] // self.pod_columns != b[0] // self.pod_columns
        )

    def distances(self, start: Chip) -> dict[Chip, int]:
        """Hops from a chip to every surviving chip that it can reach."""
        reached = {start: 0}
        queue = deque([start])
        while queue:
            chip = queue.popleft()
            for neighbour in self.neighbours(chip):
                if neighbour not in reached:
                    reached[neighbour] = reached[chip] + 1
                    queue.append(neighbour)
        return reached

    @property
    def connected(self) -> bool:
        """Whether every surviving chip reaches every other over links that exist."""
        return len(self.distances(self.chips[0])) == self.n_chips

    def replicas(
        self, partitions: int = 1, footprint: tuple[int, int] | None = None
    ) -> Placement:
        """Places replicas of so many cores each; see `Placement`.

        `footprint` (columns x rows of chips a replica) is Google's computation shape
        unless given: (2, 1) for 4 partitions puts the peers along x (2011.03641).
        """
        if footprint is None:
            chips = -(-partitions // self.cores_per_chip)
            if chips not in FOOTPRINTS:
                raise BadInput(
                    f"{partitions} partitions a replica span {chips} chips, which no "
                    f"computation shape does; known: {', '.join(map(str, FOOTPRINTS))} "
                    "chips; or give a footprint"
                )
            footprint = FOOTPRINTS[chips]
        width, height = footprint
        fits = partitions == width * height * self.cores_per_chip or (
            footprint == (1, 1) and self.cores_per_chip % partitions == 0
        )
        if not fits:
            raise BadInput(
                f"{partitions} partitions do not fill {width}x{height} chips of "
                f"{self.cores_per_chip} cores; choose partitions or footprint to match"
            )
        if self.columns % width or self.rows % height:
            raise BadInput(
                f"a replica of {width}x{height} chips does not tile the grid of "
                f"{self.name}; choose fewer partitions or another topology"
            )
        return Placement(self, partitions, footprint)


def parse_hole(text: str) -> frozenset[Chip]:
    """The chips of a hole: `x,y:WxH` (its corner and size) or `x,y` (one chip).

    >>> sorted(parse_hole("12,4:2x1"))
    [(12, 4), (13, 4)]
    """
    match = re.fullmatch(r"(\d+),(\d+)(?::(\d+)x(\d+))?", text.strip())
    if match is None:
        raise BadInput(
            f"hole {text!r} is not a place; write x,y:WxH, as 12,4:4x2 for the four by "
            "two chips whose least x is 12 and least y is 4"
        )
    x, y, width, height = (int(part or 1) for part in match.groups())
    return frozenset(snake(x, y, width, height))


def _slice(generation: Generation, columns: int, rows: int) -> Topology:
    """A slice of one or more pods: wraps where it spans a pod exactly.

    Pods stand side by side along x, y keeps its wrap within the pod and x loses it
    (v0.7 multipod launches: wrap=false,true,false for 128x32 and 64x32).
    """
    side = generation.pod_side
    if rows > side or (columns > side and (columns % side or rows != side)):
        raise BadInput(
            f"no slice of {columns}x{rows} chips: a pod is {side}x{side}, and several "
            f"whole pods stand along x; choose at most {side} rows, and columns up to "
            f"{side} or a multiple of {side} with {side} rows"
        )
    return Topology(
        columns,
        rows,
        wrap_x=columns == side,
        wrap_y=rows == side,
        cores_per_chip=generation.cores_per_chip,
        pod_columns=side if columns > side else None,
    )
