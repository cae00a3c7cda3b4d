"""A small program with everything a mesh must carry: a real training step with LARS,
batch norm over two replicas, statistics, an evaluation with padding."""

import numpy as np
import tensorflow as tf

from mlperf_tpu.nn.batch_norm import batch_norm, normalize
from mlperf_tpu.optim.optimizers import Lars, Parameter
from mlperf_tpu.optim.schedules import polynomial
from mlperf_tpu.optim.training_step import TrainingStep
from mlperf_tpu.optim.update import WeightUpdate

BATCH = 8
SHAPES = {"kernel": (3, 5), "bias": (5,), "gamma": (3,), "beta": (3,)}


class Toy:
    def __init__(self, sharded: bool) -> None:
        kinds = {"kernel": "kernel", "bias": "bias"}
        parameters = tuple(
            Parameter(name, shape, kinds.get(name, "norm"))
            for name, shape in SHAPES.items()
        )
        update = WeightUpdate(
            Lars(0.9, 1e-4, trust=0.1), parameters, sharded, gather_dtype=tf.float32
        )
        self.step = TrainingStep(
            self.loss, update, polynomial(0.5, 0.0, 2.0, 2, 20), BATCH
        )

    def initial_state(self, seed, n_replicas):
        random = np.random.default_rng(seed)
        weights = [random.normal(size=s).astype(np.float32) for s in SHAPES.values()]
        statistics = [np.zeros(3, np.float32), np.ones(3, np.float32)]
        return self.step.initial_state(
            [tf.constant(w) for w in weights],
            [tf.constant(s) for s in statistics],
            n_replicas,
        )

    def loss(self, weights, statistics, batch):
        kernel, bias, gamma, beta = weights
        x, mean, square = batch_norm(batch["image"], gamma, beta, BATCH, 1e-5)
        statistics = [
            0.9 * old + 0.1 * new
            for old, new in zip(statistics, (mean, square), strict=True)
        ]
        logits = tf.matmul(tf.reduce_mean(tf.nn.relu(x), [1, 2]), kernel) + bias
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        count = tf.cast(tf.size(losses), tf.float32)
        return {"loss": tf.reduce_sum(losses), "count": count}, statistics

    def evaluate(self, state, batch):
        kernel, bias, gamma, beta = state["weights"]
        mean, square = state["statistics"]
        x = normalize(batch["image"], gamma, beta, mean, square - mean**2, 1e-5)
        logits = tf.matmul(tf.reduce_mean(tf.nn.relu(x), [1, 2]), kernel) + bias
        real = tf.cast(batch["label"] >= 0, tf.float32)
        right = tf.cast(tf.argmax(logits, 1, tf.int32) == batch["label"], tf.float32)
        scores = tf.reduce_sum(logits**2, 1)
        return {
            "correct": tf.reduce_sum(right * real),
            "count": tf.reduce_sum(real),
            "scores": tf.reduce_sum(scores * real),
        }

    @staticmethod
    def batch(seed):
        random = np.random.default_rng(seed)
        return {
            "image": random.normal(size=(BATCH, 2, 2, 3)).astype(np.float32),
            "label": random.integers(0, 5, BATCH, np.int32),
        }
