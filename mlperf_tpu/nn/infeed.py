"""A global batch that one host has built, spread by an all-reduce of mostly zeros.

Google's GNMT fed its pods so (papers.md 1.6): one or two hosts build whole batches in
turn, one core of that host is sent the batch and all other cores zeros of its shape;
on the device the sum over all cores is the batch, of which each core keeps its rows.
The hosts' own network carries nothing.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu import collectives


def spread(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """This replica's rows of the batch [global batch, ...] that one replica holds;
    int32 fields, one all-reduce for all of them."""
    n = collectives.n_replicas()
    if n == 1:
        return batch
    names = sorted(batch)
    flat = [tf.reshape(batch[name], [-1]) for name in names]
    sizes = [int(values.shape[0]) for values in flat]
    [summed] = collectives.all_reduce([tf.concat(flat, 0)])
    mine = {}
    replica = collectives.replica_id()
    for name, values in zip(names, tf.split(summed, sizes), strict=True):
        rows = batch[name].shape[0] // n
        whole = tf.reshape(values, [n, rows, *batch[name].shape[1:]])
        mine[name] = tf.gather(whole, replica)
    return mine
