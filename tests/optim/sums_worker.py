"""Gradient sums of every kind on 8 replicas, against NumPy; asserts as it goes.

    python sums_worker.py virtual|xla

Gradients are whole numbers, weights and rates sums of powers of two, so that float32
holds every sum exactly, whatever the order.
"""

import dataclasses
import sys

import numpy as np

from mlperf_tpu.cli.train import import_tensorflow
from mlperf_tpu.topology import Topology

N = 8
GRIDS = {
    "a torus of 4x2": Topology.virtual(N),
    "two cores a chip": Topology(2, 2),
    "two pods": Topology(4, 2, cores_per_chip=1, pod_columns=2),
    "a ring around a hole": Topology(3, 3, cores_per_chip=1).with_holes(["1,1"]),
    "broken rows": Topology(4, 3, cores_per_chip=1).with_holes(["0,0:2x2"]),
}
SMALL = {"kernel": (3, 5), "bias": (7,), "norm": (1,)}
# Whole tiles that stay alone, some that go with others, what is filled up to tiles, and
# what has none.
TILES = {
    "kernel": (1024, 640),
    "kernel_1": (512, 256),
    "kernel_2": (500, 250),
    "bias": (7,),
}
# The survivors of a broken row own no part of the sum: no equal shards.
REFUSED = {("broken rows", "torus2d")}


def main(place: str) -> None:
    import_tensorflow()
    if place == "virtual":
        from mlperf_tpu.mesh.virtual import VirtualMesh

        mesh, run_on = VirtualMesh(N), on_virtual
    else:
        from mlperf_tpu.mesh.xla import XlaMesh

        mesh, run_on = XlaMesh(N), on_xla
    for name, topology in GRIDS.items():
        run = run_on(mesh, topology)
        schedules_add_as_the_executor_does(run)
        updates_agree(run, name, SMALL)
        if not topology.failed:
            updates_agree(run, name, TILES)
        print(name)


def on_virtual(mesh, topology):
    """run(function, each replica's arguments) -> each replica's flat results."""
    import tensorflow as tf

    mesh.topology = topology

    def run(function, arguments):
        inputs = [tf.nest.map_structure(tf.constant, mine) for mine in arguments]
        traced = mesh._trace(lambda *a: function(*a), *inputs[0])
        outs = mesh._on_devices(lambda r: traced(r, *inputs[r]))
        return [[o.numpy() for o in tf.nest.flatten(out)] for out in outs]

    return run


def on_xla(mesh, topology):
    mesh.place = dataclasses.replace(mesh.place, topology=topology)

    def run(function, arguments):
        compiled = mesh.compile(function, *arguments[0])
        outs = compiled(compiled.put(0, [list(mine) for mine in arguments]))
        return [[np.asarray(out[r]) for out in outs] for r in range(mesh.n_replicas)]

    return run


def schedules_add_as_the_executor_does(run):
    """Bit for bit on random numbers: the same terms are added in the same order."""
    from mlperf_tpu import collectives
    from mlperf_tpu.collectives.proof import execute
    from mlperf_tpu.optim.gradient_sum import Scheduled

    values = np.random.default_rng(0).normal(size=(N, 3, 7)).astype(np.float32)
    schedules = []

    def sums(value):
        for algorithm in ("ring", "torus2d"):
            summed = Scheduled(collectives.placement(), algorithm)
            schedules.append(summed.schedule)
            yield from summed.all_reduce([value])

    outs = run(lambda value: list(sums(value)), [[v] for v in values])
    for i, schedule in enumerate(schedules[:2]):
        padded = np.zeros((len(schedule.group), schedule.padded(21)), np.float32)
        padded[schedule.group >= 0, :21] = values.reshape(N, 21)
        expected = execute(schedule, padded)[schedule.group >= 0, :21]
        for out, want in zip(outs, expected, strict=True):
            np.testing.assert_array_equal(out[i].reshape(-1), want)


def rows_of(slots, replica):
    return {name: [rows[replica] for rows in all_] for name, all_ in slots.items()}


def updates_agree(run, grid, shapes):
    """The whole weight update, by every algorithm, equals NumPy's plain sum."""
    import tensorflow as tf

    from mlperf_tpu.errors import BadInput
    from mlperf_tpu.optim.optimizers import Momentum, Parameter
    from mlperf_tpu.optim.update import WeightUpdate

    random = np.random.default_rng(1)
    parameters = [
        Parameter(name, shape, name.split("_")[0]) for name, shape in shapes.items()
    ]
    weights = [random.integers(-9, 9, p.shape).astype(np.float32) for p in parameters]
    gradients = [
        [random.integers(-99, 99, p.shape).astype(np.float32) for p in parameters]
        for _ in range(N)
    ]
    total = [np.sum(terms, 0) for terms in zip(*gradients, strict=True)]
    expected = [w - 0.25 * g for w, g in zip(weights, total, strict=True)]
    # bfloat16 and the place's own sum know no grid, and a replicated update is its
    # schedule's all-reduce: once is enough.
    first = grid == next(iter(GRIDS))
    f32, bf16 = tf.float32, tf.bfloat16
    algorithms = ("xla", "ring", "torus2d") if first else ("ring", "torus2d")
    for algorithm in ("torus2d",) if shapes is TILES else algorithms:
        ways = [(True, f32), (False, f32), (True, bf16)]
        without_shards = (grid, algorithm) in REFUSED
        for sharded, gather in ways if first else ways[: 1 + without_shards]:
            update = WeightUpdate(
                Momentum(0.5, 0.0),
                tuple(parameters),
                sharded,
                gather_dtype=gather,
                fuse_bytes=80,  # two buckets
                algorithm=algorithm,
            )

            def step(gradients, slots, update=update):
                values = [tf.constant(w) for w in weights]
                return update.apply(values, gradients, slots, tf.constant(0.25))[0]

            slots = update.initial_slots([tf.constant(w) for w in weights], N)
            slots = tf.nest.map_structure(np.array, slots)
            arguments = [
                (mine, rows_of(slots, r) if sharded else slots)
                for r, mine in enumerate(gradients)
            ]
            if sharded and without_shards:
                try:
                    run(step, arguments)
                except BadInput as error:
                    assert "set update.sharded=false" in str(error), error
                    continue
                raise AssertionError(f"{algorithm} has no equal shards on {grid}")
            for out in run(step, arguments):
                for got, want, parameter in zip(out, expected, parameters, strict=True):
                    if parameter.kind == "kernel":  # the others are gathered as float32
                        want = tf.cast(tf.cast(want, gather), tf.float32).numpy()
                    where = f"{grid} {algorithm} {sharded} {parameter.path}"
                    np.testing.assert_array_equal(got, want, where)


if __name__ == "__main__":
    main(sys.argv[1])
