"""What failed chips cost a run: replicas, batch, and the time of the gradient sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlperf_tpu.collectives.schedules_choice import every_gradient_sum
from mlperf_tpu.collectives.simulate import fastest
from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import Topology
from mlperf_tpu.topology.links import V3, Links


@dataclass(frozen=True)
class Machine:
    """A slice as a run sees it: a step takes its computation and its gradient sum."""

    chips: int
    replicas: int
    batch_per_replica: int
    global_batch: int
    gradient_sum_ms: float
    step_ms: float

    @property
    def examples_per_s_chip(self) -> float:
        return self.global_batch / self.step_ms * 1e3 / self.chips


@dataclass(frozen=True)
class Failure:
    """The same run on the whole slice and on what the failed chips leave of it."""

    whole: Machine
    left: Machine
    schedule: str
    notes: tuple[str, ...]

    @property
    def step_growth(self) -> float:
        """By how much a step is slower: 0.05 is 5 %."""
        return self.left.step_ms / self.whole.step_ms - 1

    @property
    def throughput_per_chip(self) -> float:
        """Examples a second and surviving chip, relative to the whole slice."""
        return self.left.examples_per_s_chip / self.whole.examples_per_s_chip


def forecast_failure(
    topology: Topology,
    global_batch: int,
    compute_ms: float,
    payload_bytes: float,
    partitions: int = 1,
    keep_batch: bool = False,
    links: Links = V3,
) -> Failure:
    """Forecasts a run on a slice with failed chips beside the same run without.

    Each takes the fastest gradient sum there is. `compute_ms` is all of the whole
    slice's step but the gradient sum. The batch of a replica stays and the global batch
    shrinks with the replicas lost; with `keep_batch` the global batch is divided anew
    over the replicas left, rounded up, and computation grows in proportion to a
    replica's batch.
    """
    if not topology.failed:
        raise BadInput("no chip has failed; name a hole, as 12,4:4x2")
    undamaged = replace(topology, failed=frozenset())
    replicas = undamaged.replicas(partitions).n_replicas
    if global_batch % replicas:
        raise BadInput(
            f"a batch of {global_batch} does not divide over {replicas} replicas; "
            f"choose a multiple of {replicas}"
        )
    each = global_batch // replicas
    left = topology.replicas(partitions).n_replicas
    if left == 0:
        raise BadInput(f"every replica of {partitions} partitions lost a chip")
    each_left = -(-global_batch // left) if keep_batch else each
    _, whole_sum = fastest(every_gradient_sum(undamaged, True), payload_bytes, links)
    schedule, left_sum = fastest(
        every_gradient_sum(topology, True), payload_bytes, links
    )
    return Failure(
        Machine(
            undamaged.n_chips,
            replicas,
            each,
            global_batch,
            whole_sum.total_ms,
            compute_ms + whole_sum.total_ms,
        ),
        Machine(
            topology.n_chips,
            left,
            each_left,
            global_batch if keep_batch else each * left,
            left_sum.total_ms,
            compute_ms * each_left / each + left_sum.total_ms,
        ),
        schedule.name,
        schedule.notes,
    )
