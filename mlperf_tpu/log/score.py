"""Time to train of each run, and the score of each entry.

The score is the olympic mean: the fastest and the slowest run dropped, the rest
averaged. One run that did not converge may be the slowest; two make it infinite
(training_policies issue 361). The clock starts with the earliest run_start of any
process: the official summarizer takes the last one, and so flatters some logs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlperf_tpu.log import dialect, find, source
from mlperf_tpu.log.clock import TOLERANCE_MS, UNNUMBERED
from mlperf_tpu.log.findings import shown
from mlperf_tpu.log.rulesets import OWN, ruleset
from mlperf_tpu.log.run import Evaluation, Run
from mlperf_tpu.log.target import reach
from mlperf_tpu.log.validate import FileReport, Options, validate_many

SUMMARY_LIMIT = 1 << 20
# Fewest runs that leave one when the fastest and the slowest are dropped.
LEAST = 3


@dataclass
class RunScore:
    """One run: seconds on the clock, what it trained, and its part in the score.

    `epochs` is the label of the last evaluation within the clock. `epochs_trained`
    corrects labels that count from 0 (v0.6 Mask R-CNN); None where they are no epochs.
    """

    path: str
    seconds: float | None
    status: str  # success, not_converged, invalid
    reason: str
    epochs: float | None
    epochs_trained: float | None
    evaluations: int
    evaluation_s: float | None
    initialization_s: float | None
    dropped: str = ""  # why the run does not count towards the mean

    @property
    def s_per_epoch(self) -> float | None:
        if self.seconds is None or not self.epochs_trained:
            return None
        return self.seconds / self.epochs_trained

    def document(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "status": self.status,
            "dropped": self.dropped or None,
            "reason": self.reason,
            "epochs_trained": self.epochs_trained,
            "s_per_epoch": self.s_per_epoch,
            "evaluations": self.evaluations,
            "evaluation_s": self.evaluation_s,
            "initialization_s": self.initialization_s,
        }


@dataclass
class Entry:
    """One benchmark on one system in one round, with its runs."""

    folder: str
    system: str
    benchmark: str
    ruleset: str
    runs: list[RunScore]
    settings: dict[str, Any]  # hyperparameters and sizes that all runs log
    target: dict[str, float] | None
    task: str  # full, or proxy: another data set than the benchmark's
    score_minutes: float | None
    note: str
    reports: list[FileReport] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "benchmark": self.benchmark,
            "ruleset": self.ruleset,
            "score_minutes": self.score_minutes,
            "note": self.note,
            "folder": self.folder,
            "settings": self.settings,
            "target": self.target,
            "task": self.task,
            "runs": [run.document() for run in self.runs],
        }


def entries(paths: Iterable[Path], asked: str | None = None) -> list[Entry]:
    """The entries of the logs under the paths: the logs of one folder are one entry."""
    paths = list(paths)
    options = Options(ruleset=asked, keep_run=True)
    reports = validate_many(find.logs(paths), options)
    folders = [path for path in paths if path.is_dir()]
    groups: dict[tuple[str, str, str], list[FileReport]] = {}
    for report in reports:
        key = str(Path(report.path).parent), report.ruleset, report.benchmark or "?"
        groups.setdefault(key, []).append(report)
    return [
        _entry(*key, group, _summary(Path(key[0]), folders))
        for key, group in groups.items()
    ]


def _summary(folder: Path, given: Sequence[Path]) -> dict[str, Any]:
    """What `train` wrote of these logs, in a folder given or below; empty if none."""
    above = [
        one / "summary.json"
        for one in (folder, *folder.parents)
        if any(one.is_relative_to(root) for root in given)
    ]
    path = next((p for p in above if p.is_file() and not p.is_symlink()), None)
    if path is None:
        return {}
    try:
        with source.open_log(path) as file:
            summary = json.loads(file.read(SUMMARY_LIMIT))
    except (source.Unreadable, ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _entry(
    folder: str,
    ruleset_name: str,
    benchmark: str,
    reports: list[FileReport],
    summary: dict[str, Any],
) -> Entry:
    runs = [run_score(report) for report in reports]
    score_s, note = olympic_mean(runs)
    due = None
    if ruleset_name in OWN:
        due = ruleset(ruleset_name).runs.get(benchmark)
    if due is not None and len(runs) != due:
        note = f"{note}; " if note else ""
        note += f"{len(runs)} of the {due} runs that the round asks for"
    minutes = None if score_s is None else score_s / 60
    return Entry(
        folder=folder,
        system=_system(folder, reports),
        benchmark=benchmark,
        ruleset=ruleset_name,
        runs=runs,
        settings=_settings(reports),
        target=_target(ruleset_name, benchmark, summary),
        task="proxy" if summary.get("task") == "proxy" else _task(reports),
        score_minutes=minutes,
        note=note,
        reports=reports,
    )


def _settings(reports: Sequence[FileReport]) -> dict[str, Any]:
    """Every value that the first run logs outside its time line, as JSON text."""
    run = reports[0].run
    if run is None:
        return {}
    return {
        key: shown(values.first)
        for key, values in sorted(run.values.items())
        if values.first is not None and key not in ("cache_clear", "submission_entry")
    }


def _target(
    ruleset_name: str, benchmark: str, summary: dict[str, Any]
) -> dict[str, float] | None:
    """The run's own target where `train` says it, else the round's."""
    own = summary.get("target")
    if isinstance(own, dict) and dialect.is_number(own.get("value")):
        return {"value": own["value"]}
    if ruleset_name not in OWN:
        return None
    return ruleset(ruleset_name).targets.get(benchmark)


def _task(reports: Sequence[FileReport]) -> str:
    proxy = any(
        finding.rule == "eval_samples.data_set" and finding.severity == "warning"
        for report in reports
        for finding in report.findings
    )
    return "proxy" if proxy else "full"


def _system(folder: str, reports: Sequence[FileReport]) -> str:
    """The system as <system>/<benchmark>/ names it, else as the log does."""
    parts = Path(folder).parts
    if Path(reports[0].path).name.startswith(find.RESULT) and len(parts) > 1:
        return parts[-2]
    run = reports[0].run
    return str(run.value("submission_platform") or "?")[:80] if run else "?"


def run_score(report: FileReport) -> RunScore:
    """What one log says of its run, for the score."""
    run = report.run
    if run is None or run.n_records == 0:
        reason = f"{report.findings[0].places[0].actual}" if report.findings else ""
        return RunScore(
            report.path,
            None,
            "invalid",
            reason or "unreadable",
            None,
            None,
            0,
            None,
            None,
        )
    seconds = run.seconds
    status, reason = _status(report, run, seconds)
    scored = within_clock(run)
    labels = [e.epoch for e in scored if dialect.is_number(e.epoch)]
    epochs = labels[-1] if labels else None
    trained = None
    if labels and run.benchmark not in UNNUMBERED:
        trained = labels[-1] + (1 if labels[0] == 0 else 0)
    return RunScore(
        path=report.path,
        seconds=None if seconds is None or not math.isfinite(seconds) else seconds,
        status=status,
        reason=reason,
        epochs=epochs,
        epochs_trained=trained or None,
        evaluations=len(scored),
        evaluation_s=_evaluation_seconds(run),
        initialization_s=_between(run, "init_start", "init_stop"),
    )


def within_clock(run: Run) -> list[Evaluation]:
    """Evaluations up to run_stop, by time: some logs go on evaluating after it."""
    stop = run.stop
    limit = stop.time_ms + TOLERANCE_MS if stop else math.inf
    if run.benchmark == "minigo":
        limit = math.inf  # Evaluated off the clock.
    return sorted(
        (e for e in run.evaluations if e.time_ms <= limit), key=lambda e: e.time_ms
    )


def _status(report: FileReport, run: Run, seconds: float | None) -> tuple[str, str]:
    if seconds is None:
        return "invalid", "no run_start or no run_stop"
    if not 0 < seconds < math.inf:
        return "invalid", f"{seconds:,.3f} s from run_start to run_stop"
    if run.status != "success":
        return "not_converged", f"status {str(run.status)[:40]}"
    if report.ruleset in OWN:
        rules = ruleset(report.ruleset)
        if run.benchmark in rules.targets:
            hit = reach(run, rules, lenient=True).first
            if hit is None:
                return "not_converged", "target not reached"
            late = (
                run.stop is not None and hit.time_ms > run.stop.time_ms + TOLERANCE_MS
            )
            if late and run.benchmark != "minigo":
                return "not_converged", "target reached after run_stop"
    return "success", ""


def _between(run: Run, start: str, stop: str) -> float | None:
    if start not in run.first or stop not in run.last:
        return None
    seconds = (run.last[stop].time_ms - run.first[start].time_ms) / 1e3
    return seconds if math.isfinite(seconds) else None


def _evaluation_seconds(run: Run) -> float | None:
    """Seconds of the clock from eval_start to eval_stop; None where not logged."""
    limit = run.stop.time_ms if run.stop else math.inf
    total, began, found = 0.0, None, False
    for span in sorted(run.spans, key=lambda s: s.time_ms):
        if span.time_ms > limit:
            break
        if span.key == "eval_start" and began is None:
            began = span.time_ms
        elif span.key == "eval_stop" and began is not None:
            total += span.time_ms - began
            began, found = None, True
    return total / 1e3 if found else None


def olympic_mean(runs: Sequence[RunScore]) -> tuple[float | None, str]:
    """(mean seconds without the fastest and the slowest, a note where there is none).

    Marks the runs it drops. A run that did not converge is slower than any other.
    """
    invalid = [run for run in runs if run.status == "invalid"]
    if invalid:
        for run in invalid:
            run.dropped = run.reason
        return None, f"{len(invalid)} of {len(runs)} runs have no usable time"
    if len(runs) < LEAST:
        return None, f"the mean needs at least {LEAST} runs"
    order = sorted(runs, key=_slowness)
    slow = [run for run in runs if run.status != "success"]
    order[0].dropped = "fastest"
    order[-1].dropped = "did not converge" if slow else "slowest"
    if len(slow) > 1:
        return None, f"{len(slow)} runs did not converge; the score allows one"
    middle = [run.seconds for run in order[1:-1] if run.seconds is not None]
    return math.fsum(middle) / len(middle), ""


def _slowness(run: RunScore) -> tuple[bool, float]:
    return run.status != "success", run.seconds or math.inf


# Outputs.

COLUMNS = (
    "system", "benchmark", "ruleset", "score_minutes", "speed_up", "path", "seconds",
    "epochs", "s_per_epoch", "status", "dropped",
)  # fmt: skip


def rows(
    found: Sequence[Entry], reference_minutes: float | None = None
) -> list[dict[str, Any]]:
    """One row a run, an entry's score repeated in each: for CSV and Markdown."""
    result = []
    for entry in found:
        speed_up = None
        if reference_minutes and entry.score_minutes:
            speed_up = reference_minutes / entry.score_minutes
        for run in entry.runs:
            values = {**entry.document(), **run.document(), "speed_up": speed_up}
            result.append({name: values[name] for name in COLUMNS})
    return result


def as_csv(table: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow(
            {
                name: _cell(value) if isinstance(value, str) else value
                for name, value in row.items()
            }
        )
    return out.getvalue()


def _cell(text: str) -> str:
    """Text without what a spreadsheet would run or an encoder refuse."""
    text = text.encode("utf-8", "replace").decode()
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
