"""The Transformer: masks, loss, randomness, decoding, bad input. Tiny networks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mlperf_tpu.data.packing import lay_out, pack
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import load, resolve

TINY = (
    "training.precision=float32",
    "training.global_batch=4",
    "evaluation.batch=4",
    "data.vocabulary=40",
    "data.row_length=16",
    "data.longest=8",
    "data.eval_length=8",
    "model.width=16",
    "model.inner=32",
    "model.heads=2",
    "model.layers=1",
    "model.extra=3",
    "schedule.warmup=2 steps",
)
PAIRS = [
    ([5, 6, 7, 1], [8, 9, 1]),
    ([10, 11, 1], [12, 13, 14, 15, 1]),
    ([16, 17, 18, 19, 1], [20, 21, 1]),
    ([22, 1], [23, 24, 1]),
]


@pytest.fixture(scope="module")
def make(tensorflow):
    """make(*settings): a program, its weights moved away from their start."""
    from mlperf_tpu.benchmarks.transformer.program import Program

    def program(*settings):
        spec = resolve(
            load("transformer"), task="proxy", settings=[*TINY, *settings]
        ).spec
        return Program(spec)

    return program


@pytest.fixture(scope="module")
def still(make):
    """Without dropout: the program and weights."""
    program = make("model.dropout=0.0")
    return program, program.initial_state(3, 1)["weights"]


def tensors(tf, rows):
    return {name: tf.constant(value) for name, value in rows.items()}


def logits(tf, still, rows):
    program, weights = still
    with program._holding(weights):
        return program.model(tensors(tf, rows)).numpy()


def padded(rows, n):
    missing = n - len(rows["source"])
    return {k: np.pad(v, [(0, missing), (0, 0)]) for k, v in rows.items()}


def test_a_packed_pair_is_read_as_it_is_alone(tensorflow, still):
    together = logits(tensorflow, still, lay_out([PAIRS[:3]], 16))[0]
    at = 0
    for pair in PAIRS[:3]:
        alone = logits(tensorflow, still, lay_out([[pair]], 16))[0]
        n = len(pair[1])
        np.testing.assert_allclose(together[at : at + n], alone[:n], atol=2e-5)
        at += n


@pytest.mark.parametrize("side", ["source", "target"])
def test_nothing_attends_to_another_segment(tensorflow, still, side):
    rows = lay_out([PAIRS[:3]], 16)
    changed = {k: v.copy() for k, v in rows.items()}
    changed[side][0][rows[f"{side}_segment"][0] == 2] = 30
    before, after = (logits(tensorflow, still, r)[0] for r in (rows, changed))
    other = rows["target_segment"][0] != 2
    np.testing.assert_array_equal(before[other], after[other])
    assert np.abs(before[~other] - after[~other]).max() > 1e-3


def test_no_position_sees_its_own_target_or_later_ones(tensorflow, still):
    rows = lay_out([[PAIRS[1]]], 16)
    changed = {k: v.copy() for k, v in rows.items()}
    changed["target"][0, 2:] = 33
    before, after = (logits(tensorflow, still, r)[0] for r in (rows, changed))
    np.testing.assert_array_equal(before[:3], after[:3])
    assert np.abs(before[3:] - after[3:]).max() > 1e-3


def test_hf_7546_padding_changes_neither_loss_nor_gradient(tensorflow, still):
    """huggingface/transformers#7546: a loss divided by the padded positions, too."""
    tf = tensorflow
    program, weights = still

    def mean_loss_and_gradients(rows):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums, _ = program.loss(weights, [], tensors(tf, rows))
            mean = sums["loss"] / program.step._divisor(sums["count"])
        return mean, tape.gradient(mean, weights)

    tight = pack(PAIRS, 16)
    found, expected = (
        mean_loss_and_gradients(rows) for rows in (padded(tight, 6), tight)
    )
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    for got, want in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_transformer_pytorch_5_smoothing_is_t2ts_less_its_constant(tensorflow):
    """tunz/transformer-pytorch#5: K or K - 1, constant or not: 0.5513 - 0.1163... of
    p = (.1, .7, .1, .1), smoothing 0.1. Keras's would be 0.5026."""
    from mlperf_tpu.nn.losses import smoothed_token_loss

    p = np.array([[0.1, 0.7, 0.1, 0.1]], np.float32)
    loss = smoothed_token_loss(np.array([1], np.int32), tensorflow.math.log(p), 0.1)
    low = 0.1 / 3
    entropy = -(0.9 * np.log(0.9) + 3 * low * np.log(low))
    cross = -(0.9 * np.log(0.7) + 3 * low * np.log(0.1))
    assert cross == pytest.approx(0.5513, abs=1e-4)
    assert float(loss[0]) == pytest.approx(cross - entropy, rel=1e-5)


