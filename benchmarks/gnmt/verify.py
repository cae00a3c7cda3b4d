"""What `mlperf-tpu verify gnmt` proves, on a narrow network of the same layers.

Three layers a side of width 16: bidirectional, residual and attending ones are there.
Without dropout: a replica's masks are its own, so that no number of replicas draws
what another draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mlperf_tpu.spec import load, resolve
from mlperf_tpu.verify import MeshSize, Results, Technique

_BASE = (
    "training.precision=float32",
    "training.global_batch=8",
    "evaluation.batch=8",
    "data.vocabulary=24",
    "data.max_length=12",
    "data.eval_length=9",
    "data.buckets=3",
    "model.width=16",
    "model.layers=3",
    "model.dropout=0.0",
    "model.beam=3",
    "model.decode_length=8",
    "schedule.warmup=1 steps",
    "schedule.start=5 steps",
    "schedule.base_rate=0.1",
)
EXECUTED = (MeshSize("virtual", 2), MeshSize("xla", 2))
# Momentum's buffer after one step is the gradient itself.
_SGD = "optimizer={name: sgd, momentum: 0.9, weight_decay: 0.0}"
# Rows enough for several blocks of nn.blocks on each of two replicas.
_MANY = "training.global_batch=512"
# Adam divides by the root of a mean of squares: where a gradient is nearly zero its
# last bits decide. An epsilon of the gradients' size keeps them from being magnified.
_CALM = "optimizer.epsilon=0.01"
_CLIPPED = "optimizer.clip_norm=0.5"
_STILL = "schedule.base_rate=1.0e-30"
_REORDERED = 2e-4
_REORDERED_BY = "float32 sums in another order"
BATCHES = 2
# Initial weights are small, and so near to nothing come the query's gradients through
# them that rounding would decide; larger ones make every part of the network count.
SCALE = 4.0


def _program(settings: Sequence[str]) -> Any:
    from mlperf_tpu.benchmarks.gnmt.program import Program

    return Program(
        resolve(load("gnmt"), task="proxy", settings=[*_BASE, *settings]).spec
    )


def _batches(program: Any, shift: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches that differ from step to step."""
    batch = program.fake_batch(program.spec.training.global_batch)
    for step in itertools.count(shift):
        yield {name: np.roll(values, step, 0) for name, values in batch.items()}


def _start(mesh: Any, settings: Sequence[str]) -> tuple[Any, Any]:
    program = _program(settings)
    state = program.initial_state(0, mesh.n_replicas)
    state["weights"] = [SCALE * weight for weight in state["weights"]]
    batch = next(_batches(program, 0))
    mesh.start(program, state, batch, program.fake_eval_batch(8))
    return program, state


def _train(mesh: Any, settings: Sequence[str], steps: int) -> list[Results]:
    """Losses, weights and slots after so many steps, from each of several starts."""
    program, state = _start(mesh, settings)
    results = []
    for shift in range(BATCHES):
        mesh.load(state)
        metrics = list(mesh.train(_batches(program, shift), steps))
        now = mesh.fetch()
        found = {"losses": np.array([m["loss"] for m in metrics])}
        for i, weight in enumerate(now["weights"]):
            found[f"weight {i}"] = np.asarray(weight)
            for name, slots in now["slots"].items():
                # Rows of all replicas are the tensor, padded at its end.
                found[f"{name} {i}"] = np.reshape(slots[i], -1)[: np.size(weight)]
        results.append(found)
    return results


def train_one_step(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The loss and, with SGD, all gradients."""
    return _train(mesh, settings, 1)


def train_two_steps(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The second step sees what the first has left in the slots."""
    return _train(mesh, settings, 2)


def epoch_of_losses(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The sum of the losses of 48 pairs, each seen once, by weights that stay."""
    from mlperf_tpu.data.buckets import Bucketed, bucket_of

    program, _ = _start(mesh, settings)
    data = program.spec.data
    pairs = program.fake_batch(48)
    # As many of each bucket as make whole batches, in a mixed order.
    longest = np.tile([3, 8, 12], 16)
    for side in ("source", "target"):
        lengths = pairs[f"{side}_length"] = np.minimum(longest, 12).astype(np.int32)
        place = np.arange(data.max_length)
        pairs[side] = np.where(place < lengths[:, None], pairs[side], 0)
    buckets = bucket_of(pairs["source_length"], data.max_length, data.buckets)
    batches = Bucketed(pairs, {}, buckets).train_batches(8, 0, 0)
    losses = [m["loss"] for m in mesh.train(batches, 48 // 8)]
    return [{"loss": np.array([np.sum(losses)])}]


def translate_padded(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The translations of 11 lines in batches of 8: 5 rows are padding."""
    from mlperf_tpu.data.batches import InMemory

    program, _ = _start(mesh, settings)
    lines = program.fake_eval_batch(11)
    found = mesh.evaluate(InMemory(lines, {}).eval_batches(8))
    count = int(found["count"])
    return [{"count": np.array([count]), "ids": found["ids"][:count]}]


def _technique(name: str, measure: Any, settings: Any, reference: Any) -> Technique:
    return Technique(
        name, measure, EXECUTED, _REORDERED, _REORDERED_BY, settings, reference
    )


TECHNIQUES = (
    _technique(
        "hoisted against plain LSTM",
        train_one_step,
        (_SGD, "model.hoisted=true"),
        (_SGD, "model.hoisted=false"),
    ),
    _technique(
        "projections and softmax in blocks",
        train_one_step,
        (_SGD, _MANY, "model.hoisted=true"),
        (_SGD, _MANY, "model.hoisted=false"),
    ),
    _technique(
        "bucketed against unbucketed loss",
        epoch_of_losses,
        (_STILL, "data.buckets=3"),
        (_STILL, "data.buckets=1"),
    ),
    _technique(
        "batches spread by an all-reduce",
        train_two_steps,
        (_CALM, "data.infeed_hosts=2"),
        (_CALM, "data.infeed_hosts=0"),
    ),
    _technique(
        "sharded Adam, gradients clipped",
        train_two_steps,
        (_CALM, _CLIPPED, "update.sharded=true"),
        (_CALM, _CLIPPED, "update.sharded=false"),
    ),
    Technique(
        "padded translations", translate_padded, EXECUTED, 0.0, "ids and counts, exact"
    ),
)
