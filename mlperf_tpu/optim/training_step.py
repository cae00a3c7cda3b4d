"""The training step that all benchmarks share: loss, gradients, their sum, the update.

`TrainingStep` is the pure function `step(state, batch) -> (state, metrics)` of one
replica. The state is a nest of tensors:

    step        int64 scalar, the number of steps done
    weights     a list, one tensor a parameter; equal on all replicas; float32, or
                bfloat16 where they are gathered so (optim.update)
    statistics  a list, the model's non-trainable variables; equal on all replicas
    slots       {name: list}, the optimizer's tensors: this replica's rows when sharded
    seed        int32 scalar, the run's, where the loss draws at random
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.nn import partitioning
from mlperf_tpu.optim.schedules import Schedule
from mlperf_tpu.optim.update import WeightUpdate

State = dict[str, Any]
Batch = dict[str, tf.Tensor]
Metrics = dict[str, tf.Tensor]
# (weights, statistics, batch) -> (sums over the batch's examples, new statistics);
# the sums are float32 scalars, "loss" and "count" among them. A loss that draws at
# random takes a fourth argument, the stateless seed of this step and replica.
LossFunction = Callable[..., tuple[Metrics, list]]

# What a compiled step's ops of the gradient sum and the update are found by.
UPDATE_SCOPE = "weight_update"


@dataclass(frozen=True)
class TrainingStep:
    """Gradients are sums over the global batch, divided once: by `global_batch`, or,
    where it is None, by the count of all replicas (real tokens, not rows, of text).

    `draws`: the loss draws at random (dropout), by a seed of (seed, step, replica).
    """

    loss_function: LossFunction
    update: WeightUpdate
    schedule: Schedule
    global_batch: int | None
    draws: bool = False

    def __call__(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        weights, statistics = float32_weights(state), state["statistics"]
        seeds = [step_seed(state["seed"], state["step"])] if self.draws else []
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums, statistics = self.loss_function(weights, statistics, batch, *seeds)
            mean_loss = sums["loss"] / self._divisor(sums["count"])
        gradients = tape.gradient(mean_loss, weights)
        rate = self.schedule(state["step"])
        size = self.update.optimizer.step_size(rate, state["step"])
        with tf.name_scope(UPDATE_SCOPE):
            weights, slots = self.update.apply(weights, gradients, state["slots"], size)
        statistics, metrics = _agree(statistics, sums)
        new = {
            "step": state["step"] + 1,
            "weights": weights,
            "statistics": statistics,
            "slots": slots,
        }
        if self.draws:
            new["seed"] = tf.identity(state["seed"])
        return new, {**metrics, "learning_rate": rate}

    def _divisor(self, count):
        if self.global_batch is not None:
            return self.global_batch
        [total] = collectives.all_reduce([tf.stop_gradient(count)])
        return tf.maximum(total, 1.0)

    def state_spec(self, statistics, n_replicas: int) -> State:
        """One replica's state as tensor specs, for lowering; `statistics` likewise."""
        update = self.update

        seed = {"seed": tf.TensorSpec([], tf.int32)} if self.draws else {}
        return {
            **seed,
            "step": tf.TensorSpec([], tf.int64),
            "weights": [
                tf.TensorSpec(p.shape, update.held_dtype(p)) for p in update.parameters
            ],
            "statistics": list(statistics),
            "slots": {
                name: [
                    tf.TensorSpec(update.slot_shape(p, n_replicas), tf.float32)
                    for p in update.parameters
                ]
                for name in update.slot_names
            },
        }

    def drawn_state(
        self, new_model: Callable[[], keras.Model], n_replicas: int, seed: int
    ) -> State:
        """`initial_state` of a model made anew, by `seed` alone."""
        keras.utils.set_random_seed(seed % 2**32)
        fresh = new_model()
        return self.initial_state(
            [tf.identity(v.value) for v in fresh.trainable_variables],
            [tf.identity(v.value) for v in fresh.non_trainable_variables],
            n_replicas,
            seed,
        )

    def initial_state(
        self, weights, statistics, n_replicas: int, seed: int = 0
    ) -> State:
        """The state of all replicas as host arrays; slots as [replicas, row]."""
        drawn = {"seed": tf.constant(seed % 2**31, tf.int32)} if self.draws else {}
        return {
            **drawn,
            "step": tf.constant(0, tf.int64),
            "weights": self.update.held(weights),
            "statistics": list(statistics),
            "slots": self.update.initial_slots(weights, n_replicas),
        }


def float32_weights(state: State) -> list[tf.Tensor]:
    """The weights to compute with: gradients by them are float32 too."""
    return [tf.cast(weight, tf.float32) for weight in state["weights"]]


def step_seed(seed, step):
    """The stateless seed of a step on this replica, int32 [2]: no two (seed, step,
    replica) share one, up to 2^31 of (step, replica) a run."""
    n = collectives.n_replicas()
    place = tf.cast(step, tf.int32) * n + collectives.replica_id()
    return tf.stack([seed, place])


def _agree(statistics, sums):
    """One all-reduce: the statistics' average and the sums' sum over all replicas."""
    n = collectives.n_replicas()
    names = list(sums)
    # What went through messages between replicas (a batch norm's) the compiler takes to
    # differ from partition to partition.
    statistics = [partitioning.known_alike(s) for s in statistics]
    values = collectives.all_reduce([*statistics, *(sums[name] for name in names)])
    statistics, totals = values[: len(statistics)], values[len(statistics) :]
    return [s / n for s in statistics], dict(zip(names, totals, strict=True))
