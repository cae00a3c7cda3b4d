"""What `mlperf-tpu verify transformer` proves, on a narrow network of the same layers.

One layer a side of width 32, rows of 24 ids and a vocabulary of 36. Without dropout: a
replica's masks are its own, so that no number of replicas draws what another draws
(tests/test_transformer.py proves them).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlperf_tpu.spec import load, resolve
from mlperf_tpu.verify import MeshSize, Results, Technique

_BASE = (
    "training.precision=float32",
    "training.global_batch=8",
    "evaluation.batch=8",
    "data.vocabulary=36",
    "data.row_length=24",
    "data.longest=12",
    "data.eval_length=9",
    "model.width=32",
    "model.inner=48",
    "model.heads=4",
    "model.layers=1",
    "model.dropout=0.0",
    "model.extra=4",
    "schedule.warmup=2 steps",
    "schedule.base_rate=0.1",
)
EXECUTED = (MeshSize("virtual", 2), MeshSize("xla", 2))
# Adam divides by the root of a mean of squares: where a gradient is nearly zero its
# last bits decide. An epsilon of the gradients' size keeps them from being magnified.
_CALM = "optimizer.epsilon=0.01"
_REORDERED = 2e-4
_REORDERED_BY = "float32 sums in another order"
BATCHES = 3


def _program(settings: Sequence[str]) -> Any:
    from mlperf_tpu.benchmarks.transformer.program import Program

    spec = resolve(load("transformer"), task="proxy", settings=[*_BASE, *settings]).spec
    return Program(spec)


def _sentences(spec: Any, n: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Pairs of uneven lengths, none long: a row holds several."""
    from mlperf_tpu.data.subwords import END, UNKNOWN

    random = np.random.default_rng(seed)
    pairs = []
    for lengths in random.integers(2, spec.data.longest, (n, 2)):
        sides = [random.integers(UNKNOWN, spec.data.vocabulary, k) for k in lengths]
        pairs.append(tuple([*side.tolist(), END] for side in sides))
    return pairs


def _batch(program: Any, seed: int, packed: bool = True) -> dict[str, np.ndarray]:
    """A global batch of packed rows, uneven ones; or of the same pairs, one a row."""
    from mlperf_tpu.data.packing import lay_out, pack

    spec = program.spec
    batch, length = spec.training.global_batch, spec.data.row_length
    pairs = _sentences(spec, batch, seed)
    rows = pack(pairs, length) if packed else lay_out([[p] for p in pairs], length)
    missing = batch - len(rows["source"])
    return {k: np.pad(v, [(0, missing), (0, 0)]) for k, v in rows.items()}


def _start(mesh: Any, settings: Sequence[str]) -> tuple[Any, Any]:
    program = _program(settings)
    state = program.initial_state(0, mesh.n_replicas)
    mesh.start(program, state, _batch(program, 0), program.fake_eval_batch(8))
    return program, state


def train_two_steps(
    mesh: Any, settings: Sequence[str], packed: bool = True
) -> list[Results]:
    """Losses, weights and Adam's slots after two steps, from each of several starts."""
    program, state = _start(mesh, settings)
    results = []
    for seed in range(BATCHES):
        mesh.load(state)
        batches = (_batch(program, seed + 10 * k, packed) for k in itertools.count())
        steps = list(mesh.train(batches, 2))
        now = mesh.fetch()
        found = {
            "losses": np.array([m["loss"] for m in steps]),
            "counts": np.array([m["count"] for m in steps]),
        }
        for i, weight in enumerate(now["weights"]):
            found[f"weight {i}"] = np.asarray(weight)
            for name, slots in now["slots"].items():
                # Rows of all replicas are the tensor, padded at its end.
                found[f"{name} {i}"] = np.reshape(slots[i], -1)[: np.size(weight)]
        results.append(found)
    return results


