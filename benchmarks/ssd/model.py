"""SSD on ResNet-34: the trunk to its third stage, extra layers, a head on each map."""

from __future__ import annotations

import keras
import tensorflow as tf

from mlperf_tpu.nn.batch_norm import BatchNorm
from mlperf_tpu.nn.conv import Conv, SpaceToDepthConv, padded_conv


class ConvBatchNorm(keras.layers.Layer):
    """A convolution and its batch norm, then ReLU (or another) unless linear."""

    def __init__(self, conv, batch_norm, activation, **kwargs):
        super().__init__(**kwargs)
        self.conv = conv
        self.batch_norm = batch_norm
        self.activation = activation

    def build(self, shape):
        self.conv.build(shape)
        self.batch_norm.build((None, None, None, self.conv.filters))

    def call(self, x, training=False):
        x = self.batch_norm(self.conv(x), training=training)
        return self.activation(x) if self.activation else x


class BasicBlock(keras.layers.Layer):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, width, strides, project, conv_bn, activation, **kwargs):
        super().__init__(**kwargs)
        self.activation = activation
        self.first = conv_bn("first", width, 3, strides)
        self.second = conv_bn("second", width, 3, linear=True)
        self.shortcut = (
            conv_bn("shortcut", width, 1, strides, linear=True) if project else None
        )

    def build(self, shape):
        self.first.build(shape)
        self.second.build((*shape[:-1], self.first.conv.filters))
        if self.shortcut:
            self.shortcut.build(shape)

    def call(self, x, training=False):
        shortcut = self.shortcut(x, training=training) if self.shortcut else x
        x = self.second(self.first(x, training=training), training=training)
        return self.activation(x + shortcut)


class BiasedConv(Conv):
    """A convolution with bias; `edge` False takes no padding."""

    def __init__(self, filters, kernel_size, strides=1, edge=True, **kwargs):
        super().__init__(filters, kernel_size, strides, **kwargs)
        self.edge = edge

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(self.kernel_size, self.kernel_size, shape[-1], self.filters),
            initializer="glorot_uniform",
            name="kernel",
        )
        self.bias = self.add_weight(
            shape=(self.filters,), initializer="zeros", name="bias"
        )

    def call(self, x):
        if self.edge:
            x = super().call(x)
        else:
            x = padded_conv(x, tf.convert_to_tensor(self.kernel), 1, [0, 0])
        return x + tf.convert_to_tensor(self.bias)


class SSD(keras.Model):
    """[images, height, width, 3] to a list of (class logits, box codes), one a map:
    float32 [images, rows, columns, anchors, classes + 1] (0 is the background) and
    [images, rows, columns, anchors, 4].

    `model` and `norm` are the spec's sections; `anchors` of a cell, one a map. Other
    activations make a network of the same kind for proofs.
    """

    def __init__(self, model, norm, classes, anchors, dtype, activation=tf.nn.relu):
        super().__init__(name="ssd", dtype=dtype)
        self.outputs_per_anchor = classes + 1
        self.activation = activation

        def conv_bn(name, filters, size, strides=1, linear=False):
            fold = name == "stem" and model.space_to_depth
            make = SpaceToDepthConv if fold else Conv
            return ConvBatchNorm(
                make(filters, size, strides, dtype=dtype, name="conv"),
                BatchNorm(
                    int(norm.span.value),
                    norm.momentum,
                    norm.epsilon,
                    groups=norm.groups,
                    dtype=dtype,
                    name="batch_norm",
                ),
                None if linear else activation,
                dtype=dtype,
                name=name,
            )

        self.stem = conv_bn("stem", model.width, 7, 2)
        self.blocks = [
            BasicBlock(
                model.width << stage,
                # The third stage keeps the map: 38x38 of an image of 300.
                strides=2 if stage == 1 and block == 0 else 1,
                project=stage > 0 and block == 0,
                conv_bn=conv_bn,
                activation=activation,
                dtype=dtype,
                name=f"stage{stage + 1}_block{block + 1}",
            )
            for stage, blocks in enumerate(model.blocks)
            for block in range(blocks)
        ]

        def biased(name, filters, size, strides=1, edge=True):
            return BiasedConv(filters, size, strides, edge, dtype=dtype, name=name)

        self.extra = [
            (
                biased(f"extra{k}_narrow", layer.narrow, 1),
                biased(
                    f"extra{k}_wide", layer.wide, 3, layer.strides, layer.strides > 1
                ),
            )
            for k, layer in enumerate(model.extra, 1)
        ]
        # One convolution a map for both outputs of all its anchors.
        self.heads = [
            biased(f"head{k}", n * (self.outputs_per_anchor + 4), 3)
            for k, n in enumerate(anchors)
        ]
        self.anchors = tuple(anchors)

    def build(self, shape):
        self.stem.build((None, None, None, 3))
        channels = self.stem.conv.filters
        for block in self.blocks:
            block.build((None, None, None, channels))
            channels = block.first.conv.filters
        self.heads[0].build((None, None, None, channels))
        for (narrow, wide), head in zip(self.extra, self.heads[1:], strict=True):
            narrow.build((None, None, None, channels))
            wide.build((None, None, None, narrow.filters))
            channels = wide.filters
            head.build((None, None, None, channels))

    def call(self, images, training=False):
        x = tf.cast(images, self.compute_dtype)
        x = tf.nn.max_pool2d(self.stem(x, training=training), 3, 2, "SAME")
        for block in self.blocks:
            x = block(x, training=training)
        maps = [x]
        for narrow, wide in self.extra:
            x = self.activation(narrow(x))
            x = self.activation(wide(x))
            maps.append(x)
        return [
            self._of_head(head(x), n)
            for head, x, n in zip(self.heads, maps, self.anchors, strict=True)
        ]

    def _of_head(self, x, n):
        images, rows, columns, _ = x.shape
        both = tf.reshape(
            tf.cast(x, tf.float32),
            [images, rows, columns, n, self.outputs_per_anchor + 4],
        )
        return tf.split(both, [self.outputs_per_anchor, 4], -1)
