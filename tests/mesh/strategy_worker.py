"""Trains the toy program on a mesh of its own process.

    python strategy_worker.py virtual|mirrored sharded|replicated FOLDER

Takes 10 steps, evaluates, fetches; then resumes from the state after 4 steps and takes
the other 6. Writes what the tests compare.
"""

import sys
from pathlib import Path

import numpy as np

from mlperf_tpu.cli.train import import_tensorflow

STEPS, RESUMED_AT, DEVICES = 10, 4, 2


def main(place: str, update: str, folder: str) -> None:
    import_tensorflow()
    import tensorflow as tf

    from mlperf_tpu import checkpoint
    from tests.mesh.mirrored import mirrored_mesh
    from tests.mesh.toy import BATCH, Toy

    if place == "virtual":
        from mlperf_tpu.mesh.virtual import VirtualMesh

        mesh = VirtualMesh(DEVICES)
    else:
        # Calls of 3, 1, then 3 and 3 steps.
        mesh = mirrored_mesh(DEVICES, steps_per_call=3)
    program = Toy(update == "sharded")
    traces = 0
    loss = program.loss

    def counted(*arguments):
        nonlocal traces
        traces += 1
        return loss(*arguments)

    object.__setattr__(program.step, "loss_function", counted)

    def batches(first):
        return map(Toy.batch, range(first, STEPS + 2))

    padded = Toy.batch(100)
    padded["label"][BATCH - 3 :] = -1

    out = {}

    def go_on(name, state, first):
        mesh.start(program, state, Toy.batch(99))
        data, losses = batches(first), []
        for n in (RESUMED_AT, STEPS - RESUMED_AT)[first // RESUMED_AT :]:
            losses += [m["loss"] / m["count"] for m in mesh.train(data, n)]
            sums = mesh.evaluate([Toy.batch(50), Toy.batch(51), padded])
            state = mesh.fetch()
            if n == RESUMED_AT:
                out["middle"] = state
        out[f"{name}.losses"] = losses
        out.update({f"{name}.eval_{k}": v for k, v in sums.items()})
        flat = checkpoint.flatten(state)
        out.update({f"{name}.{k}": v for k, v in dict(flat).items()})

    go_on("whole", program.initial_state(7, DEVICES), 0)
    out["traces"] = traces
    go_on("resumed", out.pop("middle"), RESUMED_AT)
    if place == "mirrored":
        out["data_errors"] = list(data_errors(mesh))
        slots = [v.values for v in tf.nest.flatten(mesh._variables["slots"])]
        out["slot_elements"] = [[int(tf.size(v)) for v in values] for values in slots]
        weights = [v.values for v in tf.nest.flatten(mesh._variables["weights"])]
        out["replicas_differ"] = max(
            float(tf.reduce_max(tf.abs(a - b))) for a, b in weights
        )
    np.savez(Path(folder) / f"{place}_{update}.npz", **out)


def data_errors(mesh):
    """What the mesh raises when its batches do, in training and in evaluation."""
    from mlperf_tpu.errors import RunFailed
    from tests.mesh.toy import Toy

    def damaged(n):
        yield from map(Toy.batch, range(n))
        raise RunFailed(f"damaged record after {n}")

    for what in (
        lambda: list(mesh.train(damaged(2), 5)),
        lambda: mesh.evaluate(damaged(1)),
    ):
        try:
            what()
        except RunFailed as error:
            yield str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
