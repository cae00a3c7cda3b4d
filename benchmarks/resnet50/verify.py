"""What `mlperf-tpu verify resnet50` proves, on a short network of ResNet-50's layers.

Two stages of one narrow bottleneck each: strides, projections, pooling, batch norm, the
stem and the classifier are all there, and a mesh needs seconds. Images of 40 pixels
have feature maps of 20, 10 and 5 rows, which four partitions do not divide.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlperf_tpu import checkpoint
from mlperf_tpu.spec import load, resolve
from mlperf_tpu.verify import MeshSize, Results, Technique

_BASE = (
    "model.stages=[[1, 16], [1, 32]]",
    "training.precision=float32",
    "training.global_batch=8",
    "data.image_size=40",
    "batch_norm.span=4 examples",
    "schedule.warmup=1 steps",
    "schedule.base_rate=1.0",
)
_SGD = (
    "optimizer={name: sgd, momentum: 0.9, weight_decay: 1.0e-4}",
    "schedule.base_rate=0.1",
)
EXECUTED = (MeshSize("virtual", 2), MeshSize("xla", 2))
ON_A_GRID = (MeshSize("virtual", 4), MeshSize("xla", 4))
# 8 of 12 chips: half of the first two rows has failed.
AROUND_A_HOLE = tuple(
    MeshSize(place, 8, grid="v5e:4x3", hole="0,0:2x2") for place in ("virtual", "xla")
)
# Sums of up to a few thousand float32 terms in another order, through batch norm.
_REORDERED = 2e-4
_REORDERED_BY = "float32 sums in another order"


# Several batches, each from the same state: rounding may tip a max-pool's choice on
# one of them, and with it a gradient; a technique that is wrong is wrong on all.
BATCHES = 3


def _program(settings: Sequence[str]) -> Any:
    # Here, so that the list of techniques is read without TensorFlow.
    import tensorflow as tf
    from mlperf_tpu.benchmarks.resnet50.program import Program

    spec = resolve(load("resnet50"), task="proxy", settings=[*_BASE, *settings]).spec
    # ReLU's gradient jumps at zero: a difference in the last bit would become one in
    # the first digits. Softplus is as near to it and has no such place.
    return Program(spec, activation=tf.nn.softplus)


def _batches(program: Any, shift: int = 0) -> Any:
    """Batches that differ from step to step."""
    batch = program.fake_batch(program.spec.training.global_batch)
    for step in itertools.count(shift):
        yield {name: np.roll(values, step, 0) for name, values in batch.items()}


def _start(mesh: Any, settings: Sequence[str]) -> tuple[Any, Any]:
    program = _program(settings)
    state = program.initial_state(0, mesh.n_replicas)
    mesh.start(program, state, next(_batches(program)))
    return program, state


def _weights_and_momentum(mesh: Any) -> Results:
    """Weights, and the slots of which the last update was made: unlike weights those
    start from zero, and hold a small gradient as exactly as a large one."""
    state = mesh.fetch()
    pairs = zip(state["weights"], state["slots"]["momentum"], strict=True)
    out: Results = {}
    for i, (weight, rows) in enumerate(pairs):
        out[f"weight {i}"] = np.asarray(weight)
        # Rows of all replicas one after the other are the tensor, padded at its end.
        out[f"momentum {i}"] = np.reshape(rows, -1)[: np.size(weight)]
    return out


def train_two_steps(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """Losses and state of two steps: the second sees the first's momentum."""
    program, state = _start(mesh, settings)
    results = []
    for shift in range(BATCHES):
        mesh.load(state)
        losses = [m["loss"] for m in mesh.train(_batches(program, shift), 2)]
        results.append({"losses": np.array(losses), **_weights_and_momentum(mesh)})
    return results


def evaluate_padded(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """An evaluation of 11 examples in batches of 8: 5 rows are padding."""
    from mlperf_tpu.data.batches import InMemory

    program, _ = _start(mesh, settings)
    examples = program.fake_batch(11)
    correct = []
    for label in range(program.spec.data.classes):
        labelled = {**examples, "label": np.full(11, label, np.int32)}
        sums = mesh.evaluate(InMemory(labelled, {"label": -1}).eval_batches(8))
        correct.append(sums["correct"])
    # Each example is right under exactly one of the labels.
    return [{"correct": np.array([*correct, sum(correct), sums["count"]])}]


def resume(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """Four steps; on the meshes a checkpoint after two, and a fresh start from it."""
    results = []
    program, state = _start(mesh, settings)
    for shift in range(BATCHES):
        mesh.load(state)
        batches = _batches(program, shift)
        list(mesh.train(batches, 2))
        if mesh.n_replicas > 1:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint.save(Path(folder), 2, mesh.fetch(), {})
                saved = checkpoint.newest(Path(folder))
            assert saved is not None
            mesh.load(state)
            mesh.load(saved.state)
        losses = [m["loss"] for m in mesh.train(batches, 2)]
        results.append({"losses": np.array(losses), **_weights_and_momentum(mesh)})
    return results


TECHNIQUES = (
    Technique(
        "LARS, unscaled momentum",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
    ),
    Technique(
        "LARS, scaled momentum",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        ("optimizer.momentum_form=scaled",),
        ("optimizer.momentum_form=scaled",),
    ),
    Technique(
        "sharded weight update",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        ("update.sharded=true",),
        ("update.sharded=false",),
    ),
    Technique(
        "batch norm over replicas",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "batch_norm.span=8 examples"),
        (*_SGD, "batch_norm.span=8 examples"),
    ),
    Technique(
        "fused gradient sum",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "update.fuse_mib=1"),
        _SGD,
    ),
    Technique(
        "ring gradient sum",
        train_two_steps,
        ON_A_GRID,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "update.gradient_sum=ring"),
        _SGD,
    ),
    Technique(
        "2-D torus gradient sum",
        train_two_steps,
        ON_A_GRID,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "update.gradient_sum=torus2d"),
        _SGD,
    ),
    Technique(
        "ring gradient sum around failed chips",
        train_two_steps,
        AROUND_A_HOLE,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "update.gradient_sum=ring"),
        _SGD,
    ),
    Technique(
        "2-D gradient sum around failed chips",
        train_two_steps,
        AROUND_A_HOLE,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "update.gradient_sum=torus2d", "update.sharded=false"),
        (*_SGD, "update.sharded=false"),
    ),
    Technique(
        "bf16 gradient sum",
        train_two_steps,
        EXECUTED,
        2**-7,
        "a bfloat16 holds 8 bits",
        (*_SGD, "update.gradient_dtype=bfloat16"),
        _SGD,
    ),
    Technique(
        "space-to-depth stem",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "model.space_to_depth=true"),
        _SGD,
    ),
    Technique(
        "spatial partitioning, 2 cores",
        train_two_steps,
        (MeshSize("xla", 2, 2),),
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "training.partitions=2"),
        _SGD,
    ),
    Technique(
        "spatial partitioning, 4 cores",
        train_two_steps,
        (MeshSize("xla", 2, 4),),
        _REORDERED,
        _REORDERED_BY,
        (*_SGD, "training.partitions=4"),
        _SGD,
    ),
    Technique("padded evaluation", evaluate_padded, EXECUTED, 0.0, "counts, exact"),
    Technique("resume", resume, EXECUTED, _REORDERED, _REORDERED_BY),
)
