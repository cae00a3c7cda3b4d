"""Small programs to compile: benchmarks' look-alikes, without their specs."""

from __future__ import annotations

import os

import tensorflow as tf

from mlperf_tpu.nn import partitioning
from mlperf_tpu.nn.batch_norm import batch_norm
from mlperf_tpu.nn.beam_search import beam_search
from mlperf_tpu.optim.optimizers import Momentum, Parameter
from mlperf_tpu.optim.schedules import polynomial
from mlperf_tpu.optim.training_step import TrainingStep
from mlperf_tpu.optim.update import WeightUpdate


class Toy:
    """Two convolutions, the first with a batch norm over two replicas of two."""

    size, channels, span, sharded = 16, (3, 128, 128), 4, False
    algorithm = "xla"

    def __init__(self, spec: None) -> None:
        parameters = tuple(
            Parameter(f"conv{k}", (3, 3, *pair), "kernel")
            for k, pair in enumerate(
                zip(self.channels, self.channels[1:], strict=False)
            )
        )
        momentum = Momentum(0.9, 1e-4)
        update = WeightUpdate(
            momentum,
            parameters,
            self.sharded,
            algorithm=self.algorithm,
        )
        self.step = TrainingStep(
            self.loss, update, polynomial(0.1, 0.0, 2.0, 1.0, 10), global_batch=16
        )

    def state_spec(self, n_replicas: int):
        return self.step.state_spec([], n_replicas)

    def batch_spec(self, n: int):
        size = [n, self.size, self.size, self.channels[0]]
        return {"image": tf.TensorSpec(size, tf.bfloat16)}

    def loss(self, weights, statistics, batch):
        h = partitioning.split(batch["image"], 1)
        for k, weight in enumerate(weights):
            with tf.name_scope(f"layer{k}"):
                h = self.layer(h, tf.cast(weight, h.dtype), k)
        loss = tf.reduce_sum(tf.cast(h, tf.float32) ** 2)
        return {"loss": loss, "count": tf.constant(float(batch["image"].shape[0]))}, []

    def layer(self, h, weight, k):
        h = tf.nn.conv2d(h, weight, 1, "SAME")
        if k == 0 and self.span:
            ones = tf.ones([h.shape[-1]])
            with tf.name_scope("batch_norm"):
                h, self.mean, _ = batch_norm(h, ones, 0 * ones, self.span, 1e-5)
        return tf.nn.relu(h)

    def evaluate(self, state, batch):
        return self.loss(state["weights"], [], batch)[0]


class Loop(Toy):
    """A matrix applied seven times in a loop."""

    channels, span = (128, 128), 0

    def layer(self, h, weight, k):
        matrix = weight[0, 0]
        body = lambda i, x: (i + 1, tf.nn.relu(x @ matrix))  # noqa: E731
        start = tf.reshape(h, [-1, 128])
        _, h = tf.while_loop(lambda i, x: i < 7, body, (0, start), maximum_iterations=7)
        return h


class Decodes(Toy):
    """A beam search over a vocabulary that is split over the partitions."""

    def evaluate(self, state, batch):
        first = batch["image"][:, 0, 0, 0]
        logits = tf.cast(first, tf.float32)[:, None, None] * tf.ones([1, 2, 512])

        def step(ids, searched, position):
            logs = tf.nn.log_softmax(logits + tf.cast(ids, tf.float32)[:, :, None])
            return partitioning.split(logs, 2), searched

        start = tf.zeros([first.shape[0]], tf.int32)
        return beam_search(
            step, (), start, start + 4, beam=2, alpha=0.6, end=1, max_length=4
        )[0]


class Sharded(Toy):
    """Each replica updates its rows of the weights."""

    sharded = True


class Averages(Toy):
    """Keeps the batch norm's mean as a statistic."""

    def state_spec(self, n_replicas: int):
        return self.step.state_spec([tf.TensorSpec([128])], n_replicas)

    def loss(self, weights, statistics, batch):
        sums, _ = super().loss(weights, [], batch)
        return sums, [0.9 * statistics[0] + 0.1 * self.mean]


class Torus(Toy):
    """Sums in two stages of reduce-scatters, and gathers so."""

    sharded, algorithm = True, "torus2d"


class TooLarge(Toy):
    """More weights than a core has memory."""

    channels, size, span = (32768, 32768), 8, 0


class Stack(Toy):
    """SSD's feature maps from 300x300 to 1x1, as convolutions alone."""

    size, span = 300, 0
    channels = (3, 64, 64, 128, 256, 512, 512, 256, 256, 256)
    strides = (2, 2, 1, 2, 1, 2, 2, 2, 3)

    def layer(self, h, weight, k):
        return tf.nn.relu(tf.nn.conv2d(h, weight, self.strides[k], "SAME"))


class Aborts(Toy):
    """Ends its process as libtpu does where it cannot go on."""

    def batch_spec(self, n: int):
        os.abort()
