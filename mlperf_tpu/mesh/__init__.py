"""The places a step runs in: each holds the state and runs the step its own way.

A mesh (virtual.VirtualMesh, and its kin) is started with a program and a state, then
trains and evaluates in turns; the state stays on its devices in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

# Field -> array of [global batch, ...].
Batch = Mapping[str, Any]
State = dict[str, Any]
Metrics = dict[str, float]


class Program(Protocol):
    """What a mesh needs of a benchmark: two pure functions of one replica."""

    step: Any  # optim.training_step.TrainingStep: (state, batch) -> (state, metrics)

    def evaluate(self, state: State, batch: Batch) -> Any:
        """Sums over this replica's unpadded examples."""


class Mesh(Protocol):
    """What the story of a run (train.py) needs of a place that executes."""

    name: str
    n_replicas: int

    def start(self, program: Program, state: State, batch: Batch) -> None: ...

    def load(self, state: State) -> None: ...

    def train(self, batches: Iterator[Batch], n_steps: int) -> Iterator[Metrics]: ...

    def evaluate(self, batches: Iterable[Batch]) -> Metrics: ...

    def fetch(self) -> State: ...
