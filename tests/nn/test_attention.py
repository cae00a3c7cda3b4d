"""Attention and the feed-forward's dropout against their definitions."""

import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")
RATE = 0.25


def _draws():
    import tensorflow as tf

    from mlperf_tpu.nn.random import Draws

    return Draws(tf.constant([3, 5]), 1)


def _with_gradients(function, values, upstream):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(values)
        found = function(*values)
        loss = tf.reduce_sum(found * upstream)
    return [found, *tape.gradient(loss, values)]


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_the_weighted_sum_and_its_gradients_are_attentions(rate):
    """The largest difference is float32's rounding of sums of 6 terms near 1."""
    import numpy as np
    import tensorflow as tf

    from mlperf_tpu.nn.attention import MASKED, weighted_sum
    from mlperf_tpu.nn.random import kept

    random = np.random.default_rng(0)
    query, upstream = (random.normal(size=(2, 3, 4, 5)) for _ in range(2))
    keys, values = (random.normal(size=(2, 3, 4, 6)) for _ in range(2))
    mask = np.where(random.random((2, 1, 6, 5)) < 0.3, MASKED, 0.0)
    *inputs, upstream, mask = (
        tf.constant(v, tf.float32) for v in (query, keys, values, upstream, mask)
    )

    def plain(query, keys, values):
        weights = tf.nn.softmax(tf.einsum("bhdk,bhdq->bhkq", keys, query) + mask, 2)
        if rate:
            keep, scale = kept(weights.shape, rate, _draws())
            weights = tf.where(keep, weights * scale, 0.0)
        return tf.einsum("bhdk,bhkq->bhdq", values, weights)

    def ours(*inputs):
        return weighted_sum(*inputs, mask, rate, _draws())

    expected = _with_gradients(plain, inputs, upstream)
    for found, wanted in zip(
        _with_gradients(ours, inputs, upstream), expected, strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def test_relu_with_dropout_and_its_gradient_are_one_after_the_other():
    import numpy as np
    import tensorflow as tf

    from mlperf_tpu.nn.attention import relu_with_dropout
    from mlperf_tpu.nn.random import dropout

    random = np.random.default_rng(0)
    x, upstream = (tf.constant(random.normal(size=(8, 32)), tf.float32) for _ in "xu")
    found = _with_gradients(
        lambda x: relu_with_dropout(x, RATE, _draws()), [x], upstream
    )
    expected = _with_gradients(
        lambda x: dropout(tf.nn.relu(x), RATE, _draws()), [x], upstream
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(4, 3, 640), (3, 8, 320), (5, 7, 220), (7681,)])
def test_xlas_dropout_drops_its_share_wherever_a_word_is_shared(shape):
    """In each quarter that takes another byte of the words, and independently of the
    others; 5 standard deviations of a binomial."""
    import numpy as np
    import tensorflow as tf

    from mlperf_tpu import collectives
    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.nn.random import kept

    @tf.function(jit_compile=True)
    def drawn():
        with collectives.running_on(XlaPlace(1)):
            return kept(shape, RATE, _draws())[0]

    found = drawn().numpy()
    assert found.shape == shape
    axis = next((k for k, n in enumerate(shape[:-1]) if n % 4 == 0), 0)
    whole = shape[axis] // 4 * 4
    quarters = np.split(found.take(range(whole), axis), 4, axis)
    for quarter in quarters:
        n = quarter.size
        assert abs(quarter.mean() - (1 - RATE)) < 5 * np.sqrt(RATE * (1 - RATE) / n)
    both = (quarters[0] & quarters[1]).mean()
    share = (1 - RATE) ** 2
    assert abs(both - share) < 5 * np.sqrt(share * (1 - share) / quarters[0].size)
