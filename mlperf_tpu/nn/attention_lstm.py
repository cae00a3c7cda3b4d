"""GNMT's decoder at its foot: an LSTM that is fed the attention of the step before.

The attention is Bahdanau's, normalised (arXiv 1409.0473, 1602.07868): with the keys
K = memory W_m and the query q = h W_q of the step's state,

    score = g v / |v| . tanh(K + q + b),   context = softmax(score) memory,

and the context goes into the gates of the next step. Hoisted as nn.lstm's: the input's
projection and the keys stand before the loop, and all weights' gradients after it, but
that of the keys and of v, which the loop adds up: nothing of the size
[time, batch, source, width] is kept.
"""

from __future__ import annotations

import functools

import keras
import tensorflow as tf

from mlperf_tpu.nn import blocks
from mlperf_tpu.nn.gradients import gradient_scope
from mlperf_tpu.nn.lstm import (
    STEPS,
    add_uniform,
    array,
    cell,
    gate_gradients,
    kept,
    kept_gates,
    loop,
    weight_gradients,
)

NEVER = -1e9  # the score of a padded place: its weight is an exact zero


def scores_of(keys, query, v):
    """(float32 scores [batch, source], tanh [batch, source, width]).

    keys [batch, source, width]; query float32 [batch, width], the bias in it; v float32
    [width], normalised.
    """
    tanh = tf.tanh(tf.cast(keys, tf.float32) + query[:, None])
    return blocks.row_product(v[None], tanh, transposed=True), tanh


def weights_of(scores, real):
    """Attention weights float32 [batch, source]: zero where `real` is false."""
    return tf.nn.softmax(tf.where(real, scores, NEVER))


def context_of(weights, memory):
    """[batch, width] in the memory's dtype, which is [batch, source, width]."""
    return blocks.row_product(tf.cast(weights, memory.dtype), memory)


def plain_attention_lstm(x, memory, real, n_steps, weights):
    """The same as `hoisted_attention_lstm`, by TensorFlow's own gradient."""
    kernel, recurrent, attention, bias, query, keys, v, b = weights
    time, batch, width = x.shape[0], x.shape[1], recurrent.shape[0]
    steps = tf.shape(x)[0] if time is None else time
    dtype = x.dtype
    whole = tf.cast(tf.concat([kernel, recurrent, attention], 0), dtype)
    inputs = array(steps, [batch, x.shape[2]], dtype, x)
    projected = tf.einsum("bsu,uv->bsv", memory, tf.cast(keys, dtype))

    def body(t, h, c, context, states, contexts):
        z = tf.matmul(tf.concat([inputs.read(t), h, context], 1), whole)
        z = tf.cast(z + tf.cast(bias, dtype), tf.float32)
        h, c = cell(tf.split(z, 4, 1), c)
        h = tf.cast(h, dtype)
        q = tf.cast(tf.matmul(h, tf.cast(query, dtype)), tf.float32) + b
        now = weights_of(scores_of(projected, q, v)[0], real)
        context = context_of(now, memory)
        return h, c, context, states.write(t, h), contexts.write(t, context)

    zero = tf.zeros([batch, width], dtype)
    context = tf.zeros([batch, memory.shape[2]], dtype)
    start = (
        zero,
        tf.zeros([batch, width]),
        context,
        array(steps, [batch, width], dtype),
        array(steps, [batch, memory.shape[2]], dtype),
    )
    *_, states, contexts = loop(n_steps, body, start, f"target_{STEPS}", time)
    return states.stack(), contexts.stack()


