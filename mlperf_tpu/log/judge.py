"""What follows from a run's facts: target, schedule, numbering, table, data.

Each rule says for which profile it counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from mlperf_tpu.log import dialect
from mlperf_tpu.log.clock import TOLERANCE_MS, UNNUMBERED
from mlperf_tpu.log.conditions import CANNOT
from mlperf_tpu.log.findings import (
    BOTH,
    PROFILES,
    PUBLISHED,
    RULES,
    Findings,
    Profile,
    Severity,
    shown,
)
from mlperf_tpu.log.records import Record
from mlperf_tpu.log.rulesets import Row, Ruleset
from mlperf_tpu.log.run import Evaluation, Logged, Run
from mlperf_tpu.log.target import Reach, best, reach, target_text

_WHY_WARNS = (
    "only a warning: the round's verifier does not test it, and v0.7 lets the verifier "
    "win over the table"
)


def judge_target(run: Run, rules: Ruleset, findings: Findings) -> None:
    """The target: reached, before the clock stopped, by a number."""
    targets = rules.targets.get(run.benchmark or "")
    if targets is None:
        return
    strict = reach(run, rules, lenient=False)
    lenient = reach(run, rules, lenient=True)
    if not rules.verifier_ignores_target:
        _judge_values(strict, lenient, rules.targets[run.benchmark or ""], findings)
        _judge_reached(run, strict, targets, BOTH, findings)
        _judge_reached(run, lenient, targets, PUBLISHED, findings)
    else:
        _judge_reached(run, lenient, targets, ("rules", *PUBLISHED), findings)
    for one in lenient.not_finite:
        findings.add(
            "eval_accuracy.not_finite",
            "warning",
            PROFILES,
            expected="a finite number (JSON has no NaN)",
            actual=shown(one.value),
            line=one.line,
        )


def _judge_values(
    strict: Reach, lenient: Reach, targets: dict[str, float], findings: Findings
) -> None:
    readable = {e.line for e in strict.unusable} - {e.line for e in lenient.unusable}
    expected = "a number between 0 and 1"
    if "BBOX" in targets:
        expected = "an object with the numbers BBOX and SEGM"
    for one in strict.unusable:
        published: tuple[Profile, ...] = () if one.line in readable else PUBLISHED
        findings.add(
            "eval_accuracy.value",
            "error",
            (*BOTH, *published),
            expected=expected,
            actual=shown(one.value),
            line=one.line,
            hint=_value_hint(one.value, targets),
        )


def _value_hint(value: Any, targets: dict[str, float]) -> str:
    if isinstance(value, dict) and {str(k).upper() for k in value} >= {"BBOX", "SEGM"}:
        return "did you mean BBOX and SEGM, in capitals?"
    if isinstance(value, str):
        return "log the number itself, not a string"
    return "the official checker ends in a traceback on this value"


def _judge_reached(
    run: Run,
    result: Reach,
    targets: dict[str, float],
    profiles: tuple[Profile, ...],
    findings: Findings,
) -> None:
    stop = run.stop
    if result.first is None:
        if run.status == "success":
            findings.add(
                "target.not_reached",
                "error",
                profiles,
                expected=f"an evaluation at {target_text(targets)} or above, below 1",
                actual=best(run),
                line=stop.line if stop else 0,
            )
        return
    if run.status != "success":
        return
    # Minigo's evaluations run off the clock, after it (v0.7 rules).
    if run.benchmark == "minigo":
        return
    if stop and result.first.time_ms > stop.time_ms + TOLERANCE_MS:
        late = (result.first.time_ms - stop.time_ms) / 1e3
        findings.add(
            "target.after_run_stop",
            "error",
            profiles,
            expected="the target reached before run_stop",
            actual=f"first reached {late:,.1f} s after run_stop",
            line=result.first.line,
        )


def judge_rules(run: Run, rules: Ruleset, findings: Findings) -> None:
    """The written rules that need a benchmark: schedule, numbering, table, data."""
    benchmark = run.benchmark
    if benchmark is None or benchmark not in rules.targets:
        return
    if rules.format == "0.6":
        judge_presence(run, RULES, findings)
    _judge_numbering(run, rules, findings)
    if run.value("submission_division") == "closed":
        _judge_schedule(run, rules, findings)
        _judge_table(run, rules, findings)
    _judge_data(run, rules.data.get(benchmark, {}), findings)


def judge_published(run: Run, benchmarks: Iterable[str], findings: Findings) -> None:
    """What every accepted log of a round has in common."""
    judge_presence(run, PUBLISHED, findings)
    division = run.value("submission_division")
    for key, value, known in (
        ("submission_division", division, ("closed", "open")),
        ("submission_benchmark", run.benchmark, tuple(benchmarks)),
    ):
        if key in run.values and value not in known:
            findings.add(
                f"{key}.choice",
                "error",
                PUBLISHED,
                expected=f"one of {', '.join(known)}",
                actual=shown(value),
                line=run.values[key].kept[0].line,
            )


def judge_presence(run: Run, profiles: tuple[Profile, ...], findings: Findings) -> None:
    """The few records without which no round's log says anything."""
    missing = [k for k in ("init_start", "run_start") if k not in run.first]
    if not run.stops and not run.results:
        missing.append("run_stop")
    if not run.evaluations:
        missing.append("eval_accuracy")
    for key in ("submission_benchmark", "submission_division"):
        if key not in run.values:
            missing.append(key)
    for key in missing:
        findings.add(
            f"{key}.missing",
            "error",
            profiles,
            expected=f"at least one {key}",
            actual="none",
        )


