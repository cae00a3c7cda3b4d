"""How long a schedule takes, message by message over the links of the topology.

A node sends in a step once everything it was sent in the steps before has arrived; no
step waits for other nodes, and streams run at once. A link carries one message at a
time in each direction, the others wait: two messages that share a link take together as
long as they would sharing it evenly. A message passes through the chips on its way
without being stored. Where streams meet on a link, the step that began first goes
first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mlperf_tpu.collectives.routes import paths
from mlperf_tpu.collectives.schedules import (
    Ints,
    Messages,
    Phase,
    Schedule,
    Step,
    Stream,
)
from mlperf_tpu.topology.links import V3, Links
from mlperf_tpu.topology.routing import Router

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """Milliseconds to the last arrival of all, and of each phase: (stream, name, ms).

    `busiest_link_ms` is how long the busiest link carries data: no schedule that sends
    the same bytes over it is faster.
    """

    total_ms: float
    phases: tuple[tuple[int, str, float], ...]
    busiest_link_ms: float

    def phase_ms(self, name: str) -> float:
        """The longest a phase of this name lasts in any stream; 0 if there is none."""
        ends: dict[int, float] = {}
        longest = 0.0
        for stream, phase, end in self.phases:
            if phase == name:
                longest = max(longest, end - ends.get(stream, 0.0))
            ends[stream] = end
        return longest


class _Network:
    """The links a schedule uses: how fast they are, and until when they are taken."""

    def __init__(self, schedule: Schedule, links: Links) -> None:
        self.schedule = schedule
        self.links = links
        router = Router(schedule.topology)
        phases = [phase for stream in schedule.streams for phase in stream.phases]
        found = [paths(schedule, phase.messages, router) for phase in phases]
        keys = [self._keys(way.nodes) for way in found]
        self.keys, index = np.unique(
            np.concatenate([key.ravel() for key in keys]), return_inverse=True
        )
        cuts = np.cumsum([key.size for key in keys])[:-1]
        self.routes = {
            id(phase): (part.reshape(key.shape), way.hops)
            for phase, part, key, way in zip(
                phases, np.split(index, cuts), keys, found, strict=True
            )
        }
        self.byte_s, self.extra_s = self._speeds()
        self.free_s = np.zeros(len(self.keys))
        self.busy_s = np.zeros(len(self.keys))

    def _keys(self, nodes: Ints) -> Ints:
        """A number for the link of each hop: between chips, or within one."""
        cores, n = self.schedule.cores, len(self.schedule.group)
        a, b = nodes[:, :-1], nodes[:, 1:]
        within = a // cores == b // cores
        chips = a // cores * cores * n + b // cores * cores
        return np.where(b < 0, -1, np.where(within, a * n + b, chips))

    def _speeds(self) -> tuple[Floats, Floats]:
        """Seconds a byte takes on each link, and seconds it adds to a message."""
        cores, n = self.schedule.cores, len(self.schedule.group)
        grid, links = self.schedule.topology, self.links
        a, b = self.keys // n // cores, self.keys % n // cores
        gb_s = np.where(a == b, links.core_gb_s, links.gb_s)
        extra_us = np.where(a == b, links.core_us - links.message_us, 0.0)
        if grid.pod_columns is not None:
            pod = grid.pod_columns
            crosses = a % grid.columns // pod != b % grid.columns // pod
            gb_s[crosses] = links.cross_pod_gb_s
            extra_us[crosses] = links.cross_pod_us
        return 1e-9 / gb_s, extra_us * 1e-6

    def send(self, phase: Phase, step: Step, ready: Floats, chunk_bytes: float) -> None:
        """Sends the messages of a step; `ready` [lane, node] moves to the arrivals."""
        route, n_hops = self.routes[id(phase)]
        route, n_hops = route[step.index], n_hops[step.index]
        n_bytes = step.count * chunk_bytes
        head = ready[step.lane, step.source]
        tail = head.copy()
        hop_s = self.links.hop_us * 1e-6
        for hop in range(int(n_hops.max(initial=0))):
            goes = np.flatnonzero(n_hops > hop)
            link = route[goes, hop]
            takes = n_bytes[goes] * self.byte_s[link]
            start = self._take(link, head[goes], takes)
            head[goes] = start + self.extra_s[link] + hop_s
            passed = tail[goes] + (hop_s if hop else 0.0)
            tail[goes] = np.maximum(passed, start + takes) + self.extra_s[link]
        arrival = tail + self.links.message_us * 1e-6
        np.maximum.at(ready, (step.lane, step.target), arrival)

    def _take(self, link: Ints, head: Floats, takes: Floats) -> Floats:
        """When each message gets its link, in the order in which they come to it."""
        come = np.maximum(head, self.free_s[link])
        np.add.at(self.busy_s, link, takes)
        order = np.lexsort((head, link))
        new = np.append(True, np.diff(link[order]) != 0)
        if not new.all():
            come, size, number = come[order], takes[order], np.cumsum(new) - 1
            before = np.cumsum(size) - size
            before -= before[new][number]  # on the same link
            # start_k = max over j <= k of come_j + all that j to k - 1 take: a running
            # maximum, kept apart for each link by steps wider than all times within.
            slack = come - before
            apart = number * (np.ptp(slack) + 1e-6)
            start = np.maximum.accumulate(slack + apart) - apart + before
            come = np.empty_like(start)
            come[order] = start
        np.maximum.at(self.free_s, link, come + takes)
        return come


def simulate(schedule: Schedule, payload_bytes: float, links: Links = V3) -> Forecast:
    """Times one all-reduce of so many bytes a node.

    >>> from mlperf_tpu.collectives.schedules_2d import two_d
    >>> from mlperf_tpu.topology import Topology
    >>> round(simulate(two_d(Topology.for_chips(1024)), 102e6).total_ms, 3)
    0.659
    """
    if schedule.n_steps == 0:
        return Forecast(0.0, (), 0.0)
    network = _Network(schedule, links)
    runs = [_Run(stream, len(schedule.group)) for stream in schedule.streams]
    queue: list[_Event] = []
    for number, run in enumerate(runs):
        for event in run.unblocked(number):
            heapq.heappush(queue, event)
    while queue:
        event = heapq.heappop(queue)
        while queue and queue[0][:4] == event[:4]:
            event = (*event[:4], event[4] + heapq.heappop(queue)[4])
        _, number, place, *_ = event
        run = runs[number]
        stream = run.stream
        step = run.messages(event)
        chunk_bytes = payload_bytes / len(runs) / stream.span
        network.send(stream.phases[place], step, run.ready_s, chunk_bytes)
        for later in run.after(event):
            heapq.heappush(queue, later)
    ends = tuple(
        (number, phase.name, float(end) * 1e3)
        for number, run in enumerate(runs)
        for phase, end in zip(run.stream.phases, run.end_s, strict=True)
    )
    last = max(end for _, _, end in ends)
    return Forecast(last, ends, float(network.busy_s.max()) * 1e3)


def fastest(
    schedules: Iterable[Schedule], payload_bytes: float, links: Links = V3
) -> tuple[Schedule, Forecast]:
    """The schedule with the least forecast time for this payload, and that forecast."""
    forecasts = [(s, simulate(s, payload_bytes, links)) for s in schedules]
    return min(forecasts, key=lambda found: found[1].total_ms)


# When it begins in picoseconds (rounded, so that equal times compare equal), stream,
# phase, step, and the groups of the phase that take this step then.
_Event = tuple[int, int, int, int, tuple[int, ...]]


class _Run:
    """A stream on its way: its phases fall into groups of nodes that go ahead alone."""

    def __init__(self, stream: Stream, n_nodes: int) -> None:
        self.stream = stream
        # Groups come to the same step at different times.
        self.step_of = lru_cache(64)(lambda place, t: stream.phases[place].step(t))
        # ready_s[lane, node]: when a node has all that this lane has sent it so far.
        # What a lane sends on in a phase came by that lane; between phases they meet.
        lanes = [int(phase.messages.lane.max()) + 1 for phase in stream.phases]
        self.ready_s = np.zeros((max(lanes), n_nodes))
        self.end_s = np.zeros(len(stream.phases))
        self.group = [_connected(phase.messages, n_nodes) for phase in stream.phases]
        self.last = [self._last_steps(place) for place in range(len(stream.phases))]
        # For each group, the groups of later phases that wait for it; how many each
        # waits for.
        self.waits: dict[tuple[int, int], int] = {}
        self.frees: dict[tuple[int, int], set[tuple[int, int]]] = {}
        latest: dict[int, tuple[int, int]] = {}
        for place, phase in enumerate(stream.phases):
            nodes = np.append(phase.messages.source, phase.messages.target)
            pairs = np.unique(
                np.stack([np.tile(self.group[place], 2), nodes], axis=1), axis=0
            ).tolist()
            for group, node in pairs:
                key = place, group
                self.waits.setdefault(key, 0)
                before = latest.get(node)
                if before is not None and key not in self.frees[before]:
                    self.frees[before].add(key)
                    self.waits[key] += 1
            for group, node in pairs:
                latest[node] = place, group
                self.frees.setdefault((place, group), set())

    def unblocked(self, number: int) -> list[_Event]:
        """The first steps of the groups that wait for nothing."""
        free = [key for key, waits in self.waits.items() if waits == 0]
        return self._begin(number, free)

    def messages(self, event: _Event) -> Step:
        """The step's messages in the event's groups."""
        _, _, place, t, groups = event
        step: Step = self.step_of(place, t)
        if len(groups) == len(self.last[place]):
            return step
        return step.only(self._within(place, groups)[step.index])

    def _within(self, place: int, groups: Sequence[int]) -> NDArray[np.bool_]:
        """Which messages of the phase are in one of the groups."""
        chosen = np.zeros(len(self.last[place]), dtype=bool)
        chosen[list(groups)] = True
        return chosen[self.group[place]]

    def after(self, event: _Event) -> list[_Event]:
        """What can begin once the event's messages have arrived."""
        _, number, place, t, groups = event
        done = [group for group in groups if self.last[place][group] == t]
        going = [group for group in groups if self.last[place][group] > t]
        free = []
        for group in done:
            for key in self.frees[place, group]:
                self.waits[key] -= 1
                if self.waits[key] == 0:
                    free.append(key)
        if done:
            targets = self.stream.phases[place].messages.target
            nodes = targets[self._within(place, done)]
            arrived = self.ready_s[:, nodes].max(axis=0)
            self.ready_s[:, nodes] = arrived
            self.end_s[place] = max(self.end_s[place], arrived.max())
        return self._step(number, place, t + 1, going) + self._begin(number, free)

    def _begin(self, number: int, keys: list[tuple[int, int]]) -> list[_Event]:
        events = []
        for place in sorted({place for place, _ in keys}):
            groups = [group for at, group in keys if at == place]
            events += self._step(number, place, 0, groups)
        return events

    def _step(self, number: int, place: int, t: int, groups: list[int]) -> list[_Event]:
        """Events for one step of some groups, those that begin together as one."""
        if not groups:
            return []
        step = self.messages((0, number, place, t, tuple(groups)))
        begins = np.full(len(self.last[place]), np.inf)
        head = self.ready_s[step.lane, step.source]
        np.minimum.at(begins, self.group[place][step.index], head)
        picoseconds = np.rint(begins[groups] * 1e12).astype(np.int64)
        members = np.array(groups)
        return [
            (int(at), number, place, t, tuple(members[picoseconds == at].tolist()))
            for at in np.unique(picoseconds)
        ]

    def _last_steps(self, place: int) -> list[int]:
        group, end = self.group[place], self.stream.phases[place].messages.end
        last = np.zeros(int(group.max()) + 1, dtype=np.int64)
        np.maximum.at(last, group, end - 1)
        return [int(step) for step in last]


def _connected(messages: Messages, n_nodes: int) -> Ints:
    """For each message, the number of the set of nodes it belongs to."""
    root = list(range(n_nodes))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for a, b in zip(messages.source.tolist(), messages.target.tolist(), strict=True):
        root[find(a)] = find(b)
    roots = [find(node) for node in messages.source.tolist()]
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)
