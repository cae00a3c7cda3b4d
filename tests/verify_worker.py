"""Measures ResNet-50's techniques on one mesh, one of them broken on purpose.

python verify_worker.py reference|none|FAULT|xla none|xla split ONE.npz OUT.json
"""

import json
import sys

import numpy as np

from mlperf_tpu import verify
from mlperf_tpu.cli.train import import_tensorflow


def break_it(fault):
    """Replaces one function by one that is wrong."""
    from mlperf_tpu.benchmarks.resnet50 import program

    from mlperf_tpu import checkpoint
    from mlperf_tpu.nn import batch_norm, conv, partitioning
    from mlperf_tpu.optim import update
    from mlperf_tpu.optim.optimizers import Lars

    import_tensorflow()
    import tensorflow as tf

    if fault == "trust ratio":
        Lars.trust_ratios = lambda self, weights, gradients: tf.ones_like(weights)
    elif fault == "shard":
        whole = update.to_rows
        update.to_rows = lambda value, n: tf.reverse(whole(value, n), [0])
    elif fault == "group sums":
        batch_norm.collectives.consecutive = lambda size: ((0,), (1,))
    elif fault == "buckets":
        update.buckets = lambda values, limit: [list(values[:-1]), [0 * values[-1]]]
    elif fault == "bf16":
        # Rounded to 3 bits of mantissa instead of a bfloat16's 8.
        cast = tf.cast
        update.tf = type(sys)("tf")
        update.tf.__dict__.update(tf.__dict__)
        update.tf.cast = lambda v, t: (
            cast(cast(v, tf.bfloat16) * 33 - cast(v, tf.bfloat16) * 32, t)
            if t == tf.bfloat16
            else cast(v, t)
        )
    elif fault == "fold":
        padded = conv.padded_conv
        conv.padded_conv = lambda x, k, s, pad: (
            padded(x, k, s, pad[::-1]) if s == 1 else padded(x, k, s, pad)
        )
    elif fault == "padding":
        scores = program._scores
        program._scores = lambda logits, labels: scores(logits, tf.abs(labels))
    elif fault == "resume":
        saved = checkpoint.newest

        def newest(folder):
            found = saved(folder)
            found.state["slots"]["momentum"] = [
                0 * v for v in found.state["slots"]["momentum"]
            ]
            return found

        checkpoint.newest = newest
    elif fault == "xla split":
        # Each partition sees its rows in place of the whole image's.
        split = partitioning.split
        partitioning.split = lambda value, dimension: split(
            tf.roll(value, 1, dimension), dimension
        )


def main(fault, one, out):
    import_tensorflow()
    everything = verify.techniques("resnet50")
    size = verify.MeshSize("virtual", 2)
    names = [t.name for t in everything if size in t.meshes]
    if fault.startswith("xla"):
        size = verify.MeshSize("xla", 2, 2)
        names = [t.name for t in everything if size in t.meshes]
    if fault == "reference":
        results = verify.measure_all("resnet50", verify.ONE_DEVICE, [])
        np.savez(one, **results)
        return
    if not fault.endswith("none"):
        break_it(fault)
        # A broken technique is measured alone: the rest need not be.
        faulty = {
            "trust ratio": ["LARS, unscaled momentum", "LARS, scaled momentum"],
            "shard": ["sharded weight update"],
            "group sums": ["batch norm over replicas"],
            "buckets": ["fused gradient sum"],
            "bf16": ["bf16 gradient sum"],
            "fold": ["space-to-depth stem"],
            "padding": ["padded evaluation"],
            "resume": ["resume"],
            "xla split": names,
        }
        names = faulty[fault]
    with np.load(one) as file:
        expected = dict(file)
    results = {
        verify.ONE_DEVICE: expected,
        size: verify.measure_all("resnet50", size, names),
    }
    rows = {}
    for technique in verify.techniques("resnet50", names):
        here = verify.Technique(**{**vars(technique), "meshes": (size,)})
        rows[technique.name] = verify.compare(here, results)["ok"]
    with open(out, "w") as file:
        json.dump(rows, file)


main(*sys.argv[1:])
