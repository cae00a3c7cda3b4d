"""Runs mlperf_logging's compliance checker on one log, guarded, and prints JSON.

A program of its own (official_tool.py starts it), called with a ruleset, a path, the
memory in MB and the seconds it may take. It imports nothing of this project.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import resource
import sys
from typing import Any

FORBIDDEN = (
    "subprocess.",
    "socket.",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.system",
)
_IN_LINE = re.compile(r"failed in line (\d+)")


def guard(log: str, roots: list[str]) -> None:
    """Lets Python open the log and what lies under `roots` to read, nothing else."""
    allowed = tuple(os.path.realpath(root) + os.sep for root in roots)
    own = os.path.realpath(log)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")
        if event != "open" or not isinstance(args[0], str | bytes):
            return
        path, flags = os.path.realpath(os.fsdecode(args[0])), args[2]
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        if isinstance(flags, int) and flags & writes:
            raise PermissionError(f"writing {path} is not allowed here")
        if path != own and not path.startswith(allowed):
            raise PermissionError(f"opening {path} is not allowed here")

    sys.addaudithook(hook)


def limit(memory_mb: int, seconds: int) -> None:
    size = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def record_lines(path: str) -> list[int]:
    """The physical line of each line that the checker counts; it counts from 0."""
    numbers, line = [], 0
    with open(path, encoding="latin-1") as file:
        for line, text in enumerate(file, 1):
            if ":::MLLOG " in text:
                numbers.append(line)
    return numbers


def message(
    key: str | None, text: str, warning: bool, lines: list[int]
) -> dict[str, Any]:
    """One of the checker's messages, its Python kept out of sight where possible."""
    found = _IN_LINE.search(text)
    at = int(found[1]) if found else -1
    test = re.search(r"failed test: (.*)", text)
    parts = text.split("\n")
    kind, expected, actual = "check", "", parts[0]
    if parts[0].startswith("Required"):
        kind = "count"
        expected, _, actual = (
            parts[0].removeprefix("Required ").partition(" but found ")
        )
    elif parts[0].startswith("Failed checks for"):
        kind, actual = "never", "no record of the log passes"
        expected = text.partition(" : ")[2].strip()
        key = parts[0].split()[3]
    elif test is not None:
        expected, actual = test[1].strip(), logged(parts[1])
    elif len(parts) > 1 and parts[0].startswith("Failed executing"):
        expected = parts[1].strip()
        actual = "the test cannot be evaluated on this record"
    return {
        "key": key,
        "kind": kind,
        "expected": plainly(expected)[:300] or "what the checker tests",
        "actual": plainly(actual)[:300],
        "line": lines[at] if 0 <= at < len(lines) else 0,
        "warning": warning,
    }


def plainly(text: str) -> str:
    """The checker's Python and counts as words, as far as a pattern goes."""
    text = re.sub(r"(EXACTLY_ONE|AT_LEAST_ONE) occurrence of", _count_words, text)
    text = re.sub(r"v\['(value|metadata)'\]", r"\1", text)
    text = re.sub(r"\b[sv]\['(\w+)'\]", r"\1", text)
    return text.replace("ll.timestamp", "time_ms").replace("'", "")


def _count_words(match: re.Match[str]) -> str:
    return "exactly one" if match[1] == "EXACTLY_ONE" else "at least one"


def logged(record: str) -> str:
    """Value and metadata of a record that a message repeats whole."""
    try:
        body = json.loads(record.partition(":::MLLOG ")[2])
        rest = {
            k: v for k, v in body["metadata"].items() if k not in ("file", "lineno")
        }
        return json.dumps(body["value"]) + (
            f", metadata {json.dumps(rest)}" if rest else ""
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return record


def check(name: str, path: str) -> dict[str, Any]:
    try:
        from mlperf_logging.compliance_checker import mlp_compliance
    except ImportError as error:
        return {"verdict": "missing", "error": str(error)}
    package = os.path.dirname(mlp_compliance.__file__)
    guard(path, [package, *{p for p in sys.path if p}, os.path.dirname(os.__file__)])
    logging.disable(logging.CRITICAL)
    checker = mlp_compliance.make_checker("training", name, False, False)
    try:
        good = mlp_compliance.main(path, f"training_{name}/common.yaml", checker)[0]
    except MemoryError:
        return {"verdict": "crash", "error": "out of the memory it is given"}
    except BaseException as error:
        return {"verdict": "crash", "error": f"{type(error).__name__}: {error}"[:300]}
    lines = record_lines(path)
    messages = [message(k, t, False, lines) for k, t in checker.overwritable.items()]
    messages += [message(None, t, False, lines) for t in checker.not_overwritable]
    messages += [message(k, t, True, lines) for k, t in checker.warnings.items()]
    return {"verdict": "pass" if good else "fail", "messages": messages}


def main() -> None:
    name, path, memory_mb, seconds, packages = sys.argv[1:6]
    sys.path.append(packages)
    limit(int(memory_mb), int(seconds))
    printed, sys.stdout = sys.stdout, io.StringIO()
    try:
        answer = check(name, path)
    except MemoryError:
        answer = {"verdict": "crash", "error": "out of the memory it is given"}
    print(json.dumps(answer), file=printed)


if __name__ == "__main__":
    main()
