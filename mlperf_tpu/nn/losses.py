"""Losses as sums over examples; the division happens once, in the training step."""

import math

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


def smoothed_token_loss(labels, logits, smoothing: float):
    """Cross entropy of each token, float32, of the shape of `labels`.

    labels int32 [...], logits [..., vocabulary]. Of the smoothing, each *other* id gets
    smoothing / (vocabulary - 1), and the target's own entropy is subtracted: a perfect
    prediction costs 0 (the convention of tensor2tensor and of the MLPerf Transformer
    reference; Keras's differs by a factor and a constant).
    """
    vocabulary = logits.shape[-1]
    low = smoothing / (vocabulary - 1)
    least = -sum(
        n * p * math.log(p)
        for n, p in ((1, 1.0 - smoothing), (vocabulary - 1, low))
        if p > 0
    )
    of_label = tf.range(vocabulary) == labels[..., None]

    @tf.custom_gradient
    def loss(logits):
        # One pass forward and one backward; softmax_cross_entropy_with_logits would
        # write the smoothed target, as large as the logits, too.
        exact = tf.cast(logits, tf.float32)
        total = tf.reduce_logsumexp(exact, -1)
        at_label = tf.reduce_sum(tf.where(of_label, exact, 0.0), -1)
        expected = (1.0 - smoothing - low) * at_label + low * tf.reduce_sum(exact, -1)

        def gradient(upstream):
            target = tf.where(of_label, 1.0 - smoothing, low)
            change = tf.exp(exact - total[..., None]) - target
            return tf.cast(upstream[..., None] * change, logits.dtype)

        return total - expected - least, gradient

    return loss(logits)
