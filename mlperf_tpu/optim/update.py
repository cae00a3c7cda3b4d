"""Gradient summation and weight update, replicated or sharded (arXiv 2004.13336).

Sharded: each gradient is flattened, padded to a multiple of the replicas and summed by
a reduce-scatter, so that a replica holds row k of [replicas, ceil(size / replicas)];
it updates that row of the weights with its own row of the slots, and an all-gather
brings the new weights back. Slots never leave their replica. Norms are sums of the
rows' partial sums, one all-reduce for all of them.

Replicated: the same rows, summed by an all-reduce; every replica updates all of them.
Both add a gradient's terms in the same order, so that they agree bit for bit where the
optimizer is element-wise and the place sums in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.optim.optimizers import Optimizer, Parameter


@dataclass(frozen=True)
class WeightUpdate:
    """How gradients are summed and weights updated.

    gradient_dtype: bfloat16 halves the sum's traffic; the update is float32.
    fuse_bytes: gradients summed together, at most so many bytes a collective.
    gather_dtype: what kernels are gathered in; with bfloat16 each replica keeps the
        float32 master of its own rows (slot "master"), and replicas hold bf16 values.
    """

    optimizer: Optimizer
    parameters: tuple[Parameter, ...]
    sharded: bool
    gradient_dtype: tf.DType = tf.float32
    gather_dtype: tf.DType = tf.float32
    fuse_bytes: int = 2**62

    @property
    def keeps_master(self) -> bool:
        return self.sharded and self.gather_dtype != tf.float32

    @property
    def slot_names(self) -> tuple[str, ...]:
        return self.optimizer.slots + (("master",) if self.keeps_master else ())

    def initial_slots(
        self, weights: Sequence[tf.Tensor], n_replicas: int
    ) -> dict[str, list[tf.Tensor]]:
        """Slots as [replicas, row] of every replica, for the mesh to hand out."""
        rows = [to_rows(w, n_replicas) for w in weights]
        slots = {n: [tf.zeros_like(r) for r in rows] for n in self.optimizer.slots}
        return {**slots, "master": rows} if self.keeps_master else slots

    def apply(self, weights, gradients, slots, rate):
        """(new weights, new slots) from this replica's gradients of the mean loss.

        Weights and gradients have the parameters' shapes; slots are this replica's
        rows [row] when sharded, all rows [replicas, row] when replicated.
        """
        n = collectives.n_replicas()
        exchange = (
            collectives.reduce_scatter if self.sharded else collectives.all_reduce
        )
        gradients = self._sum(exchange, [to_rows(g, n) for g in gradients])
        if self.keeps_master:
            rows = slots["master"]
        else:
            rows = [to_rows(w, n) for w in weights]
            if self.sharded:
                mine = collectives.replica_id()
                rows = [tf.gather(r, mine) if n > 1 else r[0] for r in rows]
        rows, new_slots = self.optimizer.update(
            self.parameters, rows, gradients, slots, rate, self._sum_squares
        )
        if self.keeps_master:
            new_slots["master"] = rows
        gathered = self._gather(rows) if self.sharded else rows
        return [
            from_rows(r, p.shape)
            for r, p in zip(gathered, self.parameters, strict=True)
        ], new_slots

    def _sum(self, exchange, gradients):
        wire = [tf.cast(g, self.gradient_dtype) for g in gradients]
        summed: list[tf.Tensor] = []
        for bucket in buckets(wire, self.fuse_bytes):
            summed += exchange(bucket)
        return [tf.cast(g, tf.float32) for g in summed]

    def _sum_squares(self, values):
        """[n] sums of squares, from one partial sum a row."""
        if not self.sharded:
            return tf.stack([tf.reduce_sum(tf.reduce_sum(v**2, 1)) for v in values])
        partial = tf.stack([tf.reduce_sum(v**2) for v in values])
        [total] = collectives.all_reduce([partial])
        return total

    def _gather(self, rows):
        wire = [
            tf.cast(r, self.gather_dtype) if p.kind == "kernel" else r
            for r, p in zip(rows, self.parameters, strict=True)
        ]
        return [tf.cast(r, tf.float32) for r in collectives.all_gather(wire)]


def to_rows(value: tf.Tensor, n: int) -> tf.Tensor:
    """Flattens and pads with zeros to [n, ceil(size / n)]."""
    flat = tf.reshape(value, [-1])
    padding = -flat.shape[0] % n
    if padding:
        flat = tf.pad(flat, [[0, padding]])
    return tf.reshape(flat, [n, -1])


def from_rows(rows: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Undoes `to_rows`."""
    flat = tf.reshape(rows, [-1])
    size = 1
    for extent in shape:
        size *= extent
    return tf.reshape(flat if flat.shape[0] == size else flat[:size], shape)


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
