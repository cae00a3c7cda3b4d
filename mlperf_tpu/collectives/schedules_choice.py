"""The schedule of a gradient sum by name, on whatever grid is left."""

from __future__ import annotations

from dataclasses import replace

from mlperf_tpu.collectives.schedules import Schedule, Unroutable, on_cores
from mlperf_tpu.collectives.schedules_2d import multipod, two_d
from mlperf_tpu.collectives.schedules_circuit import circuit
from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.topology import Topology

# What a spec's `gradient_sum` may name, other than the compiler's own.
ALGORITHMS = {
    "ring": "one ring through all chips",
    "torus2d": "along one axis, then across, on two colours (multipod: y, then x)",
}


def gradient_sum(
    topology: Topology, algorithm: str = "torus2d", peers: int = 1, cores: bool = False
) -> Schedule:
    """An all-reduce over all survivors, between chips or (`cores`) between cores.

    Where failed chips leave one colour without a whole ring, the other carries all the
    payload; where neither has one, the 1-D circuit does. The schedule's notes say so.
    Raises `Unroutable` where the survivors are cut apart, or `peers` meet failed chips.
    """
    if algorithm not in ALGORITHMS:
        raise BadInput(
            f"no gradient sum {algorithm!r}; {nearest(algorithm, ALGORITHMS)}"
        )
    if algorithm == "ring" and peers > 1:
        raise Unroutable(
            f"a ring through all chips cannot skip {peers} model-parallel peers; "
            "use torus2d"
        )
    schedule = (
        circuit(topology)
        if algorithm == "ring"
        else _in_two_dimensions(topology, peers)
    )
    return on_cores(schedule) if cores else schedule


def every_gradient_sum(topology: Topology, cores: bool = False) -> list[Schedule]:
    """The schedules of all algorithms, in the order of `ALGORITHMS`."""
    return [gradient_sum(topology, name, cores=cores) for name in ALGORITHMS]


def _in_two_dimensions(topology: Topology, peers: int) -> Schedule:
    notes = []
    for axes in ("y",) if topology.pod_columns else ("xy", "x", "y"):
        try:
            if topology.pod_columns:
                schedule = multipod(topology, peers)
            else:
                schedule = two_d(topology, axes, peers=peers)
        except Unroutable as error:
            if peers > 1 or not topology.connected:
                raise
            notes.append(str(error))
        else:
            return replace(schedule, notes=tuple(notes[:1]))
    schedule = circuit(topology)
    return replace(schedule, notes=(*notes[-1:], *schedule.notes))
