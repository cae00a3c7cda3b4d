"""GNMT's data sets by the name in the spec: rows of sub-words and their lengths."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlperf_tpu.data import number_words
from mlperf_tpu.data.batches import InMemory
from mlperf_tpu.data.buckets import Bucketed, bucket_of
from mlperf_tpu.data.subwords import END, Subwords
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Spec

if TYPE_CHECKING:
    from mlperf_tpu.data.wmt import TextReport

__all__ = ["END", "Corpus", "check", "corpus", "load"]

# Lines that the words' sub-words are learnt from: all words are among them.
LEARNT_FROM = 4000

TextPairs = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Corpus:
    """Both splits, what their ids stand for, and what scores translations.

    pairs, dropped: training pairs read, and left out as longer than the spec allows.
    """

    train: Bucketed
    evaluation: InMemory
    references: tuple[str, ...]
    subwords: Subwords
    pairs: int
    dropped: int


def load(spec: Spec, data_dir: Path | None) -> Corpus:
    """The corpus that the spec names.

    Raises BadInput for files that the check finds wrong.
    """
    data = spec.data
    if data.name == "number_words":
        train, held_out = _word_pairs(data.train_examples, data.eval_examples)
        return corpus(train, held_out, _word_pieces(data), data)
    from mlperf_tpu.data import wmt
    from mlperf_tpu.data.check import refuse

    if data_dir is None:
        raise BadInput("data.name: wmt_ende is read from a folder; give --data-dir")
    report = wmt.check(data_dir, data.eval_examples)
    refuse(report.errors)
    return _read(report, data_dir, data)


def check(
    spec: Spec,
    data_dir: Path,
    level: str | None = None,
    n_hosts: int = 1,
    manifest_path: Path | None = None,
    write_manifest: bool = False,
) -> TextReport:
    """What is wrong with the files in `data_dir` (mlperf_tpu.data.wmt).

    At the level `decode` lines are cut into sub-words, and long ones counted.
    """
    from mlperf_tpu.data import wmt

    data = spec.data
    if data.name != "wmt_ende":
        raise BadInput(f"data.name: {data.name} is embedded; nothing to check")
    if manifest_path is not None or write_manifest:
        raise BadInput("--manifest: text has none; every line is read at each check")
    report = wmt.check(data_dir, data.eval_examples)
    try:
        if level != "decode" or report.errors:
            wmt.subword_model(data_dir, data.vocabulary)
            return report
        found = _read(report, data_dir, data)
    except BadInput as error:
        report.say("error", "subwords", str(error))
        return report
    kept = found.train.n_examples
    report.level, report.said = "decode", "every line, cut into sub-words,"
    report.say("note", "length", left_out(found, data))
    if kept != data.train_examples:
        report.say(
            "error",
            "count",
            f"train: {kept:,} pairs are short enough; the spec (data.train_examples) "
            f"says {data.train_examples:,}: set it to {kept}",
        )
    return report


def left_out(found: Corpus, data) -> str:
    return (
        f"{found.dropped:,} of {found.pairs:,} training pairs have more than "
        f"{data.max_length} sub-words on a side (data.max_length) and are left out"
    )


def corpus(train: TextPairs, held_out: TextPairs, subwords: Subwords, data) -> Corpus:
    """(source, target) lines as rows of ids."""
    if subwords.size != data.vocabulary:
        raise BadInput(
            f"data.vocabulary: the spec says {data.vocabulary}, the sub-word model has "
            f"{subwords.size} pieces; correct the one that is wrong"
        )
    train, held_out = list(train), list(held_out)
    for name, pairs in (("training", train), ("evaluation", held_out)):
        if not pairs:
            raise BadInput(f"the {name} corpus is empty; give lines to both its sides")
    sides = [subwords.encode([pair[k] for pair in train]) for k in range(2)]
    kept = [
        i
        for i, both in enumerate(zip(*sides, strict=True))
        if max(map(len, both)) <= data.max_length
    ]
    if not kept:
        raise BadInput(
            f"data.max_length: none of the {len(train)} training pairs has at most "
            f"{data.max_length} sub-words a side; allow longer ones"
        )
    rows = {
        name: [side[i] for i in kept]
        for name, side in zip(("source", "target"), sides, strict=True)
    }
    arrays = _arrays(rows, data.max_length)
    longer = np.maximum(arrays["source_length"], arrays["target_length"])
    source = subwords.encode([pair[0] for pair in held_out])
    longest = max(map(len, source))
    if longest > data.eval_length:
        # A line that is cut would be scored against a whole one.
        raise BadInput(
            f"data.eval_length: a line of the evaluation has {longest} sub-words, but "
            f"{data.eval_length} are room for; raise it"
        )
    return Corpus(
        Bucketed(arrays, {}, bucket_of(longer, data.max_length, data.buckets)),
        InMemory(_arrays({"source": source}, data.eval_length), {}),
        tuple(pair[1] for pair in held_out),
        subwords,
        len(train),
        len(train) - len(kept),
    )


def _read(report: TextReport, data_dir: Path, data) -> Corpus:
    from mlperf_tpu.data import wmt

    subwords = wmt.subword_model(data_dir, data.vocabulary)
    texts = report.texts
    return corpus(texts["train"].pairs(), texts["test"].lines(), subwords, data)


def _arrays(sides: dict[str, Sequence[Sequence[int]]], length: int):
    """Rows of ids filled up with zeros, int32 [rows, length], and their lengths."""
    out: dict[str, np.ndarray] = {}
    for name, rows in sides.items():
        filled = np.zeros((len(rows), length), np.int32)
        for i, row in enumerate(rows):
            filled[i, : len(row)] = row
        out[name] = filled
        out[f"{name}_length"] = np.array([len(row) for row in rows], np.int32)
    return out


@functools.lru_cache(maxsize=1)
def _word_pairs(n_train: int, n_held_out: int):
    """Numbers in words, English to German (data.number_words)."""
    return number_words.load(n_train, n_held_out)


@functools.lru_cache(maxsize=1)
def _word_pieces(data) -> Subwords:
    train, _ = _word_pairs(data.train_examples, data.eval_examples)
    some = [line for pair in train[:LEARNT_FROM] for line in pair]
    return Subwords.train(some, data.vocabulary)
