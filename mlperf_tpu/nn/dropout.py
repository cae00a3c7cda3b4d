"""Dropout by stateless seeds: the same for the same step, another on each replica."""

from __future__ import annotations

import tensorflow as tf


def dropout(x, rate: float, seed, place: int):
    """x with a share of `rate` of its elements zero, the rest scaled up to the mean.

    seed int32 [2] is the step's (optim.training_step.step_seed); `place` tells the
    places of a network apart. The share is the nearest multiple of 1 / 256: a byte of
    random bits decides, of which a CPU makes four at a time.
    """
    threshold = round(rate * 256)
    if threshold == 0:
        return x
    seed = tf.random.experimental.stateless_fold_in(seed, place)
    keep = 1.0 - threshold / 256
    shape = tf.shape(x)
    words = -(-x.shape[-1] // 4)
    bits = tf.random.stateless_uniform(
        tf.concat([shape[:-1], [words]], 0), seed, None, None, tf.int32
    )
    bits = tf.bitcast(bits, tf.uint8)
    bits = tf.reshape(bits, tf.concat([shape[:-1], [4 * words]], 0))
    kept = bits[..., : x.shape[-1]] >= threshold
    return tf.where(kept, x / tf.cast(keep, x.dtype), tf.zeros([], x.dtype))
