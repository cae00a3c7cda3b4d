"""The collectives as XLA ops, for every place that compiles the step with XLA.

The step is one program of `n_replicas` x `n_partitions` devices. A collective spans
replicas, each partition with its own kind (XLA's CrossReplica mode); what partitions
of one replica exchange, the SPMD partitioner adds by itself (nn.partitioning).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.compiler.xla.experimental import xla_sharding

from mlperf_tpu.collectives import TILE, Groups
from mlperf_tpu.topology import Placement, Topology

_MLIR_TYPES = {
    tf.float32: "f32",
    tf.bfloat16: "bf16",
    tf.int32: "i32",
    tf.uint32: "ui32",
    tf.uint64: "ui64",
}


@dataclass(frozen=True)
class XlaPlace:
    """Replicas and partitions of a module; the replica id is XLA's own op.

    `topology` is the grid they stand on, with its failed chips; unless given, that of
    as many virtual chips as there are replicas.
    """

    n_replicas: int
    n_partitions: int = 1
    topology: Topology | None = None

    @property
    def placement(self) -> Placement:
        grid = self.topology or Topology.virtual(self.n_replicas, self.n_partitions)
        return grid.replicas(self.n_partitions)

    def replica_id(self):
        return gen_xla_ops.xla_replica_id()

    def all_reduce(self, values, groups):
        if self.n_partitions > 1 and len(groups) > 1:
            return self._all_reduce_by_exchange(values, groups)
        return [
            gen_xla_ops.xla_all_reduce(
                v,
                group_assignment=np.array(groups, np.int32),
                reduce_op="Add",
                mode="CrossReplica",
            )
            for v in values
        ]

    def _all_reduce_by_exchange(self, values, groups):
        """By messages alone: libtpu 0.0.52 aborts on a reduction over several groups in
        a module of several partitions.

        Recursive doubling where a group's size is a power of two: in round k a member
        adds what the member whose number differs in bit k has so far. Both add the
        same two numbers, so that all members end with the same bits. Members are
        numbered by their ids: in a tile of the grid most rounds reach along one axis.
        Else everyone's own value goes once around the group.
        """
        size = len(groups[0])
        doubling = size & (size - 1) == 0
        shifts = [1 << k for k in range(size.bit_length() - 1)]
        members = [sorted(group) for group in groups]
        sums, travelling = list(values), list(values)
        for shift in shifts if doubling else [1] * (size - 1):
            pairs = [
                (group[i], group[i ^ shift if doubling else (i + 1) % size])
                for group in members
                for i in range(size)
            ]
            travelling = self.permute(sums if doubling else travelling, pairs)
            sums = [s + t for s, t in zip(sums, travelling, strict=True)]
        return sums

    def reduce_scatter(self, values, groups):
        return self._in_parts(self._reduce_scatter, values, groups, 1)

    def _reduce_scatter(self, values, groups):
        # Over all replicas libtpu 0.0.52 makes an all-reduce and a slice of it, which
        # move twice as much, and lays the rows out for the slice: cut flat they stay as
        # they are. (Of a partition's part it aborts on the flat slice.) Within groups
        # it does not, where it can hand out whole tiles and sees no slices of what it
        # hands out.
        within = len(groups) > 1
        if not within and self.n_partitions == 1:
            k = tf.gather(np.argsort(groups[0]).astype(np.int32), self.replica_id())
            sums = self.all_reduce([tf.reshape(v, [-1]) for v in values], groups)
            sizes = [v[0].shape.num_elements() for v in values]
            return [
                tf.reshape(tf.slice(s, [k * size], [size]), v.shape[1:])
                for s, v, size in zip(sums, values, sizes, strict=True)
            ]
        tiles = [within and v[0].shape.num_elements() % TILE == 0 for v in values]
        sums = [
            gen_xla_ops.xla_reduce_scatter(
                tf.reshape(v, [-1, 8, 128]) if whole else v,
                group_assignment=np.array(groups, np.int32),
                scatter_dimension=0,
                reduce_op="Add",
            )
            for v, whole in zip(values, tiles, strict=True)
        ]
        if any(tiles):
            sums = gen_xla_ops.xla_optimization_barrier(sums)
        return [
            tf.reshape(s, v.shape[1:]) if whole else s[0]
            for s, v, whole in zip(sums, values, tiles, strict=True)
        ]

    def all_gather(self, values, groups):
        return self._in_parts(self._all_gather, values, groups, 0)

    def _all_gather(self, values, groups):
        # Along the values' own first dimension: a new one makes the TPU's compiler
        # sum over a dimension of 1 afterwards, 2.9 ms for ResNet-50 on 32 cores.
        n = len(groups[0])
        attributes = f"all_gather_dim = 0 : i64, {_group_text(groups)}"
        flat = [tf.reshape(v, [-1]) for v in values]
        return [
            tf.reshape(
                _call("stablehlo.all_gather", attributes, f, [n * f.shape[0]]),
                [n, *v.shape],
            )
            for v, f in zip(values, flat, strict=True)
        ]

    def _in_parts(self, function, values, groups, lead):
        """`function` of this partition's part of each value, laid together again.

        All partitions of a replica hold the whole. As it stands each would move all of
        it, over links that they share: n of them n times the bytes. The last dimension
        is parted where it is none of the `lead` first ones and divides evenly.
        """
        n = self.n_partitions
        if n == 1 or len(groups) > 1:
            return function(values, groups)
        parted = [v.shape.rank > lead and v.shape[-1] % n == 0 for v in values]
        parts = [_part(v, n) if p else v for v, p in zip(values, parted, strict=True)]
        moved = function(parts, groups)
        return [_joined(m, n) if p else m for m, p in zip(moved, parted, strict=True)]

    def permute(self, values, pairs):
        text = ", ".join(f"[{source}, {target}]" for source, target in pairs)
        attributes = (
            f"source_target_pairs = dense<[{text}]> : tensor<{len(pairs)}x2xi64>"
        )
        return [
            _call("stablehlo.collective_permute", attributes, v, v.shape)
            for v in values
        ]

    def write(self, value, first, block):
        start = tf.stack([first, *[0] * (value.shape.rank - 1)])
        return gen_xla_ops.xla_dynamic_update_slice(value, block, start)


def _part(value: tf.Tensor, n: int) -> tf.Tensor:
    """A partition's n-th of the last dimension, its own from here to `_joined`."""
    whole = xla_sharding.replicate(value, use_sharding_op=True)
    split = xla_sharding.split(whole, value.shape.rank - 1, n, use_sharding_op=True)
    return xla_sharding.auto_to_manual_spmd_partition(split, _split(value.shape, n))