def train_packed(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """On the reference device one pair a row, on the meshes packed."""
    return train_two_steps(mesh, settings, packed=mesh.n_replicas > 1)


def translate_padded(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The translations of 11 sentences in batches of 8: 5 rows are padding."""
    from mlperf_tpu.data.batches import InMemory

    program, _ = _start(mesh, settings)
    sentences = program.fake_eval_batch(11)["source"]
    sentences[1::3, 5:] = 0  # shorter ones
    found = mesh.evaluate(InMemory({"source": sentences}, {}).eval_batches(8))
    count = int(found["count"])
    return [{"count": np.array([count]), "ids": found["ids"][:count]}]


def beam_exhaustive(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """Of translations of at most 3 ids over 6: on the reference device the best of all
    that there are, one by one through the training's forward pass; on the meshes the
    beam search's."""
    from mlperf_tpu.data.batches import InMemory
    from mlperf_tpu.data.subwords import END

    program, state = _start(mesh, settings)
    sentences = program.fake_eval_batch(8)["source"]
    if mesh.n_replicas > 1:
        found = mesh.evaluate(InMemory({"source": sentences}, {}).eval_batches(8))
        return [{"ids": found["ids"]}]
    best = [_best_of_all(program, state["weights"], row, END) for row in sentences]
    return [{"ids": np.stack(best)}]


def _best_of_all(program: Any, weights: Any, source: np.ndarray, end: int) -> Any:
    import tensorflow as tf

    from mlperf_tpu.data.packing import lay_out

    data, model = program.spec.data, program.spec.model
    limit = len(source) + model.extra
    others = [k for k in range(data.vocabulary) if k != end]
    all_ids = [
        [*body, end]
        for length in range(limit)
        for body in itertools.product(others, repeat=length)
    ]
    rows = lay_out([[(source.tolist(), ids)] for ids in all_ids], data.row_length)
    batch = {k: tf.constant(v) for k, v in rows.items()}
    # Id 0 is padding to the packer, but may stand in a translation all the same.
    with program._holding(weights):
        probabilities = tf.nn.log_softmax(program.model(batch))
    targets = batch["target"]
    each = tf.gather(probabilities, targets, batch_dims=2)
    real = tf.cast(batch["target_segment"] > 0, tf.float32)
    lengths = tf.reduce_sum(real, 1)
    scores = tf.reduce_sum(each * real, 1) / ((5 + lengths) / 6) ** model.alpha
    ids = all_ids[int(tf.argmax(scores))]
    return np.array(ids + [0] * (limit - len(ids)), np.int32)


_TINY = (
    "data.vocabulary=6",
    "data.eval_length=2",
    "model.extra=1",
    "model.beam=30",
)

TECHNIQUES = (
    Technique(
        "Adam",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        (_CALM, "update.sharded=false"),
        (_CALM, "update.sharded=false"),
    ),
    Technique(
        "sharded Adam",
        train_two_steps,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        (_CALM, "update.sharded=true"),
        (_CALM, "update.sharded=false"),
    ),
    Technique(
        "packed against one pair a row",
        train_packed,
        EXECUTED,
        _REORDERED,
        _REORDERED_BY,
        (_CALM,),
        (_CALM,),
    ),
    Technique(
        "bf16 gradient sum",
        train_two_steps,
        EXECUTED,
        2**-6,
        "a bfloat16 holds 8 bits, and Adam squares them",
        (_CALM, "update.gradient_dtype=bfloat16"),
        (_CALM,),
    ),
    Technique(
        "beam search against all translations",
        beam_exhaustive,
        EXECUTED,
        0.0,
        "ids, exact",
        _TINY,
        _TINY,
    ),
    Technique("padded translation", translate_padded, EXECUTED, 0.0, "ids, exact"),
    *(
        Technique(
            f"feature partitioning, {replicas} x {cores} cores",
            train_two_steps,
            (MeshSize("xla", replicas, cores),),
            _REORDERED,
            _REORDERED_BY,
            (_CALM, f"training.partitions={cores}"),
            (_CALM,),
        )
        for replicas, cores in ((1, 2), (2, 2), (2, 4))
    ),
)
