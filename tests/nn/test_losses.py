import numpy as np
import pytest


def test_label_smoothing_follows_the_convention_of_keras(tensorflow):
    # pitfalls.md 74: 4 classes, 0.1, p = (.1, .7, .1, .1): 0.5026 (Keras).
    from mlperf_tpu.nn.losses import smoothed_cross_entropy

    logits = np.log([[0.1, 0.7, 0.1, 0.1]]).astype(np.float32)
    loss = smoothed_cross_entropy(np.array([1]), logits, 0.1)
    assert float(loss[0]) == pytest.approx(0.5026, abs=1e-4)
