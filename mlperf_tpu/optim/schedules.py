"""Learning rates as functions of the step: pure, float32, clamped at the run's end.

Every schedule rises from 0 (`intervals`: from a hundredth of its base rate)
over the warm-up, and never rises after it; one with an end is exactly its end value
from its last step on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

Schedule = Callable[[tf.Tensor], tf.Tensor]


def polynomial(
    base: float, end: float, power: float, warmup_steps: float, decay_steps: float
) -> Schedule:
    """Warm-up, then (base - end) * (1 - s / decay_steps)^power + end.

    `s` counts from the last whole warm-up step, at least 1 and at most `decay_steps`,
    as Google's v0.6 and v0.7 ResNet-50 count it; `warmup_steps` may be a fraction
    (epochs x examples / batch).

    >>> rate = polynomial(base=2.0, end=0.0, power=2.0, warmup_steps=2.5, decay_steps=4)
    >>> [round(float(rate(tf.constant(s))), 3) for s in (0, 1, 2, 3, 4, 6, 9)]
    [0.0, 0.8, 1.6, 1.125, 0.5, 0.0, 0.0]
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        at = tf.cast(step, tf.float32)
        since = tf.clip_by_value(at - float(int(warmup_steps)), 1.0, float(decay_steps))
        decayed = (base - end) * (1.0 - since / decay_steps) ** power + end
        return _warm_up(at, base, warmup_steps, decayed)

    return rate


def stepwise(
    base: float, boundaries: Sequence[int], factor: float, warmup_steps: float
) -> Schedule:
    """Warm-up, then `base` multiplied by `factor` at each boundary (in steps).

    >>> rate = stepwise(base=1.0, boundaries=[4, 6], factor=0.1, warmup_steps=2)
    >>> [round(float(rate(tf.constant(s))), 3) for s in (0, 1, 2, 3, 4, 6, 100)]
    [0.0, 0.5, 1.0, 1.0, 0.1, 0.01, 0.01]
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        at = tf.cast(step, tf.float32)
        drops = tf.add_n([tf.cast(step >= b, tf.float32) for b in boundaries])
        return _warm_up(at, base, warmup_steps, base * factor**drops)

    return rate


def rsqrt(constant: float, warmup_steps: float, width: int) -> Schedule:
    """constant * min(1, s / warmup) / sqrt(max(s, warmup) * width), s = step + 1.

    The Transformer's (arXiv 1706.03762); steps count from 1, so that the first moves
    the weights.

    >>> rate = rsqrt(constant=2.0, warmup_steps=4, width=16)
    >>> [round(float(rate(tf.constant(s))), 4) for s in (0, 1, 3, 15)]
    [0.0625, 0.125, 0.25, 0.125]
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        at = tf.cast(step, tf.float32) + 1.0
        risen = tf.minimum(1.0, at / max(warmup_steps, 1.0))
        return constant * risen * tf.math.rsqrt(tf.maximum(at, warmup_steps) * width)

    return rate


def intervals(
    base: float, start: int, interval: int, factor: float, drops: int, warmup: int
) -> Schedule:
    """An exponential warm-up from base / 100 (tensor2tensor's, which GNMT takes), then
    `base` times `factor` at `start` and every `interval` steps after, `drops` times.

    >>> rate = intervals(1.0, 4, 2, factor=0.5, drops=2, warmup=2)
    >>> [round(float(rate(tf.constant(s))), 3) for s in (0, 1, 2, 3, 4, 6, 8)]
    [0.01, 0.1, 1.0, 1.0, 0.5, 0.25, 0.25]
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        at = tf.cast(step, tf.float32)
        rising = base * 100.0 ** (tf.minimum(at / max(warmup, 1), 1.0) - 1.0)
        done = tf.clip_by_value(tf.floor((at - start) / interval) + 1, 0.0, drops)
        return tf.where(at < warmup, rising, base * factor**done)

    return rate


def _warm_up(at, base, warmup_steps, after):
    if warmup_steps <= 0:
        return after
    return tf.where(at <= warmup_steps, base * at / warmup_steps, after)