def test_the_smoothed_loss_has_the_gradient_of_its_definition(tensorflow):
    tf = tensorflow
    from mlperf_tpu.nn.losses import smoothed_token_loss

    random = np.random.default_rng(0)
    values = tf.constant(random.normal(size=(2, 3, 7)).astype(np.float32))
    labels = tf.constant(random.integers(0, 7, (2, 3)), tf.int32)
    weights = tf.constant(random.normal(size=(2, 3)).astype(np.float32))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(values)
        ours = tf.reduce_sum(weights * smoothed_token_loss(labels, values, 0.1))
        target = tf.one_hot(labels, 7, 0.9, 0.1 / 6)
        plain = tf.nn.softmax_cross_entropy_with_logits(target, values)
        plain = tf.reduce_sum(weights * plain)
    np.testing.assert_allclose(
        tape.gradient(ours, values), tape.gradient(plain, values), atol=1e-6
    )


def test_keras_17571_a_row_that_is_all_padding_is_finite_in_bf16(tensorflow, make):
    """keras PR#17571, flax#982: -1e9 becomes infinite in 16 bits, a masked row NaN."""
    program = make("model.dropout=0.0", "training.precision=bfloat16")
    weights = program.initial_state(0, 1)["weights"]
    rows = padded(lay_out([PAIRS[:1]], 16), 2)
    sums, _ = program.loss(weights, [], tensors(tensorflow, rows))
    found = logits(tensorflow, (program, weights), rows)
    assert np.isfinite(found.astype(np.float32)).all()
    assert np.isfinite(float(sums["loss"]))


def test_ml_dtypes_63_ids_are_counted_in_float32(tensorflow, make):
    """ml_dtypes#63: a bf16 count stops at 256."""
    program = make("model.dropout=0.0", "training.precision=bfloat16")
    weights = program.initial_state(0, 1)["weights"]
    rows = lay_out([[([3] * 16, [3] * 16)]] * 25, 16)
    sums, _ = program.loss(weights, [], tensors(tensorflow, rows))
    assert float(sums["count"]) == 400


def masks(tf, seed, rate=0.3):
    from mlperf_tpu.nn.random import Draws, dropout

    draws = Draws(seed, 2)
    return [dropout(tf.ones([8, 64]), rate, draws).numpy() for _ in range(2)]


def test_dropout_keeps_the_mean_and_its_rate(tensorflow):
    first, second = masks(tensorflow, tensorflow.constant([1, 2]))
    for mask in (first, second):
        assert 0.2 < (mask == 0).mean() < 0.4
        assert np.unique(mask[mask > 0]).size == 1
        assert np.unique(mask[mask > 0])[0] == pytest.approx(1 / 0.7, rel=0.01)
    assert (first != second).any(), "two places of a model draw the same"


def test_tf_35090_no_two_replicas_steps_or_seeds_draw_alike(tensorflow):
    """tensorflow#35090, keras PR#20612: one mask on every replica."""
    tf = tensorflow
    from mlperf_tpu import collectives
    from mlperf_tpu.optim.training_step import step_seed

    class Place(collectives.OneReplica):
        n_replicas = 4

        def __init__(self, replica):
            self.replica = replica

        def replica_id(self):
            return tf.constant(self.replica)

    found = []
    for seed, step, replica in [(0, 0, r) for r in range(4)] + [(0, 1, 0), (1, 0, 0)]:
        with collectives.running_on(Place(replica)):
            drawn = step_seed(tf.constant(seed), tf.constant(step, tf.int64))
            found.append(masks(tf, drawn)[0].tobytes())
            again = step_seed(tf.constant(seed), tf.constant(step, tf.int64))
            assert masks(tf, again)[0].tobytes() == found[-1]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("gathered", ["float32", "bfloat16"])
