"""The places a step runs in: each holds the state and runs the step its own way.

A mesh (virtual.VirtualMesh, and its kin) is started with a program and a state, then
trains and evaluates in turns; the state stays on its devices in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

# Field -> array of [global batch, ...].
Batch = Mapping[str, Any]
State = dict[str, Any]
Metrics = dict[str, float]
# Sums over all batches, as float; predictions of all batches, [examples, ...], in the
# batches' order, those of padded examples too.
Evaluation = dict[str, Any]


def cpu_is_faster_in_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether products of bf16 take this machine's CPU less time than float32's.

    They do with AMX and with AMD's AVX-512. With Intel's AVX-512 alone a matmul of 4096
    takes twice as long; without either, SSD's proxy takes 6 times as long.
    """
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return "amx_bf16" in words or {"avx512_bf16", "AuthenticAMD"} <= words


class Program(Protocol):
    """What a mesh needs of a benchmark: two pure functions of one replica."""

    step: Any  # optim.training_step.TrainingStep: (state, batch) -> (state, metrics)

    def evaluate(self, state: State, batch: Batch) -> Any:
        """{name: value}: scalars are sums over this replica's unpadded examples; a
        value of [examples, ...] is a prediction, a row an example of the batch."""

    # May have `infeed_hosts`: so many hosts hand a step's whole batch to one replica in
    # turn, and zeros of its shape to the others (nn.infeed); 0 or none: each replica is
    # handed its own rows.


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


class Feed:
    """What each replica is handed of a training batch, step after step."""

    def __init__(self, n_replicas: int, infeed_hosts: int = 0) -> None:
        self.n_replicas = n_replicas
        self.infeed_hosts = min(infeed_hosts, n_replicas)
        self._turn = 0

    def __call__(self, batch: Batch) -> list[Batch]:
        if not self.infeed_hosts:
            return rows_of_each(batch, self.n_replicas)
        # The first replica of the host whose turn it is.
        holder = self._turn * self.n_replicas // self.infeed_hosts
        self._turn = (self._turn + 1) % self.infeed_hosts
        whole = {name: np.asarray(values) for name, values in batch.items()}
        zeros = {name: np.zeros_like(values) for name, values in whole.items()}
        return [whole if r == holder else zeros for r in range(self.n_replicas)]


def rows_of_each(batch: Batch, n_replicas: int) -> list[Batch]:
    """The replicas' equal parts of a global batch."""
    parts = {k: np.split(np.asarray(v), n_replicas) for k, v in batch.items()}
    return [{k: v[r] for k, v in parts.items()} for r in range(n_replicas)]


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
