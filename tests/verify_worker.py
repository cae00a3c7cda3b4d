"""Measures ResNet-50's techniques on one mesh, whole and broken on purpose.

    python verify_worker.py reference|virtual|grid|xla ONE.npz OUT.json

`reference` writes ONE.npz, the results of one device. On a mesh every fault of FAULTS
is put in, measured and taken out again, in one process; OUT.json says of each which
techniques still passed.
"""

import json
import sys

import numpy as np
import pytest

from mlperf_tpu import verify
from mlperf_tpu.cli.train import import_tensorflow

MESHES = {
    "virtual": verify.MeshSize("virtual", 2),
    "grid": verify.MeshSize("virtual", 4),
    "xla": verify.MeshSize("xla", 2, 2),
}
# Fault -> the techniques it breaks; measured alone: the rest need not be.
FAULTS = {
    "virtual": {
        "trust ratio": ["LARS, unscaled momentum", "LARS, scaled momentum"],
        "shard": ["sharded weight update"],
        "group sums": ["batch norm over replicas"],
        "buckets": ["fused gradient sum"],
        "bf16": ["bf16 gradient sum"],
        "fold": ["space-to-depth stem"],
        "padding": ["padded evaluation"],
        "resume": ["resume"],
    },
    "grid": {
        "grid messages": ["ring gradient sum"],
        "grid stages": ["2-D torus gradient sum"],
    },
    "xla": {"split": ["spatial partitioning, 2 cores"]},
}


def break_it(fault, patch):
    """Replaces one function by one that is wrong."""
    from mlperf_tpu.benchmarks.resnet50 import program

    from mlperf_tpu import checkpoint
    from mlperf_tpu.nn import batch_norm, conv, partitioning
    from mlperf_tpu.optim import gradient_sum, update
    from mlperf_tpu.optim.optimizers import Lars

    import_tensorflow()
    import tensorflow as tf

    if fault == "trust ratio":
        patch.setattr(Lars, "trust_ratios", lambda self, w, g: tf.ones_like(w))
    elif fault == "shard":
        whole = update.to_rows
        patch.setattr(update, "to_rows", lambda v, n: tf.reverse(whole(v, n), [0]))
    elif fault == "group sums":
        patch.setattr(batch_norm.collectives, "consecutive", lambda n: ((0,), (1,)))
    elif fault == "buckets":
        lost = lambda values, limit: [list(values[:-1]), [0 * values[-1]]]  # noqa: E731
        patch.setattr(update, "buckets", lost)
    elif fault == "grid messages":
        # Every message carries the first chunk.
        first = lambda self, replicas, values: tf.constant(0)  # noqa: E731
        patch.setattr(gradient_sum.Scheduled, "_at", first)
    elif fault == "grid stages":
        made = gradient_sum.Hierarchical.__init__

        def swapped(self, placement):
            made(self, placement)
            self.ranks = tuple(group[::-1] for group in self.ranks)

        patch.setattr(gradient_sum.Hierarchical, "__init__", swapped)
    elif fault == "bf16":
        # Rounded to 3 bits of mantissa instead of a bfloat16's 8.
        cast, wrong = tf.cast, type(sys)("tf")
        vars(wrong).update(vars(tf))

        def rough(value, dtype):
            if dtype != tf.bfloat16:
                return cast(value, dtype)
            short = cast(value, tf.bfloat16)
            return short * 33 - short * 32

        wrong.cast = rough
        patch.setattr(update, "tf", wrong)
    elif fault == "fold":
        padded = conv.padded_conv

        def turned(x, kernel, strides, pad):
            return padded(x, kernel, strides, pad[::-1] if strides == 1 else pad)

        patch.setattr(conv, "padded_conv", turned)
    elif fault == "padding":
        scores = program._scores
        patch.setattr(program, "_scores", lambda x, labels: scores(x, tf.abs(labels)))
    elif fault == "resume":
        saved = checkpoint.newest

        def newest(folder):
            found = saved(folder)
            found.state["slots"]["momentum"] = [
                0 * v for v in found.state["slots"]["momentum"]
            ]
            return found

        patch.setattr(checkpoint, "newest", newest)
    elif fault == "split":
        # Each partition sees its rows in place of the whole image's.
        split = partitioning.split
        moved = lambda v, dimension: split(tf.roll(v, 1, dimension), dimension)  # noqa: E731
        patch.setattr(partitioning, "split", moved)


def passed(mesh, size, names, expected):
    """{technique: whether its row is ok on this mesh}."""
    measured = verify.measure_all("resnet50", size, names, mesh)
    results = {verify.ONE_DEVICE: expected, size: measured}
    rows = {}
    for technique in verify.techniques("resnet50", names):
        here = verify.Technique(**{**vars(technique), "meshes": (size,)})
        rows[technique.name] = verify.compare(here, results)["ok"]
    return rows


def main(what, one, out):
    import_tensorflow()
    if what == "reference":
        np.savez(one, **verify.measure_all("resnet50", verify.ONE_DEVICE, []))
        return
    with np.load(one) as file:
        expected = dict(file)
    size = MESHES[what]
    mesh = size.make()
    whole = [t.name for t in verify.techniques("resnet50") if size in t.meshes]
    rows = {"none": passed(mesh, size, whole, expected)}
    for fault, names in FAULTS[what].items():
        with pytest.MonkeyPatch.context() as patch:
            break_it(fault, patch)
            rows[fault] = passed(mesh, size, names, expected)
    with open(out, "w") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
