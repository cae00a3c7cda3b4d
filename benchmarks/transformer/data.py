"""The Transformer's data sets by the name in the spec: packed rows and sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlperf_tpu.data.batches import InMemory
from mlperf_tpu.data.packing import pack
from mlperf_tpu.data.subwords import Subwords
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Spec

if TYPE_CHECKING:
    from mlperf_tpu.data.wmt import TextReport

# Training lines that sub-words of the numbers are made of: all words are among them.
VOCABULARY_LINES = 5000
ENCODED_AT_ONCE = 20_000

TextPairs = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Corpus:
    """Packed training rows, evaluation sentences, and what scores translations.

    train: source, target, their segments and positions, int32 [rows, row_length]
    test: source int32 [sentences, eval_length], 0 after each end
    references: the sentences' translations as text
    pairs, dropped: training pairs read, and left out as longer than the spec allows
    """

    train: InMemory
    test: InMemory
    subwords: Subwords
    references: tuple[str, ...]
    pairs: int
    dropped: int


def corpus(spec: Spec, data_dir: Path | None) -> Corpus:
    """The corpus that `spec.data` names.

    Raises BadInput for files that the check finds wrong.
    """
    data = spec.data
    if data.name == "number_words":
        from mlperf_tpu.data import number_words

        train, test = number_words.load(data.lines, data.eval_examples)
        some = [line for pair in train[:VOCABULARY_LINES] for line in pair]
        return prepared(spec, train, test, Subwords.train(some, data.vocabulary))
    from mlperf_tpu.data import wmt
    from mlperf_tpu.data.check import refuse

    if data_dir is None:
        raise BadInput("data.name: wmt_ende is read from a folder; give --data-dir")
    report = wmt.check(data_dir, data.eval_examples)
    refuse(report.errors)
    subwords = wmt.subword_model(data_dir, data.vocabulary)
    texts = report.texts
    return prepared(spec, texts["train"].pairs(), texts["test"].lines(), subwords)


def check(
    spec: Spec,
    data_dir: Path,
    level: str | None = None,
    n_hosts: int = 1,
    manifest_path: Path | None = None,
    write_manifest: bool = False,
) -> TextReport:
    """What is wrong with the files in `data_dir` (mlperf_tpu.data.wmt).

    At the level `decode` lines are cut into sub-words: long ones and rows are counted.
    """
    from mlperf_tpu.data import wmt

    data = spec.data
    if data.name != "wmt_ende":
        raise BadInput(f"data.name: {data.name} is embedded; nothing to check")
    if manifest_path is not None or write_manifest:
        raise BadInput("--manifest: text has none; every line is read at each check")
    report = wmt.check(data_dir, data.eval_examples)
    try:
        subwords = wmt.subword_model(data_dir, data.vocabulary)
    except BadInput as error:
        report.say("error", "subwords", str(error))
        return report
    if level == "decode" and not report.errors:
        texts = report.texts
        try:
            found = prepared(
                spec, texts["train"].pairs(), texts["test"].lines(), subwords
            )
        except BadInput as error:
            report.say("error", "length", str(error))
            return report
        rows = found.train.n_examples
        report.level, report.said = "decode", "every line, cut into sub-words,"
        report.say(
            "note",
            "length",
            f"{found.dropped:,} of {found.pairs:,} training pairs have more than "
            f"{data.longest} ids (data.longest) and are left out; the rest are packed "
            f"into {rows:,} rows",
        )
        if rows != data.train_examples:
            report.say(
                "error",
                "count",
                f"train: {rows:,} packed rows; the spec (data.train_examples) says "
                f"{data.train_examples:,}: set it to {rows}",
            )
    return report


def prepared(
    spec: Spec, train: TextPairs, test: TextPairs, subwords: Subwords
) -> Corpus:
    """A corpus of lines of text."""
    data = spec.data
    count = _Count()
    rows = pack(_encoded(train, subwords, data.longest, count), data.row_length)
    if not len(rows["source"]):
        raise BadInput(
            f"data.longest: none of the {count.pairs} training pairs has at most "
            f"{data.longest} ids; allow longer ones"
        )
    sides = list(zip(*test, strict=True))
    sources = subwords.encode(sides[0])
    return Corpus(
        InMemory(rows, {}),
        InMemory({"source": sentences(sources, data.eval_length)}, {}),
        subwords,
        tuple(sides[1]),
        count.pairs,
        count.dropped,
    )


@dataclass
class _Count:
    pairs: int = 0
    dropped: int = 0


def _encoded(
    pairs: TextPairs, subwords: Subwords, longest: int, count: _Count
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs as ids, those with more than `longest` on a side left out."""
    pairs = iter(pairs)
    while some := list(itertools.islice(pairs, ENCODED_AT_ONCE)):
        sides = [subwords.encode([pair[k] for pair in some]) for k in (0, 1)]
        count.pairs += len(some)
        for source, target in zip(*sides, strict=True):
            if max(len(source), len(target)) > longest:
                count.dropped += 1
                continue
            yield np.array(source, np.int32), np.array(target, np.int32)


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
