"""Weights gathered as one array come apart as they were."""

import numpy as np


def test_a_packed_gather_is_the_gather_of_each(tensorflow):
    tf = tensorflow
    from mlperf_tpu.optim.update import packed

    asked = []

    def exchange(mine):
        asked.append([row.shape.num_elements() for row in mine])
        return [tf.stack([row, 2 * row, 3 * row]) for row in mine]

    rows = [
        tf.constant(np.arange(5, dtype=np.float32)),
        tf.cast(tf.range(3), tf.bfloat16),
        tf.constant(np.arange(1300, dtype=np.float32)),
        tf.constant(np.arange(384, dtype=np.float32)),  # lines of a tile
        tf.constant(np.arange(2048, dtype=np.float32)),  # tiles
        tf.cast(tf.range(7), tf.bfloat16),
    ]
    found = packed(exchange, rows)
    assert asked == [[4096], [1024]]  # a gather a dtype, whole tiles
    for got, want in zip(found, exchange(rows), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
