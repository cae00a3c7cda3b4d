"""A benchmark's spec: what a paper's table would hold, and nothing computed.

`load` reads `configs/<name>.yaml`, or a file of the user's own which may build on one
(`base: resnet50`). `resolve` lays one published scale, or the proxy, and the user's
`--set` values over it, and returns a `Resolved` spec: validated, frozen, each value
with where it comes from. Nothing here imports TensorFlow.
"""

from mlperf_tpu.spec.resolve import (
    Document,
    Resolved,
    Scale,
    from_record,
    leaves,
    load,
    names,
    resolve,
)
from mlperf_tpu.spec.sections import Block, Duration, Section, Spec
from mlperf_tpu.spec.validation import benchmark_module

__all__ = [
    "Block",
    "Document",
    "Duration",
    "Resolved",
    "Scale",
    "Section",
    "Spec",
    "benchmark_module",
    "from_record",
    "leaves",
    "load",
    "names",
    "resolve",
]
