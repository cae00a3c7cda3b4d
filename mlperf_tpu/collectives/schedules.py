"""Collective schedules: who sends which chunk to whom at which step.

The payload is cut into equal parts, one a stream; a stream cuts its part into `span`
chunks and moves them through its phases one after the other, independently of the other
streams. A phase is one collective over groups of nodes (rings, lines, or single sends),
all groups at once, in lockstep steps. Messages are held as the parameters of arithmetic
progressions, not as a list: a ring of 4096 chips would have 33 million of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import Topology

Ints = NDArray[np.int64]


class Unroutable(BadInput):
    """No schedule of this kind exists on the grid that is left."""


@dataclass(frozen=True)
class Permute:
    """One collective-permute: each source sends one block of `count` chunks.

    `first` holds, for each pair, the number of the block's first chunk in its stream.
    """

    pairs: list[tuple[int, int]]
    first: Ints
    count: int


@dataclass(frozen=True)
class Step:
    """The messages of one step, as arrays of equal length.

    `index` is the message's place in the phase, `first` the stream's own number of its
    first chunk. In one lane a node sends at most one
    message a step and receives at most one; lanes have receive buffers of their own.
    """

    index: Ints
    source: Ints
    target: Ints
    lane: Ints
    first: Ints
    count: Ints

    def only(self, chosen: NDArray[np.bool_]) -> Step:
        """The chosen messages alone."""
        return Step(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def permutes(self) -> Iterator[Permute]:
        """The step as collective-permutes: one for each lane and block size."""
        keys = np.stack([self.lane, self.count], axis=1)
        for lane, count in np.unique(keys, axis=0):
            chosen = (self.lane == lane) & (self.count == count) & (count > 0)
            if chosen.any():
                ends = zip(
                    self.source[chosen].tolist(),
                    self.target[chosen].tolist(),
                    strict=True,
                )
                yield Permute(list(ends), self.first[chosen], int(count))


@dataclass(frozen=True)
class Messages:
    """Message m is sent at steps begin[m] <= t < end[m], with block number

        base + (offset + slope * t) mod modulo

    of `parts` blocks, block i being the stream's chunks span * i // parts to
    span * (i + 1) // parts.
    """

    source: Ints
    target: Ints
    lane: Ints
    begin: Ints
    end: Ints
    base: Ints
    offset: Ints
    slope: Ints
    modulo: Ints
    parts: Ints

    @classmethod
    def of(cls, n: int, **values: Ints | int) -> Messages:
        return cls(
            **{
                field.name: np.broadcast_to(
                    np.asarray(values.get(field.name, 0), dtype=np.int64), (n,)
                )
                for field in fields(cls)
            }
        )

    @classmethod
    def joined(cls, several: Sequence[Messages]) -> Messages:
        return cls(
            **{
                field.name: np.concatenate([getattr(m, field.name) for m in several])
                for field in fields(cls)
            }
        )


@dataclass(frozen=True)
class Phase:
    """Messages of one collective over a stream's `span` chunks.

    `reduces`: the receiver adds what it gets to what it has, else it stores it.
    """

    name: str
    reduces: bool
    messages: Messages
    span: int

    @property
    def n_steps(self) -> int:
        return int(self.messages.end.max())

    def step(self, t: int) -> Step:
        """The messages of step t."""
        m = self.messages
        index = np.flatnonzero((m.begin <= t) & (t < m.end))
        parts = m.parts[index]
        turn = (m.offset[index] + m.slope[index] * t) % m.modulo[index]
        block = m.base[index] + turn
        first = self.span * block // parts
        count = self.span * (block + 1) // parts - first
        return Step(
            index, m.source[index], m.target[index], m.lane[index], first, count
        )


@dataclass(frozen=True)
class Stream:
    """An equal share of the payload in `span` chunks, and its phases in order.

    owner[group, chunk] is the node that holds the chunk's sum after the reducing
    phases: where a weight-update shard lives.
    """

    span: int
    phases: tuple[Phase, ...]
    owner: Ints

    @property
    def n_steps(self) -> int:
        return sum(phase.n_steps for phase in self.phases)


@dataclass(frozen=True)
class Schedule:
    """An all-reduce: the streams run at once. Nodes are chips, or cores (device ids).

    group[node] numbers the sets of nodes that sum with each other (-1: a failed chip);
    there is one unless model-parallel peers are skipped. `notes`: what was given up.
    """

    name: str
    topology: Topology
    streams: tuple[Stream, ...]
    group: Ints
    cores: int = 1
    notes: tuple[str, ...] = ()

    @property
    def n_steps(self) -> int:
        """Steps from first to last message, the streams side by side."""
        return max(stream.n_steps for stream in self.streams)

    @property
    def replica(self) -> Ints:
        """replica[node]: the node's number among the survivors; -1 if it failed.

        The numbers `Topology.replicas()` gives replicas of one core, where nodes are
        cores (or chips have one).
        """
        alive = self.group >= 0
        return np.where(alive, np.cumsum(alive) - 1, -1)

    def reduce_scatter(self) -> Schedule:
        """The reducing phases alone: each chunk's sum ends on its owner."""
        return self._phases("reduce-scatter", True)

    def all_gather(self) -> Schedule:
        """The storing phases alone: each chunk goes from its owner to everyone."""
        return self._phases("all-gather", False)

    def _phases(self, kind: str, reduces: bool) -> Schedule:
        streams = tuple(
            replace(s, phases=tuple(p for p in s.phases if p.reduces == reduces))
            for s in self.streams
        )
        return replace(self, name=f"{self.name} {kind}", streams=streams)

    def padded(self, n: int) -> int:
        """The least number of elements, n or more, that all chunks share evenly.

        >>> ring_schedule("r", Topology(3, 1), [[0, 1, 2]]).padded(8)
        12
        """
        unit = len(self.streams) * math.lcm(*(stream.span for stream in self.streams))
        return -(-n // unit) * unit

    def elements(self, n: int) -> list[Ints]:
        """For each stream, the bounds of its chunks in a payload of n elements.

        >>> [b.tolist() for b in ring_schedule("r", Topology(3, 1), [[0, 1, 2]])
        ...  .elements(8)]
        [[0, 1, 2, 4], [4, 5, 6, 8]]
        """
        bounds = []
        for i, stream in enumerate(self.streams):
            low, high = (n * k // len(self.streams) for k in (i, i + 1))
            steps = np.arange(stream.span + 1, dtype=np.int64)
            bounds.append(low + (high - low) * steps // stream.span)
        return bounds


def ring(
    order: Ints, gather: bool, base: Ints | int = 0, parts: int | None = None
) -> Messages:
    """One ring a row of `order` [rings, n]; position p ends up with block base + p.

    n - 1 steps. Reduce-scatter: at step t position p sends block p - 1 - t to p + 1;
    all-gather: block p - t.
    """
    rings, n = order.shape
    offset = np.arange(n) - (0 if gather else 1)
    return Messages.of(
        rings * n,
        source=order.ravel(),
        target=np.roll(order, -1, axis=1).ravel(),
        end=n - 1,
        base=_spread(base, rings, n),
        offset=np.tile(offset, rings),
        slope=-1,
        modulo=n,
        parts=parts or n,
    )


def line(
    order: Ints, gather: bool, base: Ints | int = 0, parts: int | None = None
) -> Messages:
    """The same on open lines, both ways at once (a lane each way), in n - 1 steps.

    Reduce-scatter: the block for the far end starts first, and the pieces for position
    j from its two sides both arrive at step n - 2. All-gather runs that backwards.
    """
    lanes = []
    for lane, way in enumerate((order, order[:, ::-1])):
        rings, n = order.shape
        i = np.tile(np.arange(n - 1), rings)  # place on the way, from its start
        # Along the way, place i sends block n - 1 + i - t (or i - t when gathering);
        # on the way back block j has its number n - 1 - j.
        ahead = i if gather else i + n - 1
        lanes.append(
            Messages.of(
                rings * (n - 1),
                source=way[:, :-1].ravel(),
                target=way[:, 1:].ravel(),
                lane=lane,
                begin=0 if gather else i,
                end=i + 1 if gather else n - 1,
                base=_spread(base, rings, n - 1),
                offset=ahead if lane == 0 else n - 1 - ahead,
                slope=-1 if lane == 0 else 1,
                modulo=2 * n,  # never reached: an open line does not turn around
                parts=parts or n,
            )
        )
    return Messages.joined(lanes)


def sends(source: Ints, target: Ints, block: Ints, parts: Ints, at: Ints) -> Messages:
    """Single messages: message m goes out at step at[m] with block[m] of parts[m]."""
    return Messages.of(
        len(source),
        source=source,
        target=target,
        begin=at,
        end=at + 1,
        base=block,
        modulo=1,
        parts=parts,
    )


def check_connected(topology: Topology) -> None:
    """Raises `Unroutable` where failed chips part the others."""
    if not topology.connected:
        raise Unroutable(
            f"the {len(topology.failed)} failed chips cut the grid of {topology.name} "
            "in two; leave one side out"
        )


def survivors(topology: Topology) -> Ints:
    """group[chip id]: 0 for a chip that works, -1 for one that failed."""
    group = np.zeros(topology.columns * topology.rows, dtype=np.int64)
    for chip in topology.failed:
        group[topology.chip_id(chip)] = -1
    return group


def ring_schedule(
    name: str,
    topology: Topology,
    order: Sequence[Sequence[int]],
    both_ways: bool = True,
) -> Schedule:
    """All-reduce over rings of chip ids of equal length, a stream each way."""
    rings = np.asarray(order, dtype=np.int64)
    group = np.full(topology.columns * topology.rows, -1, dtype=np.int64)
    for number, members in enumerate(rings):
        group[members] = number
    streams = []
    n = rings.shape[1]
    for way in (rings, rings[:, ::-1]) if both_ways else (rings,):
        phases = (
            Phase("reduce-scatter ring", True, ring(way, gather=False), n),
            Phase("all-gather ring", False, ring(way, gather=True), n),
        )
        streams.append(Stream(n, phases, way))
    return Schedule(name, topology, tuple(streams), group)


def on_cores(schedule: Schedule) -> Schedule:
    """The same schedule between cores: those of a chip sum first, and share at last.

    Each stream is carried by one core of every chip, so that no core idles; the others
    send it their part of that stream at the start and receive the sum at the end. Nodes
    become device ids, chip id * cores + core.
    """
    cores = schedule.topology.cores_per_chip
    if cores == 1:
        return schedule
    chips = np.flatnonzero(schedule.group >= 0)
    streams = []
    for i, stream in enumerate(schedule.streams):
        carrier = i * cores // len(schedule.streams)
        others = [core for core in range(cores) if core != carrier]
        at = np.repeat(np.arange(len(others)), len(chips))
        mine = np.tile(chips * cores + carrier, len(others))
        theirs = np.concatenate([chips * cores + core for core in others])
        zero = np.zeros_like(at)
        phases = [
            replace(
                phase,
                messages=replace(
                    phase.messages,
                    source=phase.messages.source * cores + carrier,
                    target=phase.messages.target * cores + carrier,
                ),
            )
            for phase in stream.phases
        ]
        gathered = sends(theirs, mine, zero, zero + 1, at)
        returned = sends(mine, theirs, zero, zero + 1, at)
        streams.append(
            Stream(
                stream.span,
                (
                    Phase("reduce cores", True, gathered, stream.span),
                    *phases,
                    Phase("gather cores", False, returned, stream.span),
                ),
                stream.owner * cores + carrier,
            )
        )
    return replace(
        schedule,
        name=f"{schedule.name}, cores first",
        streams=tuple(streams),
        group=np.repeat(schedule.group, cores),
        cores=cores,
    )


def _spread(base: Ints | int, rings: int, n: int) -> Ints:
    """One base a ring, repeated for each of its n messages."""
    return np.repeat(np.broadcast_to(np.asarray(base, dtype=np.int64), (rings,)), n)
