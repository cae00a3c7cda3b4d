"""The ways to sum gradients over the replicas that a spec's `gradient_sum` names.

`xla` leaves the algorithm to the place: one collective over all replicas. `torus2d` on
a whole grid goes in two stages over replica groups: along lines of chips with their
cores, then across them with what is left, and back (arXiv 1811.06992). `ring`, and
`torus2d` around failed chips, run a schedule message by message. The grid is the
place's own (`collectives.placement`).

All three keep the same contract, so that the weight update (optim.update) does not see
which it is: `reduce_scatter` leaves row k of its values with replica k, and
`all_gather` takes the rows from there. They add in different orders: results differ by
rounding, and a bfloat16 payload is rounded at every stage or message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives import TILE
from mlperf_tpu.collectives.schedules import Schedule, Step, Unroutable
from mlperf_tpu.collectives.schedules_choice import gradient_sum as schedule_of
from mlperf_tpu.errors import BadInput
from mlperf_tpu.optim.rows import from_rows, to_rows
from mlperf_tpu.topology import Placement

LARGE = 1 << 19  # elements; copied four times, they take as long as a message or two


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
    """Two stages over a whole grid: along lines of chips, then across them.

    A line is a row or a column with all cores of its chips, a ring where it closes.
    What is left of the payload after it goes across the lines as one array.
    """

    def __init__(self, placement: Placement) -> None:
        grid = placement.topology
        height, width = len(placement.rows()), len(placement.columns())
        lines = np.arange(placement.n_replicas).reshape(height, width, -1)
        # Several pods stand along x, and the links between them are slow (2011.03641).
        if grid.pod_columns or (grid.wrap_y and not grid.wrap_x):
            lines = lines.transpose(1, 0, 2)
        lines = lines.reshape(len(lines), -1)
        self.across, self.along = lines.shape
        self.lines = tuple(map(tuple, lines.tolist()))
        self.ranks = tuple(map(tuple, lines.T.tolist()))
        # Row k is for replica k, and the stages leave it with the k-th of the ranks.
        self.holders = list(enumerate(lines.T.reshape(-1).tolist()))

    def all_reduce(self, values):
        n = self.along * self.across
        parts = self._scatter_along([to_rows(v, n) for v in values])
        across = lambda held: collectives.all_reduce(held, self.ranks)  # noqa: E731
        rows = self._gather_along(_in_tiles(across, parts, None, []))
        return [from_rows(r, v.shape) for r, v in zip(rows, values, strict=True)]

    def reduce_scatter(self, rows):
        def across(held):
            mine = collectives.reduce_scatter(held, self.ranks)
            return _sent(mine, [(holder, k) for k, holder in self.holders])

        mine = _in_tiles(across, self._scatter_along(rows), self.across, [])
        return [tf.reshape(m, r.shape[1:]) for m, r in zip(mine, rows, strict=True)]

    def all_gather(self, mine):
        def across(held):
            return collectives.all_gather(_sent(held, self.holders), self.ranks)

        rows = self._gather_along(_in_tiles(across, mine, None, [self.across]))
        return [tf.reshape(r, [-1, *m.shape]) for r, m in zip(rows, mine, strict=True)]

    def _scatter_along(self, rows):
        """[replicas, row] summed over each line: flat, a part with each member."""
        along = lambda parts: collectives.reduce_scatter(parts, self.lines)  # noqa: E731
        return _in_tiles(along, rows, self.along, [])

    def _gather_along(self, held):
        """What the members of each line hold, [members, part]."""
        along = lambda parts: collectives.all_gather(parts, self.lines)  # noqa: E731
        return _in_tiles(along, held, None, [self.along])


def _in_tiles(function, values, n_rows, leading):
    """`_merged` for a TPU: `function` gets arrays of [tiles, 8, 128], or of as many of
    them as there are rows.

    A large value stays alone: a message more takes less time than laying it together
    with others and apart again. It has an even number of tiles, as libtpu 0.0.52 shifts
    what it hands out of an odd one. Others are copied tile by tile into one array a
    dtype, and what has no whole tiles as one of them, filled up.
    """
    axis = 0 if n_rows is None else 1
    n_parts = max([n_rows or 1, *leading])

    def large(part):
        size = part.shape[-1]
        return size % (2 * TILE) == 0 and size * n_parts >= LARGE

    def tiled(parts):
        tiles = []
        for part in parts:
            fill = [[0, 0]] * axis + [[0, -part.shape[-1] % TILE]]
            tiles.append(tf.reshape(tf.pad(part, fill), [*part.shape[:-1], -1, 8, 128]))
        keys = [i if large(p) else p.dtype.name for i, p in enumerate(parts)]
        sets = [
            [i for i, k in enumerate(keys) if k == key] for key in dict.fromkeys(keys)
        ]
        results = function([tf.concat([tiles[i] for i in s], axis) for s in sets])
        out = {}
        for members, result in zip(sets, results, strict=True):
            counts = [tiles[i].shape[axis] for i in members]
            out |= zip(members, tf.split(result, counts, len(leading)), strict=True)
        flat = [tf.reshape(out[i], [*leading, -1]) for i in range(len(parts))]
        return [f[..., : p.shape[-1]] for f, p in zip(flat, parts, strict=True)]

    return _merged(tiled, values, n_rows, leading, lambda size: size % TILE == 0)


def _sent(values, pairs):
    identity = all(source == target for source, target in pairs)
    return values if identity else collectives.permute(values, pairs)


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
        sums = _merged(_each(self._all_reduce), values, None, [])
        return [tf.reshape(s, v.shape) for s, v in zip(sums, values, strict=True)]

    def reduce_scatter(self, rows):
        sums = _merged(_each(self._reduce_scatter), rows, self.n, [])
        return [tf.reshape(s, r.shape[1:]) for s, r in zip(sums, rows, strict=True)]

    def all_gather(self, mine):
        rows = _merged(_each(self._all_gather), mine, None, [self.n])
        return [
            tf.reshape(r, [self.n, *m.shape]) for r, m in zip(rows, mine, strict=True)
        ]

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


def _each(function: Callable[[tf.Tensor], tf.Tensor]):
    return lambda values: [function(value) for value in values]


def _merged(
    function: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]],
    values: Sequence[tf.Tensor],
    n_rows: int | None,
    leading: list[int],
    alone: Callable[[int], bool] = lambda size: False,
) -> list[tf.Tensor]:
    """Calls `function` once, on one array for all values of a dtype; parts it again.

    Values are laid side by side flat, or as `n_rows` rows each, but those `alone` by
    the size of their rows; the results are of [*leading, elements].
    """
    flat = [tf.reshape(v, [-1] if n_rows is None else [n_rows, -1]) for v in values]
    sizes = [int(f.shape[-1]) for f in flat]
    sets: dict[object, list[int]] = {}
    for i, size in enumerate(sizes):
        sets.setdefault(i if alone(size) else flat[i].dtype.name, []).append(i)
    results = function([tf.concat([flat[i] for i in s], -1) for s in sets.values()])
    out: dict[int, tf.Tensor] = {}
    for members, result in zip(sets.values(), results, strict=True):
        each = [sizes[i] for i in members]
        parts = tf.split(tf.reshape(result, [*leading, sum(each)]), each, -1)
        out |= zip(members, parts, strict=True)
    return [out[i] for i in range(len(values))]
