"""The ways to sum gradients over the replicas that a spec's `gradient_sum` names.

`xla` leaves the algorithm to the place: one collective over all replicas. `torus2d` on
a whole grid goes in stages over replica groups: the cores of a chip, the rows of the
grid, its columns, each stage on what the one before left of the payload, and back
(arXiv 1811.06992). `ring`, and `torus2d` around failed chips, run a schedule message by
message. The grid is the place's own (`collectives.placement`).

All three keep the same contract, so that the weight update (optim.update) does not see
which it is: `reduce_scatter` leaves row k of its values with replica k, and
`all_gather` takes the rows from there. They add in different orders: results differ by
rounding, and a bfloat16 payload is rounded at every stage or message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives.schedules import Schedule, Step, Unroutable
from mlperf_tpu.collectives.schedules_choice import gradient_sum as schedule_of
from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import Placement

TILE = 1024  # elements of a one-dimensional array that a TPU holds together


class GradientSum(Protocol):
    """What the weight update asks for; each call moves its values together."""

    def all_reduce(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]: ...

    def reduce_scatter(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums values of [replicas, ...]; replica k keeps row k."""

    def all_gather(self, mine: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All replicas' rows, [replicas, ...]."""


def gradient_sum(name: str) -> GradientSum:
    """The sum of that name on the place that is being traced for."""
    n = collectives.n_replicas()
    if name == "xla" or n == 1:
        return collectives  # its functions are those of the protocol
    placement = collectives.placement()
    if placement.n_replicas != n:
        raise BadInput(
            f"update.gradient_sum: {name} needs the grid of the replicas, and "
            f"{placement.topology.name} holds {placement.n_replicas}, not {n}; give "
            "the place the topology it has"
        )
    if name == "torus2d" and not placement.topology.failed:
        return Hierarchical(placement)
    return Scheduled(placement, name)


class Hierarchical:
    """Stages over the cores of a chip, then the rows of a whole grid, then its columns.

    Where several pods stand along x, columns come before rows: they are rings, and the
    links between pods are slow (2011.03641).
    """

    def __init__(self, placement: Placement) -> None:
        n, height = placement.n_replicas, len(placement.rows())
        width = len(placement.columns())
        # Replica ids run along x first, the replicas of a chip within (Placement).
        self.shape = (height, width, n // (height * width))
        self.order = (2, 0, 1) if placement.topology.pod_columns else (2, 1, 0)
        ids = np.arange(n).reshape(self.shape)
        self.stages = []
        for axis in self.order:
            groups = np.moveaxis(ids, axis, -1).reshape(-1, self.shape[axis])
            self.stages.append(tuple(map(tuple, groups.tolist())))

    def all_reduce(self, values):
        rows = [to_rows(v, math.prod(self.shape)) for v in values]
        sums = self.all_gather(self.reduce_scatter(rows))
        return [from_rows(s, v.shape) for s, v in zip(sums, values, strict=True)]

    def reduce_scatter(self, rows):
        # Each stage scatters the leading dimension: the axis that it sums over.
        values = [
            tf.transpose(tf.reshape(v, [*self.shape, -1]), [*self.order, 3])
            for v in rows
        ]
        for groups in self.stages:
            values = collectives.reduce_scatter(values, groups)
        return [tf.reshape(v, r.shape[1:]) for v, r in zip(values, rows, strict=True)]

    def all_gather(self, mine):
        values = [tf.reshape(v, [-1]) for v in mine]
        for groups in reversed(self.stages):
            values = collectives.all_gather(values, groups)
        back = [*np.argsort(self.order), 3]
        return [
            tf.reshape(tf.transpose(v, back), [-1, *m.shape])
            for v, m in zip(values, mine, strict=True)
        ]


class Scheduled:
    """A schedule run as collective-permutes; the values of a call are fused into one.

    A stream's share of the payload is a tensor of [chunks, elements].
    """

    def __init__(self, placement: Placement, algorithm: str) -> None:
        grid, partitions = placement.topology, placement.partitions
        if partitions not in (1, grid.cores_per_chip):
            raise Unroutable(
                f"update.gradient_sum: {algorithm} on {grid.name} runs between chips "
                f"or cores, and a replica has {partitions} partitions on chips of "
                f"{grid.cores_per_chip} cores; use xla"
            )
        cores = partitions < grid.cores_per_chip
        self.schedule = schedule_of(grid, algorithm, cores=cores)
        self.n = placement.n_replicas
        # The chunks, numbered stream by stream, in the order of who owns their sums.
        owners = np.concatenate([stream.owner[0] for stream in self.schedule.streams])
        owner = self.schedule.replica[owners]
        self.chunks = np.argsort(owner, kind="stable").astype(np.int32)
        self.owned = np.bincount(owner, minlength=self.n)

    def all_reduce(self, values):
        return _fused(self._all_reduce, values, [v.shape for v in values])

    def reduce_scatter(self, rows):
        return _fused(self._reduce_scatter, rows, [r.shape[1:] for r in rows], self.n)

    def all_gather(self, mine):
        shapes = [[self.n, *m.shape] for m in mine]
        return _fused(self._all_gather, mine, shapes)

    def _all_reduce(self, flat):
        n = flat.shape[0]
        flat = tf.pad(flat, [[0, self.schedule.padded(n) - n]])
        shares = tf.split(flat, len(self.schedule.streams))
        held = [
            tf.reshape(share, [stream.span, -1])
            for share, stream in zip(shares, self.schedule.streams, strict=True)
        ]
        held = self._run(self.schedule, held)
        return tf.concat([tf.reshape(h, [-1]) for h in held], 0)[:n]

    def _reduce_scatter(self, rows):
        """[replicas, row] -> [row]"""
        each = self._chunks_each()
        size = rows.shape[1]
        rows = tf.pad(rows, [[0, 0], [0, -size % each]])
        chunks = tf.reshape(rows, [self.n * each, -1])
        held = self._streams(tf.gather(chunks, np.argsort(self.chunks)))
        held = tf.concat(self._run(self.schedule.reduce_scatter(), held), 0)
        return tf.reshape(tf.gather(held, self._mine()), [-1])[:size]

    def _all_gather(self, mine):
        """[row] -> [replicas, row]"""
        each = self._chunks_each()
        size = mine.shape[0]
        blocks = tf.reshape(tf.pad(mine, [[0, -size % each]]), [each, -1])
        held = tf.zeros([self.n * each, blocks.shape[1]], mine.dtype)
        for k in range(each):
            held = collectives.write(held, self._mine()[k], blocks[k : k + 1])
        held = self._run(self.schedule.all_gather(), self._streams(held))
        rows = tf.gather(tf.concat(held, 0), self.chunks)
        return tf.reshape(rows, [self.n, -1])[:, :size]

    def _chunks_each(self) -> int:
        """How many chunks of equal size each replica owns."""
        sizes = {stream.span for stream in self.schedule.streams}
        if self.owned.min() != self.owned.max() or len(sizes) > 1:
            raise BadInput(
                f"update.sharded: the {self.schedule.name} leaves {self.owned.min()} "
                f"to {self.owned.max()} chunks of the sum with each of {self.n} "
                "replicas, and shards are equal; set update.sharded=false, or "
                "update.gradient_sum to xla"
            )
        return int(self.owned[0])

    def _mine(self):
        """The numbers of this replica's chunks."""
        return tf.gather(self.chunks.reshape(self.n, -1), collectives.replica_id())

    def _streams(self, chunks):
        return tf.split(chunks, [stream.span for stream in self.schedule.streams])

    def _run(self, schedule: Schedule, held: list[tf.Tensor]) -> list[tf.Tensor]:
        """The streams side by side, step by step."""
        held = list(held)
        steps = [
            [(p.reduces, p.step(t)) for p in stream.phases for t in range(p.n_steps)]
            for stream in schedule.streams
        ]
        for t in range(max(map(len, steps))):
            for k, of_stream in enumerate(steps):
                if t < len(of_stream):
                    held[k] = self._step(held[k], *of_stream[t])
        return held

    def _step(self, held: tf.Tensor, reduces: bool, step: Step) -> tf.Tensor:
        """All messages of the step leave before any is taken in."""
        came = []
        for permute in step.permutes():
            pairs = self.schedule.replica[np.array(permute.pairs)]
            source, target = pairs.T
            block = _block(held, self._at(source, permute.first), permute.count)
            [block] = collectives.permute([block], list(map(tuple, pairs.tolist())))
            came.append((block, target, permute))
        for block, target, permute in came:
            first = self._at(target, permute.first)
            if reduces:  # a replica that got nothing adds the zeros of `permute`
                block = _block(held, first, permute.count) + block
            elif len(target) < self.n:
                received = self._at(target, np.ones_like(target)) > 0
                block = tf.where(received, block, _block(held, first, permute.count))
            held = collectives.write(held, first, block)
        return held

    def _at(self, replicas, values):
        """This replica's value; 0 where it has none."""
        table = np.zeros(self.n, np.int32)
        table[replicas] = values
        return tf.gather(table, collectives.replica_id())


def _block(held: tf.Tensor, first: tf.Tensor, count: int) -> tf.Tensor:
    return tf.slice(held, [first, 0], [count, held.shape[1]])


def _fused(
    function: Callable[[tf.Tensor], tf.Tensor],
    values: Sequence[tf.Tensor],
    shapes: Sequence[Sequence[int]],
    n_rows: int | None = None,
) -> list[tf.Tensor]:
    """Calls `function` on all values of one dtype as one; parts it into `shapes`.

    Values are laid side by side flat, or (`n_rows`) as so many rows each.
    """
    flat = [tf.reshape(v, [-1] if n_rows is None else [n_rows, -1]) for v in values]
    out: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(v.dtype for v in values):
        chosen = [i for i, v in enumerate(values) if v.dtype == dtype]
        result = function(tf.concat([flat[i] for i in chosen], -1))
        parts = tf.split(result, [int(flat[i].shape[-1]) for i in chosen], -1)
        out |= {i: tf.reshape(p, shapes[i]) for i, p in zip(chosen, parts, strict=True)}
    return [out[i] for i in range(len(values))]


def row_length(size: int, n: int) -> int:
    """Elements of a replica's row of `size` elements: an n-th, rounded up.

    A long row is rounded up to whole TPU tiles (1,024 elements): where rows are not,
    the compiler lays what it gathers out anew, which took ResNet-50 on 32 cores 0.16 ms
    of a step by its own estimate.

    >>> row_length(10, 4), row_length(32_768_000, 1024)
    (3, 32768)
    """
    row = -(-size // n)
    return row if row < 16 * TILE else -(-row // TILE) * TILE


def to_rows(value: tf.Tensor, n: int) -> tf.Tensor:
    """Flattens and pads with zeros to [n, row_length(size, n)]."""
    flat = tf.reshape(value, [-1])
    padding = n * row_length(flat.shape[0], n) - flat.shape[0]
    if padding:
        flat = tf.pad(flat, [[0, padding]])
    return tf.reshape(flat, [n, -1])


def from_rows(rows: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Undoes `to_rows`."""
    flat = tf.reshape(rows, [-1])
    size = math.prod(shape)
    return tf.reshape(flat if flat.shape[0] == size else flat[:size], shape)
