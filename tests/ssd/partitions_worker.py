"""A step of a small SSD on the XLA mesh beside one device's.

    python partitions_worker.py REPLICAS PARTITIONS OUT.json

Its maps have 38, 19, 10, 5, 3 and 1 rows. OUT.json holds the largest relative error of
the loss, of all gradients (the momentum after one step) and of batch norm's means.
"""

import json
import sys

import numpy as np

from mlperf_tpu.cli.train import import_tensorflow


def main(replicas: int, partitions: int, out: str) -> None:
    import_tensorflow()
    import tensorflow as tf
    from mlperf_tpu.benchmarks.ssd.program import Program
    from mlperf_tpu.benchmarks.ssd.verify import BASE, SMALL

    from mlperf_tpu.mesh.xla import XlaMesh
    from mlperf_tpu.spec import load, resolve
    from mlperf_tpu.verify import largest_relative_error

    mesh = XlaMesh(replicas, partitions)
    spec = resolve(load("ssd"), settings=[*BASE, *SMALL]).spec
    spec.check_replicas(replicas)
    # Softplus, since ReLU's gradient jumps where rounding may tip a value.
    program = Program(spec, activation=tf.nn.softplus)
    assert program.anchors.maps == [10, 5, 3, 1]
    batch, state = program.fake_batch(4), program.initial_state(0, replicas)

    def results(loss, fetched):
        momentum = fetched["slots"]["momentum"]
        named = {f"momentum {i}": np.asarray(v) for i, v in enumerate(momentum)}
        means = fetched["statistics"][::2]  # a tile's variance is not the batch's
        named |= {f"mean {i}": np.asarray(v) for i, v in enumerate(means)}
        return {"loss": np.array(loss), **named}

    new, metrics = program.step(
        program.initial_state(0, 1), {k: tf.constant(v) for k, v in batch.items()}
    )
    expected = results(metrics["loss"], new)

    # The evaluation is not under test, and its compilation takes as long as the step's.
    program.evaluate = lambda state, batch: {"count": tf.constant(0.0)}
    mesh.start(program, state, batch)
    [found] = mesh.train(iter([batch]), 1)
    actual = results(found["loss"], mesh.fetch())
    with open(out, "w") as file:
        json.dump({"error": largest_relative_error(expected, actual)}, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
