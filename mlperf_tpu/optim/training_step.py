"""The training step that all benchmarks share: loss, gradients, their sum, the update.

`TrainingStep` is the pure function `step(state, batch) -> (state, metrics)` of one
replica. The state is a nest of tensors:

    step        int64 scalar, the number of steps done
    weights     a list, one tensor a parameter; equal on all replicas
    statistics  a list, the model's non-trainable variables; equal on all replicas
    slots       {name: list}, the optimizer's tensors: this replica's rows when sharded
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.optim.schedules import Schedule
from mlperf_tpu.optim.update import WeightUpdate

State = dict[str, Any]
Batch = dict[str, tf.Tensor]
Metrics = dict[str, tf.Tensor]
# (weights, statistics, batch) -> (sums over the batch's examples, new statistics);
# the sums are float32 scalars, "loss" and "count" among them.
LossFunction = Callable[[list, list, Batch], tuple[Metrics, list]]

# What a compiled step's ops of the gradient sum and the update are found by.
UPDATE_SCOPE = "weight_update"


@dataclass(frozen=True)
class TrainingStep:
    """Gradients are sums over the global batch, divided once by `global_batch`."""

    loss_function: LossFunction
    update: WeightUpdate
    schedule: Schedule
    global_batch: int

    def __call__(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        weights, statistics = state["weights"], state["statistics"]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums, statistics = self.loss_function(weights, statistics, batch)
            mean_loss = sums["loss"] / self.global_batch
        gradients = tape.gradient(mean_loss, weights)
        rate = self.schedule(state["step"])
        with tf.name_scope(UPDATE_SCOPE):
            weights, slots = self.update.apply(weights, gradients, state["slots"], rate)
        statistics, metrics = _agree(statistics, sums)
        new = {
            "step": state["step"] + 1,
            "weights": weights,
            "statistics": statistics,
            "slots": slots,
        }
        return new, {**metrics, "learning_rate": rate}

    def state_spec(self, statistics, n_replicas: int) -> State:
        """One replica's state as tensor specs, for lowering; `statistics` likewise."""
        update = self.update

        def specs(shapes):
            return [tf.TensorSpec(shape, tf.float32) for shape in shapes]

        return {
            "step": tf.TensorSpec([], tf.int64),
            "weights": specs(p.shape for p in update.parameters),
            "statistics": list(statistics),
            "slots": {
                name: specs(update.slot_shape(p, n_replicas) for p in update.parameters)
                for name in update.slot_names
            },
        }

    def initial_state(self, weights, statistics, n_replicas: int) -> State:
        """The state of all replicas as host arrays; slots as [replicas, row]."""
        return {
            "step": tf.constant(0, tf.int64),
            "weights": list(weights),
            "statistics": list(statistics),
            "slots": self.update.initial_slots(weights, n_replicas),
        }


def _agree(statistics, sums):
    """One all-reduce: the statistics' average and the sums' sum over all replicas."""
    n = collectives.n_replicas()
    names = list(sums)
    values = collectives.all_reduce([*statistics, *(sums[name] for name in names)])
    statistics, totals = values[: len(statistics)], values[len(statistics) :]
    return [s / n for s in statistics], dict(zip(names, totals, strict=True))
