"""Images as hosts send them, made the network's input."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def normalized(images, mean: Sequence[float], stddev: Sequence[float], dtype):
    """(images - mean) / stddev in `dtype`, of the shape of `images`.

    images [n, height, width, channels] in 0..255; mean and stddev have a value a
    channel. Pixels folded by space-to-depth, 4 x channels, are normalised one by one.
    """
    n, height, width, channels = images.shape
    values = tf.cast(images, dtype)
    repeated = channels // len(mean)
    if images.dtype == tf.uint8:
        # As a CPU gets them, which takes twice as long to repeat three values a pixel
        # as whole rows of them; a TPU gets bf16, and its memory another order.
        repeated *= width
        values = tf.reshape(values, [n, height, width * channels])
    mean, stddev = (tf.constant(tuple(v) * repeated, dtype) for v in (mean, stddev))
    return tf.reshape((values - mean) / stddev, images.shape)
