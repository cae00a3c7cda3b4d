"""ResNet-50 v1.5: the stride of a bottleneck stands in its 3x3 convolution."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from mlperf_tpu.nn.batch_norm import BatchNorm
from mlperf_tpu.nn.conv import Conv, SpaceToDepthConv


class ConvBatchNorm(keras.layers.Layer):
    """A convolution and its batch norm, then the activation where one is given."""

    def __init__(self, conv: Conv, batch_norm: BatchNorm, activation, **kwargs):
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


class Bottleneck(keras.layers.Layer):
    """1x1, 3x3 (with the stride), 1x1 to four times the width, and a shortcut.

    The last batch norm's scale starts at zero: each block starts as its shortcut.
    """

    def __init__(
        self, width: int, strides: int, project: bool, conv_bn, activation, **kwargs
    ):
        super().__init__(**kwargs)
        self.activation = activation
        self.reduce = conv_bn("reduce", width, 1)
        self.spatial = conv_bn("spatial", width, 3, strides)
        self.expand = conv_bn("expand", 4 * width, 1, last=True)
        self.shortcut = (
            conv_bn("shortcut", 4 * width, 1, strides, linear=True) if project else None
        )

    def build(self, shape):
        narrow = (*shape[:-1], self.reduce.conv.filters)
        self.reduce.build(shape)
        self.spatial.build(narrow)
        self.expand.build(narrow)
        if self.shortcut:
            self.shortcut.build(shape)

    def call(self, x, training=False):
        shortcut = self.shortcut(x, training=training) if self.shortcut else x
        x = self.reduce(x, training=training)
        x = self.spatial(x, training=training)
        return self.activation(self.expand(x, training=training) + shortcut)


class ResNet50(keras.Model):
    """[batch, height, width, 3] images to [batch, classes] float32 logits.

    `span_examples` is the batch norm's group (nn.batch_norm); `dtype` a Keras dtype
    policy: "float32", or "mixed_bfloat16" for bf16 activations over float32 weights.
    `stages` are (bottlenecks, width of the 3x3 convolution) each: 3 + 4 + 6 + 3
    bottlenecks of three convolutions, the stem and the classifier make 50 layers.
    Another `activation` makes a network of the same kind for proofs.
    """

    def __init__(
        self,
        classes: int,
        span_examples: int | None,
        batch_norm_momentum: float,
        batch_norm_epsilon: float,
        space_to_depth: bool,
        dtype: str,
        stages: Sequence[tuple[int, int]],
        activation=tf.nn.relu,
    ):
        super().__init__(name="resnet50", dtype=dtype)

        def conv_bn(name, filters, size, strides=1, last=False, linear=False):
            fold = name == "stem" and space_to_depth
            make = SpaceToDepthConv if fold else Conv
            return ConvBatchNorm(
                make(filters, size, strides, dtype=dtype, name="conv"),
                BatchNorm(
                    span_examples,
                    batch_norm_momentum,
                    batch_norm_epsilon,
                    zero_scale=last,
                    dtype=dtype,
                    name="batch_norm",
                ),
                None if last or linear else activation,
                dtype=dtype,
                name=name,
            )

        self.stem = conv_bn("stem", 64, 7, 2)
        self.blocks = [
            Bottleneck(
                width,
                strides=2 if stage > 0 and block == 0 else 1,
                project=block == 0,
                conv_bn=conv_bn,
                activation=activation,
                dtype=dtype,
                name=f"stage{stage + 1}_block{block + 1}",
            )
            for stage, (blocks, width) in enumerate(stages)
            for block in range(blocks)
        ]
        self.classifier = keras.layers.Dense(
            classes,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            dtype=dtype,
            name="classifier",
        )

    def build(self, shape):
        # Channels are all a layer needs to know of its input's shape.
        self.stem.build(shape)
        channels = self.stem.conv.filters
        for block in self.blocks:
            block.build((None, None, None, channels))
            channels = block.expand.conv.filters
        self.classifier.build((None, channels))

    def call(self, images, training=False):
        x = tf.cast(images, self.compute_dtype)
        x = self.stem(x, training=training)
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for block in self.blocks:
            x = block(x, training=training)
        x = tf.reduce_mean(x, [1, 2])
        return tf.cast(self.classifier(x), tf.float32)
