"""GNMT: an LSTM encoder and decoder, the decoder attending from its first layer on.

As Google's v0.6 and v0.7 had it (google_submissions.md 3.11; arXiv 1609.08144): the
encoder's first layer is bidirectional; both sides' layers from the third on are
residual; the decoder's first layer attends, and what it found is fed to its own next
step and to all layers above; dropout stands before each layer. Activations are
[time, batch, ...].
"""

from __future__ import annotations

import keras
import tensorflow as tf

from mlperf_tpu.nn import blocks
from mlperf_tpu.nn.attention_lstm import AttentionLSTM
from mlperf_tpu.nn.beam_search import beam_search, over_beam
from mlperf_tpu.nn.embedding import embed
from mlperf_tpu.nn.lstm import LSTM, add_uniform
from mlperf_tpu.nn.random import Draws, dropout
from mlperf_tpu.nn.softmax_loss import softmax_loss

END = 1  # data.subwords
START = 0  # what the first step of the decoder takes: the id of padding
FIRST_RESIDUAL = 2  # layers, counted from 0
# An attention of exactly nothing would make a coverage of minus infinity.
LEAST_COVERAGE = 1e-6


class Embedding(keras.layers.Layer):
    """Vectors of ids: int32 [...] to [..., width] in the model's activations' dtype."""

    def __init__(self, vocabulary: int, width: int, init_range: float, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.shape = (vocabulary, width)
        self.init_range = init_range

    def build(self, shape=None):
        self.table = add_uniform(self, "table", *self.shape)

    def call(self, ids):
        table = tf.convert_to_tensor(self.table)
        return embed(table, ids, tf.as_dtype(self.compute_dtype))


class Projection(keras.layers.Layer):
    """The kernel from the decoder's states to the vocabulary; no bias."""

    def __init__(self, width: int, vocabulary: int, init_range: float, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.shape = (width, vocabulary)
        self.init_range = init_range

    def build(self, shape=None):
        self.kernel = add_uniform(self, "kernel", *self.shape)

    def call(self, h, labels, real, n_steps, *, smoothing):
        kernel = tf.convert_to_tensor(self.kernel)
        return softmax_loss(h, kernel, labels, real, n_steps, smoothing)

    def log_probs(self, h):
        kernel = tf.cast(tf.convert_to_tensor(self.kernel), h.dtype)
        logits = tf.einsum("bku,uv->bkv", h, kernel)
        return tf.nn.log_softmax(tf.cast(logits, tf.float32))


class GNMT(keras.Model):
    """Losses of translations, or translations, by `decode`.

    A batch is {"source": int32 [batch, source length], "source_length": int32 [batch],
    "target": int32 [batch, target length], "target_length": int32 [batch]}, END last in
    each row and counted. `hoisted` chooses how the loops compute (nn.lstm).
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: int,
        init_range: float,
        dropout: float,
        label_smoothing: float,
        hoisted: bool,
        dtype: str,
    ):
        super().__init__(name="gnmt", dtype=dtype, autocast=False)
        self.width = width
        self.dropout = dropout
        self.label_smoothing = label_smoothing

        def lstm(name, side, reverse=False):
            return LSTM(
                width, init_range, hoisted, side, reverse, dtype=dtype, name=name
            )

        self.source_embedding = Embedding(
            vocabulary, width, init_range, dtype=dtype, name="source_embedding"
        )
        self.target_embedding = Embedding(
            vocabulary, width, init_range, dtype=dtype, name="target_embedding"
        )
        self.forwards = lstm("encoder1_forward", "source")
        self.backwards = lstm("encoder1_backward", "source", reverse=True)
        self.encoder = [lstm(f"encoder{k + 1}", "source") for k in range(1, layers)]
        self.attention = AttentionLSTM(
            width, init_range, hoisted, dtype=dtype, name="decoder1"
        )
        self.decoder = [lstm(f"decoder{k + 1}", "target") for k in range(1, layers)]
        self.projection = Projection(
            width, vocabulary, init_range, dtype=dtype, name="projection"
        )

    def build(self, shape=None):
        narrow, wide = (None, None, self.width), (None, None, 2 * self.width)
        for layer in (self.source_embedding, self.target_embedding, self.projection):
            layer.build(None)
        for layer in (self.forwards, self.backwards, self.attention):
            layer.build(narrow)
        for k, layer in enumerate(self.encoder):
            layer.build(narrow if k else wide)
        for layer in self.decoder:
            layer.build(wide)
        self.built = True

    def call(self, batch, seed=None, decode=None):
        """The sum of the losses of all real target places, float32 scalar; with
        `decode`, the beam search's arguments, its ids int32 [batch, decode length].

        `seed`, int32 [2], is the dropout's; without it nothing is dropped.
        """
        places = 2 * (1 + len(self.decoder))
        draws = None if seed is None or not self.dropout else Draws(seed, places)

        def drop(x):
            return dropout(x, self.dropout, draws)

        source, lengths, n_source = _trimmed(batch, "source")
        real = tf.range(tf.shape(source)[0])[:, None] < lengths
        memory = self._encode(source, real, n_source, drop)
        real = tf.ensure_shape(tf.transpose(real), memory.shape[:2])
        if decode is not None:
            return self._decode(memory, real, lengths, **decode)
        target, lengths, n_target = _trimmed(batch, "target")
        before = tf.concat([tf.fill([1, target.shape[1]], START), target[:-1]], 0)
        before = tf.ensure_shape(before, target.shape)
        embedded = drop(self.target_embedding(before))
        h, context = self.attention(embedded, memory, real, n_target)
        for k, layer in enumerate(self.decoder, 1):
            below = h
            h = layer(drop(tf.concat([h, context], 2)), n_target)
            h = h + below if k >= FIRST_RESIDUAL else h
        counted = tf.cast(tf.range(tf.shape(target)[0])[:, None] < lengths, tf.float32)
        smoothing = self.label_smoothing
        return self.projection(h, target, counted, n_target, smoothing=smoothing)

    def _encode(self, source, real, n_source, drop):
        """The memory, [batch, source, width]."""
        embedded = drop(self.source_embedding(source))
        mask = tf.cast(real, tf.float32)[:, :, None]
        x = tf.concat(
            [
                self.forwards(embedded, n_source),
                self.backwards(embedded, n_source, mask),
            ],
            2,
        )
        for k, layer in enumerate(self.encoder, 1):
            h = layer(drop(x), n_source)
            x = h + x if k >= FIRST_RESIDUAL else h
        return tf.transpose(x, [1, 0, 2])

    def _decode(self, memory, real, lengths, *, beam, alpha, coverage, max_length):
        batch, places, _ = memory.shape
        keys = self.attention.keys_of(memory)
        zero = tf.zeros([batch, beam, self.width], memory.dtype)
        cell = tf.zeros([batch, beam, self.width])
        n = 1 + len(self.decoder)
        state = {
            "h": [zero] * n,
            "c": [cell] * n,
            "context": zero,
            "coverage": over_beam(tf.zeros(tf.shape(real)), beam),
        }
        state["coverage"] = tf.ensure_shape(state["coverage"], [batch, beam, places])

        def step(ids, state, position):
            x = self.target_embedding(ids)
            h, c, context, found = self.attention.step(
                x, state["h"][0], state["c"][0], state["context"], keys, memory, real
            )
            states, cells = [h], [c]
            for k, layer in enumerate(self.decoder, 1):
                below, rows = h, [batch * beam, -1]
                h, c = layer.step(
                    tf.reshape(tf.concat([h, context], 2), rows),
                    tf.reshape(state["h"][k], rows),
                    tf.reshape(state["c"][k], rows),
                )
                h = tf.reshape(h, [batch, beam, self.width])
                states.append(h)
                cells.append(tf.reshape(c, [batch, beam, self.width]))
                h = h + below if k >= FIRST_RESIDUAL else h
            new = {
                "h": states,
                "c": cells,
                "context": context,
                "coverage": state["coverage"] + found,
            }
            return self.projection.log_probs(h), new

        def penalty(state):
            seen = tf.clip_by_value(state["coverage"], LEAST_COVERAGE, 1.0)
            each = tf.where(real[:, None], tf.math.log(seen), 0.0)
            return coverage * tf.reduce_sum(each, 2)

        limits = tf.where(lengths > 0, max_length, 0)
        start = tf.fill([batch], START)
        ids, _ = beam_search(
            step,
            state,
            start,
            limits,
            beam=beam,
            alpha=alpha,
            end=END,
            max_length=max_length,
            penalty=penalty,
        )
        return ids[:, 0]


def _trimmed(batch, side: str):
    """(ids [time, batch], lengths [batch], the longest of them)."""
    ids, lengths = tf.transpose(batch[side]), batch[f"{side}_length"]
    longest = tf.reduce_max(lengths)
    if not blocks.static_shapes():
        ids = ids[: tf.maximum(longest, 1)]
    return ids, lengths, longest
