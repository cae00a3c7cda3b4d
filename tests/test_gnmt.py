"""GNMT: its network, its batches, its decoding, bad input. Tiny networks."""

from __future__ import annotations

import numpy as np
import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import load, resolve

TINY = (
    "training.precision=float32",
    "training.global_batch=4",
    "evaluation.batch=4",
    "data.vocabulary=20",
    "data.max_length=8",
    "data.eval_length=8",
    "data.buckets=2",
    "model.width=16",
    "model.layers=3",
    "model.beam=2",
    "model.decode_length=6",
    "schedule.warmup=2 steps",
    "schedule.start=9 steps",
)


@pytest.fixture(scope="module")
def make(tensorflow):
    from mlperf_tpu.benchmarks.gnmt.program import Program

    def program(*settings):
        return Program(
            resolve(load("gnmt"), task="proxy", settings=[*TINY, *settings]).spec
        )

    return program


@pytest.fixture(scope="module")
def tiny(make, tensorflow):
    """A program, weights that matter, and a batch."""
    program = make()
    weights = [4.0 * w for w in program.initial_state(3, 1)["weights"]]
    batch = {k: tensorflow.constant(v) for k, v in program.fake_batch(4).items()}
    return program, weights, batch


def loss(tiny, **changed):
    program, weights, batch = tiny
    value, _ = program.model.stateless_call(weights, [], {**batch, **changed})
    return float(value)


def test_what_stands_behind_a_rows_end_changes_nothing(tiny):
    batch = tiny[2]
    junk = {}
    for side in ("source", "target"):
        ids, lengths = batch[side].numpy(), batch[f"{side}_length"].numpy()
        ids[np.arange(8) >= lengths[:, None]] = 7
        junk[side] = ids
    assert loss(tiny, **junk) == pytest.approx(loss(tiny), rel=1e-6)


@pytest.mark.parametrize("side", ["source", "target"])
def test_every_real_id_changes_the_loss(tiny, side):
    batch = tiny[2]
    whole = loss(tiny)
    for place in range(int(batch[f"{side}_length"][0]) - 1):
        ids = batch[side].numpy()
        ids[0, place] = (ids[0, place] + 5) % 17 + 3
        assert abs(loss(tiny, **{side: ids}) - whole) > 1e-5


def test_the_loss_of_a_batch_is_the_sum_of_its_rows(tiny, tensorflow):
    program, weights, batch = tiny
    rows = []
    for row in range(4):
        one = {k: v[row : row + 1] for k, v in batch.items()}
        rows.append(float(program.model.stateless_call(weights, [], one)[0]))
    assert sum(rows) == pytest.approx(loss(tiny), rel=1e-5)


def test_tf_35090_each_replica_drops_others_and_a_seed_says_which(tiny, tensorflow):
    program, weights, batch = tiny

    seeds = [tensorflow.constant(s) for s in ([1, 0], [1, 1], [2, 0])]
    values = [
        float(program.model.stateless_call(weights, [], batch, seed=s)[0])
        for s in (*seeds, seeds[0])
    ]
    assert len(set(values)) == 3 and values[0] == values[-1]


def test_a_greedy_search_takes_the_ids_that_the_loss_likes_best(make, tensorflow):
    """The decoder's single steps are the training's loops: of a translation found by a
    beam of 1, no other id at any place is likelier."""
    program = make("model.beam=1", "model.length_penalty=0", "model.label_smoothing=0")
    weights = [4.0 * w for w in program.initial_state(3, 1)["weights"]]
    source = program.fake_eval_batch(2)
    found = program.evaluate({"weights": weights}, source)["ids"].numpy()
    assert found.any()
    loss = tensorflow.function(
        lambda batch: program.model.stateless_call(weights, [], batch)[0]
    )
    for row, ids in enumerate(found):
        length = int(np.argmax(ids == 1)) + 1 if (ids == 1).any() else len(ids)
        for place in range(min(length, 3)):
            losses = []
            for other in range(20):
                target = np.zeros((1, 8), np.int32)
                target[0, : place + 1] = [*ids[:place], other]
                batch = {k: v[row : row + 1] for k, v in source.items()}
                batch |= {
                    "target": target,
                    "target_length": np.array([place + 1], np.int32),
                }
                tensors = {k: tensorflow.constant(v) for k, v in batch.items()}
                losses.append(float(loss(tensors)))
            assert np.argmin(losses) == ids[place]


def test_a_padded_row_is_translated_to_nothing(make):
    program = make()
    source = program.fake_eval_batch(2)
    source["source"][1] = 0
    source["source_length"][1] = 0
    found = program.evaluate(program.initial_state(3, 1), source)
    assert float(found["count"]) == 1.0
    assert not found["ids"].numpy()[1].any()