def _scored(run: Run) -> list[Evaluation]:
    """Evaluations up to the end of the clock, in the order of time."""
    stop = run.stop
    limit = stop.time_ms + TOLERANCE_MS if stop else float("inf")
    kept = [e for e in run.evaluations if e.time_ms <= limit]
    return sorted(kept, key=lambda e: e.time_ms)


def _judge_numbering(run: Run, rules: Ruleset, findings: Findings) -> None:
    if run.benchmark in UNNUMBERED:
        return
    severity: Severity = "error" if rules.format != "0.6" else "warning"
    previous: Evaluation | None = None
    for one in _scored(run):
        if not dialect.is_number(one.epoch):
            continue
        if previous is not None and one.epoch <= previous.epoch:
            again = one.epoch == previous.epoch and one.value == previous.value
            findings.add(
                "epoch_num.rising",
                "warning" if again else severity,
                RULES,
                expected="evaluations of ever later epochs"
                + (", each logged once" if again else ""),
                actual=f"epoch {one.epoch:g} after {previous.epoch:g}",
                line=one.line,
            )
        previous = one
    first = next((s for s in run.spans if dialect.is_number(s.number)), None)
    if first is not None and first.number < 1 and rules.format != "0.6":
        findings.add(
            "epoch_num.from_one",
            "warning",
            RULES,
            expected="epochs counted from 1",
            actual=f"{first.key} of epoch {first.number:g}",
            line=first.line,
            hint="only a warning: 95 of Google's 260 published v0.7 logs count from 0",
        )


def _judge_schedule(run: Run, rules: Ruleset, findings: Findings) -> None:
    schedule = rules.schedule.get(run.benchmark or "")
    evaluations = [e for e in _scored(run) if dialect.is_number(e.epoch)]
    if schedule is None or not evaluations:
        return
    severity: Severity = "error" if rules.format != "0.6" else "warning"
    epochs = sorted({float(e.epoch) for e in evaluations})
    if "every" in schedule:
        _judge_every(schedule, epochs, severity, evaluations[0].line, findings)
    else:
        _judge_at(schedule, epochs, severity, evaluations[-1].line, findings)


def _judge_every(
    schedule: dict[str, Any],
    epochs: list[float],
    severity: Severity,
    line: int,
    findings: Findings,
) -> None:
    every = schedule["every"]
    # Labels are rounded: a block of 157 steps is called 4 epochs (it is 4.016).
    gaps = [(a, b) for a, b in itertools.pairwise(epochs) if b - a > every + 0.1]
    for a, b in gaps:
        findings.add(
            "schedule.too_rare",
            severity,
            RULES,
            expected=f"an evaluation at least every {every} epochs",
            actual=f"none between epochs {a:g} and {b:g}",
            line=line,
        )
    if epochs[0] > schedule.get("first_by", every) + 0.1:
        findings.add(
            "schedule.first",
            severity,
            RULES,
            expected=f"the first evaluation by epoch {schedule.get('first_by', every)}",
            actual=f"at epoch {epochs[0]:g}",
            line=line,
        )


