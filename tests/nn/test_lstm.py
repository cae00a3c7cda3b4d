"""The recurrent layers: hoisted against plain, early ends, masks, blocks."""

import numpy as np
import pytest

TIME, BATCH, INPUT, WIDTH, PLACES = 7, 3, 5, 4, 6
LENGTHS = np.array([5, 2, 6], np.int32)
REAL = (np.arange(TIME)[:, None] < LENGTHS)[:, :, None].astype(np.float32)
# float32 sums in another order, of a few dozen terms near 1.
CLOSE = 1e-5


tf = attention = blocks = collectives = lstm = softmax_loss = XlaPlace = None


@pytest.fixture(scope="module", autouse=True)
def modules(tensorflow):
    """What is tested, imported once TensorFlow has its devices."""
    global tf, attention, blocks, collectives, lstm, softmax_loss, XlaPlace
    from mlperf_tpu import collectives
    from mlperf_tpu.collectives.xla import XlaPlace
    from mlperf_tpu.nn import attention_lstm, blocks, lstm
    from mlperf_tpu.nn.softmax_loss import softmax_loss

    tf, attention = tensorflow, attention_lstm


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def results_and_gradients(function, arguments, compiled=False):
    """What `function` returns, of the real steps alone, and all gradients of a sum;
    `compiled` as a place is that computes with XLA."""
    place = XlaPlace(1) if compiled else collectives.place()

    @tf.function(autograph=False, jit_compile=compiled)
    def run(*arguments):
        with collectives.running_on(place):
            return traced(*arguments)

    def traced(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            results = tf.nest.flatten(function(*arguments))
            real = [result[:TIME] * REAL for result in results]
            loss = tf.add_n(
                [tf.reduce_sum(r * normal(9 + k, *r.shape)) for k, r in enumerate(real)]
            )
        return [*real, *tape.gradient(loss, arguments)]

    return [value.numpy() for value in run(*map(tf.constant, arguments))]


def assert_close(actual, expected):
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=CLOSE * max(1, np.abs(want).max()))
        assert np.abs(want).max() > 1e-3  # there is something to compare


@pytest.fixture
def weights():
    return [
        normal(1, INPUT, 4 * WIDTH),
        normal(2, WIDTH, 4 * WIDTH),
        normal(3, 4 * WIDTH),
    ]


