"""The child process of a compile: lowers a program's function, compiles it for a slice.

    python -m mlperf_tpu.pod.worker REQUEST.json FOLDER

It runs apart because libtpu aborts the whole process where it cannot go on. It leaves
`module.hlo.gz` and `stats.json` in a folder of FOLDER, named by the hash of the lowered
module, the topology and the compiler's version, and prints that name. What it writes it
writes beside the request first.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import from_record
from mlperf_tpu.topology import Topology

# libtpu asks a metadata server and the environment where it is; here it is nowhere.
OFFLINE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing is executed: compiles may overlap
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}
# Whatever changes the compiled module without being in it.
OPTIONS = "state donated, batch layouts chosen by the compiler"


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    os.environ.update(OFFLINE)
    text, n_batch, sizes = _lowered(request)
    print(f"arguments: {json.dumps(sizes)}", file=sys.stderr)  # for the log
    print(_compiled(text, n_batch, sizes, request, Path(sys.argv[2])).name)


def _lowered(request: dict[str, Any]) -> tuple[str, int, dict[str, int]]:
    """StableHLO of one replica's step or evaluation; how many of its arguments are
    batch; the bytes of its arguments by kind."""
    import tensorflow as tf

    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.mesh.xla import lower

    module, _, name = request["program"].partition(":")
    record = request["record"]
    spec = from_record(record, "the request").spec if record else None
    program = getattr(importlib.import_module(module), name)(spec)
    n_replicas = len(request["devices"])
    batch_spec = program.batch_spec
    if request["function"] == "evaluate":
        batch_spec = getattr(program, "eval_batch_spec", batch_spec)
    arguments = {
        **program.state_spec(n_replicas),
        "batch": batch_spec(request["batch_per_replica"]),
    }
    sizes = {
        kind: sum(s.shape.num_elements() * s.dtype.size for s in tf.nest.flatten(specs))
        for kind, specs in arguments.items()
    }
    batch = arguments.pop("batch")
    text, _ = lower(
        getattr(program, request["function"]),
        XlaPlace(n_replicas, len(request["devices"][0]), _grid(request["topology"])),
        arguments,
        batch,
    )
    return _named_groups(text), len(tf.nest.flatten(batch)), sizes


def _grid(topology: str) -> Topology | None:
    """The slice's grid, which `update.gradient_sum` lays its rings on; None for a slice
    that is no 2-D grid (a v4's)."""
    try:
        return Topology.parse(topology)
    except BadInput:
        return None


def _named_groups(text: str) -> str:
    """The same module with each long list of replica groups written once: every
    collective repeats it, 100 MB for a ResNet-50 on 8192 cores."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"#groups{len(names)}")

    text = re.sub(
        r'dense<(?:\[[\d, \[\]]{200,}|"0x\w{200,}")> : tensor<\d+x\d+xi\d+>', name, text
    )
    return "".join(f"{alias} = {value}\n" for value, alias in names.items()) + text


def _compiled(
    text: str,
    n_batch: int,
    sizes: dict[str, int],
    request: dict[str, Any],
    folder: Path,
) -> Path:
    """The module's folder; compiled now unless it is there."""
    import jaxlib.version
    import libtpu

    key = hashlib.sha256(text.encode())
    about = [request["topology"], request["devices"], libtpu.__version__]
    key.update(json.dumps([*about, jaxlib.version.__version__, OPTIONS]).encode())
    entry = folder / key.hexdigest()[:32]
    if entry.is_dir():
        return entry
    began = time.perf_counter()
    executable = _compile(text, n_batch, request)
    seconds = time.perf_counter() - began
    memory = executable.get_compiled_memory_stats()
    costs = executable.cost_analysis()
    stats = {
        "compile_s": seconds,
        "compiler": f"libtpu {libtpu.__version__}",
        "state_bytes": sizes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "flops": costs.get("flops", 0.0),
        "bytes_accessed": costs.get("bytes accessed", 0.0),
    }
    # Written aside and renamed: an entry is whole, or it is not there.
    aside = Path(sys.argv[1]).parent / "entry"
    aside.mkdir()
    with gzip.open(aside / "module.hlo.gz", "wt", compresslevel=3) as out:
        out.write(executable.hlo_modules()[0].to_string())
    (aside / "stats.json").write_text(json.dumps(stats))
    try:
        aside.rename(entry)
    except OSError:
        if not entry.is_dir():  # else another process was first
            raise
    return entry


def _compile(text: str, n_batch: int, request: dict[str, Any]) -> Any:
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=request["topology"]
    ).devices
    assignment = np.array(request["devices"])
    n_replicas, n_partitions = assignment.shape
    if len(devices) != assignment.size:
        raise ValueError(
            f"{request['topology']} has {len(devices)} devices for the compiler, not "
            f"{assignment.size}"
        )
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = n_replicas
    options.num_partitions = build.num_partitions = n_partitions
    build.use_spmd_partitioning = n_partitions > 1
    placed = xla_client.DeviceAssignment.create(assignment)
    options.device_assignment = build.device_assignment = placed
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        _annotate(module, n_batch, request["function"] == "step", n_partitions == 1)
        return devices[0].client.compile(
            module, xla_client.DeviceList(tuple(devices)), options
        )


def _annotate(module: Any, n_batch: int, donate: bool, free_layouts: bool) -> None:
    """Says of the arguments what a run does with them.

    The state's memory becomes the new state's, and the compiler chooses the layout in
    which the host sends the batch: Google's input pipelines transpose images on the
    host to what the device computes in (google_submissions.md 3.9), else the device
    copies them first.
    """
    from jax._src.lib.mlir import ir

    [main] = [op for op in module.body.operations if op.name.value == "main"]
    n = len(main.type.inputs)
    known = list(main.arg_attrs) if "arg_attrs" in main.attributes else [None] * n
    number = ir.IntegerType.get_signless(32)
    attributes = []
    for k, old in enumerate(known):
        each = {a.name: a.attr for a in old} if old is not None else {}
        batch = k >= n - n_batch
        if free_layouts:
            mode = "auto" if batch else "default"
            each["mhlo.layout_mode"] = ir.StringAttr.get(mode)
        if donate and not batch:  # the new state is the first of the results
            each["tf.aliasing_output"] = ir.IntegerAttr.get(number, k)
        attributes.append(ir.DictAttr.get(each))
    main.arg_attrs = ir.ArrayAttr.get(attributes)


if __name__ == "__main__":
    main()
