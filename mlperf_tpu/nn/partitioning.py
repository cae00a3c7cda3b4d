"""Spatial and feature partitioning: annotations that XLA's SPMD partitioner follows.

In a place whose replicas are several cores (XLA mesh, pod, TPU slice) an annotated
tensor is split over the replica's partitions, and what follows from it too: halos are
exchanged, sums over a split dimension added up, uneven extents padded (papers.md 6).
Where a replica is one device an annotation is nothing.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu import collectives


def split_where_it_reaches(value: tf.Tensor, dimension: int) -> tf.Tensor:
    """`split`, but `whole` where a partition would get nothing: a map of 3 or 1 rows
    over 4 partitions is computed by each of them."""
    partitions = getattr(collectives.place(), "n_partitions", 1)
    if value.shape[dimension] < partitions:
        return whole(value)
    return split(value, dimension)


def whole(value: tf.Tensor) -> tf.Tensor:
    """`value` as every partition's own: what follows is computed on one core, by each
    of them, with no exchange between them."""
    if getattr(collectives.place(), "n_partitions", 1) == 1:
        return value
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    return xla_sharding.replicate(value, use_sharding_op=True)


def split_weight(weight: tf.Tensor, dimension: int) -> tf.Tensor:
    """A weight, of which every partition holds the whole and computes with its part.

    Without the first annotation the second would be the parameter's: a partition would
    be handed its part alone, and hand back the whole.
    """
    return split(whole(weight), dimension)


def known_alike(value: tf.Tensor) -> tf.Tensor:
    """`value`, which every partition computed alike, so that the compiler knows it.

    A part from each, laid together. libtpu sums over replicas what it knows to be alike
    over all their cores at once, the rest over a ring of replicas a partition: of 8192
    cores such a ring has no place in a core's scalar memory.
    """
    return whole(split_where_it_reaches(whole(value), 0))


def split(value: tf.Tensor, dimension: int) -> tf.Tensor:
    """`value`, its `dimension` split over the partitions of this replica."""
    partitions = getattr(collectives.place(), "n_partitions", 1)
    if partitions == 1:
        return value
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    return xla_sharding.split(value, dimension, partitions, use_sharding_op=True)
