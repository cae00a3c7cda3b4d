"""Writes the MLPerf log of one run, through `mlperf_logging.mllog`.

Round 0.7.0 logs `:::MLLOG {json}` lines; round 0.6.0 `:::MLL <seconds> key: {json}`,
which mllog no longer writes and a formatter here makes of its records. Only the first
host opens a log. Each record is one write, so that a killed process leaves at most one
torn line, which `open_at` cuts off when the run resumes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from pathlib import Path
from typing import Any

# Room kept beside the log, given back when the disk is full, so that the run's end can
# still be written.
_RESERVE_BYTES = 64 * 1024


class RunLog:
    """One run's log file. Keys are MLPerf's; values JSON numbers, strings, null.

    Epochs are counted from 0 by callers and from 1 in the file (rules of 2020-06-01).
    """

    def __init__(self, path: Path, round_: str, offset: int | None = None) -> None:
        """Starts a new file, or with `offset` keeps so many bytes and goes on there."""
        from mlperf_logging.mllog.mllog import MLLogger

        self.path = path
        self._reserve = path.with_name(f".{path.name}.reserve")
        self._reserve.write_bytes(b"\0" * _RESERVE_BYTES)
        if offset is None:
            self._file = path.open("xb", buffering=0)
        else:
            self._file = path.open("r+b", buffering=0)
            self._file.truncate(offset)
            self._file.seek(offset)
        logger = logging.Logger(str(path), logging.INFO)
        handler = _Writer(self)
        if round_ == "0.6.0":
            handler.setFormatter(_Round06())
        logger.addHandler(handler)
        package = Path(__file__).resolve().parents[1]
        self._mllog = MLLogger(
            logger, default_stack_offset=2, root_dir=re.escape(str(package))
        )

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        self._mllog.event(key, _plain(value), _counted_from_one(metadata))

    def start(self, key: str, value: Any = None, **metadata: Any) -> None:
        self._mllog.start(key, _plain(value), _counted_from_one(metadata))

    def end(self, key: str, value: Any = None, **metadata: Any) -> None:
        self._mllog.end(key, _plain(value), _counted_from_one(metadata))

    def offset(self) -> int:
        """The file's length, all of it on the disk: where a resumed run goes on."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        self._reserve.unlink(missing_ok=True)

    def write_line(self, line: bytes) -> None:
        try:
            self._write_all(line)
        except OSError:
            if not self._reserve.exists():
                raise
            self._reserve.unlink()
            self._write_all(line)

    def _write_all(self, line: bytes) -> None:
        start = self._file.tell()
        try:
            written = self._file.write(line)
            while written < len(line):  # a nearly full disk takes a part
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            raise


class _Writer(logging.Handler):
    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:  # mllog could not encode the record
            raise ValueError(record.getMessage())
        self._log.write_line(self.format(record).encode() + b"\n")


class _Round06(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = json.loads(record.getMessage().removeprefix(":::MLLOG "))
        content = {"value": entry["value"], "metadata": entry["metadata"]}
        seconds = entry["time_ms"] / 1000
        return f":::MLL {seconds:.3f} {entry['key']}: {json.dumps(content)}"


def _plain(value: Any) -> Any:
    """A value JSON can hold. float32 noise is cut to the 7 digits float32 has; NaN and
    infinity, which JSON has no number for, are refused by name."""
    if hasattr(value, "item"):
        value = (
            float(f"{value.item():.7g}")
            if "float" in str(value.dtype)
            else value.item()
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _counted_from_one(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value + 1 if key in ("epoch_num", "first_epoch_num") else value
        for key, value in metadata.items()
    }
