"""LARS and momentum against their formulas, in NumPy's float64."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest


@pytest.fixture
def lars(tensorflow):
    """lars(parameters..., **settings) -> (weights, momentum) after the given rates."""
    from mlperf_tpu.optim.optimizers import Lars, Parameter
    from mlperf_tpu.optim.update import WeightUpdate

    def run(kinds, weights, gradients, rates, **settings):
        parameters = tuple(
            Parameter(f"p{i}", np.shape(w), kind)
            for i, (kind, w) in enumerate(zip(kinds, weights, strict=True))
        )
        update = WeightUpdate(Lars(**settings), parameters, sharded=True)
        weights = [tensorflow.constant(w, tensorflow.float32) for w in weights]
        slots = update.initial_slots(weights, 1)
        slots = tensorflow.nest.map_structure(lambda rows: rows[0], slots)
        for rate in rates:
            grads = [tensorflow.constant(g, tensorflow.float32) for g in gradients]
            weights, slots = update.apply(
                weights, grads, slots, tensorflow.constant(rate)
            )
        return [w.numpy() for w in weights], [m.numpy() for m in slots["momentum"]]

    return run


SETTINGS = {"momentum": 0.9, "weight_decay": 1e-2, "trust": 0.1, "epsilon": 1e-3}
W, G = np.array([3.0, 4.0]), np.array([0.6, -0.8])  # norms 5 and 1
RATIO = 0.1 * 5 / (1 + 1e-2 * 5 + 1e-3)


def test_unscaled_momentum_multiplies_the_gradient_by_the_rate(lars):
    (weights,), (momentum,) = lars(["kernel"], [W], [G], [0.5], **SETTINGS)
    v = 0.5 * RATIO * (G + 1e-2 * W)
    np.testing.assert_allclose(momentum, v, rtol=1e-6)  # float32
    np.testing.assert_allclose(weights, W - v, rtol=1e-6)


def test_scaled_momentum_multiplies_the_buffer_by_the_rate(lars):
    (weights,), (momentum,) = lars(
        ["kernel"], [W], [G], [0.5], scaled_momentum=True, **SETTINGS
    )
    np.testing.assert_allclose(momentum, G + 1e-2 * W, rtol=1e-6)
    np.testing.assert_allclose(weights, W - 0.5 * RATIO * (G + 1e-2 * W), rtol=1e-6)


@pytest.mark.parametrize(("rates", "equal"), [([0.5] * 3, True), ([0.5, 0.1], False)])
def test_the_forms_differ_only_when_rate_times_ratio_changes(lars, rates, equal):
    # So small a step that the norm, and with it the ratio r = 0.005, hardly moves: by
    # 1e-3 of itself, 5e-6 of the weight; two rates set the forms 0.36 r g apart.
    small = {**SETTINGS, "weight_decay": 0.0, "epsilon": 0.0, "trust": 1e-3}
    args = (["kernel"], [W], [G], rates)
    unscaled, _ = lars(*args, **small)
    scaled, _ = lars(*args, scaled_momentum=True, **small)
    assert np.allclose(unscaled, scaled, rtol=0, atol=1e-4) == equal


@pytest.mark.parametrize("kind", ["norm", "bias"])
def test_norms_and_biases_take_the_plain_rate_without_decay(lars, kind):
    (weights,), _ = lars([kind], [W], [G], [0.5], **SETTINGS)
    np.testing.assert_allclose(weights, W - 0.5 * G, rtol=1e-6)


@pytest.mark.parametrize("weight", [W, 0 * W])
@pytest.mark.parametrize("gradient", [G, 0 * G])
def test_pytorch_lamb_6_a_zero_norm_gives_ratio_1(lars, weight, gradient):
    (weights,), _ = lars(
        ["kernel"], [weight], [gradient], [0.5], **{**SETTINGS, "epsilon": 0.0}
    )
    assert np.isfinite(weights).all()
    if not weight.any() or not gradient.any():
        v = 0.5 * (gradient + 1e-2 * weight)
        np.testing.assert_allclose(weights, weight - v, rtol=1e-6)


def test_decay_in_the_loss_enters_the_gradients_norm_and_biases(lars):
    settings = {**SETTINGS, "decay_in_loss": True}
    (kernel, bias, scale), _ = lars(
        ["kernel", "bias", "norm"], [W, W, W], [G, G, G], [0.5], **settings
    )
    raw = G + 1e-2 * W
    ratio = 0.1 * 5 / (np.linalg.norm(raw) + 1e-2 * 5 + 1e-3)
    np.testing.assert_allclose(kernel, W - 0.5 * ratio * (raw + 1e-2 * W), rtol=1e-6)
    np.testing.assert_allclose(bias, W - 0.5 * raw, rtol=1e-6)
    np.testing.assert_allclose(scale, W - 0.5 * G, rtol=1e-6)


def test_pitfall_29_no_norm_or_bias_of_resnet50_is_adapted(tensorflow):
    # 53 batch norms of two weights each, 53 convolutions, the classifier's two.
    from collections import Counter

    from mlperf_tpu.spec import benchmark_module, resolve
    from mlperf_tpu.spec import load as load_spec

    spec = resolve(load_spec("resnet50"), task="proxy").spec
    program = benchmark_module("resnet50", "program").Program(spec)
    kinds = Counter(p.kind for p in program.step.update.parameters)
    assert kinds == {"norm": 106, "kernel": 54, "bias": 1}


@pytest.mark.parametrize(
    ("shape", "n", "row"),
    [
        ((2, 5), 4, 3),
        ((3, 3, 128, 96), 4, 27648),  # 128 columns would be a third more: flat
        ((1037, 128), 2, 66560),  # filled up to whole tiles, then flat
        ((1100, 256), 8, 35840),  # filled up to all rows' whole tiles
    ],
)
def test_rows_pad_to_a_multiple_of_the_replicas_and_come_back(
    tensorflow, shape, n, row
):
    from mlperf_tpu.optim.rows import from_rows, own_row, row_length, to_rows

    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rows = to_rows(tensorflow.constant(value), n)
    assert rows.shape == [n, row_length(shape, n)]
    np.testing.assert_array_equal(own_row(rows, n - 1), rows[n - 1])
    np.testing.assert_array_equal(from_rows(rows, shape), value)


def test_a_matrix_stands_in_its_rows_tile_by_tile(tensorflow):
    from mlperf_tpu.optim.rows import to_rows

    value = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
    rows = to_rows(tensorflow.constant(value), 128)  # a tile each
    np.testing.assert_array_equal(np.reshape(rows[1], [8, 128]), value[:8, 128:])


def test_the_order_of_rows_is_the_one_that_checkpoints_note(tensorflow):
    # Where this fails, raise checkpoint.SLOT_ORDER and take the new sum.
    from mlperf_tpu.checkpoint import SLOT_ORDER
    from mlperf_tpu.optim.rows import to_rows

    order = hashlib.sha256()
    for shape in ((1037, 128), (1100, 256), (4, 128, 256), (7, 300, 450), (9,)):
        value = tensorflow.range(np.prod(shape), dtype=tensorflow.int32)
        for n in (2, 8, 64):
            order.update(to_rows(tensorflow.reshape(value, shape), n).numpy().tobytes())
    assert (SLOT_ORDER, order.hexdigest()[:12]) == (2, "cdc9713633af")
