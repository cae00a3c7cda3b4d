"""Records of a log, in the order of the file, and findings on what is none.

The official parser keeps what follows the last token of a line. This one reads a line
from its start: two records that two processes wrote without a newline between them are
both kept, and a token inside a string is part of that string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from mlperf_tpu.log import dialect
from mlperf_tpu.log.findings import (
    BOTH,
    OFFICIAL,
    PROFILES,
    PUBLISHED,
    Findings,
    Profile,
    shown,
)
from mlperf_tpu.log.records import (
    CANONICAL,
    MARK,
    RECORD_LIMIT,
    TOKENS,
    Format,
    Malformed,
    Record,
    fields_07,
    head_06,
    repeated_names,
    scan,
    scan_json,
)
from mlperf_tpu.log.source import Line, lines

# Broken records of one line that are looked at one by one.
TORN = 50
# Keys that nobody asks for of which the first record is read.
MET = 1000
_KEY = b'"key": "'
# Longest record that a dialect is tried on; Intel's have 200 characters.
LOOSE = 4096


def plain_record(line: Line) -> Record | None:
    """The record of a line that is one 0.7 record and nothing else, as nearly all are.

    None for any other line, and for a record with anything wrong: LogReader's slower
    way says what it is. This one makes reading twice as fast.
    """
    text = line.text
    if not text.startswith(b":::MLLOG {") or len(text) > RECORD_LIMIT:
        return None
    if text.count(MARK) != 1:
        return None
    try:
        decoded = text.decode()
        body, end = scan(decoded, 9)
        time_ms, key = float(body["time_ms"]), body["key"]
        record = Record(
            line.number, line.offset + 1, time_ms, key, body["value"], body["metadata"]
        )
    except (ValueError, StopIteration, LookupError, TypeError, ArithmeticError):
        return None
    except RecursionError:
        return None
    if end != len(decoded) or type(key) is not str:
        return None
    if decoded.count('"value"') > 1 or decoded.count('"key"') > 1:
        return None
    return record


class LogReader:
    """Iterates over the records of one log.

    After the first record `format` holds the log's format. A record in a published
    dialect comes with an error against the other profiles: it is read so that the log's
    other faults are said too, not a dozen keys called missing. Where `wanted` keys are
    given, other keys are read once each; their later records are only seen to be sound.
    """

    def __init__(
        self,
        stream: BinaryIO,
        findings: Findings,
        format: Format | None = None,
        wanted: Iterable[str] = (),
    ) -> None:
        self._stream, self._findings = stream, findings
        self.format = format
        self.other_format = 0
        self._wanted = frozenset(key.encode() for key in wanted)
        self._met: set[bytes] = set()

    def __iter__(self) -> Iterator[Record]:
        for line in lines(self._stream, self._findings):
            if self.format is None:
                self.format = _format_of(line.text)
                if self.format is None:
                    self._no_token(line)
                    continue
            if self.format == "0.7" and self._passed_over(line.text):
                continue
            record = plain_record(line) if self.format == "0.7" else None
            if record is not None:
                yield record
            else:
                yield from self._of_line(line)

    def _passed_over(self, text: bytes) -> bool:
        """True for a sound record under a key that nobody asks for, after its first."""
        at = text.find(_KEY) + len(_KEY)
        key = text[at : text.find(b'"', at)]
        if key in self._wanted or not self._wanted:
            return False
        if key not in self._met:
            if len(self._met) < MET:
                self._met.add(key)
            return False
        return CANONICAL.fullmatch(text) is not None

    def _of_line(self, line: Line) -> Iterator[Record]:
        assert self.format is not None
        token = TOKENS[self.format]
        if token not in line.text:
            self._foreign(line)
            return
        text = self._text(line)
        mark = token.decode()
        at = text.find(mark)
        n_records = n_torn = 0
        while at >= 0:
            start = at + len(mark)
            column = line.offset + at + 1
            try:
                record, end = self._record(text, start, line.number, column)
            except Malformed as problem:
                at = text.find(mark, start)
                n_torn += 1
                if n_torn > TORN and at >= 0:
                    # Each costs the length of the line: on to what is read officially.
                    at = text.rfind(mark)
                yield from self._unread(problem, text, start, line, column, at >= 0)
                continue
            n_records += 1
            at = text.find(mark, end)
            rest = text[end:] if at < 0 else ""
            if rest and not rest.isspace():
                self._trailing(rest, line, end)
            if n_records == 2:
                self._glued(line)
            yield record

    def _unread(
        self,
        problem: Malformed,
        text: str,
        start: int,
        line: Line,
        column: int,
        torn: bool,
    ) -> Iterator[Record]:
        """Says what is wrong with a record; gives it if it is one in a dialect."""
        loose = None
        if not torn or problem.rule == "record.fields":
            loose = self._loosely(text, start, line.number, column)
        self._malformed(
            problem, line.number, column, torn=torn, loose=loose is not None
        )
        if loose is not None:
            yield loose

    def _text(self, line: Line) -> str:
        try:
            return line.text.decode()
        except UnicodeDecodeError as error:
            self._findings.add(
                "input.encoding",
                "warning",
                PROFILES,
                expected="UTF-8 text",
                actual=f"byte 0x{line.text[error.start]:02x}, read as Latin-1",
                line=line.number,
                column=line.offset + error.start + 1,
            )
            return line.text.decode("latin-1")

    def _record(
        self, text: str, start: int, line: int, column: int
    ) -> tuple[Record, int]:
        if self.format == "0.6":
            time_ms, key, at = head_06(text, start)
            body, end = scan_json(text, at)
            value, metadata = None, None
            if isinstance(body, dict) and "value" in body:
                value, metadata = body["value"], body.get("metadata")
            else:
                key = ""  # The official checker takes this for an unknown key.
            return Record(line, column, time_ms, key, value, metadata), end
        body, end = scan_json(text, start)
        time_ms, key, value, metadata = fields_07(body)
        if not isinstance(key, str):
            key = ""
        if text.count('"key"') > 1 or text.count('"value"') > 1:
            self._repeated(text[start:end], line, column)
        return Record(line, column, time_ms, key, value, metadata), end

    def _repeated(self, text: str, line: int, column: int) -> None:
        for name in repeated_names(text):
            self._findings.add(
                "record.duplicate_name",
                "warning",
                PROFILES,
                expected="each name of a record once",
                actual=f"{name} twice; the last one counts",
                line=line,
                column=column,
            )

    def _loosely(self, text: str, start: int, line: int, column: int) -> Record | None:
        """The record as a dialect of a published round writes it, if it does."""
        if len(text) - start > LOOSE:
            return None
        text = text[start:]
        if self.format == "0.6":
            try:
                time_ms, key, at = head_06(text, 0)
            except Malformed:
                return None
            body = dialect.loosely(text[at:])
        else:
            body = dialect.loosely(text)
            if not isinstance(body, dict) or not isinstance(body.get("key"), str):
                return None
            key = body["key"]
            seconds = dialect.number(body.get("time_s"))
            if not dialect.is_number(seconds):
                return None
            time_ms = dialect.as_ms(seconds)
        if not isinstance(body, dict) or "value" not in body:
            return None
        return Record(line, column, time_ms, key, body["value"], body.get("metadata"))

    def _malformed(
        self, problem: Malformed, line: int, column: int, *, torn: bool, loose: bool
    ) -> None:
        # v0.6 was accepted with lines that other processes had written over (Intel).
        loose = loose or self.format == "0.6"
        profiles: tuple[Profile, ...] = BOTH if loose else PROFILES
        if torn:
            self._findings.add(
                "record.torn",
                "warning",
                PROFILES,
                expected="whole records",
                actual=problem.actual,
                line=line,
                column=column,
                hint="another process wrote into this line; let one process log",
            )
            return
        self._findings.add(
            problem.rule,
            "error",
            profiles,
            expected=problem.expected,
            actual=problem.actual,
            line=line,
            column=column,
            hint=problem.hint,
        )
        if loose:
            self._findings.add(
                "record.dialect",
                "warning",
                PUBLISHED,
                expected=problem.expected,
                actual=problem.actual,
                line=line,
                column=column,
                hint="accepted in its round",
            )

    def _trailing(self, rest: str, line: Line, end: int) -> None:
        self._findings.add(
            "record.trailing_text",
            "error",
            BOTH,
            expected="nothing after a record on its line",
            actual=shown(rest.strip()[:60]),
            line=line.number,
            column=line.offset + end + 1,
            hint="another process wrote into this line; let one process log",
        )

    def _glued(self, line: Line) -> None:
        self._findings.add(
            "record.glued",
            "warning",
            PROFILES,
            expected="one record a line",
            actual="two or more; all were read",
            line=line.number,
            column=line.offset + 1,
            hint="the official checker reads the last one alone",
        )

    def _foreign(self, line: Line) -> None:
        assert self.format is not None
        other: Format = "0.7" if self.format == "0.6" else "0.6"
        if TOKENS[other] not in line.text:
            self._no_token(line)
            return
        self.other_format += 1
        self._unseen(
            line,
            "record.other_format",
            f"records that start with {TOKENS[self.format].decode().strip()}",
            f"one that starts with {TOKENS[other].decode().strip()}",
        )

    def _no_token(self, line: Line) -> None:
        start = line.text[line.text.find(MARK) :][:20].decode("latin-1")
        self._unseen(
            line,
            "record.token",
            "a space after the token",
            shown(start),
            "did you mean ':::MLLOG {'? The official checker skips this line",
        )

    def _unseen(
        self, line: Line, rule: str, expected: str, actual: str, hint: str = ""
    ) -> None:
        """A mark that is no token of this format.

        The v0.6 checker takes it for a broken record; the later ones pass over it.
        """
        broken = self.format == "0.6"
        self._findings.add(
            rule,
            "error" if broken else "warning",
            OFFICIAL if broken else PROFILES,
            expected=expected,
            actual=actual,
            line=line.number,
            column=line.offset + line.text.find(MARK) + 1,
            hint=hint,
        )


def _format_of(text: bytes) -> Format | None:
    found = {name: text.find(token) for name, token in TOKENS.items()}
    seen = [(at, name) for name, at in found.items() if at >= 0]
    return min(seen)[1] if seen else None
