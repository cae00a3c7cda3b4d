"""The Transformer's data sets by the name in the spec: packed rows and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlperf_tpu.data.batches import InMemory
from mlperf_tpu.data.packing import Pair, pack
from mlperf_tpu.data.subwords import Subwords
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Spec

# Training lines that sub-words of the numbers are made of: all words are among them.
VOCABULARY_LINES = 5000


@dataclass(frozen=True)
class Corpus:
    """Packed training rows, evaluation sentences, and what scores translations.

    train: source, target, their segments and positions, int32 [rows, row_length]
    test: source int32 [sentences, eval_length], 0 after each end
    references: the sentences' translations as text
    dropped: training pairs left out, longer than the spec allows
    """

    train: InMemory
    test: InMemory
    subwords: Subwords
    references: tuple[str, ...]
    dropped: int


def corpus(spec: Spec, data_dir: Path | None) -> Corpus:
    """The corpus that `spec.data` names. Raises BadInput where it cannot be read."""
    data = spec.data
    if data.name == "number_words":
        from mlperf_tpu.data import number_words

        train, test = number_words.load(data.lines, data.eval_examples)
        some = [line for pair in train[:VOCABULARY_LINES] for line in pair]
        subwords = Subwords.train(some, data.vocabulary)
    else:
        raise BadInput("data.name: wmt_ende is read from a folder; give --data-dir")
    return prepared(spec, train, test, subwords)


def prepared(
    spec: Spec,
    train: Sequence[tuple[str, str]],
    test: Sequence[tuple[str, str]],
    subwords: Subwords,
) -> Corpus:
    """A corpus of lines of text."""
    data = spec.data
    sides = [subwords.encode([pair[k] for pair in train]) for k in (0, 1)]
    pairs: list[Pair] = list(zip(*sides, strict=True))
    kept = [p for p in pairs if max(map(len, p)) <= data.longest]
    if not kept:
        raise BadInput(
            f"data.longest: none of the {len(pairs)} training pairs has at most "
            f"{data.longest} ids; allow longer ones"
        )
    sources = subwords.encode([source for source, _ in test])
    return Corpus(
        InMemory(pack(kept, data.row_length), {}),
        InMemory({"source": sentences(sources, data.eval_length)}, {}),
        subwords,
        tuple(target for _, target in test),
        len(pairs) - len(kept),
    )


def sentences(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """One sentence a row, int32 [sentences, length], 0 after its end.

    None may be longer: a sentence that is cut would be scored against a whole one.
    """
    longest = max(map(len, rows))
    if longest > length:
        raise BadInput(
            f"data.eval_length: a sentence of the evaluation has {longest} ids, but "
            f"{length} are room for; raise it"
        )
    out = np.zeros((len(rows), length), np.int32)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out
