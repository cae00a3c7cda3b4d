"""Learning rates: exact at the published points, never rising after warm-up."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from mlperf_tpu.spec import load, resolve


@pytest.fixture
def rates(tensorflow):
    """rates(schedule, steps): float32 learning rates."""

    def evaluate(schedule, steps):
        return np.array([float(schedule(tensorflow.constant(s))) for s in steps])

    return evaluate


def test_the_docstrings_examples(tensorflow):
    from mlperf_tpu.optim import schedules

    globs = {**vars(schedules), "tf": tensorflow}
    assert doctest.testmod(schedules, extraglobs=globs).failed == 0


def test_resnet50_at_1024_chips_follows_the_formula(rates):
    # papers.md 1.2: 31.2, 25 warm-up epochs, power 2, 2007 decay steps, end 1e-4.
    from mlperf_tpu.optim.build import build_schedule

    spec = resolve(load("resnet50"), scale_name="v0.6-1024").spec
    steps = [0, 100, 977, 978, 1500, 2983]
    expected = [
        0.0,
        31.2 * 100 * 32768 / 1281167 / 25,
        31.2 * 977 * 32768 / 1281167 / 25,
        (31.2 - 1e-4) * (1 - 1 / 2007) ** 2 + 1e-4,
        (31.2 - 1e-4) * (1 - (1500 - 977) / 2007) ** 2 + 1e-4,
        (31.2 - 1e-4) * (1 - 2006 / 2007) ** 2 + 1e-4,
    ]
    # float32 holds 24 bits, and (1 - s/D) loses the digits that cancel near the end.
    np.testing.assert_allclose(rates(build_schedule(spec), steps), expected, rtol=2e-4)


def test_pitfall_31_a_polynomial_never_rises_after_warm_up_nor_after_its_end(rates):
    from mlperf_tpu.optim.schedules import polynomial

    for power in (1.0, 2.0, 3.0):
        schedule = polynomial(1.0, 0.01, power, warmup_steps=5, decay_steps=10)
        after = rates(schedule, range(6, 40))
        assert (np.diff(after) <= 0).all()
        assert (after[9:] == np.float32(0.01)).all()


def test_a_stepwise_schedule_never_rises_after_warm_up(rates):
    from mlperf_tpu.optim.schedules import stepwise

    schedule = stepwise(0.16, [10, 20], 0.1, warmup_steps=4)
    after = rates(schedule, range(4, 40))
    assert (np.diff(after) <= 0).all()
    assert after[-1] == pytest.approx(0.16 * 0.01, rel=1e-6)  # float32
