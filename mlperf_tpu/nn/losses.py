"""Losses as sums over examples; the division happens once, in the training step."""

import tensorflow as tf


def smoothed_cross_entropy(labels, logits, smoothing: float):
    """Cross entropy of each example, float32 [batch].

    labels int32 [batch], logits float32 [batch, classes]. Of the smoothing, each class
    gets smoothing / classes, the label's included (the convention of Keras and of the
    MLPerf ResNet-50 reference).
    """
    classes = logits.shape[-1]
    target = tf.one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes
    return tf.nn.softmax_cross_entropy_with_logits(target, logits)
