"""GNMT's data sets by the name in the spec: rows of sub-words and their lengths."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlperf_tpu.data import number_words
from mlperf_tpu.data.batches import InMemory
from mlperf_tpu.data.buckets import Bucketed, bucket_of
from mlperf_tpu.data.subwords import END, Subwords
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Spec

# Lines that the words' sub-words are learnt from.
LEARNT_FROM = 4000


@dataclass(frozen=True)
class Corpus:
    """Both splits and what their ids stand for."""

    train: Bucketed
    evaluation: InMemory
    references: tuple[str, ...]
    subwords: Subwords
    dropped: int  # training pairs with a side longer than the limit


def load(spec: Spec, data_dir: Path | None) -> Corpus:
    """The corpus that the spec names."""
    if spec.data.name == "words":
        return words(spec.data)
    raise BadInput("data.name: wmt is read from a folder; give --data-dir")


def words(data) -> Corpus:
    """Numbers in words, English to German (data.number_words)."""
    train, held_out = _word_pairs(data.train_examples, data.eval_examples)
    subwords = _word_pieces(data.train_examples, data.eval_examples, data.vocabulary)
    return corpus(train, held_out, subwords, data)


def corpus(train, held_out, subwords: Subwords, data) -> Corpus:
    """(source, target) lines as rows of ids."""
    if subwords.size != data.vocabulary:
        raise BadInput(
            f"data.vocabulary: the spec says {data.vocabulary}, the sub-word model has "
            f"{subwords.size} pieces; correct the one that is wrong"
        )
    for name, pairs in (("training", train), ("evaluation", held_out)):
        if not pairs:
            raise BadInput(f"the {name} corpus is empty; give lines to both its sides")
    sides = [subwords.encode([pair[k] for pair in train]) for k in range(2)]
    kept = [
        i
        for i, both in enumerate(zip(*sides, strict=True))
        if max(map(len, both)) <= data.max_length
    ]
    arrays = _rows([[side[i] for i in kept] for side in sides], data.max_length)
    longer = np.maximum(arrays["source_length"], arrays["target_length"])
    buckets = bucket_of(longer, data.max_length, data.buckets)
    source = subwords.encode([pair[0] for pair in held_out])
    # A line of the evaluation may be cut, never left out.
    source = [
        row if len(row) <= data.eval_length else [*row[: data.eval_length - 1], END]
        for row in source
    ]
    return Corpus(
        Bucketed(arrays, {}, buckets),
        InMemory(_rows([source], data.eval_length), {}),
        tuple(pair[1] for pair in held_out),
        subwords,
        len(train) - len(kept),
    )


def _rows(sides: Sequence[Sequence[Sequence[int]]], length: int):
    """Rows of ids filled up with zeros, and their lengths."""
    out: dict[str, np.ndarray] = {}
    for name, rows in zip(("source", "target"), sides, strict=False):
        filled = np.zeros((len(rows), length), np.int32)
        for i, row in enumerate(rows):
            filled[i, : len(row)] = row
        out[name] = filled
        out[f"{name}_length"] = np.array([len(row) for row in rows], np.int32)
    return out


@functools.lru_cache(maxsize=1)
def _word_pairs(n_train: int, n_held_out: int):
    return number_words.load(n_train, n_held_out)


@functools.lru_cache(maxsize=1)
def _word_pieces(n_train: int, n_held_out: int, size: int) -> Subwords:
    train, _ = _word_pairs(n_train, n_held_out)
    return Subwords.train((line for pair in train[:LEARNT_FROM] for line in pair), size)
