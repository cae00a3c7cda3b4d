"""Random draws in a step: stateless, so that a seed says everything.

A step's seed comes from (seed, step, replica) (optim.training_step.step_seed); each
place in the model that draws takes one of its own from there.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives.xla import XlaPlace, random_bytes


class Draws:
    """Seeds for the places of a model, in the order in which they ask.

    seed int32 [2]; at most `places` may ask.
    """

    def __init__(self, seed, places: int) -> None:
        # All at once: one op, where folding would take several a place.
        drawn = tf.random.stateless_uniform([places, 2], seed, None, None, tf.int32)
        self._seeds = tf.unstack(drawn)

    def next(self):
        """The next place's seed, int32 [2]."""
        return self._seeds.pop(0)


def dropout(x, rate: float, draws: Draws | None):
    """`x` with a share of `rate` of its elements 0 and the others scaled up.

    Unchanged where `draws` is None (evaluation) or the rate 0. An element takes a byte
    of what is drawn: the rate is one of 256, and the scale follows.
    """
    if draws is None or rate == 0:
        return x
    bound = min(round(rate * 256), 255)
    kept = tf.cast(_bytes(x, draws.next()) >= bound, x.dtype)
    return x * (kept * tf.cast(256 / (256 - bound), x.dtype))


def _bytes(x, seed):
    """Uniform uint8 of x's shape, which only XLA asks to be static."""
    if isinstance(collectives.place(), XlaPlace):
        return random_bytes(seed, x.shape)
    shape, n = tf.shape(x), tf.size(x)
    words = tf.random.stateless_uniform([-(-n // 4)], seed, None, None, tf.int32)
    drawn = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    return tf.reshape(drawn[:n], shape)
