"""Replicas and their partitions on the chips of a grid, and the groups they form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mlperf_tpu.errors import BadInput

if TYPE_CHECKING:
    from mlperf_tpu.topology.grid import Topology

Chip = tuple[int, int]  # x, y
Core = tuple[int, int, int]  # x, y, core of the chip
Groups = tuple[tuple[int, ...], ...]  # replica ids


@dataclass(frozen=True)
class Placement:
    """Replicas on the grid, numbered by the corner of their footprint, x first.

    A replica that touches a failed chip is lost; the others are numbered without it.
    With fewer partitions than cores a chip, a chip holds several replicas, by core.
    """

    topology: Topology
    partitions: int
    footprint: tuple[int, int]

    @cached_property
    def cores(self) -> tuple[tuple[Core, ...], ...]:
        """cores[replica][partition]: the core that holds it."""
        width, height = self.footprint
        per_chip = self.topology.cores_per_chip
        found = []
        for y in range(0, self.topology.rows, height):
            for x in range(0, self.topology.columns, width):
                chips = snake(x, y, width, height)
                if self.topology.failed.intersection(chips):
                    continue
                cores = [(cx, cy, core) for cx, cy in chips for core in range(per_chip)]
                for first in range(0, len(cores), self.partitions):
                    found.append(tuple(cores[first : first + self.partitions]))
        return tuple(found)

    @property
    def n_replicas(self) -> int:
        return len(self.cores)

    @cached_property
    def replica_of(self) -> dict[Core, tuple[int, int]]:
        """The (replica, partition) that a core holds."""
        return {
            core: (replica, partition)
            for replica, cores in enumerate(self.cores)
            for partition, core in enumerate(cores)
        }

    def device_ids(self) -> list[list[int]]:
        """The device assignment: the device id of each replica's partitions."""
        per_chip = self.topology.cores_per_chip
        return [
            [self.topology.chip_id((x, y)) * per_chip + core for x, y, core in cores]
            for cores in self.cores
        ]

    def devices(self, groups: Groups) -> list[list[int]]:
        """The device ids of replica groups: a group for each of their partitions."""
        ids = self.device_ids()
        return [
            [ids[replica][partition] for replica in group]
            for group in groups
            for partition in range(self.partitions)
        ]

    def everyone(self) -> Groups:
        return (tuple(range(self.n_replicas)),)

    def rows(self) -> Groups:
        """The replicas of each row of footprints, along x."""
        height = self.footprint[1]
        return self._by(lambda corner: corner[1] // height)

    def columns(self) -> Groups:
        """The replicas of each column of footprints, along y."""
        width = self.footprint[0]
        return self._by(lambda corner: corner[0] // width)

    def chips(self) -> Groups:
        """The replicas that share a chip (a replica of several chips stands alone)."""
        return self._by(lambda corner: self.topology.chip_id((corner[0], corner[1])))

    def consecutive(self, size: int) -> Groups:
        """Groups of consecutive replica ids: Google's v0.6 ResNet-50 batch norm."""
        self._check_group(size)
        ids = range(self.n_replicas)
        return tuple(
            tuple(ids[first : first + size]) for first in range(0, len(ids), size)
        )

    def tile_shape(self, size: int) -> tuple[int, int]:
        """Columns x rows of footprints in a batch-norm tile of so many replicas.

        The most square tile in chips, wider where there is a choice: 8 cores 2x2 chips,
        16 cores 4x2, 32 4x4, 64 8x4; 16 replicas of 4 partitions 8x2 footprints of 1x2
        chips: the tiles of Google's ResNet v0.7 and SSD v0.6 runs.
        """
        per_footprint = self._replicas_per_footprint
        if size < 1 or size % per_footprint:
            raise BadInput(
                f"a tile of {size} replicas is not a whole number of chips with "
                f"{per_footprint} replicas each; choose a multiple of {per_footprint}"
            )
        across, down = self._footprints
        shapes = [
            (w, size // per_footprint // w)
            for w in range(1, size // per_footprint + 1)
            if size // per_footprint % w == 0
        ]
        fitting = [(w, h) for w, h in shapes if across % w == 0 and down % h == 0]
        if not fitting:
            raise BadInput(
                f"no tile of {size} replicas divides the grid of {across}x{down} "
                "replica footprints; choose a smaller power of two"
            )

        def squareness(shape: tuple[int, int]) -> tuple[int, int]:
            w, h = shape[0] * self.footprint[0], shape[1] * self.footprint[1]
            return max(w, h), -w

        return min(fitting, key=squareness)

    def tiles(self, size: int) -> Groups:
        """Batch-norm groups: replicas of 2-D tiles of chips, in snake order in each.

        A tile that lost replicas to failed chips is a smaller group; one that lost all
        is left out.
        """
        wide, high = self.tile_shape(size)
        at = self._at_footprint
        across, down = self._footprints
        groups = []
        for y in range(0, down, high):
            for x in range(0, across, wide):
                members: list[int] = []
                for fx, fy in snake(x, y, wide, high):
                    here = at.get((fx, fy), [])
                    members += here if (fy - y) % 2 == 0 else here[::-1]
                if members:
                    groups.append(tuple(members))
        return tuple(groups)

    @property
    def _replicas_per_footprint(self) -> int:
        width, height = self.footprint
        return width * height * self.topology.cores_per_chip // self.partitions

    @property
    def _footprints(self) -> tuple[int, int]:
        width, height = self.footprint
        return self.topology.columns // width, self.topology.rows // height

    @cached_property
    def _at_footprint(self) -> dict[Chip, list[int]]:
        width, height = self.footprint
        at: dict[Chip, list[int]] = {}
        for replica, cores in enumerate(self.cores):
            x, y, _ = cores[0]
            at.setdefault((x // width, y // height), []).append(replica)
        return at

    def _by(self, key: Callable[[Core], int]) -> Groups:
        groups: dict[int, list[int]] = {}
        for replica, cores in enumerate(self.cores):
            groups.setdefault(key(cores[0]), []).append(replica)
        return tuple(tuple(groups[k]) for k in sorted(groups))

    def _check_group(self, size: int) -> None:
        if size < 1 or self.n_replicas % size:
            raise BadInput(
                f"groups of {size} replicas do not divide the {self.n_replicas} "
                "replicas; choose a divisor"
            )


def snake(x: int, y: int, width: int, height: int) -> list[Chip]:
    """The chips of a block row by row, every other row backwards."""
    block: list[Chip] = []
    for row in range(height):
        line = [(x + column, y + row) for column in range(width)]
        block += line if row % 2 == 0 else line[::-1]
    return block
