"""The links that the messages of a schedule take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlperf_tpu.collectives.schedules import Ints, Messages, Schedule
from mlperf_tpu.topology.routing import Router


@dataclass(frozen=True)
class Paths:
    """nodes[m, h]: where message m is after h of its hops[m] hops; -1 past its end."""

    nodes: Ints
    hops: Ints


def paths(schedule: Schedule, messages: Messages, router: Router) -> Paths:
    """The path of every message; between the cores of a chip it is one hop.

    Nodes are the schedule's own at the two ends, and the chips' first cores between.
    """
    grid, cores = schedule.topology, schedule.cores
    found: dict[tuple[int, int], list[int]] = {}
    ends = list(zip(messages.source.tolist(), messages.target.tolist(), strict=True))
    for source, target in ends:
        if (source, target) not in found:
            chips = router.path(
                grid.chip_at(source // cores), grid.chip_at(target // cores)
            )
            middle = [grid.chip_id(chip) * cores for chip in chips[1:-1]]
            found[source, target] = [source, *middle, target]
    hops = np.array([len(found[end]) - 1 for end in ends], dtype=np.int64)
    nodes = np.full((len(ends), int(hops.max()) + 1), -1, dtype=np.int64)
    for m, end in enumerate(ends):
        nodes[m, : hops[m] + 1] = found[end]
    return Paths(nodes, hops)
