"""The places a step runs in: each holds the state and runs the step its own way.

A mesh (virtual.VirtualMesh, and its kin) is started with a program and a state, then
trains and evaluates in turns; the state stays on its devices in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

# Field -> array of [global batch, ...].
Batch = Mapping[str, Any]
State = dict[str, Any]
Metrics = dict[str, float]
# Sums over all batches, as float; predictions of all batches, [examples, ...], in the
# batches' order, those of padded examples too.
Evaluation = dict[str, Any]


class Program(Protocol):
    """What a mesh needs of a benchmark: two pure functions of one replica."""

    step: Any  # optim.training_step.TrainingStep: (state, batch) -> (state, metrics)

    def evaluate(self, state: State, batch: Batch) -> Any:
        """{name: value}: scalars are sums over this replica's unpadded examples; a
        value of [examples, ...] is a prediction, a row an example of the batch."""


class Mesh(Protocol):
    """What the story of a run (train.py) needs of a place that executes."""

    name: str
    n_replicas: int

    def start(
        self,
        program: Program,
        state: State,
        batch: Batch,
        eval_batch: Batch | None = None,
    ) -> None:
        """`eval_batch` where an evaluation's fields or sizes are others."""

    def load(self, state: State) -> None: ...

    def train(self, batches: Iterator[Batch], n_steps: int) -> Iterator[Metrics]: ...

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation: ...

    def fetch(self) -> State: ...


def gathered(parts: Iterable[Mapping[str, Any]]) -> Evaluation:
    """An evaluation of what each replica returned for each batch, in that order: sums
    added up on the host in float64, predictions one after the other."""
    values: dict[str, list[np.ndarray]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(np.asarray(value))
    return {
        name: np.concatenate(found) if found[0].ndim else float(np.sum(found, 0, float))
        for name, found in values.items()
    }
