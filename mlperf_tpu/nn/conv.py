"""Convolution with the MLPerf references' padding, and the space-to-depth stem."""

from __future__ import annotations

import math

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
        if self.kernel_size == 1:
            return pointwise_conv(x, kernel, self.strides)
        pad = [(self.kernel_size - 1) // 2, self.kernel_size // 2]
        if self.strides > 1:
            return padded_conv(x, kernel, self.strides, pad)
        return _conv(x, kernel, 1, "SAME", pad)


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


def pointwise_conv(x, kernel, strides):
    """A 1x1 convolution: the pixels it reads, then a product with the kernel.

    The strided convolution itself is slower wherever its gradient runs: twice on a TPU
    (0.80 to 0.40 ms for 8 images of 56x56, 256 to 512 channels), three times on a CPU
    (oneDNN, 64 images of 4x4, 1024 to 2048). With partitions the partitioner must see
    the convolution.
    """
    if _by_xla():
        if strides > 1 and _one_core():
            x, strides = x[:, ::strides, ::strides], 1
        return tf.nn.conv2d(x, kernel, strides, "SAME")
    if strides > 1:
        rows, columns = (-(-extent // strides) for extent in x.shape[1:3])
        x = _Pixels(x, strides)(0, 0, rows, columns)
    flat = tf.matmul(
        tf.reshape(x, [-1, x.shape[3]]), tf.reshape(kernel, kernel.shape[2:])
    )
    return tf.reshape(flat, [*x.shape[:3], flat.shape[1]])


def padded_conv(x, kernel, strides, pad):
    """A convolution whose image gets `pad` = [before, after] zeros on each side.

    Padded first, since TensorFlow's own explicit padding has no fast bf16 gradient on
    a CPU (45 x slower at 64 channels of 16x16); XLA folds the pad into the convolution.
    """
    padded = tf.pad(x, [[0, 0], pad, pad, [0, 0]])
    few = x.shape[0] <= _FEW_IMAGES and strides == 2 and kernel.shape[0] % 2
    if few and _by_xla() and _one_core():
        return _conv_of_stride_2(x, padded, kernel)
    return _conv(padded, kernel, strides, "VALID", [0, 0])


def _by_xla() -> bool:
    """Whether XLA compiles what is traced."""
    return hasattr(collectives.place(), "n_partitions")


def _one_core() -> bool:
    """Whether, by XLA, each replica is one core."""
    return collectives.place().n_partitions == 1


def _by_products(x, kernel, strides) -> bool:
    """Whether a product a kernel position beats oneDNN's own gradient on a CPU."""
    channels, filters = kernel.shape[2:]
    wide = channels >= 128 or (channels >= 64 and filters >= 128)
    pixels = math.prod(x.shape[:3]) // strides**2
    return wide and (x.dtype == tf.bfloat16 or pixels <= _FEW_PIXELS)


# Up to here the weight gradient in float32 is faster by products.
_FEW_PIXELS = 512


def _conv(x, kernel, strides, padding, pad):
    """TensorFlow's convolution; `pad` is what `padding` adds on each side.

    On a CPU a wide kernel's gradient is one product of pixels and output gradients for
    each position of the kernel: oneDNN's own takes 1.5 to 8 times as long where the
    image is small (bf16, 64 images of 8x8x256 to 2x2x512), and never much less. In
    float32 it takes twice as long for 32 images of 2x2, 1.1 times for 4x4, and less
    from there on: a step of SSD at 300x300 takes 1.1 times as long by products.
    """
    if _by_xla() or not _by_products(x, kernel, strides):
        return tf.nn.conv2d(x, kernel, strides, padding)

    @tf.custom_gradient
    def forward(x, kernel):
        def backward(dy):
            dx = tf.raw_ops.Conv2DBackpropInput(
                input_sizes=x.shape,
                filter=kernel,
                out_backprop=dy,
                strides=[1, strides, strides, 1],
                padding=padding,
            )
            pixels = _Pixels(tf.pad(x, [[0, 0], pad, pad, [0, 0]]), strides)
            _, rows, columns, channels = dy.shape
            dy = tf.reshape(dy, [-1, channels])
            products = [
                tf.matmul(
                    tf.reshape(pixels(i, j, rows, columns), [-1, x.shape[3]]),
                    dy,
                    transpose_a=True,
                )
                for i in range(kernel.shape[0])
                for j in range(kernel.shape[1])
            ]
            return dx, tf.reshape(tf.stack(products), kernel.shape)

        return tf.nn.conv2d(x, kernel, strides, padding), backward

    return forward(x, kernel)


class _Pixels:
    """Every `strides`-th pixel of images, by blocks: a strided slice of bf16 pixels
    takes some ten times as long on a CPU."""

    def __init__(self, x, strides):
        n, height, width, channels = x.shape
        pad = [[0, -height % strides], [0, -width % strides]]
        if strides > 1 and any(after for _, after in pad):
            x = tf.pad(x, [[0, 0], *pad, [0, 0]])
        rows, columns = -(-height // strides), -(-width // strides)
        self.strides = strides
        self.blocks = tf.reshape(x, [n, rows, strides, columns, strides, channels])

    def __call__(self, i, j, rows, columns):
        """[n, rows, columns, channels] of the pixels from row i and column j on."""
        (top, a), (left, b) = divmod(i, self.strides), divmod(j, self.strides)
        n, *_, channels = self.blocks.shape
        # `slice`, whose gradient is a pad: indexing's own is several times slower.
        found = tf.slice(
            self.blocks, [0, top, a, left, b, 0], [n, rows, 1, columns, 1, channels]
        )
        return tf.reshape(found, [n, rows, columns, channels])


# Up to here the zeros of a strided convolution's gradient are written out on a TPU.
_FEW_IMAGES = 16


def _conv_of_stride_2(x, padded, kernel):
    """The same by XLA, with the zeros between the gradient's pixels written out.

    A TPU's convolution puts them in itself, but takes 0.5 ms however small it is:
    written out, both gradients of 3x3x512 on images of 14x14 take 0.20 ms in place of
    0.54 for 8 images, 0.37 of 0.58 for 16, but 0.70 of 0.64 for 32 and 2.7 of 1.1 for
    128. (With partitions the partitioner must see the strided convolution.)
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