def hoisted_attention_lstm(x, memory, real, n_steps, weights):
    """(states, contexts), [time, batch, width] each in x's dtype.

    x [time, batch, in]; memory [batch, source, width], the encoder's output; real bool
    [batch, source]; n_steps int32 scalar. weights, float32: kernel [in, 4 width],
    recurrent and attention [width, 4 width], bias [4 width], query and keys
    [width, width], v [width] normalised, b [width].
    """
    scope = gradient_scope()

    @tf.custom_gradient
    def run(x, memory, *weights):
        kernel, recurrent, attention, bias, query, keys, v, b = weights
        time, batch, width = x.shape[0], x.shape[1], recurrent.shape[0]
        steps = tf.shape(x)[0] if time is None else time
        dtype = x.dtype
        w, wk, wq = (tf.cast(m, dtype) for m in (kernel, keys, query))
        # What the loop multiplies, side by side: one product a step.
        u = tf.cast(tf.concat([recurrent, attention], 0), dtype)
        projected = blocks.product(x, w, n_steps, "target", tf.cast(bias, dtype))
        keep = kept(dtype)
        # What comes in at a step, and after it the gates before their non-linearity.
        gates = array(steps, [batch, 4 * width], keep, tf.cast(projected, keep))
        all_keys = tf.einsum("bsu,uv->bsv", memory, wk)
        all_keys = tf.cast(all_keys, keep)

        def body(t, h, c, context, states, cells, gates, contexts, places):
            z = tf.cast(tf.matmul(tf.concat([h, context], 1), u), tf.float32)
            gates, now = kept_gates(gates, t, z)
            h, c = cell(now, c)
            h = tf.cast(h, dtype)
            q = tf.cast(tf.matmul(h, wq), tf.float32) + b
            place = weights_of(scores_of(all_keys, q, v)[0], real)
            context = context_of(place, memory)
            return (
                h,
                c,
                context,
                states.write(t + 1, h),
                cells.write(t + 1, c),
                gates,
                contexts.write(t + 1, context),
                places.write(t, tf.cast(place, dtype)),
            )

        zero = tf.zeros([batch, width], dtype)
        start = (
            zero,
            tf.zeros([batch, width]),
            zero,
            array(steps + 1, [batch, width], dtype),
            array(steps + 1, [batch, width], tf.float32),
            gates,
            array(steps + 1, [batch, width], dtype),
            array(steps, real.shape, dtype),
        )
        done = loop(n_steps, body, start, f"target_{STEPS}")
        states, cells, gates, contexts, places = done[3:]
        h_all, context_all = states.stack(), contexts.stack()

        def gradient(dh_all, dcontext_all):
            with scope():
                of_gates = gate_gradients(gates, cells, 0, 1)
                given_h = array(steps, [batch, width], dtype, dh_all)
                given_context = array(steps, [batch, width], dtype, dcontext_all)

                def body(s, dh, dc, dcontext, dkeys, dv, dq, dcontexts, *held):
                    t = n_steps - 1 - s
                    dcontext += tf.cast(given_context.read(t), tf.float32)
                    narrow = tf.cast(dcontext, dtype)
                    place = tf.cast(places.read(t), tf.float32)
                    dplace = blocks.row_product(narrow, memory, transposed=True)
                    dplace = tf.cast(dplace, tf.float32)
                    mean = tf.reduce_sum(place * dplace, 1, keepdims=True)
                    dscore = place * (dplace - mean)
                    h = states.read(t + 1)
                    q = tf.cast(tf.matmul(h, wq), tf.float32) + b
                    _, tanh = scores_of(all_keys, q, v)
                    dsum = dscore[:, :, None] * v * (1.0 - tanh * tanh)
                    dkeys += dsum
                    # By row, as the query's: XLA takes both sums at one go.
                    dv += tf.reduce_sum(dscore[:, :, None] * tanh, 1)
                    dquery = tf.cast(tf.reduce_sum(dsum, 1), dtype)
                    dh += tf.cast(given_h.read(t), tf.float32) + tf.cast(
                        tf.matmul(dquery, wq, transpose_b=True), tf.float32
                    )
                    now, dc, *held = of_gates.step(t, dh, dc, *held)
                    both = tf.matmul(tf.cast(now, dtype), u, transpose_b=True)
                    dh, dbefore = tf.split(tf.cast(both, tf.float32), 2, 1)
                    return (
                        dh,
                        dc,
                        dbefore,
                        dkeys,
                        dv,
                        dq.write(t, dquery),
                        dcontexts.write(t, narrow),
                        *held,
                    )

                zero = tf.zeros([batch, width])
                start = (
                    zero,
                    zero,
                    zero,
                    tf.zeros(tf.shape(all_keys)),
                    zero,
                    array(steps, [batch, width], dtype),
                    array(steps, [batch, width], dtype),
                    *of_gates.start,
                )
                done = loop(n_steps, body, start, f"target_{STEPS}")
                dkeys, dv = done[3], tf.reduce_sum(done[4], 0)
                dq, dcontext = (values.stack() for values in done[5:7])
                dz, dbias = of_gates.whole(*done[7:])
                dz = tf.cast(dz, dtype)
                dx = blocks.product(dz, w, n_steps, "target", transposed=True)
                dkernel, drecurrent, dattention = weight_gradients(
                    dz, x, h_all[:-1], context_all[:-1]
                )
                [dquery] = weight_gradients(dq, h_all[1:])
                db = tf.reduce_sum(tf.cast(dq, tf.float32), [0, 1])
                # Through the values, and through the keys.
                dmemory = tf.einsum("tbs,tbu->bsu", places.stack(), dcontext)
                dkeys = tf.cast(dkeys, dtype)
                dmemory += tf.einsum("bsv,uv->bsu", dkeys, wk)
                dwk = tf.cast(tf.einsum("bsu,bsv->uv", memory, dkeys), tf.float32)
                return (
                    dx,
                    dmemory,
                    dkernel,
                    drecurrent,
                    dattention,
                    dbias,
                    dquery,
                    dwk,
                    dv,
                    db,
                )

        return (h_all[1:], context_all[1:]), gradient

    return run(x, memory, *weights)


