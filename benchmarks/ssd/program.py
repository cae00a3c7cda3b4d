"""SSD as a benchmark: the functions that training, verify and plan call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from mlperf_tpu.benchmarks.ssd.data import NORMALIZATION, datasets
from mlperf_tpu.benchmarks.ssd.loss import ROWS, multibox_loss
from mlperf_tpu.benchmarks.ssd.model import SSD
from mlperf_tpu.benchmarks.ssd.targets import Anchors

from mlperf_tpu.data.batches import Dataset
from mlperf_tpu.detection.boxes import decode
from mlperf_tpu.detection.coco import PADDED, mean_average_precision
from mlperf_tpu.detection.nms import detections
from mlperf_tpu.nn import partitioning
from mlperf_tpu.nn.images import normalized
from mlperf_tpu.optim.build import build_schedule, build_update, parameters_of
from mlperf_tpu.optim.training_step import TrainingStep, float32_weights
from mlperf_tpu.spec import Spec


class Program:
    """A resolved SSD spec made runnable.

    `step` and `evaluate` are pure functions of one replica, traced by a mesh. A batch
    holds "image", uint8 or bf16 [n, size, size, 3] in 0..255, "id", int32 [n], -1 for
    one that only fills the batch, and the targets of each feature map, which an
    evaluation does not read (targets.Anchors).
    """

    scored_by_host = True  # beside the training (mlperf_tpu.evaluation)

    def __init__(self, spec: Spec, **network) -> None:
        self.spec = spec
        self._network = network  # another activation, for proofs
        self.anchors = Anchors(spec)
        self.model = self._new_model()
        self.truth: Mapping[str, Any] | None = None  # the evaluation's boxes
        self.step = TrainingStep(
            self.loss,
            build_update(spec, parameters_of(self.model)),
            build_schedule(spec),
            spec.training.global_batch,
        )

    def _new_model(self) -> SSD:
        spec, size = self.spec, self.spec.data.image_size
        model = SSD(
            spec.model,
            spec.batch_norm,
            spec.data.classes,
            self.anchors.per_cell,
            "mixed_bfloat16" if spec.training.precision == "bfloat16" else "float32",
            **self._network,
        )
        model.build((None, size, size, 3))
        return model

    def initial_state(self, seed: int, n_replicas: int):
        """The state of all replicas; the weights depend on the seed and the backbone's
        file alone."""

        def begun():
            fresh = self._new_model()
            if self.spec.data.backbone is not None:
                from mlperf_tpu.benchmarks.ssd.backbone import load

                load(fresh, self.spec.data.backbone)
            return fresh

        return self.step.drawn_state(begun, n_replicas, seed)

    def state_spec(self, n_replicas: int):
        """One replica's state as tensor specs."""
        statistics = [
            tf.TensorSpec(v.shape, v.dtype) for v in self.model.non_trainable_variables
        ]
        return self.step.state_spec(statistics, n_replicas)

    def batch_spec(self, n: int) -> dict[str, tf.TensorSpec]:
        """A batch of `n` examples as tensor specs; images as the host sends them to a
        TPU: bf16, folded where the stem is space-to-depth."""
        size, channels = self.spec.data.image_size, 3
        if self.spec.model.space_to_depth:
            size, channels = size // 2, 12
        return {
            "image": tf.TensorSpec([n, size, size, channels], tf.bfloat16),
            "id": tf.TensorSpec([n], tf.int32),
            **self.anchors.spec(n),
        }

    def loss(self, weights, statistics, batch):
        """Sums over this replica's images: loss, count."""
        levels, statistics = self._levels(weights, statistics, batch, training=True)
        targets = [
            tuple(self._split(batch[field]) for field in fields)
            for fields in self.anchors.names()
        ]
        loss = multibox_loss(
            levels, *zip(*targets, strict=True), self.spec.model.negatives
        )
        count = tf.constant(loss.shape[0], tf.float32)
        return {"loss": tf.reduce_sum(loss), "count": count}, statistics

    def evaluate(self, state, batch):
        """ "detections" (detection.nms) and "id" of this replica's images; "count", how
        many of them are no padding."""
        model = self.spec.model
        levels, _ = self._levels(
            float32_weights(state), state["statistics"], batch, training=False
        )
        images = levels[0][0].shape[0]
        logits, codes = (
            partitioning.whole(
                tf.concat([tf.reshape(v, [images, -1, v.shape[-1]]) for v in values], 1)
            )
            for values in zip(*levels, strict=True)
        )
        found = detections(
            tf.nn.softmax(logits)[..., 1:],
            decode(codes, tf.constant(self.anchors.flat)),
            model.least_score,
            model.nms_iou,
            model.candidates,
            model.most_detections,
        )
        real = tf.cast(batch["id"] != PADDED, tf.float32)
        return {
            "detections": found,
            "id": batch["id"],
            "count": tf.reduce_sum(real),
        }

    def quality(self, evaluation: dict[str, Any]) -> float:
        """COCO's mAP@[.5:.95] of an evaluation; 0 where the data are fake."""
        if self.truth is None:
            return 0.0
        return mean_average_precision(
            self.truth, evaluation["id"], evaluation["detections"]
        )

    def datasets(self, data_dir) -> tuple[Dataset, Dataset]:
        """The training and the evaluation set, whose boxes `quality` holds on to."""
        train, held_out, self.truth = datasets(self.spec, self.anchors, data_dir)
        return train, held_out

    def hyperparameters(self) -> dict[str, Any]:
        """What the round's rules want logged, as they name it (mlperf_rules.md 2.4)."""
        spec = self.spec
        return {
            "global_batch_size": spec.training.global_batch,
            "train_samples": spec.data.train_examples,
            "eval_samples": spec.data.eval_examples,
            "model_bn_span": int(spec.batch_norm.span.value),
            "max_samples": spec.data.crop_tries,
            "opt_base_learning_rate": spec.schedule.base_rate,
            "opt_weight_decay": spec.optimizer.weight_decay,
            "opt_learning_rate_warmup_steps": round(spec.warmup_steps),
            # Our warm-up starts from zero.
            "opt_learning_rate_warmup_factor": 0,
            "opt_learning_rate_decay_boundary_epochs": [
                round(spec.steps(b) / spec.steps_per_epoch, 3)
                for b in spec.schedule.boundaries
            ],
        }

    def fake_batch(self, n: int) -> dict[str, np.ndarray]:
        """`n` random images with two boxes each, of real ones' dtypes and shapes."""
        random = np.random.default_rng(0)
        size = self.spec.data.image_size
        corners = random.uniform(0, 0.5, (n, 2, 2))
        sides = random.uniform(0.1, 0.5, (n, 2, 2))
        boxes = np.concatenate([corners, corners + sides], -1, dtype=np.float32)
        classes = random.integers(0, self.spec.data.classes, (n, 2), np.int32)
        return {
            "image": random.integers(0, 256, (n, size, size, 3), np.uint8),
            "id": np.arange(n, dtype=np.int32),
            **self.anchors.of_images(list(boxes), list(classes)),
        }

    def _levels(self, weights, statistics, batch, training: bool):
        images = self._split(self._normalized(batch["image"]))
        return self.model.stateless_call(weights, statistics, images, training=training)

    @staticmethod
    def _split(value):
        """Over the rows, where each of the replica's partitions gets one."""
        return partitioning.split_where_it_reaches(value, ROWS)

    def _normalized(self, images):
        if self.spec.model.space_to_depth and images.shape[-1] == 3:
            # Before the rows are split: where the partitions do not divide the folded
            # rows, XLA splits these by fewer, and sums the stem's gradient too often.
            images = tf.nn.space_to_depth(images, 2)
        mean, stddev = NORMALIZATION[self.spec.data.name]
        return normalized(images, mean, stddev, self.model.compute_dtype)
