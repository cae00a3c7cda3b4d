"""Matrix products over the time steps that a batch really has.

Where shapes are static (XLA), rows of [time, batch, ...] are taken in blocks of at
least 512 and a loop ends after the batch's longest sequence, as Google's GNMT did
(papers.md 1.6). Elsewhere the batch is cut to its longest sequence beforehand, and one
product does it all.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from mlperf_tpu import collectives
from mlperf_tpu.spec.loops import steps_a_block

# Loops are named by what ends them: pod.hlo counts those whose end the data decides.
BLOCKS = "blocks"


def static_shapes() -> bool:
    """Whether XLA compiles what is traced."""
    return hasattr(collectives.place(), "n_partitions")


def n_blocks(n_steps, size: int):
    """Blocks of `size` steps that `n_steps` (a tensor) reach into."""
    return (n_steps + size - 1) // size


def until(n_steps, values, first=0):
    """values [time, ...], of which the first is step `first`: zero from `n_steps` on.
    Where shapes are not static no step comes after it."""
    if not static_shapes():
        return values
    steps = first + tf.range(values.shape[0])
    steps = tf.reshape(steps, [-1] + [1] * (values.shape.rank - 1))
    return tf.where(steps < n_steps, values, tf.zeros([], values.dtype))


def product(x, kernel, n_steps, loop: str, bias=None, transposed=False):
    """x [time, batch, in] by kernel [in, out] ([out, in] where it is `transposed`),
    plus a bias [out] where one is given: [time, batch, out] in x's dtype.

    Rows from `n_steps` (int32 scalar) on are zero. `loop` names the loop.
    """
    time, batch, width = x.shape
    size = steps_a_block(time, batch) if static_shapes() else time
    if size == time:
        found = tf.einsum("tbi,oi->tbo" if transposed else "tbi,io->tbo", x, kernel)
        return until(n_steps, found if bias is None else found + bias)

    def body(k, out):
        rows = tf.reshape(block(x, k, size), [size * batch, width])
        found = tf.matmul(rows, kernel, transpose_b=transposed)
        found = tf.reshape(found, [size, batch, -1])
        found = until(n_steps, found if bias is None else found + bias, k * size)
        return k + 1, collectives.write(out, k * size, found)

    out = tf.zeros([time, batch, kernel.shape[0 if transposed else 1]], x.dtype)
    last = n_blocks(n_steps, size)
    with tf.name_scope(f"{loop}_{BLOCKS}"):
        return tf.while_loop(lambda k, _: k < last, body, (0, out))[1]


def row_product(rows, matrices, transposed=False):
    """Each row [batch or 1, in] by a matrix of its own: [batch, out] from matrices
    [batch, in, out] ([batch, out, in] where they are `transposed`).

    XLA makes sums of a product that has one row; eight, a whole tile, it gives to the
    matrix unit (92 to 51 us of 128 rows by 48 x 1024 on a v3, by libtpu's estimate).
    """
    if not static_shapes():
        return tf.linalg.matvec(matrices, rows, transpose_a=not transposed)
    tile = tf.pad(rows[:, None], [[0, 0], [0, 7], [0, 0]])
    return tf.matmul(tile, matrices, transpose_b=transposed)[:, 0]


def computed_once(values):
    """The list `values`: none is computed again within the ops that take it."""
    if not static_shapes():
        return values
    return gen_xla_ops.xla_optimization_barrier(values)


def block(x, k, size: int):
    """Block number `k` of x's first dimension."""
    return tf.slice(x, [k * size, *[0] * (x.shape.rank - 1)], [size, *x.shape[1:]])
