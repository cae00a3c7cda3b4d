"""A weight as rows, one a replica: what a sharded update sums, updates and gathers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from mlperf_tpu.collectives import LANES, TILE

LINE_TILES = 64 * TILE  # a tile for each core of a line of 32 chips, the longest ring


def row_length(shape: Sequence[int], n: int) -> int:
    """Elements of a replica's row of a value of `shape`: an n-th, rounded up.

    A large value is filled up to what a line of cores can part, and a long row that is
    not of whole lines of a TPU's tile (128 elements) to whole tiles: what is not, the
    compiler lays out anew.

    >>> row_length([10], 4), row_length([32000, 1024], 1024)
    (3, 32000)
    """
    size = math.prod(_tiled_shape(shape) or shape)
    if -size % LINE_TILES <= size / 10:
        size += -size % LINE_TILES
    row = -(-size // n)
    return row if row < 16 * TILE or row % LANES == 0 else -(-row // TILE) * TILE


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


def _filled(shape: Sequence[int], n: int) -> tuple[int, ...] | None:
    """The tiled shape; of a matrix with the rows that fill n rows of `row_length`,
    where these are whole tiles: one pad in place of two."""
    whole = _tiled_shape(shape)
    if whole and len(whole) == 2:
        missing = n * row_length(shape, n) - math.prod(whole)
        if missing % (8 * whole[1]) == 0:
            return whole[0] + missing // whole[1], whole[1]
    return whole


def to_rows(value: tf.Tensor, n: int) -> tf.Tensor:
    """Flattens and pads with zeros to [n, row_length(shape, n)].

    A matrix goes in the order in which a TPU's memory holds it, tile by tile,
    so that nothing is laid out anew: row by row, that took 8.2 ms of Transformer's step
    on 256 chips. What holds rows for the next step must be of one order: a
    change of it raises `checkpoint.SLOT_ORDER`.
    """
    row = row_length(value.shape, n)
    whole = _filled(value.shape, n)
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


def own_row(rows: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Row k of [n, row]: cut from it flat, as a TPU would lay rows out first."""
    n, row = rows.shape
    return rows[0] if n == 1 else tf.slice(tf.reshape(rows, [-1]), [k * row], [row])


def from_rows(rows: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Undoes `to_rows`."""
    flat = tf.reshape(rows, [-1])
    whole = _filled(shape, rows.shape[0])
    size = math.prod(whole or shape)
    flat = flat if flat.shape[0] == size else flat[:size]
    if whole is None:
        return tf.reshape(flat, shape)
    tiles = tf.reshape(flat, [-1, whole[-2] // 8, whole[-1] // 128, 8, 128])
    value = tf.reshape(tf.transpose(tiles, [0, 1, 3, 2, 4]), whole)
    return value[tuple(slice(extent) for extent in shape)]
