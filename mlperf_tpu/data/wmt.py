"""WMT English-German on disk: a line a sentence, line k of one side for line k of the
other; found, checked and read.

A folder holds a training text and newstest2014, `.en` and `.de` each, under one of the
names below, and a sentencepiece model (data.subwords); or what TensorFlow Datasets
prepared as wmt14_translate/de-en, and the model beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlperf_tpu.data.check import Finding
from mlperf_tpu.data.subwords import Subwords
from mlperf_tpu.errors import BadInput

LANGUAGES = ("en", "de")
# As the reference's scripts name them, before sub-words are cut.
TRAIN_NAMES = ("train", "train.tok.clean", "train.clean")
TEST_NAMES = ("newstest2014", "test")
MARKUP = ("<seg", "<doc", "<refset", "<srcset", "<?xml", "<!doctype")
CUT = "@@ "  # what subword-nmt leaves in a line that it cut
READ_LINES = 20_000
SHOWN = 5  # places named of each kind; the others are counted

Pairs = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """One side of one split."""

    path: Path
    n_records: int = 0
    n_bytes: int = 0

    def lines(self) -> Iterator[str]:
        """Lines end at b"\\n" alone: some sentences hold Unicode's own line ends, and
        would shift all that follow."""
        with self.path.open("rb") as file:
            for raw in file:
                yield raw.rstrip(b"\r\n").decode("utf-8")


@dataclass(frozen=True)
class TextForm:
    name: str = "text"


@dataclass
class TextReport:
    """What `data check` shows; `framings` are the files of each split."""

    folder: Path
    framings: dict[str, list[Text]]
    form: TextForm = field(default_factory=TextForm)
    findings: list[Finding] = field(default_factory=list)
    level: str = "bytes"
    said: str = "every line of both sides"
    manifest: Path | None = None
    images: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]


def find(folder: Path) -> dict[str, list[Text]]:
    """The files of "train" and "test", English first. Raises BadInput for a side that
    is missing, and where no name is known."""
    found = {}
    for split, names in (("train", TRAIN_NAMES), ("test", TEST_NAMES)):
        for name in names:
            paths = [folder / f"{name}.{language}" for language in LANGUAGES]
            there = [p.is_file() for p in paths]
            if all(there):
                found[split] = [Text(p) for p in paths]
                break
            if any(there):
                missing = paths[there.index(False)]
                raise BadInput(
                    f"{folder}: one side of {name} alone; {missing.name} is missing"
                )
        else:
            raise BadInput(
                f"{folder}: no {split} text; name it {names[0]}.en and {names[0]}.de"
            )
    return found


def subword_model(folder: Path, size: int) -> Subwords:
    """The folder's sentencepiece model, which must have `size` pieces."""
    paths = sorted(folder.glob("*.model"))
    if len(paths) > 1:
        names = ", ".join(p.name for p in paths)
        raise BadInput(f"{folder}: several sub-word models ({names}); leave one")
    subwords = Subwords.read(paths[0] if paths else folder / "wmt_ende.model")
    if subwords.size != size:
        raise BadInput(
            f"{paths[0]}: {subwords.size} pieces, but the spec (data.vocabulary) says "
            f"{size}; correct the one that is wrong"
        )
    return subwords


def check(folder: Path, test_lines: int) -> TextReport:
    """Reads every line of both sides; test_lines is what the round's rules score.

    Errors would make a run wrong: sides of different lengths, another release of
    newstest2014, markup, cut sub-words, bytes that are no UTF-8, an empty side.
    Blank lines are warned of: training leaves such a pair out.
    """
    report = TextReport(folder, {})
    for split, files in find(folder).items():
        report.framings[split] = [_read(report, file) for file in files]
        english, german = report.framings[split]
        if english.n_records != german.n_records:
            _error(
                report,
                "sides",
                f"{split}: {english.n_records:,} English lines, {german.n_records:,} "
                "German: line k of one is no translation of line k of the other",
                german,
            )
        for side in (english, german):
            if not side.n_records:
                _error(report, "empty", "no line", side)
    held = report.framings["test"][0].n_records
    if held != test_lines:
        known = " (an earlier release of the set)" if held == 2737 else ""
        _error(
            report,
            "count",
            f"test: {held:,} lines{known}; the spec (data.eval_examples) says "
            f"{test_lines:,}",
            report.framings["test"][0],
        )
    return report


def pairs(files: Sequence[Text]) -> Pairs:
    """The pairs of a split that have both sides, in order; blank ones are left out."""
    english, german = (file.lines() for file in files)
    for pair in zip(english, german, strict=True):
        if all(line.strip() for line in pair):
            yield pair


def _error(report: TextReport, kind: str, message: str, file: Text) -> None:
    report.findings.append(Finding("error", kind, message, str(file.path)))


def _read(report: TextReport, file: Text) -> Text:
    """Counts the lines, and says what is wrong with them and where."""
    n_lines = offset = 0
    blank: list[int] = []
    places: Counter[str] = Counter()
    with file.path.open("rb") as lines:
        for raw in lines:
            n_lines += 1
            for kind, message in _faults(raw):
                places[kind] += 1
                if places[kind] <= SHOWN:
                    report.findings.append(
                        Finding(
                            "error",
                            kind,
                            f"line {n_lines}: {message}",
                            str(file.path),
                            offset,
                        )
                    )
            if not raw.strip():
                blank.append(n_lines)
            offset += len(raw)
    for kind, count in places.items():
        if count > SHOWN:
            _error(report, kind, f"{count - SHOWN:,} more such lines", file)
    if blank:
        some = ", ".join(map(str, blank[:SHOWN]))
        report.findings.append(
            Finding(
                "warning",
                "blank",
                f"{len(blank):,} blank lines ({some}{', …' if blank[SHOWN:] else ''})",
                str(file.path),
            )
        )
    return Text(file.path, n_lines, offset)


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