@pytest.mark.parametrize("compiled", [False, True], ids=["cpu", "xla"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_hoisted_lstm_computes_what_the_plain_one_does(weights, reverse, compiled):
    x, mask = normal(0, TIME, BATCH, INPUT), tf.constant(REAL) if reverse else None

    def way(function):
        return lambda *a: function(*a, tf.constant(6), mask, reverse, "source")

    assert_close(
        results_and_gradients(way(lstm.hoisted_lstm), [x, *weights], compiled),
        results_and_gradients(way(lstm.plain_lstm), [x, *weights]),
    )


def test_plain_lstm_is_kerass(weights):
    import keras

    layer = keras.layers.LSTM(WIDTH, return_sequences=True)
    layer.build((BATCH, TIME, INPUT))
    # Keras: input, forget, candidate, output.
    layer.set_weights(
        [
            np.concatenate([np.split(w, 4, -1)[k] for k in (0, 1, 3, 2)], -1)
            for w in weights
        ]
    )
    x = normal(0, TIME, BATCH, INPUT)
    ours = lstm.plain_lstm(tf.constant(x), *weights, tf.constant(TIME), side="source")
    theirs = layer(np.swapaxes(x, 0, 1)).numpy()
    np.testing.assert_allclose(ours, np.swapaxes(theirs, 0, 1), atol=CLOSE)


def test_a_reversed_loop_starts_at_each_rows_own_end(weights):
    x = normal(0, TIME, BATCH, INPUT)
    rows = lstm.hoisted_lstm(
        tf.constant(x), *weights, tf.constant(6), tf.constant(REAL), True, "source"
    )
    alone = lstm.hoisted_lstm(
        tf.constant(x[:2, 1:2]), *weights, tf.constant(2), None, True, "source"
    )
    np.testing.assert_allclose(rows[:2, 1:2], alone, atol=CLOSE)


def test_the_loop_ends_after_the_longest_sequence(weights):
    ran = []

    def body(t, x):
        ran.append(int(t))
        return (x,)

    lstm.loop(tf.constant(3), body, (tf.constant(0),), "steps")
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("compiled", [False, True], ids=["cpu", "xla"])
def test_hoisted_attention_lstm_computes_what_the_plain_one_does(weights, compiled):
    kernel, recurrent, bias = weights
    arguments = [
        normal(0, TIME, BATCH, INPUT),
        normal(4, BATCH, PLACES, WIDTH),
        kernel,
        recurrent,
        normal(5, WIDTH, 4 * WIDTH),
        bias,
        normal(6, WIDTH, WIDTH),
        normal(7, WIDTH, WIDTH),
        normal(8, WIDTH),
        normal(10, WIDTH),
    ]
    real = tf.range(PLACES)[None] < tf.constant([6, 3, 2])[:, None]

    def way(function):
        return lambda x, memory, *w: function(x, memory, real, tf.constant(6), w)

    assert_close(
        results_and_gradients(
            way(attention.hoisted_attention_lstm), arguments, compiled
        ),
        results_and_gradients(way(attention.plain_attention_lstm), arguments),
    )


def test_padded_places_are_not_attended():
    memory = normal(4, BATCH, PLACES, WIDTH)
    weights = [
        normal(k, *shape)
        for k, shape in enumerate(
            [(INPUT, 16), (4, 16), (4, 16), (16,), (4, 4), (4, 4), (4,), (4,)]
        )
    ]
    real = tf.range(PLACES)[None] < tf.constant([4, 4, 4])[:, None]
    x = tf.constant(normal(0, TIME, BATCH, INPUT))
    other = memory.copy()
    other[:, 4:] = 77.0
    both = [
        attention.hoisted_attention_lstm(
            x, tf.constant(m), real, tf.constant(TIME), weights
        )[1]
        for m in (memory, other)
    ]
    np.testing.assert_array_equal(*both)


def sums(h, kernel, labels, real, smoothing=0.1):
    return softmax_loss(
        tf.constant(h),
        tf.constant(kernel),
        tf.constant(labels),
        tf.constant(real),
        tf.constant(TIME),
        smoothing,
    )


def test_huggingface_7546_padding_changes_no_loss():
    h, kernel = normal(0, TIME, BATCH, WIDTH), normal(1, WIDTH, 9)
    labels = np.random.default_rng(0).integers(0, 9, (TIME, BATCH)).astype(np.int32)
    real = REAL[:, :, 0]
    h[real == 0] = 50.0
    other = np.where(real > 0, labels, 0)
    assert sums(h, kernel, labels, real) == sums(h, kernel, other, real)


def test_softmax_loss_is_that_of_the_plain_ops():
    from mlperf_tpu.nn.losses import smoothed_cross_entropy

    h, kernel = normal(0, TIME, BATCH, WIDTH), normal(1, WIDTH, 9)
    labels = np.random.default_rng(0).integers(0, 9, (TIME, BATCH)).astype(np.int32)
    real = REAL[:, :, 0]

    def plain(h, kernel):
        logits = tf.reshape(tf.einsum("tbi,iv->tbv", h, kernel), [-1, 9])
        losses = smoothed_cross_entropy(labels.reshape(-1), logits, 0.1)
        return tf.reduce_sum(losses * real.reshape(-1))

    found = []
    for function in (plain, lambda h, k: sums_of(h, k, labels, real)):
        with tf.GradientTape() as tape:
            inputs = [tf.constant(h), tf.constant(kernel)]
            tape.watch(inputs)
            loss = 3.0 * function(*inputs)
        found.append([loss.numpy(), *(g.numpy() for g in tape.gradient(loss, inputs))])
    assert_close(found[1], found[0])


def sums_of(h, kernel, labels, real):
    return softmax_loss(
        h, kernel, tf.constant(labels), tf.constant(real), tf.constant(TIME), 0.1
    )


def test_a_product_in_blocks_is_the_whole_product_up_to_the_last_step(monkeypatch):
    monkeypatch.setattr(blocks, "static_shapes", lambda: True)
    monkeypatch.setattr(blocks, "steps_a_block", lambda steps, batch: 2)
    x, kernel = normal(0, 8, BATCH, INPUT), normal(1, INPUT, WIDTH)
    out = blocks.product(
        tf.constant(x), tf.constant(kernel), tf.constant(5), "source", tf.ones([WIDTH])
    )
    np.testing.assert_allclose(out[:5], (x @ kernel)[:5] + 1, atol=CLOSE)
    # The third block is half a step too long, the fourth is none of the five steps'.
    assert not np.any(out[5:])


def test_no_two_weights_of_a_layer_start_equal():
    layer = attention.AttentionLSTM(WIDTH, 0.1, True)
    layer.build((None, None, WIDTH))
    weights = map(tf.convert_to_tensor, layer.weights)
    made = [w.numpy() for w in weights if w.shape.rank == 2]
    assert len(made) == 5
    for k, one in enumerate(made):
        for other in made[k + 1 :]:
            assert one.shape != other.shape or (one != other).any()