def _judge_at(
    schedule: dict[str, Any],
    epochs: list[float],
    severity: Severity,
    line: int,
    findings: Findings,
) -> None:
    within = schedule["tolerance"]
    due = [at for at in schedule["at"] if at < epochs[-1] - within]
    for at in due:
        if not any(abs(epoch - at) <= within for epoch in epochs):
            findings.add(
                "schedule.missing",
                severity,
                RULES,
                expected=f"an evaluation at each of epochs {schedule['at']}",
                actual=f"none at epoch {at}",
                line=line,
            )
    last = epochs[-1]
    on = any(abs(last - at) <= within for at in schedule["at"])
    if not on and last < schedule["at"][-1]:
        findings.add(
            "schedule.stop",
            severity,
            RULES,
            expected=f"a run that ends at one of epochs {schedule['at']}",
            actual=f"it ends at epoch {last:g}",
            line=line,
        )


def _judge_table(run: Run, rules: Ruleset, findings: Findings) -> None:
    parts = rules.table.get(run.benchmark or "", {})
    optimizer = run.value("opt_name")
    rows = parts.get("all", [])
    if isinstance(optimizer, str):
        rows = rows + parts.get(optimizer.lower(), [])
    for row in rows:
        values = run.values.get(row.key)
        if values and all(_applies(run, key, test) for key, test in row.when):
            for kept in values.kept:
                record = Record(
                    kept.line, kept.column, 0.0, row.key, kept.value, kept.metadata
                )
                _judge_row(row, record, findings)
    rules_of = rules.closed.get(run.benchmark or "")
    constrained = {row.key for row in rows}
    if rules_of is not None:
        constrained.update(key for key, rule in rules_of.keys.items() if rule.checks)
    numeric = rules.known_keys - set(rules.common) - {"opt_name"}
    for key in sorted(numeric & set(run.values)):
        severity: Severity = "error" if key in constrained else "warning"
        for kept in run.values[key].kept:
            _judge_type(key, kept, severity, findings)


def _applies(run: Run, key: str, test: Any) -> bool:
    try:
        return bool(test(Record(0, 0, 0.0, key, run.number(key), None), {}))
    except CANNOT:
        return False


def _judge_type(key: str, kept: Logged, severity: Severity, findings: Findings) -> None:
    """A number logged as a string: an error where the table holds the number to it."""
    if dialect.number(kept.value) is kept.value:
        return
    findings.add(
        f"{key}.type",
        severity,
        RULES,
        expected="a number",
        actual=f"{shown(kept.value)}, a string",
        line=kept.line,
        column=kept.column,
        hint="log the number itself, not a string",
    )


def _judge_row(row: Row, record: Record, findings: Findings) -> None:
    record = record._replace(value=dialect.number(record.value))
    try:
        if all(test(record, {}) for test in row.tests):
            return
        actual = shown(record.value)
    except CANNOT:
        actual = f"{shown(record.value)}, of type {type(record.value).__name__}"
    findings.add(
        f"{record.key}.table",
        "warning" if row.warns else "error",
        RULES,
        expected=row.expect,
        actual=actual,
        line=record.line,
        column=record.column,
        hint=_WHY_WARNS if row.warns else "",
    )


def _judge_data(run: Run, sizes: dict[str, int], findings: Findings) -> None:
    """Sizes of the data sets; other sizes throughout are another data set: a proxy."""
    for key in ("train_samples", "eval_samples"):
        number = run.number(key)
        if key in run.values and (number is None or not number > 0):
            findings.add(
                f"{key}.positive",
                "error",
                RULES,
                expected="a number above 0",
                actual=shown(run.value(key)),
                line=run.values[key].kept[0].line,
            )
    wanted, logged = sizes.get("eval_samples"), run.number("eval_samples")
    if wanted is None or logged is None or not logged > 0:
        return
    if logged in (wanted, sizes.get("or_eval_samples")):
        return
    train = run.number("train_samples")
    proxy = logged < wanted / 2 or train != sizes.get("train_samples", train)
    findings.add(
        "eval_samples.data_set",
        "warning" if proxy else "error",
        RULES,
        expected=f"{wanted:,} evaluation samples",
        actual=f"{logged:,.0f}",
        line=run.values["eval_samples"].kept[0].line,
        hint="not the benchmark's data set: a proxy run, never a submission"
        if proxy
        else "every sample of the set is to be evaluated, once",
    )
