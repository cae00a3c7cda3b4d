"""Gradient sums in the step: any algorithm, on every place, around failed chips."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import Topology

WORKER = Path(__file__).with_name("sums_worker.py")


@pytest.mark.parametrize("place", ["virtual", "xla"])
def test_every_sum_is_the_plain_sum_on_every_grid(run_python, place):
    if place == "xla":
        pytest.importorskip("jax")
    done = run_python(WORKER, place, timeout=900)
    assert done.stdout.splitlines()[-1] == "broken rows"


def lowered(topology, partitions=1, algorithm="torus2d", sharded=True):
    """StableHLO of a toy weight update on a slice."""
    import tensorflow as tf

    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.mesh.xla import lower
    from mlperf_tpu.optim.optimizers import Momentum, Parameter
    from mlperf_tpu.optim.update import WeightUpdate

    kernel = Parameter("kernel", (3, 5), "kernel")
    update = WeightUpdate(Momentum(0.9, 0.0), (kernel,), sharded, algorithm=algorithm)
    n = topology.replicas(partitions).n_replicas
    weight = tf.TensorSpec([3, 5])
    slot = tf.TensorSpec(update.slot_shape(kernel, n))

    def step(weight, gradient, slot):
        slots = {"momentum": [slot]}
        return update.apply([weight], [gradient], slots, tf.constant(0.1))

    place = XlaPlace(n, partitions, topology)
    return lower(step, place, weight, weight, slot)[0]


def test_torus2d_on_2048_cores_sums_in_two_stages(tensorflow):
    text = lowered(Topology.parse("v3:32x32"))
    for op in ("reduce_scatter", "all_gather"):
        lines = [line for line in text.splitlines() if f"stablehlo.{op}" in line]
        groups = [re.search(r"tensor<(\d+x\d+)xi64>", line)[1] for line in lines]
        # The 64 cores of a row; the 32 of its column that hold the same part.
        assert sorted(groups) == ["32x64", "64x32"], op


def test_the_ring_on_64_cores_is_permutes_around_a_hole(tensorflow):
    grid = Topology.parse("v3:6x6:mesh").with_holes(["2,2:2x2"])
    text = lowered(grid, algorithm="ring")
    # Two streams, each 31 steps of the 32 chips there and back, and one between the
    # cores of a chip at either end.
    assert text.count("stablehlo.collective_permute") == 2 * 2 * (31 + 1)
    assert "stablehlo.reduce_scatter" not in text


def test_the_tpu_compiler_takes_the_ring_as_permutes_without_a_scatter(run_python):
    pytest.importorskip("libtpu")
    done = run_python(WORKER.with_name("pod_worker.py"), "ring")
    # Two streams round 4 chips, 3 steps there and back, and the cores at either end.
    assert done.stdout.splitlines()[-1] == "{'collective-permute': 16}"


def test_a_ring_between_replicas_of_several_chips_is_refused(tensorflow):
    with pytest.raises(BadInput, match=r"replica has 4 partitions .* use xla"):
        lowered(Topology.parse("v3:4x4"), 4, "ring")


def test_a_place_of_another_size_than_its_grid_is_refused(tensorflow):
    from mlperf_tpu import collectives
    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.optim.gradient_sum import gradient_sum

    place = XlaPlace(4, topology=Topology.parse("v3:2x2"))
    with (
        collectives.running_on(place),
        pytest.raises(BadInput, match="2x2 holds 8, not 4"),
    ):
        gradient_sum("ring")
