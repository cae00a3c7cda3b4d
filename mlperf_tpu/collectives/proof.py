"""Runs a schedule on NumPy arrays and checks that it is right.

`prove` gives every chunk of every node a random 64-bit number and adds modulo 2^64, so
sums are exact in any order and a part that is missing or added twice shows (two wrong
sums agree by chance once in 2^64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlperf_tpu.collectives.routes import paths
from mlperf_tpu.collectives.schedules import Ints, Phase, Schedule, Step, Stream
from mlperf_tpu.errors import RunFailed
from mlperf_tpu.topology.routing import Router


class ScheduleWrong(RunFailed):
    """A schedule breaks one of its promises."""


@dataclass(frozen=True)
class Proof:
    """What a schedule that held to its promises took.

    `chunks_sent` counts, for each stream, the chunks that the busiest node sent;
    `longest_path` is the number of hops of the longest message.
    """

    n_steps: int
    n_messages: int
    chunks_sent: tuple[int, ...]
    longest_path: int


def execute(schedule: Schedule, values: NDArray[Any]) -> NDArray[Any]:
    """Runs the schedule on values[node, element]; returns what each node ends with.

    >>> from mlperf_tpu.collectives.schedules_2d import two_d
    >>> from mlperf_tpu.topology import Topology
    >>> execute(two_d(Topology.parse("2x2")), np.ones((4, 16)))[0, :3].tolist()
    [4.0, 4.0, 4.0]
    """
    held = values.copy()
    bounds = schedule.elements(values.shape[1])
    for stream, bound in zip(schedule.streams, bounds, strict=True):
        for phase in stream.phases:
            for t in range(phase.n_steps):
                step = phase.step(t)
                low = bound[step.first]
                size = bound[step.first + step.count] - low
                m, element = _each(low, size)
                _deliver(held, phase, step, m, element)
    return held


def prove(schedule: Schedule, seed: int = 0) -> Proof:
    """Checks every promise; raises `ScheduleWrong` with the first one that is broken.

    - Every message goes over links that exist, between chips that work.
    - In a lane a node sends and receives at most one message a step, and no chunk is
      read in the step in which it is written.
    - In a reducing phase a node hands each chunk on once; in a storing phase it
      receives each chunk once.
    - After the reducing phases each chunk's owner holds the exact sum of its group, and
      at the end every survivor does.
    """
    router = Router(schedule.topology)
    n_messages, longest, sent = 0, 0, []
    for number, stream in enumerate(schedule.streams):
        for phase in stream.phases:
            longest = max(longest, _check_paths(schedule, phase, router))
        messages, most = _run(schedule, stream, np.random.default_rng([seed, number]))
        n_messages += messages
        sent.append(most)
    return Proof(schedule.n_steps, n_messages, tuple(sent), longest)


def _run(
    schedule: Schedule, stream: Stream, rng: np.random.Generator
) -> tuple[int, int]:
    """Runs one stream; returns its messages and the most chunks a node sent."""
    group = schedule.group
    values = rng.integers(0, 2**64, (len(group), stream.span), dtype=np.uint64)
    values[group < 0] = 0
    sums = np.zeros((int(group.max()) + 1, stream.span), dtype=np.uint64)
    np.add.at(sums, group[group >= 0], values[group >= 0])
    chunks_sent = np.zeros(len(group), dtype=np.int64)
    n_messages = 0
    summed = False
    for phase in stream.phases:
        if not phase.reduces and not summed:
            _check_owners(stream, values, sums)
            summed = True
        n_messages += _run_phase(phase, values, chunks_sent)
    if not summed:
        _check_owners(stream, values, sums)
    elif (values[group >= 0] != sums[group[group >= 0]]).any():
        wrong = np.flatnonzero((values != sums[group]).any(axis=1) & (group >= 0))
        raise ScheduleWrong(
            f"{schedule.name}: {len(wrong)} nodes end without the sum, first {wrong[0]}"
        )
    return n_messages, int(chunks_sent.max())


def _run_phase(phase: Phase, values: NDArray[np.uint64], chunks_sent: Ints) -> int:
    handled = np.zeros(values.shape, dtype=bool)
    written = np.full(values.shape, -1, dtype=np.int32)
    n_messages = 0
    for t in range(phase.n_steps):
        step = phase.step(t)
        n_messages += len(step.source)
        for ends in (step.source, step.target):
            if np.bincount(step.lane * len(values) + ends).max(initial=0) > 1:
                raise ScheduleWrong(
                    f"{phase.name}, step {t}: two messages of a lane share a node"
                )
        m, chunk = _each(step.first, step.count)
        source, target = step.source[m], step.target[m]
        once = source if phase.reduces else target
        if handled[once, chunk].any():
            raise ScheduleWrong(
                f"{phase.name}, step {t}: a chunk is sent a second time"
            )
        handled[once, chunk] = True
        written[target, chunk] = t
        if (written[source, chunk] == t).any():
            raise ScheduleWrong(
                f"{phase.name}, step {t}: a chunk is read while it is written"
            )
        chunks_sent += np.bincount(
            step.source, step.count, minlength=len(values)
        ).astype(np.int64)
        _deliver(values, phase, step, m, chunk)
    return n_messages


def _deliver(
    held: NDArray[Any], phase: Phase, step: Step, m: Ints, place: Ints
) -> None:
    """All messages leave before any arrives; then lane after lane is taken in."""
    payload = held[step.source[m], place]
    if not phase.reduces:
        held[step.target[m], place] = payload
        return
    lane = step.lane[m]
    for number in range(int(lane.max(initial=-1)) + 1):
        chosen = lane == number  # within a lane no two messages share a target
        held[step.target[m][chosen], place[chosen]] += payload[chosen]


def _each(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Spells ranges out: the number of the range, and each place in it.

    >>> [a.tolist() for a in _each(np.array([5, 9]), np.array([2, 1]))]
    [[0, 0, 1], [5, 6, 9]]
    """
    m = np.repeat(np.arange(len(first)), count)
    starts = np.cumsum(count) - count
    return m, first[m] + np.arange(len(m)) - starts[m]


