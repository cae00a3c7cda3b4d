"""Boxes: areas, overlaps, and their code relative to anchors."""

from __future__ import annotations

import tensorflow as tf

# The variances 0.1 and 0.2 of SSD (arXiv 1512.02325) as factors, y x h w.
SCALES = (10.0, 10.0, 5.0, 5.0)
# A side below this is no side: its logarithm must stay finite.
_LEAST_SIDE = 1e-8


def area(boxes):
    """float32 [...] of boxes [..., 4]; zero where a side is negative."""
    top, left, bottom, right = tf.unstack(boxes, 4, -1)
    return tf.maximum(bottom - top, 0.0) * tf.maximum(right - left, 0.0)


def iou(first, second):
    """Intersection over union of boxes [..., n, 4] and [..., m, 4]: [..., n, m]; zero
    where both are empty."""
    a, b = first[..., :, tf.newaxis, :], second[..., tf.newaxis, :, :]
    sides = tf.minimum(a[..., 2:], b[..., 2:]) - tf.maximum(a[..., :2], b[..., :2])
    common = tf.reduce_prod(tf.maximum(sides, 0.0), -1)
    return tf.math.divide_no_nan(common, area(a) + area(b) - common)


def encode(boxes, anchors, scales=SCALES):
    """The code of boxes [..., 4] relative to anchors of the same shape: the offset of
    the centres by the anchor's side, the logarithm of the sides' ratio, each scaled.
    An empty box has a finite code; data sets leave such boxes out."""
    centre, side = _centre(boxes)
    anchor_centre, anchor_side = _centre(anchors)
    offset = (centre - anchor_centre) / anchor_side
    ratio = tf.math.log(tf.maximum(side, _LEAST_SIDE) / anchor_side)
    return tf.concat([offset, ratio], -1) * tf.constant(scales, tf.float32)


def decode(codes, anchors, scales=SCALES):
    """The boxes [..., 4] of codes [..., 4]: `encode`'s inverse."""
    codes = codes / tf.constant(scales, tf.float32)
    anchor_centre, anchor_side = _centre(anchors)
    centre = codes[..., :2] * anchor_side + anchor_centre
    half = tf.exp(codes[..., 2:]) * anchor_side / 2
    return tf.concat([centre - half, centre + half], -1)


def _centre(boxes):
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low
