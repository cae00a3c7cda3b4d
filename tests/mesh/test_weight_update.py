"""The sharded weight update and its options, on a mesh of two devices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.mesh.conftest import ALL_ON, SHORT

LARS = (SHORT, *ALL_ON)

MOMENTUM = (
    SHORT,
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
    sharded = weights_of(trained(2, 1, *LARS))
    replicated = weights_of(trained(2, 1, *LARS, "update.sharded=false"))
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


@pytest.mark.parametrize("sharded", ["true", "false"])
def test_bfloat16_weights_keep_a_float32_master(trained, sharded: str) -> None:
    run = trained(
        2, 2, *MOMENTUM, "update.gather_dtype=bfloat16", f"update.sharded={sharded}"
    )
    kernel = run["weights.0000"]
    master = run["slots.master.0000"].reshape(-1)[: kernel.size].reshape(kernel.shape)
    import ml_dtypes

    np.testing.assert_array_equal(kernel, master.astype(ml_dtypes.bfloat16))
    assert (kernel != master).any()
