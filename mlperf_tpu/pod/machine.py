"""What a core of each TPU generation can do, and which devices a slice has."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.pod.hlo import Op
from mlperf_tpu.topology import Topology


@dataclass(frozen=True)
class Core:
    """One device of the compiler: a core, or a chip whose cores work as one."""

    mhz: float
    peak_tflops: float  # bf16
    hbm_gib: float
    hbm_gb_s: float
    per_chip: int
    estimate_scale: float = 1.0  # a cycle run for a cycle that the compiler estimates

    def ms(self, op: Op) -> float:
        """The milliseconds of an op: by the cycles that the compiler estimates, else
        the least that what it moves takes."""
        cycles = op.cycles * self.estimate_scale
        return cycles / (self.mhz * 1e3) + op.n_bytes / (self.hbm_gb_s * 1e6)


# cloud.google.com/tpu/docs/system-architecture-tpu-vm. v3: 123 TFLOP/s and 32 GiB a
# chip of two cores at 940 MHz, which is two 128x128 matrix units a core. v4: 275
# TFLOP/s, 32 GiB, its two cores one device, 1,050 MHz. v5e: 197 TFLOP/s, 16 GiB; its
# clock follows from the peak and four matrix units: 1,500 MHz. A chip's memory: 900,
# 1200 and 819 GB/s. v3's scale of the compiler's estimates is fitted
# (scripts/fit_network.py); the others' is not.
CORES = {
    "v3": Core(940.0, 61.5, 16.0, 450.0, 2, estimate_scale=0.94),
    "v4": Core(1050.0, 275.0, 32.0, 1200.0, 1),
    "v5e": Core(1500.0, 197.0, 16.0, 819.0, 1),
}


@dataclass(frozen=True)
class Slice:
    """The chips a plan is for; `grid` is None where the network is not modelled."""

    name: str  # as the compiler knows it
    generation: str
    chips: int
    core: Core
    grid: Topology | None

    @property
    def n_devices(self) -> int:
        return self.chips * self.core.per_chip

    def assignment(self, partitions: int) -> list[list[int]]:
        """The device of each replica's partitions."""
        if self.grid is not None:
            return self.grid.replicas(partitions).device_ids()
        if self.n_devices % partitions:
            raise BadInput(
                f"{partitions} partitions do not divide the {self.n_devices} devices "
                f"of {self.name}; choose fewer partitions"
            )
        ids = range(self.n_devices)
        return [list(ids[k : k + partitions]) for k in ids[::partitions]]


def slice_for(chips: int, topology: str | None) -> Slice:
    """The slice of a `--topology`, or the v3 grid that Google used for so many chips.

    >>> slice_for(1024, None).name
    'v3:32x32x1'
    """
    if topology is None:
        grid = Topology.for_chips(chips)
        return Slice(
            f"v3:{grid.columns}x{grid.rows}x1", "v3", grid.n_chips, CORES["v3"], grid
        )
    match = re.fullmatch(r"(?:(\w+):)?(\d+)x(\d+)(?:x(\d+))?", topology)
    if match is None:
        raise BadInput(
            f"topology {topology!r} is not a name; write generation:columns x rows, as "
            "v3:32x32x1, v4:8x8x16 or v5e:16x16"
        )
    generation = match[1] or "v3"
    if generation not in CORES:
        raise BadInput(
            f"topology {topology!r}: no generation {generation!r}; "
            f"{nearest(generation, CORES)}"
        )
    extents = [int(extent) for extent in match.groups()[1:] if extent]
    there = math.prod(extents)
    if there != chips:
        raise BadInput(
            f"topology {topology!r} has {there} chips, but --chips says {chips}; "
            "make them agree"
        )
    core = CORES[generation]
    if generation == "v4":  # a 3-D torus
        extents += [1] * (3 - len(extents))
        name = f"v4:{'x'.join(map(str, extents))}"
        return Slice(name, generation, chips, core, None)
    grid = Topology.parse(topology)
    depth = "x1" if generation == "v3" else ""
    name = f"{generation}:{grid.columns}x{grid.rows}{depth}"
    return Slice(name, generation, chips, core, grid)
