"""WMT English-German on disk: a line a sentence, line k of one side for line k of the
other; found, checked and read.

A folder holds a training text and newstest2014, `.en` and `.de` each, under one of the
names below, and a sentencepiece model (data.subwords); or what TensorFlow Datasets
prepared as wmt14_translate/de-en (its test split is newstest2014), and the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tensorflow as tf

from mlperf_tpu.data.check import Finding
from mlperf_tpu.data.subwords import Subwords
from mlperf_tpu.data.tfrecord import DamagedRecord, Framing, read_framing, records
from mlperf_tpu.errors import BadInput

LANGUAGES = ("en", "de")
# As the reference's scripts name them, before sub-words are cut.
NAMES = {
    "train": ("train", "train.tok.clean", "train.clean"),
    "test": ("newstest2014", "test"),
}
MARKUP = ("<seg", "<doc", "<refset", "<srcset", "<?xml", "<!doctype")
CUT = "@@ "  # what subword-nmt leaves in a line that it cut
READ_RECORDS = 1024
SHOWN = 5  # places named of each kind; the others are counted

Pairs = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class File:
    """One side of a split, or one that holds both."""

    path: Path
    n_records: int
    n_bytes: int


@dataclass(frozen=True)
class Text:
    """A split as two files of lines, English first."""

    paths: tuple[Path, Path]

    def raw(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Lines of both sides, ends included; None where one side has no more.

        They end at b"\\n" alone: some sentences hold Unicode's own line ends, and would
        shift all that follow.
        """
        english, german = (path.open("rb") for path in self.paths)
        with english, german:
            while True:
                pair = next(english, None), next(german, None)
                if pair == (None, None):
                    return
                yield pair

    def lines(self) -> Pairs:
        """Every pair, blank ones too: a line keeps its place."""
        for english, german in self.raw():
            yield _text(english or b""), _text(german or b"")

    def pairs(self) -> Pairs:
        """The pairs that have both sides."""
        return (pair for pair in self.lines() if all(s.strip() for s in pair))


