"""ResNet-50 as a benchmark: the functions that training, verify and plan call."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from mlperf_tpu.benchmarks.resnet50.data import datasets
from mlperf_tpu.benchmarks.resnet50.model import ResNet50

from mlperf_tpu.data import digits
from mlperf_tpu.data.batches import Dataset
from mlperf_tpu.nn import partitioning
from mlperf_tpu.nn.images import normalized
from mlperf_tpu.nn.losses import smoothed_cross_entropy
from mlperf_tpu.optim.build import build_schedule, build_update, parameters_of
from mlperf_tpu.optim.training_step import TrainingStep, float32_weights
from mlperf_tpu.spec import Spec

# Mean and standard deviation of ImageNet's channels over images in 0..255, as the
# MLPerf reference normalises; the digits' are those of the embedded set.
_NORMALIZATION = {
    "imagenet": ((123.68, 116.78, 103.94), (58.393, 57.12, 57.375)),
    "digits": (digits.MEAN, digits.STDDEV),
}

HEIGHT = 1  # the dimension of an image that spatial partitioning splits


class Program:
    """A resolved ResNet-50 spec made runnable.

    `step` and `evaluate` are pure functions of one replica, traced by a mesh. A batch
    is {"image": uint8 or bf16 [n, size, size, 3] in 0..255, "label": int32 [n]}; the
    label -1 marks a padded example, which counts for nothing.
    """

    def __init__(self, spec: Spec, activation=tf.nn.relu) -> None:
        self.spec = spec
        self._activation = activation  # another than ResNet-50's, for proofs
        norm = spec.batch_norm
        assert norm is not None
        self.model = ResNet50(
            spec.data.classes,
            int(norm.span.value),
            norm.momentum,
            norm.epsilon,
            spec.model.space_to_depth,
            "mixed_bfloat16" if spec.training.precision == "bfloat16" else "float32",
            spec.model.stages,
            activation,
        )
        size = spec.data.image_size
        self._shape = (size, size, 3)
        self.model.build((None, *self._shape))
        self.step = TrainingStep(
            self.loss,
            build_update(spec, parameters_of(self.model)),
            build_schedule(spec),
            spec.training.global_batch,
        )

    def initial_state(self, seed: int, n_replicas: int):
        """The state of all replicas; the weights depend on the seed alone."""
        return self.step.drawn_state(
            lambda: Program(self.spec, self._activation).model, n_replicas, seed
        )

    def state_spec(self, n_replicas: int):
        """One replica's state as tensor specs."""
        statistics = [
            tf.TensorSpec(v.shape, v.dtype) for v in self.model.non_trainable_variables
        ]
        return self.step.state_spec(statistics, n_replicas)

    def batch_spec(self, n: int) -> dict[str, tf.TensorSpec]:
        """A batch of `n` examples as tensor specs; images as the host sends them to a
        TPU: bf16, 0..255, folded where the stem is space-to-depth
        (google_submissions.md 3.9, 3.10)."""
        size, _, channels = self._shape
        shape = (
            (size // 2, size // 2, 4 * channels)
            if self.spec.model.space_to_depth
            else self._shape
        )
        return {
            "image": tf.TensorSpec([n, *shape], tf.bfloat16),
            "label": tf.TensorSpec([n], tf.int32),
        }

    def loss(self, weights, statistics, batch):
        """Sums over this replica's examples: loss, correct, count."""
        images = partitioning.split(self._normalized(batch["image"]), HEIGHT)
        labels = batch["label"]
        logits, statistics = self.model.stateless_call(
            weights, statistics, images, training=True
        )
        loss = smoothed_cross_entropy(labels, logits, self.spec.model.label_smoothing)
        sums = {"loss": tf.reduce_sum(loss), **_scores(logits, labels)}
        return sums, statistics

    def evaluate(self, state, batch):
        """Sums over this replica's unpadded examples: correct, count."""
        logits, _ = self.model.stateless_call(
            float32_weights(state),
            state["statistics"],
            partitioning.split(self._normalized(batch["image"]), HEIGHT),
            training=False,
        )
        return _scores(logits, batch["label"])

    @staticmethod
    def quality(sums: dict[str, float]) -> float:
        """Top-1 accuracy of an evaluation's sums."""
        return sums["correct"] / sums["count"]

    def datasets(self, data_dir) -> tuple[Dataset, Dataset]:
        """The training and the evaluation set."""
        return datasets(self.spec, data_dir)

    def hyperparameters(self) -> dict[str, Any]:
        """What the round's rules want logged, as they name it (mlperf_rules.md 2.4)."""
        spec = self.spec
        opt, schedule, batch = spec.optimizer, spec.schedule, spec.training.global_batch
        kind = opt.name
        warmup = spec.warmup_steps / spec.steps_per_epoch
        values: dict[str, Any] = {
            "global_batch_size": batch,
            "train_samples": spec.data.train_examples,
            "eval_samples": spec.data.eval_examples,
            "model_bn_span": int(spec.batch_norm.span.value),
            "opt_name": kind,
            f"{kind}_opt_momentum": opt.momentum,
            f"{kind}_opt_weight_decay": opt.weight_decay,
            "opt_learning_rate_warmup_epochs": round(warmup, 3),
        }
        if spec.rules.round == "0.6.0":
            values["opt_base_learning_rate"] = schedule.base_rate
        else:
            values[f"{kind}_opt_base_learning_rate"] = schedule.base_rate
            values[f"{kind}_opt_learning_rate_warmup_epochs"] = round(warmup, 3)
        if kind == "lars":
            values["lars_epsilon"] = opt.epsilon
        if schedule.name == "polynomial":
            values |= {
                f"{kind}_opt_end_learning_rate": schedule.end_rate,
                f"{kind}_opt_learning_rate_decay_poly_power": schedule.power,
                f"{kind}_opt_learning_rate_decay_steps": spec.decay_steps,
            }
        else:
            values["opt_learning_rate_decay_boundary_epochs"] = [
                round(spec.steps(b) / spec.steps_per_epoch, 3)
                for b in schedule.boundaries
            ]
        return values

    def fake_batch(self, n: int) -> dict[str, np.ndarray]:
        """`n` random examples, of the dtypes and shapes of real ones."""
        random = np.random.default_rng(0)
        return {
            "image": random.integers(0, 256, (n, *self._shape), np.uint8),
            "label": random.integers(0, self.spec.data.classes, n, np.int32),
        }

    def _normalized(self, images):
        mean, stddev = _NORMALIZATION[self.spec.data.name]
        return normalized(images, mean, stddev, self.model.compute_dtype)


def _scores(logits, labels):
    right = tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.float32)
    real = tf.cast(labels >= 0, tf.float32)
    return {"correct": tf.reduce_sum(right * real), "count": tf.reduce_sum(real)}
