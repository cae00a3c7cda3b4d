"""A weight as rows, one a replica: what a sharded update sums, updates and gathers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from mlperf_tpu.collectives import TILE

LINE_TILES = 64 * TILE  # a tile for each core of a line of 32 chips, the longest ring


def row_length(shape: Sequence[int], n: int, tiled: bool = False) -> int:
    """Elements of a replica's row of a value of `shape`: an n-th, rounded up.

    A long row is rounded up to whole TPU tiles (1,024 elements): where rows are not,
    the compiler lays what it gathers out anew, which took ResNet-50 on 32 cores 0.16 ms
    of a step by its own estimate. `tiled`: as `to_rows` has it.

    >>> row_length([10], 4), row_length([32000, 1024], 1024)
    (3, 32768)
    """
    if tiled:
        size = math.prod(_tiled_shape(shape) or shape)
        if -size % LINE_TILES <= size / 10:
            size += -size % LINE_TILES
        return -(-size // n)
    row = -(-math.prod(shape) // n)
    return row if row < 16 * TILE else -(-row // TILE) * TILE


def _tiled_shape(shape: Sequence[int]) -> tuple[int, ...] | None:
    """The shape filled up to whole tiles of 8 x 128, where that adds a tenth at most
    and leaves each member of a line of 64 cores some; an even number, where it can."""
    if len(shape) < 2:
        return None
    *lead, a, b = (int(extent) for extent in shape)
    b = -(-b // 128) * 128
    for unit in (8 * -(-128 // (math.prod(lead) * b // 128)), 8):
        whole = (*lead, -(-a // unit) * unit, b)
        if LINE_TILES <= math.prod(whole) <= 1.1 * math.prod(shape):
            return whole
    return None


def to_rows(value: tf.Tensor, n: int, tiled: bool = False) -> tf.Tensor:
    """Flattens and pads with zeros to [n, row_length(shape, n)].

    `tiled`: in the order in which a TPU's memory holds a matrix, tile by tile, so that
    nothing is laid out anew. What holds rows for the next step must be of one order.
    """
    row = row_length(value.shape, n, tiled)
    whole = _tiled_shape(value.shape) if tiled else None
    if whole:
        value = tf.pad(
            value, [[0, w - s] for w, s in zip(whole, value.shape, strict=True)]
        )
        tiles = tf.reshape(value, [-1, whole[-2] // 8, 8, whole[-1] // 128, 128])
        value = tf.transpose(tiles, [0, 1, 3, 2, 4])
    flat = tf.reshape(value, [-1])
    padding = n * row - flat.shape[0]
    if padding:
        flat = tf.pad(flat, [[0, padding]])
    return tf.reshape(flat, [n, -1])


def from_rows(rows: tf.Tensor, shape: Sequence[int], tiled: bool = False) -> tf.Tensor:
    """Undoes `to_rows`."""
    flat = tf.reshape(rows, [-1])
    whole = _tiled_shape(shape) if tiled else None
    size = math.prod(whole or shape)
    flat = flat if flat.shape[0] == size else flat[:size]
    if whole is None:
        return tf.reshape(flat, shape)
    tiles = tf.reshape(flat, [-1, whole[-2] // 8, whole[-1] // 128, 8, 128])
    value = tf.reshape(tf.transpose(tiles, [0, 1, 3, 2, 4]), whole)
    return value[tuple(slice(extent) for extent in shape)]
