"""Rows of a table by id, with a dense gradient, as the sum over replicas wants it."""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu.nn.gradients import gradient_scope


def embed(table, ids, dtype):
    """table float32 [vocabulary, width] at int32 ids [...]: [..., width] of `dtype`."""
    scope = gradient_scope()

    @tf.custom_gradient
    def run(table):
        def gradient(upstream):
            with scope():
                flat = tf.reshape(tf.cast(upstream, tf.float32), [-1, table.shape[1]])
                return tf.math.unsorted_segment_sum(
                    flat, tf.reshape(ids, [-1]), table.shape[0]
                )

        return tf.cast(tf.gather(table, ids), dtype), gradient

    return run(table)
