"""Which files under the paths given are logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlperf_tpu.errors import BadInput

RESULT = "result_"
SUFFIXES = (".txt", ".log")
# Entries of a tree that are looked at; the published v0.7 tree has 40,000.
ENTRIES = 500_000


def logs(paths: Iterable[Path]) -> list[Path]:
    """The logs among files and folders, each once, in the order given.

    In a folder: every result_*.txt and result_*.log below it, or if there is none every
    *.txt and *.log. Links are not followed in a folder. BadInput for a path that does
    not exist and for a folder without logs.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if str(path) == "-":
            found[path] = None
        elif path.is_dir():
            below = in_folder(path)
            if not below:
                raise BadInput(
                    f"no log in {path}: neither result_*.txt nor another *.txt or "
                    "*.log; give the folder that holds the results, or the files"
                )
            found.update(dict.fromkeys(below))
        elif os.path.lexists(path):
            found[path] = None
        else:
            raise BadInput(f"no such file or folder: {path}")
    if not found:
        raise BadInput("no log given: name files, folders, or - for stdin")
    return list(found)


def in_folder(folder: Path) -> list[Path]:
    """The logs of one folder, sorted: result_2 before result_10."""
    named: list[Path] = []
    others: list[Path] = []
    for path in entries(folder):
        if path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file():
            continue
        (named if path.name.startswith(RESULT) else others).append(path)
    return sorted(named or others, key=natural)


def entries(folder: Path) -> Iterator[Path]:
    """Every file below a folder, no link to a folder followed."""
    count = 0
    for root, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(files):
            count += 1
            if count > ENTRIES:
                raise BadInput(
                    f"{folder} holds more than {ENTRIES:,} files; give a folder in it"
                )
            yield Path(root, name)


def natural(path: Path) -> tuple[tuple[str, ...], tuple[tuple[int, str], ...]]:
    """A sort key by folder, then by name with the numbers in it as numbers."""
    import re

    parts = re.findall(r"\d+|\D+", path.name)
    key = tuple(
        (int(p), "") if p.isdecimal() and len(p) < 18 else (-1, p) for p in parts
    )
    return path.parent.parts, key
