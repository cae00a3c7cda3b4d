"""One line of an MLPerf log, taken apart.

Two formats: round 0.6 writes `:::MLL <seconds> <key>: {"value", "metadata"}`, rounds
from 0.7 on write `:::MLLOG {"namespace", "time_ms", "key", "value", "metadata"}`.
"""

from __future__ import annotations

import re
from json import JSONDecoder
from json.scanner import make_scanner
from typing import Any, Literal, NamedTuple

Format = Literal["0.6", "0.7"]

# Anything that starts a record, in either format.
MARK = b":::MLL"
TOKENS: dict[Format, bytes] = {"0.6": b":::MLL ", "0.7": b":::MLLOG "}
# Longest record read, in bytes. The longest published one has 2,100.
RECORD_LIMIT = 1 << 20

# A record exactly as mllog writes it, whose value and metadata nest no further: what
# matches is valid JSON with all its fields, which a match shows in a third of the time
# that parsing takes.
_TEXT = rb'"[^"\\\x00-\x1f]*"'
_NUMBER = rb"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SCALAR = rb"(?:" + _TEXT + rb"|" + _NUMBER + rb"|null|true|false)"
_FLAT = rb"\{(?:" + _TEXT + rb": " + _SCALAR + rb'(?:, (?=")|(?=\})))*\}'
CANONICAL = re.compile(
    rb':::MLLOG \{"namespace": ' + _TEXT + rb', "time_ms": [0-9]{1,15}, "event_type": '
    + _TEXT + rb', "key": ' + _TEXT + rb', "value": (?:' + _SCALAR + rb"|" + _FLAT
    + rb'), "metadata": ' + _FLAT + rb"\}"
)  # fmt: skip

scan: Any = make_scanner(JSONDecoder())  # type: ignore[arg-type]
_HEAD_06 = re.compile(r"([0-9.]+) ([A-Za-z0-9_]+) ?:\s+")
_DUPLICATED = ('"key"', '"value"', '"time_ms"', '"metadata"')


class Record(NamedTuple):
    """A record: where it stands (from 1), when it was written, what it says.

    `metadata` is as logged, so not always an object; None where 0.6 has none.
    """

    line: int
    column: int
    time_ms: float
    key: str
    value: Any
    metadata: Any


class Malformed(Exception):
    """A record that cannot be read: the rule it breaks, what was expected, what is."""

    def __init__(self, rule: str, expected: str, actual: str, hint: str = "") -> None:
        super().__init__(rule)
        self.rule, self.expected, self.actual, self.hint = rule, expected, actual, hint


def scan_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that starts at `start`, and where it ends.

    Raises Malformed for what is not JSON, nests too deep for the reader, or holds an
    integer past Python's limit of 4,300 digits (the official parser has it too).
    """
    if len(text) - start > RECORD_LIMIT:
        raise Malformed(
            "record.size",
            f"a record of at most {RECORD_LIMIT:,} bytes",
            f"{len(text) - start:,} bytes",
            "log large values to a file of their own",
        )
    while text.startswith((" ", "\t"), start):
        start += 1
    try:
        value, end = scan(text, start)
    except StopIteration:
        raise Malformed("record.json", "a JSON value", _excerpt(text, start)) from None
    except RecursionError:
        raise Malformed(
            "record.nesting",
            "a value whose lists and objects nest less than about 1,000 deep",
            _excerpt(text, start),
            "the official checker ends in a traceback on this record",
        ) from None
    except ValueError as error:
        at = getattr(error, "pos", start)
        reason = getattr(error, "msg", "") or "integer of more than 4,300 digits"
        raise Malformed(
            "record.json",
            "valid JSON",
            f"{reason} at {_excerpt(text, at)}",
            "one record a line, written by mllog, is always valid JSON",
        ) from None
    return value, end


def fields_07(body: Any) -> tuple[float, Any, Any, Any]:
    """(time_ms, key, value, metadata) of a 0.7 record; Malformed without them."""
    try:
        time_ms = body["time_ms"]
        fields = body["key"], body["value"], body["metadata"]
    except (KeyError, TypeError):
        raise _missing(body) from None
    return (_number_of_ms(time_ms), *fields)


def _number_of_ms(time_ms: Any) -> float:
    try:
        return float(time_ms)
    except (TypeError, ValueError, OverflowError):
        raise Malformed(
            "record.time",
            "time_ms as a number of milliseconds",
            f"time_ms {type(time_ms).__name__}: {str(time_ms)[:40]}",
            "mllog writes wall-clock milliseconds as an integer",
        ) from None


def _missing(body: Any) -> Malformed:
    if not isinstance(body, dict):
        return Malformed(
            "record.fields",
            "a JSON object with time_ms, key, value and metadata",
            f"a {type(body).__name__}",
        )
    gone = [n for n in ("time_ms", "key", "value", "metadata") if n not in body]
    hint = "the official checker ends in a traceback on this record"
    if gone == ["time_ms"] and "time_s" in body:
        hint = "did you mean time_ms? This record has time_s, which counts seconds"
    return Malformed(
        "record.fields", "time_ms, key, value and metadata", f"no {gone[0]}", hint
    )


def head_06(text: str, start: int) -> tuple[float, str, int]:
    """(time in ms, key, where the JSON starts) of a 0.6 record."""
    match = _HEAD_06.match(text, start)
    if match is None:
        raise Malformed(
            "record.json",
            ":::MLL <seconds> <key>: {JSON}",
            _excerpt(text, start),
        )
    try:
        return float(match[1]) * 1e3, match[2], match.end()
    except ValueError:
        raise Malformed(
            "record.time", "seconds as a decimal number", match[1][:40]
        ) from None


def repeated_names(text: str) -> list[str]:
    """Names that a record may hold twice; JSON keeps the last one silently.

    >>> repeated_names('{"value": 1, "value": 2}')
    ['value']
    """
    return [name.strip('"') for name in _DUPLICATED if text.count(name) > 1]


def _excerpt(text: str, at: int) -> str:
    piece = text[at : at + 60]
    return ascii(piece) if piece else "the end of the line"
