"""Long short-term memory over [time, batch, width], its loop as short as it can be.

Hoisted (papers.md 1.6, what Google's GNMT did on TPUs): the input's projection is one
product before the loop, and the loop adds the state's. Backwards the loop carries the
gates' gradients alone, and those of all weights and of the input are products after it.
Plain: the projection stands in the loop, and TensorFlow differentiates the loop. Both
compute the same; `mlperf-tpu verify gnmt` compares them.

Both end after `n_steps`, the longest sequence of the batch. What stands behind a row's
own end is of no use to anyone but is finite.

The gates of a step are [batch, 4 width]: input, forget, output, candidate. The cell is
float32, the states are of the activations' dtype.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from mlperf_tpu.nn import blocks
from mlperf_tpu.nn.gradients import gradient_scope

STEPS = "steps"  # loops of so many iterations as there are steps end their names so


# A gate before its sigmoid that lets nothing through: an exact zero.
SHUT = -1e9


def activated(gates):
    """Three sigmoid gates and the candidate of four [..., width]."""
    i, f, o, candidate = gates
    return tf.sigmoid(i), tf.sigmoid(f), tf.sigmoid(o), tf.tanh(candidate)


def cell(gates, c):
    """(new h, new c) from the four gates before their non-linearity and c, all float32
    [batch, width]."""
    i, f, o, candidate = activated(gates)
    c = f * c + i * candidate
    return o * tf.tanh(c), c


def derivatives(gates, c_before, c):
    """What the states alone decide of a step's gradient, float32 [..., width]: the four
    gates' derivatives, the cell's by h, and the forget gate."""
    i, f, o, candidate = activated(gates)
    tanh = tf.tanh(c)
    by_gate = (
        candidate * i * (1.0 - i),
        c_before * f * (1.0 - f),
        tanh * o * (1.0 - o),
        i * (1.0 - candidate * candidate),
    )
    return by_gate, o * (1.0 - tanh * tanh), f


def kept_gates(gates, t, z):
    """The array `gates`, z (float32 [batch, 4 width]) added to what came in at step t,
    and the four gates of that step.

    XLA reads each gate from the array, where it is used: so z is written once, and
    rounded to the array's dtype before its non-linearity, as the gradient will see it.
    """
    z += tf.cast(gates.read(t), tf.float32)
    gates = gates.write(t, tf.cast(z, gates.dtype))
    if blocks.static_shapes():
        return gates, _gates_at(gates.stack(), t)
    return gates, tf.split(z, 4, 1)


def _gates_at(values, t):
    """The four gates, float32 [batch, width], of values [steps, batch, 4 width]."""
    _, batch, wide = values.shape
    sizes = [1, batch, wide // 4]
    parts = [tf.slice(values, [t, 0, k * sizes[2]], sizes)[0] for k in range(4)]
    return [tf.cast(part, tf.float32) for part in parts]


class _OverGates:
    """The gates' gradients, each written over its gate: the array needs no filling, and
    no gate is laid beside another but in it.

    `start` is a loop's state; `step` takes and returns it.
    """

    def __init__(self, gates, cells, before: int, after: int):
        self.cells, self.before, self.after = cells, before, after
        values = gates.stack()
        _, batch, wide = values.shape
        # Of the bias by row: XLA adds these up where it has the gradients.
        self.start = (values, *[tf.zeros([batch, wide // 4])] * 4)

    def step(self, t, dh, dc, values, *db):
        """(gradient of z, [batch, 4 width], of the cell before, *state) from those of
        h and c, float32 [batch, width] each."""
        states = (self.cells.read(t + place) for place in (self.before, self.after))
        by_gate, by_h, f = derivatives(_gates_at(values, t), *states)
        dc += dh * by_h
        dz = [by * d for by, d in zip(by_gate, (dc, dc, dh, dc), strict=True)]
        db = [rows + each for rows, each in zip(db, dz, strict=True)]
        dz = blocks.computed_once([tf.cast(each, values.dtype) for each in dz])
        for k, each in enumerate(dz):
            at = tf.stack([t, 0, k * each.shape[1]])
            values = gen_xla_ops.xla_dynamic_update_slice(values, each[None], at)
        now = tf.slice(values, [t, 0, 0], [1, *values.shape[1:]])[0]
        return now, dc * f, values, *db

    def whole(self, values, *db):
        """Gradients of all steps' z, zeros where no step was, and of the bias."""
        return values, tf.concat([tf.reduce_sum(rows, 0) for rows in db], 0)


