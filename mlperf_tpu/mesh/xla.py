"""The XLA mesh: the pod's own program on XLA's virtual CPU devices.

The step is lowered to StableHLO as for a pod and executed as replicas x partitions:
for proofs, not for training (XLA's CPU convolutions are about six times slower than
TensorFlow's). Needs the extra [pod], and a process of its own: the number of devices
is fixed before jax is imported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives.xla import XlaPlace
from mlperf_tpu.mesh import (
    Batch,
    Evaluation,
    Feed,
    Metrics,
    Program,
    State,
    gathered,
    rows_of_each,
)
from mlperf_tpu.topology import Topology


def lower(
    function: Callable[..., Any],
    place: XlaPlace,
    *arguments: Any,
    platform: str | None = None,
) -> tuple[str, Any]:
    """(StableHLO text, structure of the results) of one replica's function.

    `arguments` nest tensors or specs of them; none may be captured by `function`.
    `platform` is whose kernels are asked: the host's, unless one is named ("TPU").
    """
    specs = tf.nest.map_structure(_spec, arguments)
    structure: list[Any] = []

    def traced(*flat):
        with collectives.running_on(place):
            result = function(*tf.nest.pack_sequence_as(specs, flat))
        structure.append(tf.nest.map_structure(lambda t: t.shape, result))
        return tf.nest.flatten(result)

    compiled = tf.function(traced, jit_compile=True, autograph=False)
    text = compiled.experimental_get_compiler_ir(*tf.nest.flatten(specs))(
        stage="stablehlo", platform_name=platform
    )
    return text, structure[0]


def _spec(value: Any) -> tf.TensorSpec:
    if isinstance(value, tf.TensorSpec):
        return value
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))


class XlaMesh:
    """`n_replicas` x `n_partitions` virtual devices of XLA."""

    name = "xla"

    def __init__(
        self,
        n_replicas: int,
        n_partitions: int = 1,
        topology: Topology | None = None,
    ) -> None:
        self.n_replicas = n_replicas
        self.place = XlaPlace(n_replicas, n_partitions, topology)
        n_devices = n_replicas * n_partitions
        flag = f"--xla_force_host_platform_device_count={n_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu asks no one
        import jax

        jax.config.update("jax_enable_x64", True)  # the step is counted in int64
        self._devices = jax.devices()
        if len(self._devices) != n_devices:
            raise RuntimeError(
                f"{n_devices} XLA devices asked, {len(self._devices)} there: jax was "
                "imported before this mesh was made; start a process of its own"
            )

    def start(
        self,
        program: Program,
        state: State,
        batch: Batch,
        eval_batch: Batch | None = None,
    ) -> None:
        """Lowers and compiles the step and the evaluation; puts the state in place."""
        self._sharded = program.step.update.sharded
        self._structure = self._mine(state, 0)
        self._feed = Feed(self.n_replicas, getattr(program, "infeed_hosts", 0))
        piece = self._feed(batch)[0]
        self._step = self.compile(program.step, self._structure, piece)
        piece = rows_of_each(eval_batch or batch, self.n_replicas)[0]
        self._evaluation = self.compile(program.evaluate, self._structure, piece)
        self.load(state)

    def load(self, state: State) -> None:
        """Takes another state of the program that was started."""
        mine = [self._mine(state, r) for r in range(self.n_replicas)]
        self._state = self._step.put(0, mine)

    def train(self, batches: Iterator[Batch], n_steps: int) -> Iterator[Metrics]:
        for batch in itertools.islice(batches, n_steps):
            n = len(self._state)
            data = self._step.put(n, self._feed(batch))
            outs = self._step(self._state + data)
            self._state = [_replicated(out) for out in outs[:n]]
            names = sorted(self._step.results[1])
            yield {k: float(v[0]) for k, v in zip(names, outs[n:], strict=True)}

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        names = sorted(self._evaluation.results)
        parts = []
        for batch in batches:
            pieces = rows_of_each(batch, self.n_replicas)
            data = self._evaluation.put(len(self._state), pieces)
            outs = self._evaluation(self._state + data)
            of_replicas = zip(
                *(out[:: self.place.n_partitions] for out in outs), strict=True
            )
            parts += [dict(zip(names, out, strict=True)) for out in of_replicas]
        return gathered(parts)

    def fetch(self) -> State:
        """The state of all replicas as host arrays, as VirtualMesh.fetch gives it."""
        rows = [
            [np.asarray(part.data) for part in leaf.addressable_shards]
            for leaf in self._state
        ]
        rows = [row[:: self.place.n_partitions] for row in rows]
        pack = tf.nest.pack_sequence_as
        state = pack(self._structure, [row[0] for row in rows])
        if self._sharded:
            stacked = pack(self._structure, [np.stack(row) for row in rows])
            state["slots"] = stacked["slots"]
        return state

    def compile(self, function: Callable[..., Any], *arguments: Any) -> _Compiled:
        """One replica's function, compiled for all devices of this mesh."""
        return _Compiled(function, self.place, self._devices, arguments)

    def _mine(self, state: State, replica: int) -> State:
        """One replica's part of the state of all."""
        if not self._sharded:
            return state
        slots = tf.nest.map_structure(lambda rows: rows[replica], state["slots"])
        return {**state, "slots": slots}


