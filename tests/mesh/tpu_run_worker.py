"""`mlperf-tpu ARGUMENTS` with the toy in the benchmark's place, and MirroredStrategy on
two CPU devices in the TPU's.

    python tpu_run_worker.py LOST_AT ARGUMENTS...

The worker goes away in the LOST_AT-th call of steps, never for 0.
"""

import sys
from types import SimpleNamespace

import numpy as np

from mlperf_tpu import spec
from mlperf_tpu.cli import main
from mlperf_tpu.cli.train import import_tensorflow

TRAIN_EXAMPLES, EVAL_EXAMPLES = 32, 13


def toy_program():
    from mlperf_tpu.data.batches import InMemory
    from tests.mesh.toy import Toy

    def examples(n, seed):
        batches = [Toy.batch(seed + k) for k in range(-(-n // 8))]
        return InMemory(
            {k: np.concatenate([b[k] for b in batches])[:n] for k in batches[0]},
            {"label": -1},
        )

    class Program(Toy):
        def __init__(self, spec):
            super().__init__(spec.update.sharded)

        def fake_batch(self, n):
            return Toy.batch(99)

        def datasets(self, data_dir):
            return examples(TRAIN_EXAMPLES, 0), examples(EVAL_EXAMPLES, 1000)

        def hyperparameters(self):
            return {"global_batch_size": 8}

        def quality(self, sums):
            return sums["correct"] / sums["count"]

    return SimpleNamespace(Program=Program)


def lose_worker(mesh, at):
    import tensorflow as tf

    make, calls = mesh._loop_of, 0

    def loop_of(names):
        loop = make(names)

        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == at:
                raise tf.errors.UnavailableError(None, None, "failed to connect\nat x")
            return loop(*arguments)

        return call

    mesh._loop_of = loop_of


if __name__ == "__main__":
    import_tensorflow()
    from mlperf_tpu import train
    from mlperf_tpu.mesh import tpu
    from tests.mesh.mirrored import mirrored_mesh

    lost_at, arguments = int(sys.argv[1]), sys.argv[2:]

    def connect(name, chips, partitions):
        mesh = mirrored_mesh(2 * chips // partitions, steps_per_call=3)
        if lost_at:
            lose_worker(mesh, lost_at)
        return mesh

    tpu.connect = connect
    module = spec.benchmark_module
    train.benchmark_module = lambda name, part: (
        toy_program() if part == "program" else module(name, part)
    )
    main(arguments)
