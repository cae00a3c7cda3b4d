"""Random draws in a step: stateless, so that a seed says everything.

A step's seed comes from (seed, step, replica) (optim.training_step.step_seed); each
place in the model that draws takes one of its own from there.
"""

from __future__ import annotations

import tensorflow as tf


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
    # Whole 32-bit draws against a bound: no draw is made a float first.
    bound = round(rate * 2**32) - 2**31
    kept = _bits(x.shape, draws.next()) >= bound
    return tf.where(kept, x * tf.cast(1.0 / (1.0 - rate), x.dtype), 0)


def _bits(shape, seed):
    """Uniform int32 over all its values."""
    return tf.random.stateless_uniform(shape, seed, None, None, tf.int32)