class _Compiled:
    """A function of one replica as an executable of all devices.

    Its arguments are flat: one array a leaf, a part on each device.
    """

    def __init__(self, function, place, devices, arguments) -> None:
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir

        self._place, self._devices = place, devices
        text, self.results = lower(function, place, *arguments)
        options = xla_client.CompileOptions()
        build = options.executable_build_options
        options.num_replicas = build.num_replicas = place.n_replicas
        options.num_partitions = build.num_partitions = place.n_partitions
        build.use_spmd_partitioning = place.n_partitions > 1
        assignment = xla_client.DeviceAssignment.create(
            np.arange(len(devices)).reshape(place.n_replicas, place.n_partitions)
        )
        options.device_assignment = build.device_assignment = assignment
        with mlir.make_ir_context():
            self._executable = devices[0].client.compile_and_load(
                ir.Module.parse(text), xla_client.DeviceList(tuple(devices)), options
            )
        # A parameter whose first use is an annotation is itself split: its devices
        # take equal parts, zeros at the end (recipes/spmd_on_cpu.py).
        shardings = self._executable.get_parameter_shardings() or ()
        self._splits = [list(s.tile_assignment_dimensions) for s in shardings]

    def __call__(self, arguments: list[Any]) -> list[list[Any]]:
        """Each result's part on every device."""
        results = self._executable.execute_sharded(arguments)
        return results.disassemble_into_single_device_arrays()

    def put(self, first: int, replicas: list[Any]) -> list[Any]:
        """The replicas' nests as arguments from number `first` on."""
        import jax

        leaves = zip(*(tf.nest.flatten(nest) for nest in replicas), strict=True)
        arguments = []
        for k, values in enumerate(leaves, first):
            parts = []
            for i, device in enumerate(self._devices):
                replica, partition = divmod(i, self._place.n_partitions)
                part = self._cut(k, np.asarray(values[replica]), partition)
                parts.append(jax.device_put(part, device))
            arguments.append(_replicated(parts))
        return arguments

    def _cut(self, argument: int, value: np.ndarray, partition: int) -> np.ndarray:
        splits = self._splits[argument] if self._splits else []
        for dimension, pieces in enumerate(splits[: value.ndim]):
            if pieces > 1:
                extent = -(-value.shape[dimension] // pieces)
                padding = [(0, 0)] * value.ndim
                padding[dimension] = (0, extent * pieces - value.shape[dimension])
                index = range(partition * extent, (partition + 1) * extent)
                return np.take(np.pad(value, padding), index, dimension)
        return value


def _replicated(parts: list[Any]) -> Any:
    """One jax array of a part a device. It is declared replicated, whatever the parts
    hold: the executable takes each device's own."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array([part.device for part in parts]), ("device",))
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_single_device_arrays(parts[0].shape, sharding, parts)
