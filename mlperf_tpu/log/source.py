"""Bytes of a log, opened with care and cut into the lines that may hold a record.

A log is text of unknown origin: it may be a device, gigabytes without a newline,
UTF-16, or no log at all. Nothing here reads more than one chunk and one line at a time.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mlperf_tpu.log.findings import BOTH, OFFICIAL, PROFILES, PUBLISHED, Findings
from mlperf_tpu.log.records import MARK

CHUNK = 1 << 20
# A line longer than this without any record in its reach is skipped.
LINE_LIMIT = 8 << 20
# Past this an input is no log: the largest published one has 3.4 MB.
INPUT_LIMIT = 4 << 30
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Unreadable(Exception):
    """The input cannot be read as a log: the rule, what it is, and the remedy."""

    def __init__(self, rule: str, actual: str, hint: str) -> None:
        super().__init__(actual)
        self.rule, self.actual, self.hint = rule, actual, hint


class Line(NamedTuple):
    """A line with a record's mark in it; `offset` is its place in the physical line."""

    number: int
    offset: int
    text: bytes


def open_log(path: Path) -> BinaryIO:
    """Opens a regular file (or stdin for "-"); Unreadable for anything else.

    O_NONBLOCK keeps the opening of a FIFO from waiting for its writer; what was opened
    is asked, not the path, so that nothing can be put in its place in between.
    """
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreadable(
            "input.open", reason, "check that the path exists and may be read"
        ) from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        kind = next((name for test, name in _KINDS if test(mode)), "no regular file")
        raise Unreadable(
            "input.kind", kind, "give a regular file, or pipe the log in and give -"
        )
    return os.fdopen(number, "rb", buffering=0)


def lines(stream: BinaryIO, findings: Findings) -> Iterator[Line]:
    """The lines that hold a record's mark, with their physical numbers from 1.

    Lines end at \\n or \\r\\n; a lone \\r cuts a line into pieces of the same number
    (progress bars), except in a file without any \\n, where it ends lines.
    """
    first = _read(stream)
    encoding = _encoding(first)
    if encoding is None and _is_binary(first):
        raise Unreadable(
            "input.binary", "binary data", "give the text log, decompressed"
        )
    chunks = _chunks(first, stream, findings)
    if encoding is not None:
        _say_encoding(encoding, findings)
        chunks = _decoded(chunks, encoding)
    only_cr = b"\r" in first and b"\n" not in first and encoding is None
    yield from _split(chunks, findings, only_cr)


def _read(stream: BinaryIO) -> bytes:
    try:
        return stream.read(CHUNK) or b""
    except OSError as error:
        raise Unreadable(
            "input.read", error.strerror or str(error), "copy the file elsewhere first"
        ) from None


def _chunks(first: bytes, stream: BinaryIO, findings: Findings) -> Iterator[bytes]:
    size, chunk = 0, first
    while chunk:
        yield chunk
        size += len(chunk)
        if size >= INPUT_LIMIT:
            findings.add(
                "input.size",
                "error",
                PROFILES,
                expected=f"a log of at most {INPUT_LIMIT >> 30} GiB",
                actual="more; the rest was not read",
            )
            return
        chunk = _read(stream)


def _encoding(start: bytes) -> str | None:
    """The name of a 16- or 32-bit encoding, by its mark or by where its NULs are."""
    for bom, name in _BOMS:
        if start.startswith(bom):
            return name
    head = start[:4096]
    if len(head) >= 16 and head.count(0) > len(head) // 3:
        if not any(head[0::2]) and any(head[1::2]):
            return "utf-16-be"
        if head[1::2].count(0) > len(head) // 3 and head[0::2].count(0) == 0:
            return "utf-16-le"
        if head[0::2].count(0) > len(head) // 3 and head[1::2].count(0) == 0:
            return "utf-16-be"
    return None


def _is_binary(start: bytes) -> bool:
    """Many control characters and no record: an image, an archive, a checkpoint."""
    if MARK in start or not start:
        return False
    head = start[:65536]
    control = len(head) - len(head.translate(None, bytes(range(9)) + b"\x0e\x0f\x7f"))
    return control > len(head) // 50 or start.startswith((b"\x1f\x8b", b"PK\x03\x04"))


def _say_encoding(encoding: str, findings: Findings) -> None:
    expected, actual = "UTF-8 text", encoding.upper()
    hint = f"convert it: iconv -f {encoding} -t utf-8 LOG"
    findings.add(
        "input.encoding",
        "error",
        OFFICIAL,
        expected=expected,
        actual=f"{actual}, in which the official checker finds no record",
        line=1,
        column=1,
        hint=hint,
    )
    findings.add(
        "input.encoding",
        "warning",
        ("rules", *PUBLISHED),
        expected=expected,
        actual=actual,
        line=1,
        column=1,
        hint=hint,
    )


def _decoded(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for chunk in chunks:
        for start in range(0, len(chunk), CHUNK // 4):
            piece = decoder.decode(chunk[start : start + CHUNK // 4])
            yield piece.encode("utf-8", "replace")


def _split(
    chunks: Iterator[bytes], findings: Findings, only_cr: bool
) -> Iterator[Line]:
    number, rest, skipping = 1, b"", False
    for chunk in chunks:
        if only_cr:
            chunk = chunk.replace(b"\r", b"\n")
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest, skipping = _grown(rest, chunk, skipping, number, findings)
            continue
        block = rest + chunk[:cut] if not skipping else chunk[:cut]
        rest = chunk[cut:]
        if skipping:
            skipping = False
            number += 1
            block = block[block.find(b"\n") + 1 :]
        if MARK in block:
            yield from _marked(block, number)
        number += block.count(b"\n")
    if MARK in rest:
        yield from _marked(rest, number)


def _grown(
    rest: bytes, chunk: bytes, skipping: bool, number: int, findings: Findings
) -> tuple[bytes, bool]:
    """A line that goes on past its chunk; past LINE_LIMIT it is given up, and said."""
    if skipping or len(rest) + len(chunk) > LINE_LIMIT:
        if not skipping:
            findings.add(
                "record.size",
                "error" if MARK in rest or MARK in chunk else "note",
                PROFILES,
                expected=f"lines of at most {LINE_LIMIT >> 20} MiB",
                actual="a longer line, which was not read",
                line=number,
                column=1,
            )
        return b"", True
    return rest + chunk, False


def _marked(block: bytes, number: int) -> Iterator[Line]:
    if b"\r" not in block:
        for line in block.split(b"\n"):
            if MARK in line:
                yield Line(number, 0, line)
            number += 1
        return
    for line in block.split(b"\n"):
        if MARK in line:
            offset = 0
            for piece in line.split(b"\r"):
                if MARK in piece:
                    yield Line(number, offset, piece)
                offset += len(piece) + 1
        number += 1


def no_records(findings: Findings, what: str, hint: str) -> None:
    """The one finding of a log that holds no record at all."""
    findings.add(
        "log.empty",
        "error",
        (*BOTH, *PUBLISHED),
        expected="MLPerf log lines (:::MLLOG or :::MLL)",
        actual=what,
        hint=hint,
    )
