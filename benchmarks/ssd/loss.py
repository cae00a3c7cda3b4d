"""The multibox loss, its hardest negatives found without a sort."""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu.nn import partitioning

ROWS = 1  # the dimension of a level's values that spatial partitioning splits


def multibox_loss(levels, classes, codes, negatives: int):
    """Each image's loss, float32 [images].

    levels: (class logits, box codes) of each feature map, as the network gives them;
    classes int32 [images, rows, columns, anchors] (0: background) and codes float32
    [..., 4], the targets of each. The smooth L1 of the matched anchors' codes and the
    cross entropy of these and of the hardest `negatives` times as many others, over
    the number of the matched; zero for an image without any.
    """
    box_loss, n_matched, entropies, matched = 0.0, 0.0, [], []
    for (logits, found), target, code in zip(levels, classes, codes, strict=True):
        images = logits.shape[0]
        positive = tf.cast(target > 0, tf.float32)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits)
        box_loss += tf.reduce_sum(
            tf.reduce_sum(smooth_l1(found - code), -1) * positive, [1, 2, 3]
        )
        n_matched += tf.reduce_sum(positive, [1, 2, 3])
        entropies.append(tf.reshape(entropy, [images, -1]))
        matched.append(tf.reshape(positive, [images, -1]))
    # The tail: two values an anchor, on one core.
    entropy = partitioning.whole(tf.concat(entropies, 1))
    positive = partitioning.whole(tf.concat(matched, 1))
    n_matched = partitioning.whole(n_matched)
    # Rounding may leave an entropy just below zero.
    mined = tf.stop_gradient(tf.where(positive > 0, 0.0, tf.abs(entropy)))
    hard = largest(mined, negatives * tf.cast(n_matched, tf.int32))
    counted = tf.maximum(positive, tf.cast(hard, tf.float32))
    total = partitioning.whole(box_loss) + tf.reduce_sum(entropy * counted, 1)
    return tf.where(n_matched > 0, total / tf.maximum(n_matched, 1.0), 0.0)


def smooth_l1(difference):
    """Quadratic within one of zero, linear beyond."""
    size = tf.abs(difference)
    return tf.where(size < 1, 0.5 * difference**2, size - 0.5)


def largest(values, counts):
    """The mask of the counts[i] largest of each row, exactly so many: bool [n, m].

    values float32 [n, m], not negative; counts int32 [n], all of a row where it has no
    more. Of equal values the first are taken. A float that is not negative orders as
    its bits do, so 31 counts find the least value taken bit by bit, and a few more the
    last place of those equal to it: on a TPU far faster than a sort (Google's v0.6).
    """
    m = values.shape[1]
    counts = tf.clip_by_value(counts, 0, m)[:, None]
    bits = tf.bitcast(values, tf.int32)

    def number(mask):
        return tf.reduce_sum(tf.cast(mask, tf.int32), 1, keepdims=True)

    least = tf.zeros_like(counts)
    for bit in reversed(range(31)):
        higher = least | (1 << bit)
        least = tf.where(number(bits >= higher) >= counts, higher, least)
    above, equal = bits > least, bits == least
    missing = counts - number(above)
    # The largest `end` such that no more than `missing` equal ones stand before it.
    # Zero, but not as a constant: of constants TensorFlow would make a mask, which it
    # writes into StableHLO in a form that later compilers cannot read.
    place, end = tf.range(m)[None], tf.minimum(counts, 0)
    for bit in reversed(range(m.bit_length())):
        later = end | (1 << bit)
        end = tf.where(number(equal & (place < later)) <= missing, later, end)
    return above | (equal & (place < end))
