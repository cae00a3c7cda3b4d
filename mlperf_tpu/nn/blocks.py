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


def product(x, kernel, n_steps, loop: str, bias=None):
    """x [time, batch, in] by kernel [in, out], plus a bias [out] where one is given:
    [time, batch, out] in x's dtype.

    Rows from `n_steps` (int32 scalar) on are zero, or of no use. `loop` names the loop.
    """
    time, batch, width = x.shape
    size = steps_a_block(time, batch) if static_shapes() else time
    if size == time:
        found = tf.einsum("tbi,io->tbo", x, kernel)
        return found if bias is None else found + bias

    def body(k, out):
        rows = tf.reshape(block(x, k, size), [size * batch, width])
        found = tf.reshape(tf.matmul(rows, kernel), [size, batch, -1])
        found = found if bias is None else found + bias
        return k + 1, collectives.write(out, k * size, found)

    out = tf.zeros([time, batch, kernel.shape[1]], x.dtype)
    last = n_blocks(n_steps, size)
    with tf.name_scope(f"{loop}_{BLOCKS}"):
        return tf.while_loop(lambda k, _: k < last, body, (0, out))[1]


def computed_once(value):
    """`value`, which XLA must not compute again within each op that takes it."""
    if static_shapes():
        [value] = gen_xla_ops.xla_optimization_barrier([value])
    return value


def block(x, k, size: int):
    """Block number `k` of x's first dimension."""
    return tf.slice(x, [k * size, *[0] * (x.shape.rank - 1)], [size, *x.shape[1:]])