class _BesideGates:
    """The same for a CPU, to which each op costs its start: `derivatives` of all steps
    before the loop, and the gradients in an array of their own."""

    def __init__(self, gates, cells, before: int, after: int):
        z = gates.stack()
        steps = tf.shape(z)[0]
        c = _around(cells.stack(), before, after)
        by_gate, *others = derivatives(tf.split(z, 4, -1), *c)
        self.arrays = [
            array(steps, v.shape[1:], tf.float32, v)
            for v in (tf.concat(by_gate, -1), *others)
        ]
        self.start = (array(steps, z.shape[1:], z.dtype),)

    def step(self, t, dh, dc, dz):
        by_gate, by_h, f = (values.read(t) for values in self.arrays)
        dc += dh * by_h
        now = tf.concat([dc, dc, dh, dc], 1) * by_gate
        return now, dc * f, dz.write(t, now)

    def whole(self, dz):
        dz = dz.stack()
        return dz, tf.reduce_sum(dz, [0, 1])


def gate_gradients(gates, cells, before: int, after: int):
    """What the loop backwards computes of the arrays that the loop forwards has left;
    the cells before and after step t stand at t + before and t + after."""
    kind = _OverGates if blocks.static_shapes() else _BesideGates
    return kind(gates, cells, before, after)


def kept(dtype):
    """In what a loop keeps values for its gradient: a CPU computes in float32 alone,
    and would convert at each step what memory it has to spare."""
    return dtype if blocks.static_shapes() else tf.float32


def array(n: int, shape, dtype, values=None):
    """A tensor array of `n` elements; what is not written reads as zeros."""
    out = tf.TensorArray(dtype, n, element_shape=shape, clear_after_read=False)
    return out if values is None else out.unstack(values)


def loop(n_steps, body, start, name: str, most: int | None = None):
    """`body(t, *state)` for t of 0 .. n_steps - 1; the last state."""
    with tf.name_scope(name):
        return tf.while_loop(
            lambda t, *_: t < n_steps,
            lambda t, *state: (t + 1, *body(t, *state)),
            (tf.constant(0), *start),
            parallel_iterations=1,
            maximum_iterations=most,
        )[1:]


def plain_lstm(x, kernel, recurrent, bias, n_steps, mask=None, reverse=False, side=""):
    """The same as `hoisted_lstm`, by TensorFlow's own gradient."""
    time, batch, width = x.shape[0], x.shape[1], recurrent.shape[0]
    steps = tf.shape(x)[0] if time is None else time
    dtype = x.dtype
    whole = tf.cast(tf.concat([kernel, recurrent], 0), dtype)
    bias = tf.cast(bias, dtype)
    inputs = array(steps, [batch, x.shape[2]], dtype, x)
    masks = None if mask is None else array(steps, [batch, 1], tf.float32, mask)

    def body(s, h, c, out):
        t = n_steps - 1 - s if reverse else s
        z = tf.matmul(tf.concat([inputs.read(t), h], 1), whole) + bias
        h, c = cell(tf.split(tf.cast(z, tf.float32), 4, 1), c)
        if masks is not None:
            h, c = h * masks.read(t), c * masks.read(t)
        h = tf.cast(h, dtype)
        return h, c, out.write(t, h)

    h, c = tf.zeros([batch, width], dtype), tf.zeros([batch, width])
    out = array(steps, [batch, width], dtype)
    name = f"{side}_{STEPS}"
    return loop(n_steps, body, (h, c, out), name, time)[2].stack()


