"""All-reduce in two dimensions: tori, meshes, the multipod, grids with failed chips.

A colour reduces along one axis first, on rings, then across on the chunk each chip is
left with, and gathers back the same way (1811.06992). Where the first axis wraps, each
row is a ring; where it does not, two neighbouring rows are one (2011.03605). Rows that
cannot be in a ring, because of a failed chip or for want of a neighbour, are broken:
their survivors sum among themselves in the segments that are left, hand the sums to
chips of whole rings, and get the result back from them at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlperf_tpu.collectives.schedules import (
    Ints,
    Messages,
    Phase,
    Schedule,
    Stream,
    Unroutable,
    check_connected,
    line,
    ring,
    sends,
    survivors,
)
from mlperf_tpu.topology import Topology


@dataclass(frozen=True)
class Axis:
    """A grid of chip ids [across, along] (-1: failed) seen along the axis summed first.

    >>> Axis("x", np.arange(8).reshape(2, 4), False, False).rings()[0].tolist()
    [[0, 1, 2, 3, 7, 6, 5, 4]]
    """

    name: str
    grid: Ints
    wraps_along: bool
    wraps_across: bool

    def rings(self) -> tuple[Ints, Ints]:
        """The whole rings [rings, n], and the rows that are in none."""
        n_rows, n = self.grid.shape
        whole = np.all(self.grid >= 0, axis=1)
        if self.wraps_along or n_rows == 1:
            return self.grid[whole], np.flatnonzero(~whole)
        if n == 1 and n_rows > 1:
            raise Unroutable(
                f"rows of one chip along {self.name} make no ring of two rows; "
                "sum along the other axis"
            )
        pairs = []
        row = 0
        while row + 1 < n_rows:
            pair = bool(whole[row] and whole[row + 1])
            if pair:
                pairs.append(row)
            row += 2 if pair else 1
        broken = np.ones(n_rows, dtype=bool)
        for row in pairs:
            broken[row : row + 2] = False
        rings = [np.append(self.grid[r], self.grid[r + 1, ::-1]) for r in pairs]
        shape = (len(pairs), 2 * n)
        return np.array(rings, dtype=np.int64).reshape(shape), np.flatnonzero(broken)

    @property
    def closed(self) -> bool:
        """Whether what `rings` returns closes: a single unwrapped row is a line."""
        return self.wraps_along or len(self.grid) > 1

    def segments(self, broken: Ints) -> list[tuple[Ints, bool]]:
        """What is left of the broken rows: chip ids in order, and whether they close.

        Two neighbouring rows with the same gaps are segments two rows high, which close
        on themselves; a row alone leaves open lines.
        """
        found: list[tuple[Ints, bool]] = []
        rows = broken.tolist()
        while rows:
            row = rows.pop(0)
            alive = self.grid[row] >= 0
            high = bool(rows) and rows[0] == row + 1
            high = high and bool(((self.grid[row + 1] >= 0) == alive).all())
            if high:
                rows.pop(0)
            for run in self._runs(alive):
                if high:
                    pair = np.append(self.grid[row][run], self.grid[row + 1][run[::-1]])
                    found.append((pair, True))
                else:
                    found.append((self.grid[row][run], False))
        return found

    def _runs(self, alive: NDArray[np.bool_]) -> list[Ints]:
        """The stretches of neighbouring survivors in a row, over a wrap too."""
        places = np.flatnonzero(alive)
        if len(places) == 0:
            return []
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        joins = runs[0][0] == 0 and runs[-1][-1] == len(alive) - 1
        if self.wraps_along and len(runs) > 1 and joins:
            runs[0] = np.append(runs.pop(), runs[0])
        return runs


def two_d(
    topology: Topology, axes: str = "xy", both_ways: bool = True, peers: int = 1
) -> Schedule:
    """The 2-D all-reduce in one colour for each of `axes`, and a stream each way round.

    `axes` names the axis each colour sums along first. `peers` neighbouring chips along
    x hold different shards of the model and are skipped: each sums with the chips that
    hold its own shard (2011.03641). Raises `Unroutable` where the failed chips leave no
    whole ring along an axis, or cut the grid in two.
    """
    group = survivors(topology)
    if peers > 1:
        if topology.failed or topology.columns % peers:
            raise Unroutable(
                f"{peers} model-parallel peers along x need a whole grid whose "
                f"{topology.columns} columns they divide; "
                f"{len(topology.failed)} chips have failed"
            )
        group = np.arange(len(group)) % topology.columns % peers
    ids = np.arange(len(group)).reshape(topology.rows, topology.columns)
    ids = np.where(group.reshape(ids.shape) >= 0, ids, -1)
    check_connected(topology)
    streams = []
    for axis in axes:
        for reverse in (False, True) if both_ways else (False,):
            classes = [
                _stream(topology, _axis(topology, ids[:, m::peers], axis), reverse)
                for m in range(peers)
            ]
            streams.append(_joined(classes))
    name = "2-D " + "+".join(f"{axis}-first" for axis in axes)
    if peers > 1:
        name += f", skipping {peers} peers"
    return Schedule(name, topology, tuple(streams), group)


def multipod(topology: Topology, peers: int = 1) -> Schedule:
    """2011.03641: rings along y within the pods, then lines along x on 1/rows of it."""
    return replace(two_d(topology, "y", peers=peers), name="multipod, y-first")


def _axis(topology: Topology, ids: Ints, name: str) -> Axis:
    if name == "x":
        return Axis("x", ids, topology.wrap_x, topology.wrap_y)
    return Axis("y", ids.T, topology.wrap_y, topology.wrap_x)


def _joined(classes: list[Stream]) -> Stream:
    """Streams of the same shape on disjoint chips, as one."""
    phases = tuple(
        replace(same[0], messages=Messages.joined([phase.messages for phase in same]))
        for same in zip(*(stream.phases for stream in classes), strict=True)
    )
    owner = np.concatenate([stream.owner for stream in classes])
    return Stream(classes[0].span, phases, owner)


def _stream(topology: Topology, axis: Axis, reverse: bool) -> Stream:
    """One colour in one direction: broken rows, rings along, lines across, and back."""
    rings, broken = axis.rings()
    if len(rings) == 0:
        raise Unroutable(
            f"failed chips leave no whole ring along {axis.name} of the "
            f"{topology.name} grid; use the 1-D circuit"
        )
    segments = axis.segments(broken)
    if reverse:
        rings = rings[:, ::-1]
        segments = [(members[::-1], closed) for members, closed in segments]
    n_rings, n = rings.shape
    parts = n * n_rings
    across = rings.T  # the same place in every ring
    if reverse and axis.wraps_across:
        across = across[:, ::-1]
    along_kind = ring if axis.closed else line
    across_kind = ring if axis.wraps_across and n_rings > 2 else line
    other = "y" if axis.name == "x" else "x"
    forward = _forwards(topology, segments, rings) if segments else None
    phases: list[Phase] = []
    for gather, verb in ((False, "reduce-scatter"), (True, "all-gather")):
        half = []
        sums = [
            (ring if closed and len(members) > 2 else line)(members[None], gather)
            for members, closed in segments
            if len(members) > 1
        ]
        if sums:
            half.append(
                Phase(f"{verb} segments", not gather, Messages.joined(sums), parts)
            )
        if forward is not None:
            source, target, block, of, at = forward
            ends = (target, source) if gather else (source, target)
            hand = "return to" if gather else "hand over"
            half.append(
                Phase(
                    f"{hand} broken rows",
                    not gather,
                    sends(*ends, block, of, at),
                    parts,
                )
            )
        if n > 1:
            along = along_kind(rings, gather)
            half.append(Phase(f"{verb} {axis.name}", not gather, along, parts))
        if n_rings > 1:
            base = np.arange(n) * n_rings
            cross = across_kind(across, gather, base, parts)
            half.append(Phase(f"{verb} {other}", not gather, cross, parts))
        phases += half[::-1] if gather else half
    return Stream(parts, tuple(phases), across.reshape(1, -1))


def _forwards(
    topology: Topology, segments: list[tuple[Ints, bool]], rings: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Pairs each chip of a segment with a chip of a whole ring near it.

    Returns source, target, block, number of blocks, and the step: a target that serves
    several sources takes them one after the other.
    """
    whole = {topology.chip_at(int(chip)) for chip in rings.ravel()}
    serves: dict[tuple[int, int], int] = {}
    rows = []
    for members, _ in segments:
        for block, chip_id in enumerate(members.tolist()):
            chip = topology.chip_at(chip_id)
            target = _nearest(topology, chip, whole, serves)
            turn = serves[target] = serves.get(target, -1) + 1
            rows.append((chip_id, topology.chip_id(target), block, len(members), turn))
    source, target_ids, blocks, of, at = np.array(rows, dtype=np.int64).T
    return source, target_ids, blocks, of, at


def _nearest(
    topology: Topology,
    chip: tuple[int, int],
    whole: set[tuple[int, int]],
    serves: dict[tuple[int, int], int],
) -> tuple[int, int]:
    """The nearest chip of a whole ring; one that serves counts as two hops further."""
    best: tuple[int, tuple[int, int]] | None = None
    seen = {chip}
    edge = [chip]
    hops = 0
    while edge and (best is None or hops < best[0]):
        hops += 1
        edge = [b for a in edge for b in topology.neighbours(a)]
        edge = [b for b in dict.fromkeys(edge) if b not in seen]
        seen.update(edge)
        for candidate in edge:
            if candidate in whole:
                cost = hops + 2 * (serves.get(candidate, -1) + 1)
                if best is None or cost < best[0]:
                    best = cost, candidate
    assert best is not None  # the grid is connected and has a whole ring
    return best[1]
