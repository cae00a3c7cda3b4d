"""From scores and boxes to detections, in fixed shapes and without a host."""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu.detection.boxes import iou


def suppress(boxes, real, threshold: float):
    """Greedy non-maximum suppression: bool [..., n], which of the boxes stay.

    boxes [..., n, 4] stand in falling order of score; `real` bool [..., n] marks those
    that count. A box stays if no box before it that stays overlaps it by more than
    `threshold`. That is a fixed point with one solution, since a box depends on those
    before it alone; a round settles at least the next box, a few rounds settle all.
    """
    n = boxes.shape[-2]
    before = tf.linalg.band_part(tf.ones([n, n]), 0, -1) - tf.eye(n)
    overlaps = tf.cast(iou(boxes, boxes) > threshold, tf.float32) * before
    real = tf.cast(real, tf.float32)

    def again(stay):
        hit = tf.linalg.matvec(overlaps, stay, transpose_a=True)
        return real * tf.cast(hit < 0.5, tf.float32)

    def unsettled(stay, old, rounds):
        return tf.reduce_any(stay != old) & (rounds <= n)

    def body(stay, old, rounds):
        return again(stay), stay, rounds + 1

    stay, _, _ = tf.while_loop(unsettled, body, (again(real), real, tf.constant(0)))
    return stay > 0.5


def detections(
    scores,
    boxes,
    least_score: float,
    threshold: float,
    per_class: int,
    total: int,
):
    """The best detections of each image: float32 [images, total, 6], each a box, its
    score and its class, counted from 0; rows of score 0 are none.

    scores [images, anchors, classes] without a background; boxes [images, anchors, 4].
    Of each class the `per_class` best above `least_score` go through `suppress`.
    """
    images, anchors, classes = scores.shape
    kept = min(per_class, anchors)
    best, index = tf.math.top_k(tf.transpose(scores, [0, 2, 1]), kept)
    flat = tf.reshape(index, [images, classes * kept])
    candidates = tf.gather(boxes, flat, batch_dims=1)
    by_class = tf.reshape(candidates, [images, classes, kept, 4])
    stay = suppress(by_class, best > least_score, threshold)
    scores = tf.reshape(tf.where(stay, best, 0.0), [images, -1])
    number = min(total, classes * kept)
    top, chosen = tf.math.top_k(scores, number)
    rows = tf.concat(
        [
            tf.gather(candidates, chosen, batch_dims=1),
            top[..., None],
            tf.cast(chosen // kept, tf.float32)[..., None],
        ],
        -1,
    )
    return tf.pad(rows, [[0, 0], [0, total - number], [0, 0]])
