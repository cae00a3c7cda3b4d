"""Text: the numbers in words, sub-words, packed rows, BLEU."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from mlperf_tpu.data import bleu as bleu_module
from mlperf_tpu.data import number_words, packing
from mlperf_tpu.data.bleu import bleu, signature
from mlperf_tpu.data.packing import OPEN_ROWS, pack
from mlperf_tpu.data.subwords import END, PAD, Subwords
from mlperf_tpu.errors import BadInput


@pytest.fixture(scope="module")
def pairs():
    return number_words.load(2000, 100)


@pytest.fixture(scope="module")
def subwords(pairs):
    return Subwords.train((line for pair in pairs[0] for line in pair), 128)


def test_the_examples_in_docstrings_hold():
    for module in (number_words, packing, bleu_module):
        done = doctest.testmod(module)
        assert done.attempted > 0 and done.failed == 0


def test_numbers_say_the_same_in_both_languages():
    train, _ = number_words.load(50, 1)
    english, german = number_words._words("en"), number_words._words("de")
    of = {word: k for k, word in enumerate(german)}
    for source, target in train:
        assert source == " ".join(english[of[word]] for word in target.split(" "))


def test_no_held_out_line_is_trained_on(pairs):
    train, held_out = pairs
    assert not {s for s, _ in train} & {s for s, _ in held_out}
    assert len({s for s, _ in train}) == 2000


def test_the_cut_is_the_same_whatever_is_trained_on(pairs):
    train, held_out = number_words.load(10, 100)
    assert held_out == pairs[1]
    assert train == pairs[0][:10]


def test_more_lines_than_are_made_are_refused():
    with pytest.raises(BadInput, match=r"data\.lines: 1,000,001 lines"):
        number_words.load(1_000_000, 1)


def test_subwords_bring_back_the_text(pairs, subwords):
    lines = [line for pair in pairs[1] for line in pair]
    rows = subwords.encode(lines)
    assert subwords.decode(rows) == lines
    assert all(row[-1] == END for row in rows)
    assert subwords.size == 128


def test_the_same_lines_make_the_same_subwords(pairs, subwords):
    again = Subwords.train((line for pair in pairs[0] for line in pair), 128)
    assert again.model == subwords.model


def test_what_follows_the_end_is_no_text(subwords):
    [row] = subwords.encode(["zwei"])
    assert subwords.decode([row + row, [*row, PAD, PAD]]) == ["zwei", "zwei"]


def test_a_vocabulary_that_does_not_match_the_weights_is_refused(subwords):
    with pytest.raises(BadInput, match=r"decoded id is 128, but .* 128 pieces"):
        subwords.decode([[5, 128, END]])


def test_a_missing_subword_model_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no sub-word model"):
        Subwords.read(tmp_path / "wmt.model")


def test_a_file_that_is_no_subword_model_is_refused(tmp_path):
    (tmp_path / "wmt.model").write_bytes(b"\xff words")
    with pytest.raises(BadInput, match=r"wmt\.model is no sentencepiece model"):
        Subwords.read(tmp_path / "wmt.model")


def test_more_pieces_than_the_lines_hold_are_refused():
    with pytest.raises(BadInput, match=r"data\.vocabulary: no 5000 pieces"):
        Subwords.train(["ein", "zwei"], 5000)


def test_packing_keeps_every_pair_whole():
    random = np.random.default_rng(0)
    pairs = [
        tuple(random.integers(2, 90, n).tolist() for n in random.integers(1, 12, 2))
        for _ in range(300)
    ]
    rows = pack(pairs, 16)
    found = []
    for i in range(len(rows["source"])):
        for segment in range(1, rows["source_segment"][i].max() + 1):
            sides = []
            for side in ("source", "target"):
                at = rows[f"{side}_segment"][i] == segment
                sides.append(rows[side][i, at].tolist())
                positions = rows[f"{side}_position"][i, at]
                assert positions.tolist() == list(range(at.sum()))
            found.append(tuple(sides))
    assert sorted(found) == sorted(pairs)


def test_packing_wastes_little():
    random = np.random.default_rng(0)
    pairs = [([3] * n, [3] * n) for n in random.integers(5, 60, 2000)]
    rows = pack(pairs, 256)
    assert (rows["source"] > 0).mean() > 0.9


def test_packing_holds_ten_rows_open():
    long, short = ([3] * 9, [3] * 9), ([4], [4])
    rows = pack([long] * OPEN_ROWS + [short], 10)["source"]
    assert rows[0].tolist() == [3] * 9 + [4]  # the oldest open row has room
    rows = pack([long] * (OPEN_ROWS + 1) + [short], 10)["source"]
    assert rows[0].tolist() == [3] * 9 + [0]  # closed when the eleventh came


def test_t2t_569_bleu_is_tokenised_as_mteval():
    """tensor2tensor#569: another tokeniser, another score (none: 0.79)."""
    score = bleu(["He was born there in 2023 ."], ["He was born there in 2023."])
    assert score == pytest.approx(1.0)
    assert "tok:13a" in signature()


def test_t2t_405_bleu_is_cased():
    line, upper = "the cat sat on the mat today", "The cat sat on the mat today"
    assert bleu([line], [upper]) < 0.95
    assert "case:mixed" in signature()


def test_joeynmt_183_a_blank_line_keeps_its_place():
    """joeynmt#183: skipped blank lines shift every later pair."""
    lines = ["", "eine Katze lag auf der Matte", "zwei Hunde liefen durch den Wald"]
    assert bleu(lines, lines) == pytest.approx(1.0)
    with pytest.raises(BadInput, match="2 translations of 3 references"):
        bleu(lines[1:], lines)
