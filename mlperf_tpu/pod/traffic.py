"""What an op moves through a core's memory, where the compiler does not estimate it.

libtpu 0.0.52 writes no cycles for what lays data out anew (a reshape that is not a
bitcast, a pad, a concatenation), for a pooling's gradient (select-and-scatter), sorts,
random bits, and fusions about a gather or a scatter of rows. None can be faster than
its traffic: Transformer's update on 256 chips once held 3.7 GB of reshapes, 8.2 ms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlperf_tpu.pod.hlo import Instruction

# Element type, extents, dimensions from minor to major, and the tiling.
_ARRAY = re.compile(r"\b([a-z]\w*?)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_ELSEWHERE = re.compile(r"S\([1-9]\)")  # a memory space that is not HBM
# How many bytes an element has; predicates and 4-bit types round up.
_BYTES = {"pred": 1, "c64": 8, "c128": 16, "s4": 1, "u4": 1}
_NO_DATA = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
}


def shape_bytes(shape: str) -> int:
    """Bytes of a type, without the padding of its layout.

    >>> shape_bytes("(f32[7,7,3,64]{3,2,1,0:T(8,128)}, bf16[2]{0})")
    37636
    """
    return sum(
        _element_bytes(kind) * math.prod(_numbers(extents))
        for kind, extents, _, _ in _ARRAY.findall(shape)
    )


def padded_bytes(shape: str) -> int:
    """Bytes of a type in a core's memory: of whole tiles. What is kept elsewhere
    (registers, the vector memory) counts nothing.

    >>> padded_bytes("bf16[8,112,112,64]{3,0,2,1:T(8,128)(2,1)}")
    25690112
    """
    total = 0
    for kind, extents, order, layout in _ARRAY.findall(shape):
        if _ELSEWHERE.search(layout):
            continue
        sizes = _numbers(extents)
        minor_first = [sizes[k] for k in _numbers(order)] or sizes[::-1]
        tile = _TILE.search(layout)
        for k, extent in enumerate(reversed(_numbers(tile[1]) if tile else [])):
            if k < len(minor_first):
                minor_first[k] = math.ceil(minor_first[k] / extent) * extent
        total += _element_bytes(kind) * math.prod(minor_first)
    return total


def moved_bytes(
    op: Instruction,
    around: Mapping[str, Instruction],
    computations: Mapping[str, Mapping[str, Instruction]],
) -> int:
    """The least that an op reads and writes, in bytes; `around` is its computation.

    Each operand is read and the result written once, but of what is written in place
    (dynamic-update-slice, scatter) the slice alone is read and written, and of what is
    gathered or sliced what comes of it.
    """
    if op.opcode in _NO_DATA or op.opcode.endswith("-done"):
        return 0
    result = padded_bytes(op.shape)
    operands = [padded_bytes(around[n].shape) for n in op.operands if n in around]
    inside = {op.opcode} | {
        each.opcode
        for name in op.called.values()
        for each in computations.get(name, {}).values()
    }
    if op.opcode == "dynamic-update-slice":
        return 2 * operands[1]
    if "scatter" in inside:
        rows = sum(n for n in operands if n < result)
        return 3 * rows if result in operands else result + rows
    if inside & {"gather", "dynamic-slice", "slice"}:
        return 2 * result
    return sum(operands) + result


def _element_bytes(kind: str) -> int:
    bits = re.search(r"\d+", kind)
    return _BYTES.get(kind) or (int(bits[0]) // 8 if bits else 0)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