def test_a_seeded_run_repeats_and_a_resumed_one_goes_on(tensorflow, make, gathered):
    from mlperf_tpu.mesh.virtual import VirtualMesh

    program = make("model.dropout=0.2", f"update.gather_dtype={gathered}")
    mesh = VirtualMesh(2)
    rows = padded(pack(PAIRS, 16), 4)

    def losses(state, n):
        mesh.load(state)
        return [m["loss"] for m in mesh.train(iter([rows] * n), n)]

    state = program.initial_state(5, 2)
    mesh.start(program, state, rows, program.fake_eval_batch(4))
    whole = losses(state, 4)
    assert losses(program.initial_state(5, 2), 4) == whole
    assert losses(program.initial_state(6, 2), 4) != whole
    assert losses(state, 2) == whole[:2]
    assert losses(mesh.fetch(), 2) == whole[2:]


def test_decoding_finds_the_best_of_all_translations(tensorflow, make):
    """Position by position from caches, in a beam as wide as all: what the training's
    forward pass gives the highest score among all that there are."""
    from mlperf_tpu.benchmarks.transformer.verify import _TINY, _best_of_all

    program = make("model.dropout=0.0", *_TINY)
    weights = program.initial_state(2, 1)["weights"]
    source = program.fake_eval_batch(4)["source"]
    evaluate = tensorflow.function(program.evaluate, autograph=False)
    found = evaluate({"weights": weights}, {"source": tensorflow.constant(source)})
    for row, ids in zip(source, found["ids"].numpy(), strict=True):
        assert ids.tolist() == _best_of_all(program, weights, row, 1).tolist()


def test_a_padded_sentence_has_no_translation(tensorflow, still):
    program, weights = still
    source = tensorflow.constant(
        np.pad(program.fake_eval_batch(2)["source"], [(0, 2), (0, 0)])
    )
    found = program.evaluate({"weights": weights}, {"source": source})
    assert float(found["count"]) == 2
    assert not found["ids"][2:].numpy().any()


def test_fairseq_124_translations_are_scored_against_every_reference(make):
    program = make(
        "data.lines=300",
        "data.eval_examples=40",
        "data.vocabulary=120",
        "data.row_length=64",
        "data.longest=60",
        "data.eval_length=60",
    )
    _, test = program.datasets(None)
    assert test.n_examples == 40
    ids = np.zeros((44, 60), np.int32)
    encoded = program.corpus.subwords.encode(program.corpus.references)
    for row, line in zip(ids, encoded, strict=False):
        row[: len(line)] = line
    assert program.quality({"count": 40.0, "ids": ids}) == pytest.approx(1.0)
    assert program.quality({"count": 40.0, "ids": np.roll(ids, 1, 0)}) < 0.2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.heads=3", r"model\.width: 16 is no even multiple of model\.heads"),
        ("data.longest=17", r"data\.longest: pairs of 17 ids do not fit"),
        ("data.lines=null", r"data\.lines: how many pairs"),
        ("evaluation.batch=0", r"evaluation\.batch"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(setting, message):
    with pytest.raises(BadInput, match=message):
        resolve(load("transformer"), task="proxy", settings=[*TINY, setting])


def test_an_evaluation_batch_must_divide_over_the_replicas():
    spec = resolve(
        load("transformer"), task="proxy", settings=[*TINY, "evaluation.batch=6"]
    ).spec
    with pytest.raises(BadInput, match=r"evaluation\.batch: 6 examples do not divide"):
        spec.check_replicas(4)


def test_a_sentence_longer_than_its_room_is_refused():
    from mlperf_tpu.benchmarks.transformer.data import sentences

    with pytest.raises(BadInput, match=r"data\.eval_length: .* 4 ids, but 3 are room"):
        sentences([[1], [1, 2, 3, 4]], 3)


def test_features_split_over_two_cores_train_as_whole_ones(run_python):
    """Two steps: the second takes the weights that the first has handed back."""
    pytest.importorskip("jax")
    row = "feature partitioning, 1 x 2 cores"
    call = ("-m", "mlperf_tpu", "verify", "transformer", "--technique", row, "--json")
    [found] = json.loads(run_python(*call).stdout)["rows"]
    assert found["ok"], found