def _joined(part: tf.Tensor, n: int) -> tf.Tensor:
    """The parts of all n partitions along the last dimension, on each of them."""
    shape = [*part.shape[:-1], n * part.shape[-1]]
    whole = xla_sharding.manual_to_auto_spmd_partition(part, _split(shape, n), shape)
    return xla_sharding.replicate(whole, use_sharding_op=True)


def _split(shape: Sequence[int], n: int) -> str:
    """The annotation of a value whose last dimension is split over n partitions."""
    last = len(shape) - 1
    sharding = xla_sharding.Sharding.split(None, last, n, input_shape=list(shape))
    return sharding.proto.SerializeToString()


def _group_text(groups: Groups) -> str:
    rows = ", ".join(str(list(group)) for group in groups)
    return (
        f"replica_groups = dense<[{rows}]> : tensor<{len(groups)}x{len(groups[0])}xi64>"
    )


def _call(op: str, attributes: str, value: tf.Tensor, shape: Sequence[int]):
    """One StableHLO op as a TensorFlow op: TensorFlow has none of its own for it."""
    came = _type(value.shape, value.dtype)
    goes = _type(shape, value.dtype)
    body = f'%result = "{op}"(%value) {{{attributes}}} : ({came}) -> {goes}'
    return _module(body, value, shape, value.dtype)


def random_words(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """uint32 of `shape`, uniform, from int32 [2] by XLA's own generator: a TPU's is in
    hardware. TensorFlow's op would be lowered to Philox in integer arithmetic, 2.2 ms
    for 4 M draws on a v3 core by the compiler's estimate."""
    other_half = 0x5BD1E995  # the generator's state is of twice the seed's bits
    state = tf.stack([seed, tf.bitwise.bitwise_xor(seed, other_half)])
    drawn = _type(shape, tf.uint32)
    body = (
        "%next, %result = stablehlo.rng_bit_generator %value, algorithm = DEFAULT : "
        f"(tensor<2xui64>) -> (tensor<2xui64>, {drawn})"
    )
    return _module(body, tf.bitcast(state, tf.uint64), shape, tf.uint32)


def _module(body: str, value: tf.Tensor, shape: Sequence[int], dtype: tf.DType):
    """A StableHLO module of one function from %value to %result as a TensorFlow op."""
    came, goes = _type(value.shape, value.dtype), _type(shape, dtype)
    module = f"""module @module {{
  func.func public @main(%value: {came}) -> {goes} {{
    {body}
    return %result : {goes}
  }}
}}"""
    [result] = gen_xla_ops.xla_call_module(
        [value],
        version=9,
        module=module,
        Sout=[tf.TensorShape(shape)],
        Tout=[dtype],
        platforms=["CPU"],
        dim_args_spec=[],
        function_list=[],
        has_token_input_output=False,
        disabled_checks=["platform"],  # the module is no platform's own
    )
    return result


def _type(shape: Sequence[int], dtype: tf.DType) -> str:
    extents = "".join(f"{int(extent)}x" for extent in shape)
    return f"tensor<{extents}{_MLIR_TYPES[dtype]}>"