@dataclass(frozen=True)
class Prepared(Text):
    """A split that TensorFlow Datasets prepared: records of both sides, `framings`
    those of its files in order, `wanted` how many records each should have."""

    framings: tuple[Framing, ...] = ()
    wanted: tuple[int, ...] = ()

    def raw(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        features = {name: tf.io.FixedLenFeature([], tf.string) for name in LANGUAGES}
        for framing in self.framings:
            for _, data in records(framing, READ_RECORDS):
                found = tf.io.parse_example(data, features)
                yield from zip(*(found[k].numpy() for k in LANGUAGES), strict=True)


@dataclass(frozen=True)
class TextForm:
    name: str


@dataclass
class TextReport:
    """What `data check` shows; `framings` are the files of each split."""

    folder: Path
    form: TextForm
    texts: dict[str, Text]
    framings: dict[str, list[File | Framing]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    level: str = "bytes"
    said: str = "every line of both sides"
    manifest: Path | None = None
    images: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]

    def say(
        self,
        severity: Literal["error", "warning", "note"],
        kind: str,
        message: str,
        path: Path | None = None,
        offset: int | None = None,
    ) -> None:
        file = None if path is None else str(path)
        self.findings.append(Finding(severity, kind, message, file, offset))


def find(folder: Path) -> tuple[TextForm, dict[str, Text]]:
    """The form of what is there, and its splits "train" and "test".

    Raises BadInput for a side that is missing, and where no name is known.
    """
    if (folder / "dataset_info.json").is_file():
        return TextForm("TensorFlow Datasets"), _prepared(folder)
    return TextForm("text"), {split: _find(folder, split) for split in NAMES}


def _prepared(folder: Path) -> dict[str, Text]:
    info = json.loads((folder / "dataset_info.json").read_text())
    lengths = {s["name"]: tuple(map(int, s["shardLengths"])) for s in info["splits"]}
    texts: dict[str, Text] = {}
    for split in NAMES:
        paths = sorted(folder.glob(f"*-{split}.tfrecord-*"))
        if split not in lengths or len(paths) != len(lengths[split]):
            raise BadInput(
                f"{folder}: {len(paths)} files of the split {split}, but "
                f"dataset_info.json says {len(lengths.get(split, ()))}; prepare it anew"
            )
        framings = tuple(read_framing(path) for path in paths)
        texts[split] = Prepared((folder, folder), framings, lengths[split])
    return texts


def _find(folder: Path, split: str) -> Text:
    for name in NAMES[split]:
        english, german = (folder / f"{name}.{language}" for language in LANGUAGES)
        there = english.is_file(), german.is_file()
        if all(there):
            return Text((english, german))
        if any(there):
            missing = german if there[0] else english
            raise BadInput(
                f"{folder}: {name} has one side; {missing.name} is missing, give both"
            )
    name = NAMES[split][0]
    raise BadInput(f"{folder}: no {split} text; name it {name}.en and {name}.de")


def subword_model(folder: Path, size: int) -> Subwords:
    """The folder's sentencepiece model, which must have `size` pieces."""
    paths = sorted(folder.glob("*.model"))
    if len(paths) > 1:
        names = ", ".join(p.name for p in paths)
        raise BadInput(f"{folder}: several sub-word models ({names}); leave one")
    path = paths[0] if paths else folder / "wmt_ende.model"
    subwords = Subwords.read(path)
    if subwords.size != size:
        raise BadInput(
            f"{path}: {subwords.size} pieces, but the spec (data.vocabulary) says "
            f"{size}; correct the one that is wrong"
        )
    return subwords


def check(folder: Path, test_lines: int) -> TextReport:
    """Reads every line of both sides; test_lines is what the round's rules score.

    Errors would make a run wrong: sides of different lengths, another release of
    newstest2014, markup, cut sub-words, bytes that are no UTF-8, an empty side. Of
    blank lines is warned: training leaves such a pair out.
    """
    form, texts = find(folder)
    report = TextReport(folder, form, texts)
    for split, text in texts.items():
        english, german = (_Side(report, path) for path in text.paths)
        try:
            for lines in text.raw():
                for side, line in zip((english, german), lines, strict=True):
                    if line is not None:
                        side.read(line)
        except DamagedRecord as error:
            damage = error.damage
            report.say("error", "damaged", damage.what, damage.path, damage.offset)
        for side in (english, german):
            side.conclude()
        report.framings[split] = [
            File(side.path, side.n_lines, side.offset) for side in (english, german)
        ]
        if isinstance(text, Prepared):
            report.framings[split] = list(text.framings)
            _check_records(report, text)
        if english.n_lines != german.n_lines:
            report.say(
                "error",
                "sides",
                f"{split}: {english.n_lines:,} English lines, {german.n_lines:,} "
                "German: line k of one is no translation of line k of the other",
                german.path,
            )
        if split == "test":
            held = english.n_lines
    if held != test_lines:
        known = " (an earlier release of the set)" if held == 2737 else ""
        report.say(
            "error",
            "count",
            f"test: {held:,} lines{known}; the spec (data.eval_examples) says "
            f"{test_lines:,}",
            texts["test"].paths[0],
        )
    return report


def _check_records(report: TextReport, text: Prepared) -> None:
    for framing, wanted in zip(text.framings, text.wanted, strict=True):
        if framing.damage is not None:
            damage = framing.damage
            report.say("error", "damaged", damage.what, damage.path, damage.offset)
        elif framing.n_records != wanted:
            report.say(
                "error",
                "count",
                f"{framing.n_records} records, but dataset_info.json says {wanted}; it "
                "was cut between two records, or is of another preparation",
                framing.path,
                framing.n_bytes,
            )


@dataclass
class _Side:
    """What reading one side finds."""

    report: TextReport
    path: Path
    n_lines: int = 0
    offset: int = 0
    blank: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def read(self, raw: bytes) -> None:
        self.n_lines += 1
        for kind, message in _faults(raw):
            self.faults[kind] += 1
            if self.faults[kind] <= SHOWN:
                message = f"line {self.n_lines}: {message}"
                self.report.say("error", kind, message, self.path, self.offset)
        if not raw.strip():
            self.blank.append(self.n_lines)
        self.offset += len(raw)

    def conclude(self) -> None:
        for kind, count in self.faults.items():
            if count > SHOWN:
                message = f"{count - SHOWN:,} more such lines"
                self.report.say("error", kind, message, self.path)
        if not self.n_lines:
            self.report.say("error", "empty", "no line", self.path)
        if self.blank:
            some = ", ".join(map(str, self.blank[:SHOWN]))
            message = f"{len(self.blank):,} blank lines ({some}"
            message += ", …)" if len(self.blank) > SHOWN else ")"
            self.report.say("warning", "blank", message, self.path)


def _faults(raw: bytes) -> Iterator[tuple[str, str]]:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        yield "encoding", f"no UTF-8 ({error.reason} at its byte {error.start})"
        return
    start = line.lstrip()[:10].lower()
    if start.startswith(MARKUP):
        yield "markup", f"markup ({start.strip()}…); take the sentences out of it"
    if CUT in line:
        yield "cut", "cut into sub-words (@@); give the text as it was before"


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\r\n").decode("utf-8")
