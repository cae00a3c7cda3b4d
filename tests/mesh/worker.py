"""Trains a few steps of a spec on a mesh of its own process: one mesh size a process.

    python worker.py DEVICES STEPS OUT.npz [path=value ...]

Writes the losses, the final logical state and what the tests look at besides.
"""

import itertools
import sys

import numpy as np

from mlperf_tpu.cli.train import import_tensorflow


def main(devices: int, steps: int, out: str, settings: list[str]) -> None:
    import_tensorflow()
    import tensorflow as tf

    from mlperf_tpu import checkpoint
    from mlperf_tpu.mesh.virtual import VirtualMesh
    from mlperf_tpu.spec import benchmark_module, load, resolve

    spec = resolve(load("resnet50"), task="proxy", settings=settings).spec
    spec.check_replicas(devices)
    mesh = VirtualMesh(devices)
    program = benchmark_module("resnet50", "program").Program(spec)
    traces = 0
    step = program.step.loss_function

    def counted(*arguments):
        nonlocal traces
        traces += 1
        return step(*arguments)

    object.__setattr__(program.step, "loss_function", counted)
    _, eval_set = program.datasets(None)
    batch = program.fake_batch(spec.training.global_batch)
    mesh.start(program, program.initial_state(7, devices), batch)

    def random_batches():
        for seed in itertools.count():
            random = np.random.default_rng(seed)
            size = spec.data.image_size, spec.data.image_size, 3
            n = spec.training.global_batch
            yield {
                "image": random.integers(0, 256, (n, *size), np.uint8),
                "label": random.integers(0, spec.data.classes, n, np.int32),
            }

    losses = [
        metrics["loss"] / metrics["count"]
        for metrics in mesh.train(random_batches(), steps)
    ]
    slots = mesh.device_state(0)["slots"]
    sums = mesh.evaluate(eval_set.eval_batches(spec.training.global_batch))
    state = dict(checkpoint.flatten(mesh.fetch()))
    np.savez(
        out,
        losses=losses,
        traces=traces,
        slot_bytes=sum(t.numpy().nbytes for t in tf.nest.flatten(slots)),
        n_slots=len(tf.nest.flatten(slots)),
        eval_count=sums["count"],
        # NumPy's files hold no bfloat16.
        **{
            k.replace("/", "."): v.astype(np.float32) if v.dtype.itemsize == 2 else v
            for k, v in state.items()
        },
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
