"""Beam search against an exhaustive search, on vocabularies small enough for one."""

from __future__ import annotations

import doctest
import itertools

import numpy as np
import pytest

END, START = 1, 0


@pytest.fixture
def beam_search(tensorflow):
    from mlperf_tpu.nn import beam_search

    return beam_search


def _table(vocabulary, length, seed, batch=3):
    """Random log-probabilities of each next id after each prefix: [batch, prefixes,
    vocabulary]; a prefix is its ids as the digits of a number, a 1 before them."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (batch, 2 * vocabulary**length, vocabulary))
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def _decoder(tf, table):
    """Reads the table; its state is the number of the prefix, so that a state which
    does not follow its hypothesis gives another answer."""
    vocabulary = table.shape[-1]

    def step(ids, state, position):
        prefix = tf.where(position == 0, 1, state["prefix"] * vocabulary + ids)
        return tf.gather(table, prefix, batch_dims=1), {"prefix": prefix}

    return step, {"prefix": tf.ones([len(table), 1], tf.int32)}


def _exhaustive(table, limit, alpha):
    """Every sequence that ends, best first: (ids, score)."""
    vocabulary = len(table[0])
    rest = [k for k in range(vocabulary) if k != END]
    found = []
    for length in range(1, limit + 1):
        for body in itertools.product(rest, repeat=length - 1):
            ids, prefix, total = (*body, END), 1, 0.0
            for k in ids:
                total += float(table[prefix, k])
                prefix = prefix * vocabulary + k
            found.append((ids, total / ((5 + length) / 6) ** alpha))
    return sorted(found, key=lambda each: -each[1])


def _search(tf, module, table, beam, limits, alpha, max_length, **options):
    step, state = _decoder(tf, table)
    state = {"prefix": tf.repeat(state["prefix"], beam, 1)}

    @tf.function
    def run():
        return module.beam_search(
            step,
            state,
            tf.zeros([len(table)], tf.int32),
            tf.constant(limits),
            beam=beam,
            alpha=alpha,
            end=END,
            max_length=max_length,
            **options,
        )

    ids, scores = run()
    return ids.numpy(), scores.numpy()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_all_finds_the_exhaustive_best(
    tensorflow, beam_search, alpha
):
    table = _table(vocabulary=4, length=4, seed=3)
    ids, scores = _search(tensorflow, beam_search, table, 81, [4, 4, 4], alpha, 4)
    for row in range(len(table)):
        expected = _exhaustive(table[row], 4, alpha)[:5]
        for k, (wanted, score) in enumerate(expected):
            found = ids[row, k]
            assert tuple(found[: len(wanted)]) == wanted
            assert not found[len(wanted) :].any()
            assert scores[row, k] == pytest.approx(score, rel=1e-5)


def test_each_row_has_its_own_limit(tensorflow, beam_search):
    table = _table(vocabulary=4, length=4, seed=4)
    limits = [2, 4, 3]
    ids, scores = _search(tensorflow, beam_search, table, 81, limits, 0.6, 4)
    for row, limit in enumerate(limits):
        wanted, score = _exhaustive(table[row], limit, 0.6)[0]
        assert tuple(ids[row, 0][: len(wanted)]) == wanted
        assert scores[row, 0] == pytest.approx(score, rel=1e-5)


def test_a_hypothesis_is_divided_by_its_own_length(tensorflow, beam_search):
    """A short end of a middling probability loses to a long one under alpha alone."""
    table = np.full((1, 32, 3), -20.0, np.float32)
    table[0, 1] = np.log([1e-9, 0.4, 0.6])  # ends at once, or goes on by 2
    table[0, 5] = np.log([1e-9, 0.1, 0.9])
    table[0, 17] = np.log([1e-9, 0.7, 0.3])  # 2, 2, end: 0.6 * 0.9 * 0.7 = 0.378
    for alpha, wanted in ((0.0, [1, 0, 0]), (1.0, [2, 2, 1])):
        ids, _ = _search(tensorflow, beam_search, table, 2, [3], alpha, 3)
        assert ids[0, 0].tolist() == wanted


def test_a_narrow_beam_never_scores_what_is_not_there(tensorflow, beam_search):
    table = _table(vocabulary=5, length=5, seed=5)
    ids, scores = _search(tensorflow, beam_search, table, 3, [5] * 3, 0.6, 5)
    for row in range(len(table)):
        every = dict(_exhaustive(table[row], 5, 0.6))
        for found, score in zip(ids[row], scores[row], strict=True):
            length = found.tolist().index(END) + 1
            assert score == pytest.approx(every[tuple(found[:length])], rel=1e-5)


def test_padding_rows_end_the_search_at_once(tensorflow, beam_search):
    ids, _ = _search(
        tensorflow, beam_search, _table(4, 4, seed=6), 2, [0, 0, 0], 0.6, 4
    )
    assert not ids.any()


def test_where_nothing_ends_what_would_go_on_is_given(tensorflow, beam_search):
    table = _table(4, 4, seed=7)
    table[:, :, END] = -np.inf
    ids, scores = _search(tensorflow, beam_search, table, 64, [2, 3, 3], 0.0, 3)
    rest = [0, 2, 3]
    for row, limit in enumerate((2, 3, 3)):
        totals = {}
        for found in itertools.product(rest, repeat=limit):
            prefix, total = 1, 0.0
            for k in found:
                total += float(table[row, prefix, k])
                prefix = prefix * 4 + k
            totals[found] = total
        wanted = max(totals, key=totals.get)
        assert tuple(ids[row, 0][:limit]) == wanted
        assert scores[row, 0] == pytest.approx(totals[wanted], rel=1e-4)


def test_a_penalty_turns_the_order(tensorflow, beam_search):
    """A penalty on every hypothesis whose state went through id 2."""
    tf = tensorflow
    table = _table(4, 4, seed=8)

    def penalty(state):
        digits, rest = tf.zeros_like(state["prefix"], bool), state["prefix"]
        for _ in range(4):
            digits |= (rest >= 4) & (rest % 4 == 2)
            rest //= 4
        return tf.where(digits, -50.0, 0.0)

    ids, scores = _search(tf, beam_search, table, 81, [4] * 3, 0.6, 4, penalty=penalty)
    for row in range(len(table)):
        allowed = [e for e in _exhaustive(table[row], 4, 0.6) if 2 not in e[0]]
        wanted, score = allowed[0]
        assert tuple(ids[row, 0][: len(wanted)]) == wanted
        assert scores[row, 0] == pytest.approx(score, rel=1e-5)


def test_the_examples_in_docstrings_hold(tensorflow, beam_search):
    done = doctest.testmod(beam_search)
    assert done.attempted > 0 and done.failed == 0
