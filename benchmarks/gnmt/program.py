"""GNMT as a benchmark: the functions that training, verify and plan call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from mlperf_tpu.benchmarks.gnmt import data
from mlperf_tpu.benchmarks.gnmt.model import GNMT

from mlperf_tpu.data.batches import Dataset
from mlperf_tpu.data.bleu import bleu
from mlperf_tpu.errors import BadInput
from mlperf_tpu.nn.infeed import spread
from mlperf_tpu.optim.build import build_schedule, build_update, parameters_of
from mlperf_tpu.optim.training_step import TrainingStep, float32_weights
from mlperf_tpu.spec import Spec


class Program:
    """A resolved GNMT spec made runnable.

    `step` and `evaluate` are pure functions of one replica, traced by a mesh. A
    training batch is {"source", "target": int32 [n, max_length], "source_length",
    "target_length": int32 [n]}; one for evaluation has the source alone, of
    `data.eval_length`; a row of length 0 is padding.
    """

    scored_by_host = True  # beside the training (mlperf_tpu.evaluation)

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.model = self._fresh_model()
        # Hosts that build whole batches in turn (mesh.Program); 0: each its own rows.
        self.infeed_hosts = spec.data.infeed_hosts
        self.corpus: data.Corpus | None = None
        self.notes: tuple[str, ...] = ()  # what a run says before it begins
        self.step = TrainingStep(
            self.loss,
            build_update(spec, parameters_of(self.model)),
            build_schedule(spec),
            spec.training.global_batch,
            draws=True,
        )

    def _fresh_model(self) -> GNMT:
        spec = self.spec
        model = GNMT(
            spec.data.vocabulary,
            spec.model.width,
            spec.model.layers,
            spec.model.init_range,
            spec.model.dropout,
            spec.model.label_smoothing,
            spec.model.hoisted,
            "mixed_bfloat16" if spec.training.precision == "bfloat16" else "float32",
        )
        model.build()
        return model

    def initial_state(self, seed: int, n_replicas: int):
        """The state of all replicas; the weights depend on the seed alone."""
        return self.step.drawn_state(self._fresh_model, n_replicas, seed)

    def state_spec(self, n_replicas: int):
        """One replica's state as tensor specs."""
        return self.step.state_spec([], n_replicas)

    def batch_spec(self, n: int) -> dict[str, tf.TensorSpec]:
        """What the host sends to a replica for `n` training pairs of its own."""
        if self.infeed_hosts:
            n = self.spec.training.global_batch
        length = self.spec.data.max_length
        rows, lengths = (
            tf.TensorSpec([n, length], tf.int32),
            tf.TensorSpec([n], tf.int32),
        )
        return {
            "source": rows,
            "source_length": lengths,
            "target": rows,
            "target_length": lengths,
        }

    def eval_batch_spec(self, n: int) -> dict[str, tf.TensorSpec]:
        """A replica's batch of `n` lines to translate."""
        return {
            "source": tf.TensorSpec([n, self.spec.data.eval_length], tf.int32),
            "source_length": tf.TensorSpec([n], tf.int32),
        }

    def loss(self, weights, statistics, batch, seed):
        """Sums over this replica's pairs: loss over their target places, and count."""
        if self.infeed_hosts:
            batch = spread(batch)
        loss, _ = self.model.stateless_call(weights, [], batch, seed=seed)
        count = tf.cast(tf.shape(batch["source"])[0], tf.float32)
        return {"loss": loss, "count": count}, statistics

    def evaluate(self, state, batch):
        """The ids of this replica's translations, and the number of real lines."""
        model = self.spec.model
        ids, _ = self.model.stateless_call(
            float32_weights(state),
            [],
            batch,
            decode={
                "beam": model.beam,
                "alpha": model.length_penalty,
                "coverage": model.coverage_penalty,
                "max_length": model.decode_length,
            },
        )
        real = tf.cast(batch["source_length"] > 0, tf.float32)
        return {"ids": ids, "count": tf.reduce_sum(real)}

    def quality(self, evaluation: dict[str, Any]) -> float:
        """BLEU of the translations against the references, in 0..1."""
        if self.corpus is None:
            return 0.0  # fake data has no references
        references = self.corpus.references
        lines = self.corpus.subwords.decode(evaluation["ids"][: len(references)])
        return bleu(lines, references)

    def datasets(self, data_dir: Path | None) -> tuple[Dataset, Dataset]:
        """The training and the evaluation set."""
        found = self.corpus = data.load(self.spec, data_dir)
        if found.dropped:
            self.notes = (data.left_out(found, self.spec.data),)
        return found.train, found.evaluation

    def hyperparameters(self) -> dict[str, Any]:
        """What the round's rules want logged, as they name it (mlperf_rules.md 2.4)."""
        spec, schedule = self.spec, self.spec.schedule
        if schedule.name != "intervals":
            raise BadInput(
                f"schedule.name: {schedule.name}, but GNMT's rules log the steps of "
                "`intervals`; choose that"
            )
        return {
            "global_batch_size": spec.training.global_batch,
            "train_samples": spec.data.train_examples,
            "eval_samples": spec.data.eval_examples,
            "max_sequence_length": spec.data.max_length,
            "opt_name": spec.optimizer.name,
            "opt_base_learning_rate": schedule.base_rate,
            "opt_learning_rate_alt_decay_func": True,
            "opt_learning_rate_decay_interval": round(spec.steps(schedule.interval)),
            "opt_learning_rate_decay_factor": schedule.factor,
            "opt_learning_rate_decay_steps": schedule.drops,
            "opt_learning_rate_remain_steps": round(spec.steps(schedule.start)),
            "opt_learning_rate_alt_warmup_func": "t2t",
            "opt_learning_rate_warmup_steps": round(spec.warmup_steps),
        }

    def fake_batch(self, n: int) -> dict[str, np.ndarray]:
        """`n` random pairs, of the dtypes and shapes of real ones."""
        return self._fake(n, self.spec.data.max_length, ("source", "target"))

    def fake_eval_batch(self, n: int) -> dict[str, np.ndarray]:
        """`n` random lines to translate."""
        return self._fake(n, self.spec.data.eval_length, ("source",))

    def _fake(self, n: int, length: int, sides) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        batch = {}
        for side in sides:
            lengths = random.integers(2, length + 1, n, np.int32)
            ids = random.integers(3, self.spec.data.vocabulary, (n, length), np.int32)
            place = np.arange(length)
            ids = np.where(place == lengths[:, None] - 1, data.END, ids)
            ids = np.where(place < lengths[:, None], ids, 0)
            batch[side], batch[f"{side}_length"] = ids.astype(np.int32), lengths
        return batch
