"""Convolution with the MLPerf references' padding, and the space-to-depth stem."""

from __future__ import annotations

import keras
import tensorflow as tf


class Conv(keras.layers.Layer):
    """A convolution without bias over [batch, height, width, channels].

    Strided convolutions pad (kernel - 1) // 2 before and kernel // 2 after, whatever
    the size, as the MLPerf ResNet-50 and SSD references do; "SAME" would pad unevenly.
    """

    def __init__(self, filters: int, kernel_size: int, strides: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(self.kernel_size, self.kernel_size, shape[-1], self.filters),
            initializer=keras.initializers.VarianceScaling(),
            name="kernel",
        )

    def call(self, x):
        kernel = tf.convert_to_tensor(self.kernel)
        if self.strides == 1 or self.kernel_size == 1:
            return tf.nn.conv2d(x, kernel, self.strides, "SAME")
        pad = [(self.kernel_size - 1) // 2, self.kernel_size // 2]
        return padded_conv(x, kernel, self.strides, pad)


class SpaceToDepthConv(Conv):
    """A convolution of stride 2, computed at stride 1 on 2x2 blocks of pixels.

    The weight is the plain one, [k, k, c, filters] with odd k; the step pads it to an
    even size and folds it to [(k+1)/2, (k+1)/2, 4c, filters], so that it computes the
    same function as `Conv` of stride 2 on an image of even height and width, while the
    matrix unit sees 4c input channels instead of c (Google's v0.6 SSD conv0).
    """

    def call(self, x):
        kernel = tf.convert_to_tensor(self.kernel)
        k, c = self.kernel_size, x.shape[-1]
        before = (k - 1) // 2
        # An even pixel offset: one more row and column of zeros where it is odd.
        shift = before % 2
        folded = (k + 1) // 2
        kernel = tf.pad(kernel, [[shift, 1 - shift]] * 2 + [[0, 0]] * 2)
        kernel = tf.reshape(kernel, [folded, 2, folded, 2, c, self.filters])
        kernel = tf.transpose(kernel, [0, 2, 1, 3, 4, 5])
        kernel = tf.reshape(kernel, [folded, folded, 4 * c, self.filters])
        blocks = (before + shift) // 2
        pad = [blocks, folded - 1 - blocks]
        return padded_conv(tf.nn.space_to_depth(x, 2), kernel, 1, pad)


def padded_conv(x, kernel, strides, pad):
    """A convolution whose image gets `pad` = [before, after] zeros on each side.

    Padded first, since TensorFlow's own explicit padding has no fast bf16 gradient on
    a CPU (45 x slower at 64 channels of 16x16); XLA folds the pad into the convolution.
    """
    return tf.nn.conv2d(tf.pad(x, [[0, 0], pad, pad, [0, 0]]), kernel, strides, "VALID")
