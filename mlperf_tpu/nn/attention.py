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
from mlperf_tpu.nn.random import Draws, dropout

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
        kernel = tf.convert_to_tensor(self.kernel)
        kernel = partitioning.split_weight(kernel, 1 if self.side == "out" else 0)
        flat = tf.reshape(x, [-1, x.shape[-1]])
        y = tf.matmul(flat, kernel)
        if self.bias is not None:
            y = y + tf.convert_to_tensor(self.bias)
        return tf.reshape(y, [*x.shape[:-1], self.width])


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
        """(keys, values) of a memory, each [batch, heads, keys, depth]."""
        return self._heads_first(self.key(memory)), self._heads_first(
            self.value(memory)
        )

    def attend(self, x, keys, values, mask, draws: Draws | None = None):
        query = self._heads_first(self.query(x) * self.depth**-0.5)
        logits = tf.matmul(query, keys, transpose_b=True)
        # Keras hands a mask on in the compute dtype; its two values survive that.
        logits = tf.cast(logits, tf.float32) + tf.cast(mask, tf.float32)
        weights = tf.nn.softmax(logits)
        weights = dropout(tf.cast(weights, self.compute_dtype), self.rate, draws)
        found = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
        return self.output_projection(tf.reshape(found, x.shape))

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

    def _heads_first(self, x):
        return tf.transpose(self._by_head(x), [0, 2, 1, 3])

    def _by_head(self, x):
        return tf.reshape(x, [*x.shape[:-1], self.heads, self.depth])


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
        inner = tf.nn.relu(self.filter(x))
        return self.output_projection(dropout(inner, self.rate, draws))


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
