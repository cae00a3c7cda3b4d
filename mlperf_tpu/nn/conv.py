"""Convolution with the MLPerf references' padding, and the space-to-depth stem."""

from __future__ import annotations

import keras
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.nn.gradients import gradient_scope


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
        if self.kernel_size == 1 and self.strides > 1 and _by_xla():
            # The pixels it reads, then stride 1: half of a TPU's time for the gradient
            # of a strided shortcut (0.80 to 0.40 ms for 8 images of 56x56, 256 to 512).
            # oneDNN's own strided convolution is the faster one on a CPU.
            return tf.nn.conv2d(
                x[:, :: self.strides, :: self.strides], kernel, 1, "SAME"
            )
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

    The image may come folded, [batch, height / 2, width / 2, 4c], as hosts send it to a
    TPU: folding 8 images of 224x224 takes a core 1 ms by the compiler's estimate.
    """

    def call(self, x):
        kernel = tf.convert_to_tensor(self.kernel)
        k, c = self.kernel_size, kernel.shape[2]
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
        folded_image = x if x.shape[-1] == 4 * c else tf.nn.space_to_depth(x, 2)
        return padded_conv(folded_image, kernel, 1, pad)


def padded_conv(x, kernel, strides, pad):
    """A convolution whose image gets `pad` = [before, after] zeros on each side.

    Padded first, since TensorFlow's own explicit padding has no fast bf16 gradient on
    a CPU (45 x slower at 64 channels of 16x16); XLA folds the pad into the convolution.
    """
    padded = tf.pad(x, [[0, 0], pad, pad, [0, 0]])
    if strides == 2 and kernel.shape[0] % 2 and _by_xla():
        return _conv_of_stride_2(x, padded, kernel)
    return tf.nn.conv2d(padded, kernel, strides, "VALID")


def _by_xla() -> bool:
    """Whether XLA compiles what is traced, for replicas of one core each."""
    return getattr(collectives.place(), "n_partitions", None) == 1


def _conv_of_stride_2(x, padded, kernel):
    """The same by XLA, with the zeros between the gradient's pixels written out.

    A TPU's convolution puts them in itself, but takes 0.49 ms for 8 images of 56x56x128
    as for those of 14x14x512; written out it is 0.19 ms. (With partitions the
    partitioner must see the strided convolution.)
    """
    _, height, width, _ = x.shape
    scope = gradient_scope()

    @tf.custom_gradient
    def forward(x, padded, kernel):
        def backward(dy):
            with scope():
                return gradients(dy)

        def gradients(dy):
            n, rows, columns, channels = dy.shape
            spread = tf.reshape(dy, [n, rows, 1, columns, 1, channels])
            spread = tf.pad(spread, [[0, 0], [0, 0], [0, 1], [0, 0], [0, 1], [0, 0]])
            spread = tf.reshape(spread, [n, 2 * rows, 2 * columns, channels])
            turned = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
            dx = tf.nn.conv2d(spread[:, :height, :width], turned, 1, "SAME")
            dkernel = tf.raw_ops.Conv2DBackpropFilter(
                input=padded,
                filter_sizes=kernel.shape,
                out_backprop=dy,
                strides=[1, 2, 2, 1],
                padding="VALID",
            )
            return dx, None, dkernel

        return tf.nn.conv2d(padded, kernel, 2, "VALID"), backward

    return forward(x, tf.stop_gradient(padded), kernel)
