"""The chips of a TPU slice, and the replicas on them. No TensorFlow, no NumPy."""

from mlperf_tpu.topology.grid import GENERATIONS, GRIDS, Topology, parse_hole
from mlperf_tpu.topology.placement import Chip, Core, Groups, Placement

__all__ = [
    "GENERATIONS",
    "GRIDS",
    "Chip",
    "Core",
    "Groups",
    "Placement",
    "Topology",
    "parse_hole",
]
