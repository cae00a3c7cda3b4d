"""The virtual mesh computes what one device computes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

WORKER = Path(__file__).with_name("worker.py")

# Every technique on: LARS, sharded update, label smoothing, and batch norm groups of 8
# examples: two groups inside one device, one over four devices of eight.
# Random images and a small rate: rounding differs between meshes in the last bit of a
# float32, and training multiplies it (by about 5 a step at the proxy's full rate on
# the digits, whose flat backgrounds give channels of hardly any variance to norm).
ALL_ON = (
    "training.precision=float32",
    "training.global_batch=16",
    "batch_norm.span=8 examples",
    "schedule.warmup=10 epochs",
    "schedule.base_rate=0.5",
)


@pytest.fixture(scope="module")
def trained(run_python, tmp_path_factory):
    """trained(devices, steps, *settings): the worker's output, kept for the module."""
    done = {}
    folder = tmp_path_factory.mktemp("mesh")

    def train(devices, steps, *settings):
        key = (devices, steps, *settings)
        if key not in done:
            name = hashlib.sha1(repr(key).encode()).hexdigest()
            out = folder / f"{name}.npz"
            run_python(WORKER, devices, steps, out, *settings)
            with np.load(out) as file:
                done[key] = dict(file)
        return done[key]

    return train


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_losses_of_20_steps_agree_with_one_device(trained, devices):
    one, many = trained(1, 20, *ALL_ON), trained(devices, 20, *ALL_ON)
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-4)


@pytest.mark.parametrize("devices", [1, 8])
def test_the_step_is_traced_once_however_many_devices_run_it(trained, devices):
    assert trained(devices, 20, *ALL_ON)["traces"] == 1


def test_sharded_slots_take_an_eighth_of_the_whole_and_padding(trained):
    whole, eighth = trained(1, 20, *ALL_ON), trained(8, 20, *ALL_ON)
    padding = 4 * eighth["n_slots"]  # at most one float32 a tensor and device
    assert whole["slot_bytes"] == 4 * 23_528_522  # one momentum a weight
    assert eighth["slot_bytes"] <= whole["slot_bytes"] / 8 + padding


@pytest.mark.parametrize("devices", [1, 8])
def test_evaluation_counts_every_example_once(trained, devices):
    assert trained(devices, 20, *ALL_ON)["eval_count"] == 360


MOMENTUM = (
    "training.precision=float32",
    "training.global_batch=8",
    "batch_norm.span=4 examples",
    "optimizer={name: sgd, momentum: 0.9, weight_decay: 1.0e-4}",
    "schedule.base_rate=0.01",
)


def weights_of(run):
    return {k: v for k, v in run.items() if k.startswith("weights.")}


def test_sharded_and_replicated_updates_agree_bit_for_bit(trained):
    # Element-wise update, and both sum the two gradients of a weight in the same order.
    sharded = weights_of(trained(2, 3, *MOMENTUM))
    replicated = weights_of(trained(2, 3, *MOMENTUM, "update.sharded=false"))
    for name, value in sharded.items():
        np.testing.assert_array_equal(value, replicated[name], name)


def test_sharded_and_replicated_lars_agree(trained):
    # Norms are summed in another order: a few ulp (1e-7) of the trust ratio.
    sharded = weights_of(trained(2, 1, *ALL_ON))
    replicated = weights_of(trained(2, 1, *ALL_ON, "update.sharded=false"))
    for name, value in sharded.items():
        np.testing.assert_allclose(value, replicated[name], rtol=1e-6, atol=1e-7)


def test_gradients_in_small_buckets_agree_with_one_bucket(trained):
    one = weights_of(trained(2, 3, *MOMENTUM))
    many = weights_of(trained(2, 3, *MOMENTUM, "update.fuse_mib=1"))
    for name, value in one.items():
        np.testing.assert_array_equal(value, many[name], name)


def test_bfloat16_gradient_sum_moves_weights_the_same_way(trained):
    # One step of momentum SGD from zero: the update is the gradient, rounded to the 8
    # bits of a bfloat16's mantissa once before the sum and once after it.
    before = weights_of(trained(2, 0, *MOMENTUM, "schedule.warmup=0 epochs"))
    exact = weights_of(trained(2, 1, *MOMENTUM, "schedule.warmup=0 epochs"))
    rounded = weights_of(
        trained(
            2,
            1,
            *MOMENTUM,
            "schedule.warmup=0 epochs",
            "update.gradient_dtype=bfloat16",
        )
    )
    differs = False
    for name in before:
        step = exact[name] - before[name]
        error = np.abs(rounded[name] - exact[name])
        assert error.max() <= 2**-7 * np.abs(step).max() + 1e-7, name
        differs |= bool(error.max() > 0)
    assert differs


def test_bfloat16_gather_keeps_a_float32_master(trained):
    run = trained(2, 2, *MOMENTUM, "update.gather_dtype=bfloat16")
    kernel = run["weights.0000"]
    master = run["slots.master.0000"].reshape(-1)[: kernel.size].reshape(kernel.shape)
    import ml_dtypes

    np.testing.assert_array_equal(kernel, master.astype(ml_dtypes.bfloat16))
    assert (kernel != master).any()


def test_collectives_of_the_mesh(run_python):
    run_python(Path(__file__).with_name("collectives_worker.py"))


def test_a_failing_device_ends_the_step_with_its_own_error(run_python):
    done = run_python(
        Path(__file__).with_name("collectives_worker.py"), "fail", timeout=60
    )
    assert "device 1 fails" in done.stdout


def test_pitfall_0_4_a_second_mesh_size_is_refused(tensorflow):
    from mlperf_tpu.errors import BadInput
    from mlperf_tpu.mesh.virtual import VirtualMesh

    with pytest.raises(BadInput, match=r"4 virtual devices .* already has 2"):
        VirtualMesh(4)
