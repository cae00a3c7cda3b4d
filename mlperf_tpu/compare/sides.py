"""One side of a comparison: the runs of one entry, from logs or from a stored score."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import BadInput
from mlperf_tpu.log import score, source

STORED_LIMIT = 64 << 20
_WRONG = (ValueError, KeyError, TypeError, RecursionError, AssertionError)


@dataclass(frozen=True)
class SideRun:
    """One run: seconds on the clock and what made them up; None where not logged."""

    name: str
    status: str
    reason: str
    seconds: float | None
    epochs: float | None
    s_per_epoch: float | None
    evaluation_s: float | None
    initialization_s: float | None


@dataclass(frozen=True)
class Side:
    """The runs of one benchmark on one system, and what they were run with."""

    path: str
    system: str
    benchmark: str
    ruleset: str
    task: str
    target: dict[str, float] | None
    settings: dict[str, Any]
    runs: tuple[SideRun, ...]
    score_minutes: float | None  # the olympic mean

    @property
    def converged(self) -> int:
        return sum(run.status == "success" for run in self.runs)

    def metric(self, name: str) -> list[float]:
        """A metric's value in each run, infinite where a run did not converge.

        Empty where a run does not log it. Only what depends on convergence is
        infinite; a run's time per epoch is its time per epoch however it ended.
        """
        values = []
        for run in self.runs:
            field = "seconds" if name == "time_to_train_s" else name
            value: float | None = getattr(run, field)
            if run.status != "success" and name in ("time_to_train_s", "epochs"):
                value = math.inf
            if value is None or not value > 0:
                return []
            values.append(value)
        return values

    def document(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "system": self.system,
            "benchmark": self.benchmark,
            "ruleset": self.ruleset,
            "task": self.task,
            "runs": len(self.runs),
            "converged": self.converged,
            "score_minutes": self.score_minutes,
        }


def load(path: Path, ruleset: str | None = None) -> Side:
    """Reads one side: a folder or file of logs, or what `score --json` wrote.

    Raises BadInput unless it holds exactly one entry.
    """
    if path.suffix == ".json" and path.is_file():
        documents = _stored(path)
    else:
        documents = [entry.document() for entry in score.entries([path], ruleset)]
    if len(documents) != 1:
        names = ", ".join(
            f"{d.get('system')}/{d.get('benchmark')} ({d.get('ruleset')})"
            for d in documents[:8]
        )
        raise BadInput(
            f"{path} holds {len(documents)} entries, where one is compared: {names}; "
            "give the folder of one"
        )
    return _side(path, documents[0])


def _stored(path: Path) -> list[dict[str, Any]]:
    try:
        with source.open_log(path) as file:
            text = file.read(STORED_LIMIT)
        document = json.loads(text)
        entries = document["entries"]
        assert all(isinstance(entry, dict) for entry in entries)
        return list(entries)
    except (source.Unreadable, *_WRONG) as error:
        raise _not_stored(path, error) from None


def _not_stored(path: Path, error: BaseException) -> BadInput:
    return BadInput(
        f"{path} is no stored score ({type(error).__name__}); write one with "
        "`mlperf-tpu score RUNS --json > baseline.json`"
    )


def _side(path: Path, document: dict[str, Any]) -> Side:
    try:
        runs = tuple(_run(run) for run in document["runs"])
        side = Side(
            path=str(path),
            system=str(document["system"]),
            benchmark=str(document["benchmark"]),
            ruleset=str(document["ruleset"]),
            task=str(document["task"]),
            target=document["target"],
            settings=dict(document["settings"]),
            runs=runs,
            score_minutes=_number(document["score_minutes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_stored(path, error) from None
    if not side.runs:
        raise BadInput(f"{path} holds no run; give a folder with result_*.txt")
    return side


def _run(document: dict[str, Any]) -> SideRun:
    return SideRun(
        name=Path(document["path"]).name,
        status=str(document["status"]),
        reason=str(document["reason"]),
        seconds=_number(document["seconds"]),
        epochs=_number(document["epochs"] or document["evaluations"]),
        s_per_epoch=_number(document["s_per_epoch"]),
        evaluation_s=_number(document["evaluation_s"]),
        initialization_s=_number(document["initialization_s"]),
    )


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number
