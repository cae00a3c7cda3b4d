"""Projection to the vocabulary, softmax and smoothed cross entropy, in one go.

The loss's gradient is known as soon as the loss is, up to a factor: both are computed
together, block by block of steps (nn.blocks), so that no logits outlive their block.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.nn import blocks
from mlperf_tpu.nn.gradients import gradient_scope
from mlperf_tpu.spec.loops import steps_a_block


def softmax_loss(h, kernel, labels, real, n_steps, smoothing: float):
    """The sum of the cross entropies of all real places, float32 scalar.

    h [time, batch, width]; kernel float32 [width, vocabulary]; labels int32 and real
    float32 [time, batch]. Of the smoothing, each id gets smoothing / vocabulary, the
    label's included (nn.losses).
    """
    scope = gradient_scope()
    time, batch, width = h.shape

    @tf.custom_gradient
    def run(h, kernel):
        w = tf.cast(kernel, h.dtype)
        size = time
        if blocks.static_shapes():
            size = steps_a_block(time, batch)
        if size == time:
            rows = tf.reshape(h, [-1, width])
            loss, dh, dw = _block(rows, w, labels, real, smoothing)
            dh = tf.reshape(dh, tf.shape(h))
        else:

            def body(k, loss, dh, dw):
                h_k, labels_k, real_k = (
                    blocks.block(v, k, size) for v in (h, labels, real)
                )
                rows = tf.reshape(h_k, [size * batch, width])
                more, dh_k, dw_k = _block(rows, w, labels_k, real_k, smoothing)
                dh_k = tf.reshape(dh_k, [size, batch, width])
                dh = collectives.write(dh, k * size, dh_k)
                return k + 1, loss + more, dh, dw + dw_k

            last = blocks.n_blocks(n_steps, size)
            start = (0, tf.constant(0.0), tf.zeros_like(h), tf.zeros(kernel.shape))
            with tf.name_scope(f"target_{blocks.BLOCKS}"):
                _, loss, dh, dw = tf.while_loop(lambda k, *_: k < last, body, start)

        def gradient(upstream):
            with scope():
                return tf.cast(upstream, h.dtype) * dh, upstream * dw

        return loss, gradient

    return run(h, kernel)


def _block(rows, w, labels, real, smoothing):
    """Loss, gradients of the rows [n, width] and, in float32, of the kernel."""
    vocabulary = w.shape[1]
    labels, real = tf.reshape(labels, [-1]), tf.reshape(real, [-1])
    logits = tf.cast(tf.matmul(rows, w), tf.float32)
    target = tf.one_hot(
        labels,
        vocabulary,
        on_value=1.0 - smoothing + smoothing / vocabulary,
        off_value=smoothing / vocabulary,
    )
    losses, dlogits = tf.raw_ops.SoftmaxCrossEntropyWithLogits(
        features=logits, labels=target
    )
    dlogits = tf.cast(dlogits * real[:, None], rows.dtype)
    dh = tf.matmul(dlogits, w, transpose_b=True)
    dw = tf.cast(tf.matmul(rows, dlogits, transpose_a=True), tf.float32)
    return tf.reduce_sum(losses * real), dh, dw
