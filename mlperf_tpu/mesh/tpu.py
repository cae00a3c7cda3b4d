"""A TPU slice as a mesh: found by its name, checked, its replicas put on its cores.

Not run on a TPU yet. What surrounds the device is tested with another strategy in its
place (tests/mesh/test_strategy.py), and the TPU wheel lowers the same steps with the
same collectives (scripts/check_tpu_wheel).
"""

from __future__ import annotations

import socket
from importlib import metadata
from typing import Any

import numpy as np
import tensorflow as tf

from mlperf_tpu.collectives.xla import XlaPlace
from mlperf_tpu.errors import BadInput
from mlperf_tpu.mesh.strategy import StrategyMesh
from mlperf_tpu.topology import Topology

_ANSWER_S = 10  # a worker in the same zone answers in milliseconds


class TpuPlace(XlaPlace):
    """XLA's collectives; the strategy says which replica this is."""

    def replica_id(self):
        return tf.distribute.get_replica_context().replica_id_in_sync_group


def connect(name: str, chips: int, partitions: int) -> StrategyMesh:
    """The mesh of the slice `name` ("local": this TPU VM's own), which must have
    `chips` chips; nothing is built before they are counted."""
    refuse_other_wheels()
    resolver, slice_ = _find(name)
    check_size(slice_, name, chips)
    assignment = device_assignment(slice_, partitions)
    strategy = tf.distribute.TPUStrategy(
        resolver,
        experimental_device_assignment=assignment,
        experimental_spmd_xla_partitioning=partitions > 1,
    )
    place = TpuPlace(assignment.num_replicas, partitions, _grid(slice_))
    return StrategyMesh(strategy, place)


def refuse_other_wheels() -> None:
    """TensorFlow reaches a TPU only as the package tensorflow-tpu, which another
    `tensorflow` beside it would overwrite."""
    installed = {d.name.lower().replace("_", "-") for d in metadata.distributions()}
    remedy = (
        "make the environment by `scripts/environment .venv-tpu requirements-tpu.lock`"
    )
    if "tensorflow-tpu" not in installed:
        raise BadInput(f"--tpu: the package tensorflow-tpu is not installed; {remedy}")
    if "tensorflow" in installed:
        raise BadInput(
            "--tpu: tensorflow and tensorflow-tpu are both installed, and their files "
            f"overwrite each other; {remedy}"
        )


def _find(name: str) -> tuple[Any, Any]:
    """The resolver and tf.tpu.experimental.Topology of the slice of that name."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            _refuse_silent_workers(resolver)
            tf.config.experimental_connect_to_cluster(resolver)
        return resolver, tf.tpu.experimental.initialize_tpu_system(resolver)
    # The resolver passes on whatever its network client raises.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if name == "local":
            raise BadInput(
                f"--tpu: this machine has no TPU ({reason}); give the name of one, or "
                "leave --tpu out to train on virtual devices"
            ) from error
        raise BadInput(
            f"--tpu: no TPU {name!r} was reached ({reason}); `gcloud compute tpus "
            "tpu-vm list` shows the names in a zone"
        ) from error


def _refuse_silent_workers(resolver: Any) -> None:
    """TensorFlow would wait for ever for a worker that does not answer."""
    for worker in resolver.cluster_spec().as_dict().get("worker", []):
        host, _, port = worker.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _ANSWER_S).close()
        except OSError as error:
            raise OSError(f"its worker {worker} does not answer: {error}") from error


def _grid(slice_: Any) -> Topology:
    x, y, z, cores = (int(extent) for extent in slice_.mesh_shape)
    if z != 1 or cores != 2:
        raise BadInput(
            f"--tpu: a slice of {x}x{y}x{z} chips with {cores} cores each is no TPU "
            "v3; give one with a two-dimensional grid and two cores a chip"
        )
    return Topology(columns=x, rows=y, cores_per_chip=cores)


def check_size(slice_: Any, name: str, chips: int) -> None:
    grid = _grid(slice_)
    there = grid.columns * grid.rows
    if there != chips:
        raise BadInput(
            f"--chips: {chips}, but the TPU {name!r} is a slice of {there} chips "
            f"({grid.columns}x{grid.rows}); give --chips {there}, or the name of a "
            f"slice of {chips}"
        )


def device_assignment(
    slice_: Any, partitions: int
) -> tf.tpu.experimental.DeviceAssignment:
    """A replica's cores adjacent on the grid, as the topology places them."""
    placement = _grid(slice_).replicas(partitions)
    cores = [[(x, y, 0, core) for x, y, core in r] for r in placement.cores]
    return tf.tpu.experimental.DeviceAssignment(slice_, np.array(cores, np.int32))
