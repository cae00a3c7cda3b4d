"""Batch norm over groups of a given number of examples (arXiv 1811.06992, section 3).

A group of at most a replica's batch stays inside the replica; a larger one spans
replicas with consecutive ids, or those of a tile of the grid, which share one fused sum
of first and second moments forwards and one fused sum of two gradients backwards.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.nn.gradients import gradient_scope


class BatchNorm(keras.layers.Layer):
    """Batch norm of [batch, height, width, channels], in the dtype of its input.

    `span_examples` is the number of examples a group holds (MLPerf's `model_bn_span`);
    None means the replica's batch. Scale, offset and statistics are float32. The
    running statistics hold the mean and the mean square, both linear in the batch's,
    so that their average over replicas (the step's) is that of the whole batch:
    variance = mean square - mean^2, as Google's v0.7 ResNet-50 evaluates.
    """

    def __init__(
        self,
        span_examples: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        zero_scale: bool = False,
        groups: str = "consecutive",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.span_examples = span_examples
        self.groups = groups
        self.momentum = momentum
        self.epsilon = epsilon
        self.zero_scale = zero_scale

    def build(self, shape):
        def weight(name, initializer, trainable):
            return self.add_weight(
                shape=(shape[-1],),
                initializer=initializer,
                trainable=trainable,
                autocast=False,
                dtype="float32",
                name=name,
            )

        self.gamma = weight("gamma", "zeros" if self.zero_scale else "ones", True)
        self.beta = weight("beta", "zeros", True)
        self.moving_mean = weight("moving_mean", "zeros", False)
        self.moving_mean_square = weight("moving_mean_square", "ones", False)

    def call(self, x, training=False):
        gamma, beta = self._tensor(self.gamma), self._tensor(self.beta)
        if not training:
            mean = self._tensor(self.moving_mean)
            square = self._tensor(self.moving_mean_square)
            variance = tf.maximum(square - mean**2, 0.0)
            return normalize(x, gamma, beta, mean, variance, self.epsilon)
        y, mean, square = batch_norm(
            x, gamma, beta, self.span_examples, self.epsilon, self.groups
        )
        for moving, batch in (
            (self.moving_mean, mean),
            (self.moving_mean_square, square),
        ):
            old = self._tensor(moving)
            moving.assign(self.momentum * old + (1 - self.momentum) * batch)
        return y

    @staticmethod
    def _tensor(variable):
        return tf.convert_to_tensor(variable.value)


def normalize(x, gamma, beta, mean, variance, epsilon):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, in x's dtype."""
    return tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
        is_training=False,
    ).y


def batch_norm(x, gamma, beta, span_examples, epsilon, groups="consecutive"):
    """Normalises each group of `span_examples` by its own moments.

    Returns (y, mean [channels], mean square [channels]): the moments are averages over
    this replica's groups. The span divides the replica's batch, or is a multiple of it.
    """
    batch = x.shape[0]
    span = span_examples or batch
    if span > batch:
        layout = {"consecutive": collectives.consecutive, "tiles": collectives.tiles}
        members = layout[groups](span // batch)
        return _batch_norm_across(x, gamma, beta, members, epsilon)
    pieces = [
        _batch_norm_inside(piece, gamma, beta, epsilon)
        for piece in ([x] if span == batch else tf.split(x, batch // span))
    ]
    if len(pieces) == 1:
        return pieces[0]
    y, mean, square = zip(*pieces, strict=True)
    return tf.concat(y, 0), tf.add_n(mean) / len(mean), tf.add_n(square) / len(square)


def _batch_norm_inside(x, gamma, beta, epsilon):
    """One group inside the replica: the fused kernel (oneDNN's on a CPU)."""
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=[],
        variance=[],
        epsilon=epsilon,
        is_training=True,
    )
    count = x.shape[0] * x.shape[1] * x.shape[2]
    # The op returns the sample variance (n - 1 below the line); ours is the group's.
    biased = tf.stop_gradient(variance) * ((count - 1) / count)
    mean = tf.stop_gradient(mean)
    return y, mean, biased + mean**2


def _batch_norm_across(x, gamma, beta, groups, epsilon):
    """A group that spans replicas; each replica holds the same number of examples."""
    count = len(groups[0]) * x.shape[0] * x.shape[1] * x.shape[2]
    channels = x.shape[3]

    def group_sum(first, second):
        [both] = collectives.all_reduce([tf.concat([first, second], 0)], groups)
        return both[:channels], both[channels:]

    scope = gradient_scope()

    @tf.custom_gradient
    def forward(x, gamma, beta):
        wide = tf.cast(x, tf.float32)
        first, second = group_sum(
            tf.reduce_sum(wide, [0, 1, 2]), tf.reduce_sum(wide**2, [0, 1, 2])
        )
        mean, square = first / count, second / count
        variance = tf.maximum(square - mean**2, 0.0)
        y = normalize(x, gamma, beta, mean, variance, epsilon)

        def backward(dy, *_):
            with scope():
                return gradients(dy)

        def gradients(dy):
            # The group's sums give dx; the sum of gamma's and beta's gradients over
            # replicas is the gradient sum's affair, so theirs stay local.
            inverse = tf.math.rsqrt(variance + epsilon)
            dy = tf.cast(dy, tf.float32)
            normal = (tf.cast(x, tf.float32) - mean) * inverse
            dbeta = tf.reduce_sum(dy, [0, 1, 2])
            dgamma = tf.reduce_sum(dy * normal, [0, 1, 2])
            group_dbeta, group_dgamma = group_sum(dbeta, dgamma)
            dx = (gamma * inverse) * (
                dy - (group_dbeta + normal * group_dgamma) / count
            )
            return tf.cast(dx, x.dtype), dgamma, dbeta

        return (y, tf.stop_gradient(mean), tf.stop_gradient(square)), backward

    return forward(x, gamma, beta)
