"""Gradient summation and weight update, replicated or sharded (arXiv 2004.13336).

Sharded: each gradient is flattened, padded to a multiple of the replicas and summed by
a reduce-scatter, so that a replica holds row k of [replicas, ceil(size / replicas)];
it updates that row of the weights with its own row of the slots, and an all-gather
brings the new weights back. Slots never leave their replica. Norms are sums of the
rows' partial sums, one all-reduce for all of them.

Replicated: gradients are summed by an all-reduce and every replica updates whole
tensors. Both add a gradient's terms in the same order, so that they agree bit for bit
where the optimizer is element-wise and the place sums in one order.

Which algorithm sums and gathers is optim.gradient_sum's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.collectives import LANES, TILE
from mlperf_tpu.optim.gradient_sum import gradient_sum
from mlperf_tpu.optim.optimizers import Optimizer, Parameter
from mlperf_tpu.optim.rows import from_rows, own_row, row_length, to_rows


@dataclass(frozen=True)
class WeightUpdate:
    """How gradients are summed and weights updated.

    gradient_dtype: bfloat16 halves the sum's traffic; the update is float32.
    fuse_bytes: gradients summed together, at most so many bytes a collective.
    gather_dtype: what kernels are gathered in; with bfloat16 each replica keeps the
        float32 master of its own rows (slot "master"), or of all where the update is
        not sharded, and all hold bf16 values.
    algorithm: how gradients are summed and weights gathered (optim.gradient_sum).
    pack_gather: a replica's rows of all weights are gathered as one array; torus2d
        chooses by itself what goes together.
    """

    optimizer: Optimizer
    parameters: tuple[Parameter, ...]
    sharded: bool
    gradient_dtype: tf.DType = tf.float32
    gather_dtype: tf.DType = tf.float32
    fuse_bytes: int = 2**62
    algorithm: str = "xla"
    pack_gather: bool = False

    @property
    def keeps_master(self) -> bool:
        return self.gather_dtype != tf.float32

    def held_dtype(self, parameter: Parameter) -> tf.DType:
        """In what a replica holds a weight. What comes through the stages of torus2d in
        bf16 the compiler lays out anew (61.7 in place of 59.2 ms, Transformer on 256
        chips): there it is made float32 at once."""
        staged = self.sharded and self.algorithm == "torus2d"
        rounded = parameter.kind == "kernel" and not staged
        return self.gather_dtype if rounded else tf.float32

    def held(self, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Whole float32 weights as a replica holds them."""
        return [
            tf.cast(w, self.held_dtype(p))
            for w, p in zip(weights, self.parameters, strict=True)
        ]

    @property
    def slot_names(self) -> tuple[str, ...]:
        return self.optimizer.slots + (("master",) if self.keeps_master else ())

    def initial_slots(
        self, weights: Sequence[tf.Tensor], n_replicas: int
    ) -> dict[str, list[tf.Tensor]]:
        """Zeros of the weights' shapes; sharded, [replicas, row] of every replica, for
        the mesh to hand out."""
        if self.sharded:
            weights = [to_rows(w, n_replicas) for w in weights]
        slots = {n: [tf.zeros_like(w) for w in weights] for n in self.optimizer.slots}
        return {**slots, "master": list(weights)} if self.keeps_master else slots

    def slot_shape(self, parameter: Parameter, n_replicas: int) -> tuple[int, ...]:
        """What one replica holds of a slot."""
        if not self.sharded:
            return parameter.shape
        return (row_length(parameter.shape, n_replicas),)

    def apply(self, weights, gradients, slots, rate):
        """(new weights, new slots) from this replica's gradients of the mean loss.

        Weights and gradients are float32 of the parameters' shapes, the new weights of
        `held_dtype`; slots as `slot_shape` says.
        """
        over_replicas = gradient_sum(self.algorithm)
        if self.sharded:
            n = collectives.n_replicas()
            rows = [to_rows(g, n) for g in gradients]
            gradients = self._sum(over_replicas.reduce_scatter, rows)
            sum_squares = _sum_squares_of_shards
        else:
            gradients = self._sum(over_replicas.all_reduce, gradients)
            sum_squares = _sum_squares
        if self.keeps_master:
            mine = slots["master"]
        else:
            mine = self._rows_of_this_replica(weights) if self.sharded else weights
        mine, new_slots = self.optimizer.update(
            self.parameters, mine, gradients, slots, rate, sum_squares
        )
        if self.keeps_master:
            new_slots["master"] = mine
        if self.sharded:
            return self._gather(over_replicas.all_gather, mine), new_slots
        return self.held(mine), new_slots

    def _rows_of_this_replica(self, weights):
        n, replica = collectives.n_replicas(), collectives.replica_id()
        return [own_row(to_rows(w, n), replica) for w in weights]

    def _sum(self, exchange, gradients):
        wire = [tf.cast(g, self.gradient_dtype) for g in gradients]
        summed: list[tf.Tensor] = []
        for bucket in buckets(wire, self.fuse_bytes):
            summed += exchange(bucket)
        return [tf.cast(g, tf.float32) for g in summed]

    def _gather(self, exchange, rows):
        wire = [
            tf.cast(r, self.gather_dtype) if p.kind == "kernel" else r
            for r, p in zip(rows, self.parameters, strict=True)
        ]
        gathered = packed(exchange, wire) if self.pack_gather else exchange(wire)
        return [
            from_rows(tf.cast(r, self.held_dtype(p)), p.shape)
            for r, p in zip(gathered, self.parameters, strict=True)
        ]