def test_coverage_is_what_tells_two_translations_apart(make):
    """A translation that leaves places unattended scores less, where it is asked."""
    plain, covering = (make(f"model.coverage_penalty={p}") for p in (0.0, 50.0))
    weights = [6.0 * w for w in plain.initial_state(5, 1)["weights"]]
    source = plain.fake_eval_batch(8)
    ids = [
        p.evaluate({"weights": weights}, source)["ids"].numpy()
        for p in (plain, covering)
    ]
    assert (ids[0] != ids[1]).any()


def test_spread_batches_are_the_plain_ones(tensorflow):
    from mlperf_tpu.mesh import Feed

    batch = {"a": np.arange(8), "b": np.arange(16).reshape(8, 2)}
    spread = Feed(4, infeed_hosts=2)
    for holder in (0, 2, 0):  # in turn, the first replica of each host
        parts = spread(batch)
        assert all((parts[holder][k] == batch[k]).all() for k in batch)
        assert not any(
            parts[r][k].any() for r in range(4) if r != holder for k in batch
        )
    rows = Feed(4)(batch)
    assert rows[3]["a"].tolist() == [6, 7]


LINES = [("eins zwei", "one two"), ("drei", "three"), ("vier fünf sechs", "four five")]


@pytest.fixture(scope="module")
def pieces():
    from mlperf_tpu.data.subwords import Subwords

    return Subwords.train([line for pair in LINES * 9 for line in pair], 32)


def corpus(make, pieces, *settings, train=LINES, held_out=LINES):
    from mlperf_tpu.benchmarks.gnmt import data

    spec = make("data.vocabulary=32", "data.eval_length=40", *settings).spec
    return data.corpus(train, held_out, pieces, spec.data)


def test_a_vocabulary_of_another_model_is_refused(make, pieces):
    from mlperf_tpu.benchmarks.gnmt import data

    with pytest.raises(BadInput, match="the spec says 20, the sub-word model has 32"):
        data.corpus(LINES, LINES, pieces, make().spec.data)


def test_an_empty_corpus_is_refused(make, pieces):
    with pytest.raises(BadInput, match="the training corpus is empty"):
        corpus(make, pieces, train=[])


def test_long_pairs_are_dropped_counted_and_said(make, pieces):
    from mlperf_tpu.benchmarks.gnmt import data

    sizes = [max(map(len, pieces.encode(pair))) for pair in LINES]
    limit = sorted(sizes)[1]
    found = corpus(make, pieces, f"data.max_length={limit}")
    assert (found.pairs, found.dropped, found.train.n_examples) == (3, 1, 2)
    spec = make(f"data.max_length={limit}").spec
    assert "1 of 3 training pairs" in data.left_out(found, spec.data)


def test_a_line_of_the_evaluation_is_never_cut(make, pieces):
    with pytest.raises(BadInput, match=r"data\.eval_length: a line of the evaluation"):
        corpus(make, pieces, "data.max_length=40", "data.eval_length=4")


def test_wmt_without_a_folder_is_refused(make):
    from mlperf_tpu.benchmarks.gnmt import data

    spec = resolve(load("gnmt"), scale_name="v0.6-16").spec
    with pytest.raises(BadInput, match="give --data-dir"):
        data.load(spec, None)


def test_shares_of_another_number_of_buckets_are_refused():
    with pytest.raises(BadInput, match=r"data\.bucket_shares: .* 5 buckets"):
        resolve(
            load("gnmt"),
            scale_name="v0.6-16",
            settings=["data.bucket_shares=[0.5,0.5]"],
        )


@pytest.mark.parametrize(
    ("scale", "batch", "rate", "remain"),
    [("v0.6-16", 4096, 0.0035, 4000), ("v0.7-512", 8192, 0.0045, 1924)],
)
def test_published_hyperparameters(scale, batch, rate, remain, tensorflow):
    from mlperf_tpu.benchmarks.gnmt.program import Program

    spec = resolve(load("gnmt"), scale_name=scale, settings=["model.width=8"]).spec
    logged = Program(spec).hyperparameters()
    assert logged["global_batch_size"] == batch
    assert logged["opt_base_learning_rate"] == rate
    assert logged["opt_learning_rate_remain_steps"] == remain
    assert logged["max_sequence_length"] == 48


def test_loops_are_counted_by_bucket():
    from mlperf_tpu.benchmarks.gnmt import loops

    spec = resolve(load("gnmt"), scale_name="v0.6-16").spec
    cases = loops.cases(spec, "step", batch_per_replica=128)
    assert [c.iterations("encoder1/source_steps/while") for c in cases] == [
        10,
        20,
        30,
        40,
        48,
    ]
    # Blocks of 4 steps make 512 rows.
    assert [c.iterations("x/target_blocks/while") for c in cases] == [3, 5, 8, 10, 12]
    assert sum(c.share for c in cases) == pytest.approx(1)
    [decode] = loops.cases(spec, "evaluate", batch_per_replica=16)
    assert decode.iterations("while") == 160