class AttentionLSTM(keras.layers.Layer):
    """[time, batch, in] and a memory [batch, source, width] to the states and contexts,
    [time, batch, width] each; the memory is as wide as the layer.
    Matrices start uniform in +-`init_range`."""

    def __init__(self, width: int, init_range: float, hoisted: bool, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.width = width
        self.init_range = init_range
        self._run = hoisted_attention_lstm if hoisted else plain_attention_lstm

    def build(self, shape):
        width, gates = self.width, 4 * self.width
        add = functools.partial(add_uniform, self)
        self.kernel = add("kernel", shape[-1], gates)
        self.recurrent = add("recurrent", width, gates)
        self.attention = add("attention", width, gates)
        self.bias = add("bias", gates)
        self.query = add("query", width, width)
        self.keys = add("keys", width, width)
        self.score = add("score", width)
        # g starts at 1 / sqrt(width), b at zero, as in TensorFlow's BahdanauAttention.
        start = keras.initializers.Constant(width**-0.5)
        self.scale = self.add_weight((), start, name="scale", autocast=False)
        self.offset = self.add_weight((width,), "zeros", name="offset", autocast=False)

    @property
    def weights_now(self):
        """The weights as `hoisted_attention_lstm` takes them: v is normalised."""
        held = (self.kernel, self.recurrent, self.attention, self.bias)
        held = [tf.convert_to_tensor(v) for v in (*held, self.query, self.keys)]
        v = tf.convert_to_tensor(self.score)
        v = tf.convert_to_tensor(self.scale) * v / tf.norm(v)
        return [*held, v, tf.convert_to_tensor(self.offset)]

    def call(self, x, memory, real, n_steps):
        return self._run(x, memory, real, n_steps, self.weights_now)

    def keys_of(self, memory):
        """What `step` attends by: [batch, source, width] float32."""
        keys = tf.cast(tf.convert_to_tensor(self.keys), memory.dtype)
        return tf.cast(tf.einsum("bsu,uv->bsv", memory, keys), tf.float32)

    def step(self, x, h, c, context, keys, memory, real):
        """One step of `beam` hypotheses a row, for decoding.

        x, h, c, context [batch, beam, width]; keys and memory [batch, source, width];
        real bool [batch, source]. Returns (h, c, context, attention weights float32
        [batch, beam, source]).
        """
        batch, beam, _ = x.shape
        kernel, recurrent, attention, bias, query, _, v, b = self.weights_now
        whole = tf.cast(tf.concat([kernel, recurrent, attention], 0), x.dtype)
        z = tf.einsum("bki,io->bko", tf.concat([x, h, context], 2), whole)
        rows = [batch * beam, -1]
        z = tf.cast(tf.reshape(z + tf.cast(bias, x.dtype), rows), tf.float32)
        h, c = cell(tf.split(z, 4, 1), tf.reshape(c, rows))
        h = tf.reshape(tf.cast(h, x.dtype), [batch, beam, self.width])
        c = tf.reshape(c, [batch, beam, self.width])
        q = tf.einsum("bku,uv->bkv", h, tf.cast(query, x.dtype))
        q = tf.cast(q, tf.float32) + b
        tanh = tf.tanh(keys[:, None] + q[:, :, None])
        scores = tf.where(real[:, None], tf.linalg.matvec(tanh, v), NEVER)
        places = tf.nn.softmax(scores)
        context = tf.matmul(tf.cast(places, memory.dtype), memory)
        return h, c, context, places
