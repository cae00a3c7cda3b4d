"""Random draws in a step: stateless, so that a seed says everything.

A step's seed comes from (seed, step, replica) (optim.training_step.step_seed); each
place in the model that draws takes one of its own from there.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives.xla import XlaPlace, random_words


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

    Unchanged where `draws` is None (evaluation) or the rate 0.
    """
    if draws is None or rate == 0:
        return x
    shape = x.shape if x.shape.is_fully_defined() else tf.shape(x)
    keep, scale = kept(shape, rate, draws)
    return x * tf.where(keep, tf.cast(scale, x.dtype), 0)


def kept(shape, rate: float, draws: Draws):
    """Which elements of `shape` a dropout of `rate` leaves, bool, and what scales them.

    An element takes a byte of what is drawn: the rate is one of 256, and the scale
    follows.
    """
    bound = min(round(rate * 256), 255)
    drawn = _drawn(shape, draws.next())
    least = tf.constant(bound << 8 * (drawn.dtype.size - 1), drawn.dtype)
    return drawn >= least, 256 / (256 - bound)


def _drawn(shape, seed):
    """Unsigned integers of `shape`, of which the highest byte is uniform."""
    if not isinstance(collectives.place(), XlaPlace):
        n = tf.reduce_prod(shape)
        words = tf.random.stateless_uniform([-(-n // 4)], seed, None, None, tf.int32)
        return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:n], shape)
    # A word serves four elements, a quarter of a dimension apart: neighbours would have
    # its bytes moved between a TPU's lanes, which takes longer than the draw.
    axis = next((k for k, n in enumerate(shape[:-1]) if n % 4 == 0), 0)
    before, n, after = shape[:axis], shape[axis], shape[axis + 1 :]
    words = random_words(seed, [*before, 1, -(-n // 4), *after])
    shifts = tf.constant([0, 8, 16, 24], tf.uint32)
    shifts = tf.reshape(shifts, [4] + [1] * (1 + len(after)))
    drawn = tf.reshape(tf.bitwise.left_shift(words, shifts), [*before, -1, *after])
    return drawn[(*[slice(None)] * axis, slice(n))]
