"""Measures the gradient sum on the virtual mesh, every way in one run, in turns.

    python scripts/bench_collectives.py [--devices 8] [--out results/collectives.md]

The payload is ResNet-50's gradients: 161 tensors, 25.6 M float32. Compared are the
reduce-scatter and all-gather of the sharded update, fused (one call for all tensors, as
the step does it) and one call a tensor; the all-reduce of the replicated update; and
TensorFlow's ring, CollectiveReduceV2, over one concatenated tensor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from mlperf_tpu.cli.train import import_tensorflow

FUSED = "reduce-scatter and all-gather, fused"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import_tensorflow()
    import tensorflow as tf

    from mlperf_tpu import collectives
    from mlperf_tpu.mesh.virtual import VirtualMesh
    from mlperf_tpu.optim.rows import to_rows
    from mlperf_tpu.spec import benchmark_module, load, resolve

    n = options.devices
    mesh = VirtualMesh(n)
    settings = ["data.classes=1000"]
    spec = resolve(load("resnet50"), task="proxy", settings=settings).spec
    program = benchmark_module("resnet50", "program").Program(spec)
    shapes = [p.shape for p in program.step.update.parameters]

    def fused(values):
        rows = collectives.reduce_scatter([to_rows(v, n) for v in values])
        return collectives.all_gather(rows)

    def one_each(values):
        return [fused([v])[0] for v in values]

    def all_reduce(values):
        return collectives.all_reduce(values)

    def ring(values):
        return tf.raw_ops.CollectiveReduceV2(
            input=tf.concat([tf.reshape(v, [-1]) for v in values], 0),
            group_size=n,
            group_key=1,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
        )

    ways = {
        FUSED: fused,
        "reduce-scatter and all-gather, one a tensor": one_each,
        "all-reduce, fused": all_reduce,
        "TensorFlow's ring, fused": ring,
    }
    values = []
    for device in range(n):
        with tf.device(f"/cpu:{device}"):
            values.append([tf.random.normal(shape) for shape in shapes])
    traced = {name: mesh._trace(way, values[0]) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds + 1):
        for name, call in traced.items():
            began = time.perf_counter()
            mesh._on_devices(lambda r, c=call: c(r, values[r]))
            times[name].append(time.perf_counter() - began)
    # The first round holds each function's instantiation.
    medians = {name: statistics.median(t[1:]) for name, t in times.items()}
    best = medians[FUSED]
    lines = [
        "# The gradient sum on the virtual mesh",
        "",
        f"`python scripts/bench_collectives.py --devices {n} --rounds "
        f"{options.rounds}` on {os.cpu_count()} CPU cores: ResNet-50's 161 gradients, "
        "25.6 M float32; medians. Aim: fused at least 2 x faster than one a tensor.",
        "",
        "| | ms | x the first |",
        "|---|---|---|",
    ]
    for name, median in medians.items():
        lines.append(f"| {name} | {1e3 * median:.1f} | {median / best:.2f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
