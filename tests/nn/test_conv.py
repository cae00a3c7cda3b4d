"""The space-to-depth stem computes what the plain stem computes."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("size", [32, 30])
def test_space_to_depth_computes_the_same_function_and_gradient(tensorflow, size):
    from mlperf_tpu.nn.conv import Conv, SpaceToDepthConv

    random = np.random.default_rng(0)
    x = tensorflow.constant(random.normal(size=(2, size, size, 3)), tensorflow.float32)
    kernel = tensorflow.constant(random.normal(size=(7, 7, 3, 8)), tensorflow.float32)
    results = []
    for make in (Conv, SpaceToDepthConv):
        layer = make(8, 7, 2)
        layer.build(x.shape)
        with tensorflow.GradientTape() as tape:
            tape.watch(kernel)
            y, _ = layer.stateless_call([kernel], [], x)
            loss = tensorflow.reduce_sum(y**2)
        results.append((y, tape.gradient(loss, kernel)))
    (plain, plain_gradient), (folded, folded_gradient) = results
    assert plain.shape == (2, size // 2, size // 2, 8)
    # Sums of 147 float32 products in another order.
    np.testing.assert_allclose(folded, plain, atol=1e-4)
    np.testing.assert_allclose(folded_gradient, plain_gradient, rtol=1e-4, atol=1e-2)


def test_strided_convolutions_pad_evenly(tensorflow):
    # The MLPerf reference pads 1 before and after a 3x3; "SAME" pads 0 and 1.
    from mlperf_tpu.nn.conv import Conv

    layer = Conv(1, 3, 2)
    layer.build((1, 4, 4, 1))
    x = tensorflow.ones([1, 4, 4, 1])
    y, _ = layer.stateless_call([tensorflow.ones([3, 3, 1, 1])], [], x)
    np.testing.assert_array_equal(y[0, :, :, 0], [[4, 6], [6, 9]])


@pytest.mark.parametrize("size", [8, 9])
def test_the_gradient_of_stride_2_is_the_same_by_xla(tensorflow, size):
    from mlperf_tpu import collectives
    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.nn.conv import padded_conv

    tf = tensorflow
    rng = tf.random.Generator.from_seed(0)
    x, kernel = rng.normal([2, size, size, 3]), rng.normal([3, 3, 3, 4])

    def gradients(place):
        with collectives.running_on(place), tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = padded_conv(x, kernel, 2, [1, 1])
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, [x, kernel])]

    plain, by_xla = gradients(collectives.OneReplica()), gradients(XlaPlace(1))
    for a, b in zip(plain, by_xla, strict=True):
        # Sums of 36 terms of order 1, in another order: some 1e-6.
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_folded_image_gives_the_same_as_the_plain_one(tensorflow):
    from mlperf_tpu.nn.conv import SpaceToDepthConv

    tf = tensorflow
    layer = SpaceToDepthConv(4, 7, 2)
    layer.build((None, None, None, 3))
    x = tf.random.Generator.from_seed(0).normal([2, 8, 8, 3])
    np.testing.assert_array_equal(layer.call(x), layer.call(tf.nn.space_to_depth(x, 2)))


def test_a_strided_shortcut_reads_every_second_pixel(tensorflow):
    from mlperf_tpu.nn.conv import Conv

    tf = tensorflow
    layer = Conv(4, 1, 2)
    layer.build((None, None, None, 3))
    x = tf.random.Generator.from_seed(0).normal([2, 7, 7, 3])
    kernel = tf.convert_to_tensor(layer.kernel.value)
    expected = tf.nn.conv2d(x, kernel, 2, "SAME")
    np.testing.assert_allclose(layer.call(x), expected, atol=1e-6)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("size", [4, 5])
def test_a_wide_convolution_has_tensorflows_own_gradient(tensorflow, size, strides):
    from mlperf_tpu.nn.conv import Conv

    tf = tensorflow
    rng = tf.random.Generator.from_seed(0)
    x = rng.normal([2, size, size, 128])
    layer = Conv(8, 3, strides)
    layer.build(x.shape)
    kernel = rng.normal([3, 3, 128, 8])

    def gradients(conv):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = conv(x, kernel)
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, [x, kernel])]

    ours = gradients(lambda x, kernel: layer.stateless_call([kernel], [], x)[0])
    padded = [[0, 0], [1, 1], [1, 1], [0, 0]]
    plain = gradients(lambda x, k: tf.nn.conv2d(x, k, strides, padded))
    for a, b in zip(ours, plain, strict=True):
        # Sums of up to 1152 terms of order 1, in another order: some 1e-4 through sin.
        np.testing.assert_allclose(a, b, atol=1e-3)