# Of a shard that is no multiple of a tile, or of few of them, libtpu 0.0.52 makes a sum
# of zeros and the shard: twice the bytes, and in float32.
def packed(exchange, mine: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """All replicas' rows, [replicas, row] each, by one gather a dtype.

    Rows of whole tiles come first, then those of whole lines of a tile (128 elements),
    and all others as one, so that each is cut out as a TPU holds it.
    """
    gathered: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(row.dtype for row in mine):
        numbers = [k for k, row in enumerate(mine) if row.dtype == dtype]
        size = {k: int(mine[k].shape[0]) for k in numbers}
        odd = [k for k in numbers if size[k] % LANES]
        even = sorted(
            (k for k in numbers if k not in odd), key=lambda k: size[k] % TILE > 0
        )
        missing = -sum(size.values()) % TILE
        rest = tf.concat([mine[k] for k in odd] + [tf.zeros([missing], dtype)], 0)
        lines = [
            tf.reshape(part, [-1, LANES]) for part in [mine[k] for k in even] + [rest]
        ]
        # Flat, as partitions share out the last dimension.
        [all_rows] = exchange([tf.reshape(tf.concat(lines, 0), [-1])])
        n = all_rows.shape[0]
        all_lines = tf.reshape(all_rows, [n, -1, LANES])
        *found, rest = (
            tf.reshape(part, [n, -1])
            for part in tf.split(all_lines, [each.shape[0] for each in lines], 1)
        )
        gathered |= zip(even, found, strict=True)
        sizes = [*(size[k] for k in odd), missing]
        gathered |= zip(odd, tf.split(rest, sizes, 1), strict=False)
    return [gathered[k] for k in range(len(mine))]


def _sum_squares(values):
    """Sums of squares, float32 [number of values]."""
    # In one pass: `reduce_sum(v**2)` would write the squares of every weight first.
    return 2 * tf.stack([tf.nn.l2_loss(v) for v in values])


def _sum_squares_of_shards(values):
    """The same over all replicas' shards, from one all-reduce of the partial sums."""
    return collectives.all_reduce([_sum_squares(values)])[0]


def buckets(values: Sequence[tf.Tensor], limit_bytes: int) -> list[list[tf.Tensor]]:
    """Consecutive values of one dtype together, at most `limit_bytes` unless alone."""
    out: list[list[tf.Tensor]] = []
    held = 0
    for value in values:
        size = value.shape.num_elements() * value.dtype.size
        if not out or held + size > limit_bytes:
            out.append([])
            held = 0
        out[-1].append(value)
        held += size
    return out