def _check_owners(
    stream: Stream, values: NDArray[np.uint64], sums: NDArray[np.uint64]
) -> None:
    chunk = np.arange(stream.span)
    if (values[stream.owner, chunk] != sums).any():
        raise ScheduleWrong("after the reducing phases an owner lacks its chunk's sum")


def _check_paths(schedule: Schedule, phase: Phase, router: Router) -> int:
    """Every hop is one link between two chips that work; returns the longest path."""
    grid = schedule.topology
    found = paths(schedule, phase.messages, router)
    here, there = found.nodes[:, :-1], found.nodes[:, 1:]
    used = there >= 0
    ends = np.take_along_axis(found.nodes, found.hops[:, None], axis=1)[:, 0]
    if (ends != phase.messages.target).any():
        raise ScheduleWrong(f"{phase.name}: a path ends elsewhere")
    a, b = here[used], there[used]
    if (schedule.group[np.append(a, b)] < 0).any():
        raise ScheduleWrong(f"{phase.name}: a message meets a failed chip")
    a, b = a // schedule.cores, b // schedule.cores
    dx = np.abs(a % grid.columns - b % grid.columns)
    dy = np.abs(a // grid.columns - b // grid.columns)
    if grid.wrap_x:
        dx = np.minimum(dx, grid.columns - dx)
    if grid.wrap_y:
        dy = np.minimum(dy, grid.rows - dy)
    same_chip = (dx + dy == 0) & (schedule.cores > 1)
    if not (same_chip | (dx + dy == 1)).all():
        raise ScheduleWrong(f"{phase.name}: a message takes a link that does not exist")
    return int(found.hops.max())
