"""Layers of a Transformer: attention, feed-forward, layer norm, positions.

Activations are [batch, length, width] in the layer's compute dtype; softmax, layer norm
and masks are float32 (a mask in 16 bits may become infinite, and a row of nothing but
that NaN).

Under feature partitioning (arXiv 2011.03641; google_submissions.md 3.6) heads, the
feed-forward's inner width and the vocabulary are split over a replica's partitions: the
first matmul of each pair makes its partition's columns, the second sums over them.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf

from mlperf_tpu.nn import partitioning
from mlperf_tpu.nn.blocks import computed_once
from mlperf_tpu.nn.gradients import gradient_scope
from mlperf_tpu.nn.random import Draws, kept

MASKED = -1e9  # float32: what is added where nothing may attend


def same_segment(queries, keys, positions=None):
    """What to add to attention's logits, float32 [batch, 1, queries, keys]: 0 within a
    segment, MASKED elsewhere.

    queries, keys: int32 [batch, length], the segment of each position, 0 for padding.
    positions: int32 [batch, length], of queries and keys alike in their segment; where
        given, none attends to a later one.
    """
    may = queries[:, :, None] == keys[:, None, :]
    if positions is not None:
        may &= positions[:, :, None] >= positions[:, None, :]
    return tf.where(may, 0.0, MASKED)[:, None]


def positions_table(length: int, width: int) -> np.ndarray:
    """Sines and cosines of wavelengths 2 pi to 10,000 x 2 pi, float32 [length, width]:
    sines first (arXiv 1706.03762 section 3.5, in tensor2tensor's order)."""
    half = width // 2
    rates = np.exp(-math.log(10_000.0) * np.arange(half) / max(half - 1, 1))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


class Projection(keras.layers.Layer):
    """x @ kernel, and a bias where there is one.

    `split` says which side of the kernel is split over partitions: "out" or "in".
    """

    def __init__(self, width: int, split: str, use_bias: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.width, self.side, self.use_bias = width, split, use_bias

    def build(self, shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(shape[-1], self.width),
            initializer="glorot_uniform",
        )
        self.bias = (
            self.add_weight(name="bias", shape=(self.width,), initializer="zeros")
            if self.use_bias
            else None
        )

    def call(self, x):
        flat = tf.reshape(x, [-1, x.shape[-1]])
        y = tf.matmul(flat, self.kernel_now)
        if self.bias is not None:
            y = y + tf.convert_to_tensor(self.bias)
        return tf.reshape(y, [*x.shape[:-1], self.width])

    @property
    def kernel_now(self):
        """The kernel as a tensor of the compute dtype."""
        kernel = tf.cast(tf.convert_to_tensor(self.kernel), self.compute_dtype)
        return partitioning.split_weight(kernel, 1 if self.side == "out" else 0)


class Norm(keras.layers.LayerNormalization):
    """Layer norm over the last dimension, in float32 whatever comes in."""

    def __init__(self, **kwargs):
        super().__init__(epsilon=1e-6, **kwargs)

    def call(self, x):
        exact = tf.cast(x, tf.float32)
        centred = exact - tf.reduce_mean(exact, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        scale = tf.cast(tf.convert_to_tensor(self.gamma), tf.float32)
        shift = tf.cast(tf.convert_to_tensor(self.beta), tf.float32)
        y = centred * (tf.math.rsqrt(variance + self.epsilon) * scale) + shift
        return tf.cast(y, self.compute_dtype)


def weighted_sum(query, keys, values, mask, rate: float, draws: Draws | None):
    """values by dropout(softmax(query . keys + mask)): [batch, heads, depth, queries].

    query [batch, heads, depth, queries], keys and values [batch, heads, depth, keys] of
    one dtype; mask float32 [batch, 1, keys, queries].

    Positions stand last, where a TPU has its lanes: a depth of 64 would fill half of
    them. Of what is as large as queries x keys the exponentials alone are kept, whose
    sign says what the dropout leaves: the gradient draws nothing and takes no softmax.
    """
    scope = gradient_scope()
    keep, scale = None, 1.0
    if draws is not None and rate:
        shape = [*query.shape[:2], keys.shape[3], query.shape[3]]
        keep, scale = kept(shape, rate, draws)

    @tf.custom_gradient
    def run(query, keys, values):
        dtype = query.dtype
        logits = tf.matmul(keys, query, transpose_a=True)
        logits = tf.cast(logits, tf.float32) + mask
        weights = tf.exp(logits - tf.reduce_max(logits, 2, keepdims=True))
        total = tf.reduce_sum(weights, 2, keepdims=True)
        if keep is not None:
            weights = tf.where(keep, weights, -weights)
        weights, total = computed_once([tf.cast(weights, dtype), total])
        left = tf.nn.relu(weights)
        found = tf.cast(tf.matmul(values, left), tf.float32) * (scale / total)
        found = tf.cast(found, dtype)

        def gradient(upstream):
            with scope():
                upstream = tf.cast(upstream, tf.float32)
                # The softmax's mean of its gradients (arXiv 2205.14135, appendix B).
                mean = tf.reduce_sum(
                    upstream * tf.cast(found, tf.float32), 2, keepdims=True
                )
                upstream = tf.cast(upstream * (scale / total), dtype)
                dvalues = tf.matmul(upstream, left, transpose_b=True)
                dleft = tf.matmul(values, upstream, transpose_a=True)
                dlogits = tf.cast(left, tf.float32) * tf.cast(dleft, tf.float32)
                dlogits -= tf.cast(tf.abs(weights), tf.float32) * (mean / total)
                dlogits = tf.cast(dlogits, dtype)
                dquery = tf.matmul(keys, dlogits)
                dkeys = tf.matmul(query, dlogits, transpose_b=True)
                return dquery, dkeys, dvalues

        return found, gradient

    return run(query, keys, values)


def from_columns(x, kernel):
    """[batch, length, out] of x [batch, in, length] by kernel [in, out]."""
    scope = gradient_scope()

    @tf.custom_gradient
    def run(x, kernel):
        def gradient(upstream):
            with scope():
                # TensorFlow's gradient of an einsum has the operands in another order,
                # which XLA takes for the order of the result.
                dx = tf.einsum("mw,blw->bml", kernel, upstream)
                return dx, tf.einsum("bml,blw->mw", x, upstream)

        return tf.einsum("bml,mw->blw", x, kernel), gradient

    return run(x, kernel)


class Attention(keras.layers.Layer):
    """Multi-head attention; its four projections have no bias."""

    def __init__(self, heads: int, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.rate = heads, rate

    def build(self, shape):
        width = shape[-1]
        self.depth = width // self.heads

        def projection(name, split):
            layer = Projection(width, split, dtype=self.dtype_policy, name=name)
            layer.build((None, None, width))
            return layer

        self.query = projection("query", "out")
        self.key = projection("key", "out")
        self.value = projection("value", "out")
        self.output_projection = projection("output", "in")

    def call(self, x, memory, mask, draws: Draws | None = None):
        """x [batch, queries, width] over memory [batch, keys, width]; `mask` as
        `same_segment` gives it."""
        keys, values = self.memory(memory)
        return self.attend(x, keys, values, mask, draws)

    def memory(self, memory):
        """(keys, values) of a memory, each [batch, heads, depth, keys]."""
        return self._by_columns(self.key, memory), self._by_columns(self.value, memory)

    def attend(self, x, keys, values, mask, draws: Draws | None = None):
        query = self._by_columns(self.query, x) * self.depth**-0.5
        # Keras hands a mask on in the compute dtype; its two values survive that.
        mask = tf.transpose(tf.cast(mask, tf.float32), [0, 1, 3, 2])
        found = weighted_sum(query, keys, values, mask, self.rate, draws)
        found = tf.reshape(found, [x.shape[0], -1, x.shape[1]])
        return from_columns(found, self.output_projection.kernel_now)

    def _by_columns(self, projection, x):
        kernel = projection.kernel_now
        if x.shape[0] == 1:  # a product of two matrices: XLA lays the first out anew
            y = tf.einsum("blw,wm->bml", x, kernel)
        else:
            y = tf.einsum("wm,blw->bml", kernel, x)
        return tf.reshape(y, [x.shape[0], self.heads, self.depth, x.shape[1]])

    def next(self, x, keys, values, position):
        """One position more of a beam: x [batch, beam, width], the keys and values so
        far [batch, beam, length, heads, depth]. Returns (y, keys, values)."""
        here = (tf.range(keys.shape[2]) == position)[:, None, None]
        keys = tf.where(here, self._by_head(self.key(x))[:, :, None], keys)
        values = tf.where(here, self._by_head(self.value(x))[:, :, None], values)
        query = self._by_head(self.query(x)) * self.depth**-0.5
        logits = tf.einsum("bnhd,bnkhd->bnhk", query, keys)
        ahead = tf.where(tf.range(keys.shape[2]) > position, MASKED, 0.0)
        weights = tf.nn.softmax(tf.cast(logits, tf.float32) + ahead)
        weights = tf.cast(weights, self.compute_dtype)
        found = tf.einsum("bnhk,bnkhd->bnhd", weights, values)
        return self.output_projection(tf.reshape(found, x.shape)), keys, values

    def _by_head(self, x):
        return tf.reshape(x, [*x.shape[:-1], self.heads, self.depth])


def relu_with_dropout(x, rate: float, draws: Draws | None):
    """`dropout(relu(x))`; its gradient asks what came out, not for either again."""
    if draws is None or rate == 0:
        return tf.nn.relu(x)
    scope = gradient_scope()
    keep, scale = kept(x.shape, rate, draws)

    @tf.custom_gradient
    def run(x):
        factor = tf.cast(scale, x.dtype)
        out = tf.nn.relu(x) * tf.where(keep, factor, 0)

        def gradient(upstream):
            with scope():
                return tf.where(out > 0, upstream * factor, 0)

        return out, gradient

    return run(x)


class FeedForward(keras.layers.Layer):
    """To the inner width, ReLU, dropout, and back; with biases."""

    def __init__(self, inner: int, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.rate = inner, rate

    def build(self, shape):
        make = {"use_bias": True, "dtype": self.dtype_policy}
        self.filter = Projection(self.inner, "out", name="filter", **make)
        self.filter.build(shape)
        self.output_projection = Projection(shape[-1], "in", name="output", **make)
        self.output_projection.build((None, None, self.inner))

    def call(self, x, draws: Draws | None = None):
        inner = relu_with_dropout(self.filter(x), self.rate, draws)
        return self.output_projection(inner)


class Embedding(keras.layers.Layer):
    """One matrix for the ids of both sides and for the softmax.

    Id 0, padding and the start of a target, is the vector of zeros.
    """

    def __init__(self, vocabulary: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.width = vocabulary, width

    def build(self, shape=None):
        self.matrix = self.add_weight(
            name="matrix",
            shape=(self.vocabulary, self.width),
            initializer=keras.initializers.RandomNormal(stddev=self.width**-0.5),
        )

    def call(self, ids):
        """Vectors [..., width], scaled by the root of the width."""
        matrix = partitioning.split_weight(tf.convert_to_tensor(self.matrix), 0)
        found = tf.gather(matrix, ids) * self.width**0.5
        return found * tf.cast(ids > 0, found.dtype)[..., None]

    def logits(self, x):
        """[..., vocabulary], in the compute dtype."""
        matrix = partitioning.split_weight(tf.convert_to_tensor(self.matrix), 0)
        flat = tf.reshape(x, [-1, self.width])
        logits = tf.matmul(flat, matrix, transpose_b=True)
        return tf.reshape(logits, [*x.shape[:-1], self.vocabulary])
