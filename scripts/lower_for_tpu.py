"""Lowers each benchmark's train and evaluation step with the TPU's kernels.

    python scripts/lower_for_tpu.py [BENCHMARK ...]

Runs in the environment of requirements-tpu.lock (scripts/check_tpu_wheel), where no TPU
need be present. Prints a line a step; exit 1 when one does not lower.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import resources
from typing import Any

from mlperf_tpu.cli.train import import_tensorflow
from mlperf_tpu.spec import Document, Resolved, benchmark_module, load, resolve

# As many as the paper's slices have; which ops there are does not depend on it.
N_REPLICAS = 2048


def main(names: list[str]) -> int:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu asks no one
    import_tensorflow()
    failed = 0
    for name in names or benchmarks():
        failed += not lowers(name, at_replicas(load(name), N_REPLICAS), N_REPLICAS)
    return 1 if failed else 0


def benchmarks() -> list[str]:
    folder = resources.files("mlperf_tpu.configs").iterdir()
    return sorted(f.name[:-5] for f in folder if f.name.endswith(".yaml"))


def at_replicas(document: Document, n: int) -> Resolved:
    """The benchmark's largest published run, a replica's share of it kept; a batch-norm
    group, where there is one, spans eight replicas."""
    scale = max(document.scales, key=lambda s: s.chips)
    published = resolve(document, scale_name=scale.name)
    spec = published.spec
    assert published.chips is not None
    cores = 2 * published.chips // spec.training.partitions
    local = max(1, spec.training.global_batch // cores)
    settings = [
        f"training.global_batch={local * n}",
        f"training.steps_per_epoch={spec.steps_per_epoch}",
        "update.sharded=true",
    ]
    if spec.batch_norm is not None:
        settings.append(f"batch_norm.span={8 * local} examples")
    return resolve(document, scale_name=scale.name, settings=settings)


def lowers(name: str, resolved: Resolved, n: int) -> bool:
    """Lowers both steps; whether both went."""
    import tensorflow as tf

    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.mesh.strategy import everyones
    from mlperf_tpu.mesh.xla import lower

    spec = resolved.spec
    program: Any = benchmark_module(spec.benchmark, "program").Program(spec)
    # Of an infeed by one or two hosts each replica is handed whole batches.
    whole = getattr(program, "infeed_hosts", 0) > 0
    rows = spec.training.global_batch // (1 if whole else n)
    batch = tf.nest.map_structure(
        lambda field: tf.TensorSpec(field.shape, field.dtype), program.fake_batch(rows)
    )
    done = True

    def evaluate(state, batch):
        return everyones(program.evaluate(state, batch))

    for what, function in (("train", program.step), ("evaluate", evaluate)):
        began = time.monotonic()
        place = XlaPlace(n, spec.training.partitions)
        try:
            text, _ = lower(
                function, place, program.state_spec(n), batch, platform="TPU"
            )
            result = f"ok, {len(text) >> 10} KiB of StableHLO"
        except Exception as error:  # whatever the compiler says is the finding
            done, result = False, f"FAILED: {type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        print(f"{name} {what}, {n} replicas: {result} ({seconds:.1f} s)", flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
