"""Compiles a weight update for the 8 cores of v3:2x2; prints its collectives.

python pod_worker.py ALGORITHM
"""

import os
import re
import sys
from collections import Counter

# libtpu asks a metadata server and the environment where it is; here it is nowhere, and
# who only compiles needs no chip for itself.
os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    JAX_PLATFORMS="cpu",
)


def main(algorithm: str) -> None:
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies
    from test_gradient_sum import lowered

    from mlperf_tpu.cli.train import import_tensorflow
    from mlperf_tpu.topology import Topology

    import_tensorflow()

    grid = Topology.parse("v3:2x2")
    text = lowered(grid, algorithm=algorithm, sharded=False)
    devices = topologies.get_topology_desc("v3:2x2", platform="tpu").devices
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = len(devices)
    placed = np.array(grid.replicas().device_ids())
    assignment = xla_client.DeviceAssignment.create(placed)
    options.device_assignment = build.device_assignment = assignment
    with mlir.make_ir_context():
        executable = devices[0].client.compile(
            ir.Module.parse(text), xla_client.DeviceList(tuple(devices)), options
        )
    hlo = executable.hlo_modules()[0].to_string()
    ops = r" (all-reduce|all-gather|collective-permute|scatter)(?:-start)?\("
    print(dict(Counter(re.findall(ops, hlo))))


main(sys.argv[1])
