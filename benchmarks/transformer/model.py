"""The Transformer with layer norm before each sublayer (arXiv 1706.03762; Google's
MLPerf v0.6 code), on packed rows; and its decoder one position at a time."""

from __future__ import annotations

import keras
import tensorflow as tf

from mlperf_tpu.nn.attention import (
    MASKED,
    Attention,
    Embedding,
    FeedForward,
    Norm,
    positions_table,
    same_segment,
)
from mlperf_tpu.nn.beam_search import beam_search
from mlperf_tpu.nn.random import Draws, dropout


class Layer(keras.layers.Layer):
    """Attention to itself, where `cross` to the encoder's output, then feed-forward:
    x + dropout(sublayer(norm(x)))."""

    def __init__(self, heads: int, inner: int, rate: float, cross: bool, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        make = {"dtype": self.dtype_policy}
        self.self_norm = Norm(name="self_norm", **make)
        self.self_attention = Attention(heads, rate, name="self_attention", **make)
        self.cross_norm = self.cross_attention = None
        if cross:
            self.cross_norm = Norm(name="cross_norm", **make)
            self.cross_attention = Attention(heads, rate, name="attention", **make)
        self.feed_norm = Norm(name="feed_norm", **make)
        self.feed_forward = FeedForward(inner, rate, name="feed_forward", **make)

    def build(self, shape):
        for part in (
            self.self_norm,
            self.self_attention,
            self.cross_norm,
            self.cross_attention,
            self.feed_norm,
            self.feed_forward,
        ):
            if part is not None:
                part.build(shape)

    def call(self, x, mask, memory=None, memory_mask=None, draws=None):
        y = self.self_norm(x)
        y = self.self_attention(y, y, mask, draws=draws)
        x = x + dropout(y, self.rate, draws)
        if self.cross_attention is not None:
            y = self.cross_norm(x)
            y = self.cross_attention(y, memory, memory_mask, draws=draws)
            x = x + dropout(y, self.rate, draws)
        y = self.feed_forward(self.feed_norm(x), draws=draws)
        return x + dropout(y, self.rate, draws)

    def next(self, x, cache, memory, memory_mask, position):
        """One position more: x [batch, beam, width]; returns (x, cache)."""
        keys, values = cache
        y = self.self_norm(x)
        y, keys, values = self.self_attention.next(y, keys, values, position)
        x = x + y
        # A beam's hypotheses are queries of the one memory: nothing is repeated.
        y = self.cross_attention.attend(self.cross_norm(x), *memory, memory_mask)
        x = x + y
        return x + self.feed_forward(self.feed_norm(x)), (keys, values)


class Transformer(keras.Model):
    """`layers` encoder and as many decoder layers over one embedding.

    `dtype` is a Keras policy: "float32", or "mixed_bfloat16" for bf16 activations.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        inner: int,
        heads: int,
        layers: int,
        rate: float,
        longest: int,
        dtype: str,
    ):
        super().__init__(name="transformer", dtype=dtype)
        self.rate, self.width, self.heads = rate, width, heads
        self.embedding = Embedding(vocabulary, width, dtype=dtype, name="embedding")

        def stack(name, cross):
            return [
                Layer(heads, inner, rate, cross, dtype=dtype, name=f"{name}{k}")
                for k in range(layers)
            ]

        self.encoder = stack("encoder", False)
        self.decoder = stack("decoder", True)
        self.encoder_norm = Norm(dtype=dtype, name="encoder_norm")
        self.decoder_norm = Norm(dtype=dtype, name="decoder_norm")
        self._positions = positions_table(longest, width)
        # Attention, inner and residual dropout; the embeddings' of both sides.
        self.places = 2 + layers * 4 + layers * 6

    def build(self, shape=None):
        self.embedding.build()
        shape = (None, None, self.width)
        for layer in (*self.encoder, *self.decoder):
            layer.build(shape)
        self.encoder_norm.build(shape)
        self.decoder_norm.build(shape)

    def call(self, batch, seed=None):
        """Logits [batch, length, vocabulary] of each target id, from those before it in
        its segment. `batch` is what data.packing packs; with dropout where `seed`,
        int32 [2], is given."""
        draws = None if seed is None or self.rate == 0 else Draws(seed, self.places)
        segments = batch["source_segment"]
        memory = self.encode(batch["source"], segments, batch["source_position"], draws)
        targets, position = batch["target"], batch["target_position"]
        # What comes before a segment's first id is the start, not another's end.
        before = tf.where(position == 0, 0, tf.roll(targets, 1, 1))
        x = dropout(self._embedded(before, position), self.rate, draws)
        inside = batch["target_segment"]
        mask = same_segment(inside, inside, causal=True)
        memory_mask = same_segment(inside, segments)
        for layer in self.decoder:
            x = layer(x, mask, memory, memory_mask, draws=draws)
        return self.embedding.logits(self.decoder_norm(x))

    def encode(self, source, segments, positions, draws=None):
        """[batch, length, width]: the encoder's output."""
        x = dropout(self._embedded(source, positions), self.rate, draws)
        mask = same_segment(segments, segments)
        for layer in self.encoder:
            x = layer(x, mask, draws=draws)
        return self.encoder_norm(x)

    def translate(self, source, extra: int, beam: int, alpha: float, end: int):
        """The best translation of each row, int32 [batch, length + extra].

        source int32 [batch, length], one sentence a row, 0 after its end. A translation
        is at most `extra` ids longer than its source; one of an empty row is empty.
        """
        batch, length = source.shape
        longest = length + extra
        real = tf.cast(source > 0, tf.int32)
        positions = tf.broadcast_to(tf.range(length), source.shape)
        memory = self.encode(source, real, positions)
        memories = [layer.cross_attention.memory(memory) for layer in self.decoder]
        memory_mask = tf.where(real == 0, MASKED, 0.0)[:, None, None]
        n_ids = tf.reduce_sum(real, 1)
        limits = tf.where(n_ids > 0, n_ids + extra, 0)
        depth = self.width // self.heads
        empty = tf.zeros([batch, beam, longest, self.heads, depth], self.compute_dtype)

        def step(ids, caches, position):
            here = tf.broadcast_to(position, ids.shape)
            x = self._embedded(ids, here)
            after = []
            for layer, cache, of_layer in zip(
                self.decoder, caches, memories, strict=True
            ):
                x, cache = layer.next(x, cache, of_layer, memory_mask, position)
                after.append(cache)
            logits = self.embedding.logits(self.decoder_norm(x))
            return tf.nn.log_softmax(tf.cast(logits, tf.float32)), after

        ids, _ = beam_search(
            step,
            [(empty, empty) for _ in self.decoder],
            tf.zeros([batch], tf.int32),
            limits,
            beam=beam,
            alpha=alpha,
            end=end,
            max_length=longest,
        )
        return ids[:, 0]

    def _embedded(self, ids, positions):
        table = tf.constant(self._positions, self.compute_dtype)
        return self.embedding(ids) + tf.gather(table, positions)
