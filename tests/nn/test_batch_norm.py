"""Batch norm over groups, against NumPy on the group's examples."""

from __future__ import annotations

import numpy as np
import pytest

from mlperf_tpu.spec import load  # noqa: F401  (no TensorFlow is imported by specs)


def numpy_norm(x, gamma, beta, epsilon):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) / np.sqrt(var + epsilon) * gamma + beta, mean, var


@pytest.mark.parametrize("span", [None, 8, 4, 2])
def test_each_group_is_normed_by_its_own_moments(tensorflow, span):
    from mlperf_tpu.nn.batch_norm import batch_norm

    random = np.random.default_rng(0)
    x = random.normal(3, 2, (8, 4, 4, 5)).astype(np.float32)
    gamma, beta = random.normal(size=(2, 5)).astype(np.float32)
    y, mean, square = batch_norm(x, gamma, beta, span, 1e-5)
    groups = np.split(x.astype(np.float64), 8 // (span or 8))
    normed = [numpy_norm(g, gamma, beta, 1e-5) for g in groups]
    # float32 over 16 to 128 values a channel.
    np.testing.assert_allclose(y, np.concatenate([n[0] for n in normed]), atol=1e-5)
    np.testing.assert_allclose(mean, np.mean([n[1] for n in normed], 0), rtol=1e-5)
    squares = np.mean([n[2] + n[1] ** 2 for n in normed], 0)
    np.testing.assert_allclose(square, squares, rtol=1e-5)


class TwoReplicas:
    """A place of two replicas of which this process is both: the peer's values are
    what `peer` computes from the same sums."""

    n_replicas = 2

    def __init__(self, peers):
        self.peers = iter(peers)

    def all_reduce(self, values, groups):
        assert groups == ((0, 1),)
        return [v + next(self.peers) for v in values]


def test_tpu_321_variance_over_replicas_holds_that_of_their_means(tensorflow):
    # Replicas [0, 0] and [10, 10]: variance 25; the mean of local variances is 0.
    from mlperf_tpu import collectives
    from mlperf_tpu.nn.batch_norm import batch_norm

    x = np.zeros((2, 1, 1, 1), np.float32)
    peer_sums = np.array([20.0, 200.0], np.float32)  # sum and sum of squares
    with collectives.running_on(TwoReplicas([peer_sums])):
        _, mean, square = batch_norm(x, np.ones(1), np.zeros(1), 4, 1e-5)
    assert (square - mean**2).numpy().item() == pytest.approx(25.0)


def test_evaluation_uses_the_moving_moments_and_training_moves_them(tensorflow):
    from mlperf_tpu.nn.batch_norm import BatchNorm

    layer = BatchNorm(None, momentum=0.9)
    x = np.random.default_rng(0).normal(2, 3, (64, 4, 4, 2)).astype(np.float32)
    layer.build(x.shape)
    layer(x, training=True)
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), 0.1 * x.mean((0, 1, 2)), rtol=1e-4
    )
    square = 0.9 + 0.1 * (x**2).mean((0, 1, 2))
    np.testing.assert_allclose(layer.moving_mean_square.numpy(), square, rtol=1e-4)
    mean = layer.moving_mean.numpy()
    expected = (x - mean) / np.sqrt(square - mean**2 + 1e-5)
    np.testing.assert_allclose(layer(x, training=False), expected, atol=1e-4)


def test_training_pr_144_statistics_move_after_an_evaluation_too(tensorflow):
    from mlperf_tpu.nn.batch_norm import BatchNorm

    layer = BatchNorm(None)
    x = np.ones((4, 1, 1, 1), np.float32)
    layer.build(x.shape)
    layer(x, training=True)
    layer(x, training=False)
    before = layer.moving_mean.numpy()
    layer(x, training=True)
    assert layer.moving_mean.numpy() > before
