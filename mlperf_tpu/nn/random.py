"""Random draws in a step: stateless, so that a seed says everything.

A step's seed comes from (seed, step, replica) (optim.training_step.step_seed); each
place in the model that draws takes one of its own from there.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives.xla import XlaPlace, random_bits


class Draws:
    """Seeds for the places of a model, in the order in which they ask.

    seed int32 [2]; at most `places` may ask.
    """

    def __init__(self, seed, places: int) -> None:
        # All at once: one op, where folding would take several a place.
        self._seeds = tf.unstack(_bits([places, 2], seed))

    def next(self):
        """The next place's seed, int32 [2]."""
        return self._seeds.pop(0)


def dropout(x, rate: float, draws: Draws | None):
    """`x` with a share of `rate` of its elements 0 and the others scaled up.

    Unchanged where `draws` is None (evaluation) or the rate 0.
    """
    if draws is None or rate == 0:
        return x
    # Whole draws against a bound: none is made a float first. A CPU draws in software,
    # and takes bytes of a draw: the rate is one of 256 then, and the scale follows.
    if x.shape[-1] % 4 or _by_xla():  # where shapes are static
        bound, of = round(rate * 2**32), 2**32
        kept = _bits(x.shape, draws.next()) >= bound - 2**31
    else:
        bound, of = round(rate * 2**8), 2**8
        drawn = tf.bitcast(_bits([tf.size(x) // 4], draws.next()), tf.uint8)
        kept = tf.reshape(drawn >= bound, tf.shape(x))
    return x * (tf.cast(kept, x.dtype) * tf.cast(of / (of - bound), x.dtype))


def _by_xla() -> bool:
    return isinstance(collectives.place(), XlaPlace)


def _bits(shape, seed):
    """Uniform int32 over all its values."""
    if not _by_xla():
        return tf.random.stateless_uniform(shape, seed, None, None, tf.int32)
    return random_bits(shape, seed)
