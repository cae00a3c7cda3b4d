"""The virtual mesh's collectives on 4 devices, against NumPy; asserts as it goes."""

import sys

import numpy as np

from mlperf_tpu.cli.train import import_tensorflow

N = 4
GROUPS = ((0, 1), (2, 3))


def main(what: str) -> None:
    import_tensorflow()
    import tensorflow as tf

    from mlperf_tpu import collectives
    from mlperf_tpu.mesh.virtual import VirtualMesh

    mesh = VirtualMesh(N)
    random = np.random.default_rng(0)
    small = random.normal(size=(N, N, 3)).astype(np.float32)
    large = random.normal(size=(N, N, 200_001)).astype(np.float32)  # shared sums

    if what == "fail":

        def check(replica, value):
            # Only device 1 fails; the others wait for it in the second all-reduce.
            [out] = collectives.all_reduce([value])
            bad = tf.debugging.Assert(replica != 1, ["device 1 fails"])
            with tf.control_dependencies([bad]):
                return collectives.all_reduce([tf.identity(out)])

    else:

        def check(replica, value):
            return {
                "id": collectives.replica_id(),
                "all_reduce": collectives.all_reduce([value, 2 * value]),
                "groups": collectives.all_reduce([value], GROUPS),
                "bf16": collectives.all_reduce([tf.cast(value, tf.bfloat16)]),
                "reduce_scatter": collectives.reduce_scatter([value]),
                "all_gather": collectives.all_gather([value]),
                "gather_groups": collectives.all_gather([value], GROUPS),
                "permute": collectives.permute([value], [(0, 1), (1, 2), (3, 0)]),
            }

    for values in (small, large):
        inputs = [tf.constant(v) for v in values]
        traced = mesh._trace(check, tf.constant(0), inputs[0])
        call = lambda r, t=traced, i=inputs: t(r, tf.constant(r), i[r])  # noqa: E731
        if what == "fail":
            try:
                mesh._on_devices(call)
            except tf.errors.InvalidArgumentError as error:
                print(error.message)
            return
        for _ in range(3):
            compare(mesh._on_devices(call), values)


def compare(outs, values):
    import ml_dtypes

    total = values[0] + values[1] + values[2] + values[3]
    for r, out in enumerate(outs):
        first = r - r % 2
        same = np.testing.assert_array_equal
        assert out["id"] == r
        same(out["all_reduce"][0], total)
        same(out["all_reduce"][1], 2 * total)
        same(out["groups"][0], values[first] + values[first + 1])
        same(out["reduce_scatter"][0], total[r])
        same(out["all_gather"][0], values)
        same(out["gather_groups"][0], values[first : first + 2])
        came = {1: 0, 2: 1, 0: 3}
        same(out["permute"][0], values[came[r]] if r in came else 0 * total)
        terms = [v.astype(ml_dtypes.bfloat16).astype(np.float32) for v in values]
        rounded = (terms[0] + terms[1] + terms[2] + terms[3]).astype(ml_dtypes.bfloat16)
        same(out["bf16"][0].numpy().astype(np.float32), rounded.astype(np.float32))


main(sys.argv[1] if len(sys.argv) > 1 else "check")