def hoisted_lstm(
    x, kernel, recurrent, bias, n_steps, mask=None, reverse=False, side=""
):
    """The states h, [time, batch, width] in x's dtype, of which the first is fed zeros.

    x [time, batch, in], kernel [in, 4 width], recurrent [width, 4 width] and bias
    [4 width] float32, n_steps int32 scalar. `mask` float32 [time, batch, 1] makes the
    state zero where it is zero: a reversed loop starts at each row's own end. `side`
    names the loops: source or target.
    """
    scope = gradient_scope()

    @tf.custom_gradient
    def run(x, kernel, recurrent, bias):
        time, batch, width = x.shape[0], x.shape[1], recurrent.shape[0]
        steps = tf.shape(x)[0] if time is None else time
        dtype = x.dtype
        w, u = tf.cast(kernel, dtype), tf.cast(recurrent, dtype)
        projected = blocks.product(x, w, n_steps, side, tf.cast(bias, dtype))
        if mask is not None:
            shut = blocks.until(n_steps, tf.fill([steps, 1, 1], tf.cast(SHUT, dtype)))
            projected = tf.where(mask > 0, projected, shut)
        keep = kept(dtype)
        # What comes in at a step, and after it the gates before their non-linearity.
        gates = array(steps, [batch, 4 * width], keep, tf.cast(projected, keep))
        # States before and after step t stand at these places of arrays of time + 1.
        before, after = (1, 0) if reverse else (0, 1)

        def body(s, h, c, states, cells, gates):
            t = n_steps - 1 - s if reverse else s
            z = tf.cast(tf.matmul(h, u), tf.float32)
            gates, now = kept_gates(gates, t, z)
            h, c = cell(now, c)
            h = tf.cast(h, dtype)
            states = states.write(t + after, h)
            return h, c, states, cells.write(t + after, c), gates

        start = (
            tf.zeros([batch, width], dtype),
            tf.zeros([batch, width]),
            array(steps + 1, [batch, width], dtype),
            array(steps + 1, [batch, width], tf.float32),
            gates,
        )
        *_, states, cells, gates = loop(n_steps, body, start, f"{side}_{STEPS}")
        h_all = states.stack()

        def gradient(dh_all):
            with scope():
                of_gates = gate_gradients(gates, cells, before, after)
                given = array(steps, [batch, width], keep, tf.cast(dh_all, keep))

                def body(s, dh, dc, *held):
                    t = s if reverse else n_steps - 1 - s
                    dh += tf.cast(given.read(t), tf.float32)
                    now, dc, *held = of_gates.step(t, dh, dc, *held)
                    dh = tf.matmul(tf.cast(now, dtype), u, transpose_b=True)
                    return tf.cast(dh, tf.float32), dc, *held

                zero = tf.zeros([batch, width])
                start = (zero, zero, *of_gates.start)
                done = loop(n_steps, body, start, f"{side}_{STEPS}")
                dz, dbias = of_gates.whole(*done[2:])
                dz = tf.cast(dz, dtype)
                dx = blocks.product(dz, w, n_steps, side, transposed=True)
                h_before, _ = _around(h_all, before, after)
                return dx, *weight_gradients(dz, x, h_before), dbias

        return h_all[:-1] if reverse else h_all[1:], gradient

    return run(x, kernel, recurrent, bias)


def _around(values, before: int, after: int):
    """The states before and after each step, of an array of time + 1."""
    first, last = values[:-1], values[1:]
    return (last, first) if before > after else (first, last)


def weight_gradients(dz, *inputs):
    """float32 gradients of each input's kernel: one product each over all steps. dz
    [time, batch, out], zeros where no step was; an input [time, batch, in]."""
    flat = tf.reshape(dz, [-1, dz.shape[-1]])
    return [
        tf.cast(
            tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), flat, transpose_a=True),
            tf.float32,
        )
        for x in inputs
    ]


def add_uniform(layer, name: str, *shape: int):
    """A float32 weight that starts uniform in +- the layer's `init_range`, by a draw of
    its own: an initializer gives equal values to all weights of a shape."""
    uniform = keras.initializers.RandomUniform(-layer.init_range, layer.init_range)
    return layer.add_weight(shape=shape, initializer=uniform, name=name, autocast=False)


class LSTM(keras.layers.Layer):
    """One layer: [time, batch, in] to [time, batch, width].

    `hoisted` chooses how it is computed, not what. `side` says whose length ends its
    loops, source or target. All weights start uniform in +-`init_range`.
    """

    def __init__(
        self,
        width: int,
        init_range: float,
        hoisted: bool,
        side: str,
        reverse=False,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.width = width
        self.init_range = init_range
        self.reverse = reverse
        self.side = side
        self._run = hoisted_lstm if hoisted else plain_lstm

    def build(self, shape):
        gates = 4 * self.width
        self.kernel = add_uniform(self, "kernel", shape[-1], gates)
        self.recurrent = add_uniform(self, "recurrent", self.width, gates)
        self.bias = add_uniform(self, "bias", gates)

    @property
    def weights_now(self):
        """kernel, recurrent and bias as tensors."""
        held = (self.kernel, self.recurrent, self.bias)
        return [tf.convert_to_tensor(v) for v in held]

    def call(self, x, n_steps, mask=None):
        return self._run(x, *self.weights_now, n_steps, mask, self.reverse, self.side)

    def step(self, x, h, c):
        """One step for decoding: x [rows, in], h and c [rows, width]; (h, c)."""
        kernel, recurrent, bias = (tf.cast(v, x.dtype) for v in self.weights_now)
        z = tf.matmul(x, kernel) + tf.matmul(h, recurrent) + bias
        h, c = cell(tf.split(tf.cast(z, tf.float32), 4, 1), c)
        return tf.cast(h, x.dtype), c
