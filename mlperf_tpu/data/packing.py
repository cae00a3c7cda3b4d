"""Pairs of token rows packed into rows of fixed length, as in Google's Transformer.

A packed row holds several pairs, one after the other on both sides. Segments number a
row's pairs from 1, 0 is padding; positions start anew in each segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Pair = tuple[Sequence[int], Sequence[int]]
OPEN_ROWS = 10  # google_submissions.md 3.11: first fit among ten open rows
FIELDS = ("", "_segment", "_position")


def pack(pairs: Iterable[Pair], length: int) -> dict[str, np.ndarray]:
    """All pairs, packed greedily: each into the first open row that has room on both
    sides; where none has, the oldest open row is closed. No pair may be longer.

    Returns source, source_segment, source_position, and target's, int32 [rows, length].

    >>> rows = pack([([5, 1], [6, 1]), ([7, 1], [8, 9, 1])], length=5)
    >>> rows["target"].tolist(), rows["target_segment"].tolist()
    ([[6, 1, 8, 9, 1]], [[1, 1, 2, 2, 2]])
    """
    closed: list[list[Pair]] = []
    opened: list[tuple[list[Pair], list[int]]] = []
    for pair in pairs:
        sizes = [len(side) for side in pair]
        for row, used in opened:
            if all(u + s <= length for u, s in zip(used, sizes, strict=True)):
                row.append(pair)
                used[:] = [u + s for u, s in zip(used, sizes, strict=True)]
                break
        else:
            if len(opened) == OPEN_ROWS:
                closed.append(opened.pop(0)[0])
            opened.append(([pair], sizes))
    return lay_out([*closed, *(row for row, _ in opened)], length)


def lay_out(rows: Sequence[Sequence[Pair]], length: int) -> dict[str, np.ndarray]:
    """The rows' pairs side by side, as `pack` returns them."""
    out = {
        f"{side}{field}": np.zeros((len(rows), length), np.int32)
        for side in ("source", "target")
        for field in FIELDS
    }
    for i, row in enumerate(rows):
        for k, side in enumerate(("source", "target")):
            at = 0
            for segment, pair in enumerate(row, 1):
                part = slice(at, at + len(pair[k]))
                out[side][i, part] = pair[k]
                out[f"{side}_segment"][i, part] = segment
                out[f"{side}_position"][i, part] = np.arange(len(pair[k]))
                at += len(pair[k])
    return out
