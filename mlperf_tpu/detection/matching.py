"""Which anchor stands for which box."""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu.detection.boxes import iou

UNMATCHED = -1


def match(boxes, anchors, threshold: float):
    """The index of each anchor's box, int32 [anchors], or UNMATCHED.

    boxes [n, 4], n >= 0; anchors [anchors, 4]. An anchor takes the box it overlaps most
    if by at least `threshold`; and each box is given the anchor that overlaps it most,
    whatever the overlap and that anchor's own choice, the first box where two ask for
    one anchor (as Google's SSD; a box that overlaps no anchor is given none).
    """
    n, n_anchors = tf.shape(boxes)[0], tf.shape(anchors)[0]
    # A box of no overlap at the end: the maximum over boxes exists without any.
    overlap = tf.concat([iou(boxes, anchors), tf.zeros([1, n_anchors])], 0)
    best = tf.argmax(overlap, 0, tf.int32)
    matched = tf.where(tf.reduce_max(overlap, 0) >= threshold, best, UNMATCHED)
    favourite = tf.argmax(overlap, 1, tf.int32)
    asks = (tf.range(n_anchors)[None] == favourite[:, None]) & (
        tf.reduce_max(overlap, 1) > 0
    )[:, None]
    asks &= (tf.range(n + 1) < n)[:, None]
    first = tf.argmax(tf.cast(asks, tf.int32), 0, tf.int32)
    return tf.where(tf.reduce_any(asks, 0), first, matched)
