"""The folder of a run: a piece of an MLPerf submission, enough by itself to resume.

<out>/<org>/results/<system>/<benchmark>/
    result_0.txt ...     the MLPerf logs
    run.json             what was asked for: the resolved spec, seeds, place, data
    summary.json         what came of it (design.md); there when all runs ended
    checkpoints/result_0/step_00000023.npz ...
    lock                 held by the process that trains
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mlperf_tpu.errors import BadInput


@dataclass
class RunFolder:
    path: Path
    _lock: TextIO

    @classmethod
    def create(cls, path: Path, record: dict[str, Any]) -> RunFolder:
        """A new run's folder. Refuses one that holds another run, or is in use."""
        _make(path)
        folder = cls(path, _take_lock(path))
        try:
            folder._refuse_another_run()
        except BadInput:
            folder.close()
            raise
        write_json(path / "run.json", record)
        return folder

    def _refuse_another_run(self) -> None:
        for name, remedy in (
            ("summary.json", "give another --out"),
            ("run.json", f"continue it by --resume {self.path}, or give another --out"),
        ):
            if (self.path / name).exists():
                kind = "a finished" if name == "summary.json" else "an unfinished"
                raise BadInput(f"{self.path} already holds {kind} run; {remedy}")

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """An unfinished run's folder, to go on with."""
        if not (path / "run.json").is_file():
            raise BadInput(
                f"{path} is no run's folder: it holds no run.json; give the folder "
                "that holds result_0.txt (<out>/<org>/results/<system>/<benchmark>)"
            )
        if (path / "summary.json").exists():
            raise BadInput(f"the run in {path} is finished; there is nothing to resume")
        return cls(path, _take_lock(path))

    def record(self) -> dict[str, Any]:
        """What was asked for, as `create` was given it."""
        return read_json(self.path / "run.json")

    def log(self, run: int) -> Path:
        return self.path / f"result_{run}.txt"

    def checkpoints(self, run: int) -> Path:
        return self.path / "checkpoints" / f"result_{run}"

    def result(self, run: int) -> Path:
        """The finished run's entry of the summary."""
        return self.path / "checkpoints" / f"result_{run}.json"

    def close(self) -> None:
        self._lock.close()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes the whole file or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_json(path: Path) -> dict[str, Any]:
    """Raises BadInput for a file that cannot be read or holds no JSON object."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds no JSON object")
    return content


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"--out: cannot make {path}: {error.strerror}; give a folder that can be "
            "written"
        ) from error


def _take_lock(path: Path) -> TextIO:
    try:
        file = (path / "lock").open("a+")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise BadInput(
            f"{path} is in use by another process (pid {holder}); wait for it, or give "
            "another --out"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
