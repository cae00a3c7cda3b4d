"""The verdict of a round's official verifier, from a ruleset's data, in one pass.

Gives what mlperf_logging's compliance_checker gives without --werror, except where that
crashes, hangs or loses a finding (mlperf_rules.md, sections 2.3 to 2.5).
"""

from __future__ import annotations

from typing import Any

from mlperf_tpu.errors import nearest
from mlperf_tpu.log.conditions import CANNOT, State, operand
from mlperf_tpu.log.findings import OFFICIAL, Findings, Profile, shown
from mlperf_tpu.log.records import Record
from mlperf_tpu.log.rulesets import Check, KeyRule, Ruleset
from mlperf_tpu.log.run import Run, Values


class Verifier:
    """Checks order and presence record by record, a benchmark's own keys at the end."""

    def __init__(self, rules: Ruleset, findings: Findings) -> None:
        self._rules, self._findings = rules, findings
        self._state: State = dict(rules.state)
        self._counts: dict[str, int] = dict.fromkeys(rules.common, 0)
        self._firsts: dict[str, Any] = {}
        self._differ: set[str] = set()
        self._sets = {
            key: [(name, _setter(value)) for name, value in rule.sets]
            for key, rule in rules.common.items()
        }

    def feed(self, record: Record) -> None:
        """Judges one record by what holds for every benchmark."""
        rule = self._rules.common.get(record.key)
        if rule is None:
            return
        key = record.key
        self._counts[key] += 1
        if self._counts[key] == 1:
            self._firsts[key] = record.value
        elif "submission_" in key:
            # The verifier tests the first record of these keys alone.
            self._compare(key, record.value)
            return
        elif rule.count == "one":
            self._compare(key, record.value)
        for check in rule.checks:
            self._check(rule, check, record)
        self._move(record)

    def _compare(self, key: str, value: Any) -> None:
        first = self._firsts[key]
        if not (value is first or value == first):
            self._differ.add(key)

    def _check(self, rule: KeyRule, check: Check, record: Record) -> None:
        try:
            if check.test(record, self._state):
                return
            actual = self._actual(check, record)
        except CANNOT as error:
            actual = _cannot(check, record, error)
        self._findings.add(
            f"{rule.key}.{check.name}",
            "error",
            self._rules.verifier_profiles,
            expected=check.expect,
            actual=actual,
            line=record.line,
            column=record.column,
            hint=_choice_hint(rule, record.value),
        )

    def _actual(self, check: Check, record: Record) -> str:
        if check.about == "value":
            return shown(record.value)
        if check.about == "since":
            elapsed = record.time_ms - self._state["first_init"]
            return f"{elapsed / 60e3:,.1f} minutes"
        if check.about == "state":
            return f"{record.key} where the file has it"
        return _of_metadata(record)

    def _move(self, record: Record) -> None:
        try:
            for name, setter in self._sets[record.key]:
                if setter is None:
                    self._state[name] = min(self._state[name], record.time_ms)
                else:
                    self._state[name] = setter(record, self._state)
        except CANNOT:
            return  # The check on the same entry has said so already.

    def finish(self, run: Run) -> None:
        """Judges what only the whole log shows: counts, the benchmark's own keys."""
        for rule in self._rules.common.values():
            self._count_common(rule, run)
        self._count_either(run)
        benchmark, division = self._firsts.get("submission_benchmark"), None
        if "submission_division" in self._firsts:
            division = self._firsts["submission_division"]
        if not isinstance(benchmark, str) or benchmark not in self._rules.closed:
            return
        if division == "closed" or self._rules.format == "0.6":
            self._closed(benchmark, run)

    def _count_common(self, rule: KeyRule, run: Run) -> None:
        count = self._counts[rule.key]
        if rule.count == "some" and not count:
            self._missing(rule.key, f"at least one {rule.key}", run)
        elif rule.count == "one":
            self._exactly_one(rule.key, count, rule.key not in self._differ, run)

    def _count_either(self, run: Run) -> None:
        """Keys of which one may stand for the other: block and epoch, above all."""
        pairs = {
            tuple(sorted((rule.key, rule.other)))
            for rule in self._rules.common.values()
            if rule.other is not None
        }
        for one, other in sorted(pairs):
            if not self._counts[one] and not self._counts[other]:
                self._missing(one, f"at least one {one} or {other}", run)

    def _missing(self, rule: str, expected: str, run: Run) -> None:
        self._findings.add(
            f"{rule}.missing",
            "error",
            self._rules.verifier_profiles,
            expected=expected,
            actual="none",
            hint=_near_miss(rule, self._rules, run),
        )

    def _exactly_one(self, key: str, count: int, same: bool, run: Run) -> None:
        if count == 1:
            return
        if count == 0:
            self._missing(key, f"exactly one {key}", run)
            return
        self._findings.add(
            f"{key}.repeated",
            "warning" if same else "error",
            self._rules.verifier_profiles,
            expected=f"exactly one {key}",
            actual=f"{count:,} {'with equal' if same else 'with different'} values",
            line=_line_of(key, run),
            hint="log it from one process alone" if same else "",
        )

    def _closed(self, benchmark: str, run: Run) -> None:
        rules = self._rules.closed[benchmark]
        self._findings.drop(rules.excuses)
        keys = dict(rules.keys)
        optimizers = run.values.get("opt_name")
        names = [k.value for k in optimizers.kept] if optimizers else []
        for name in names:
            if isinstance(name, str):
                keys.update(rules.by_optimizer.get(name, {}))
        for rule in keys.values():
            self._own_key(rule, run.values.get(rule.key, Values()), run)
        for optimizer, owned in rules.exactly_with_optimizer.items():
            for key in owned:
                self._with_optimizer(optimizer, key, names, run)

    def _own_key(self, rule: KeyRule, values: Values, run: Run) -> None:
        if rule.count == "one":
            self._exactly_one(rule.key, values.count, values.same, run)
        elif rule.count == "some" and not values.count:
            self._missing(rule.key, f"at least one {rule.key}", run)
        tabled = rule.key in self._rules.tabled.get(run.benchmark or "", ())
        profiles = OFFICIAL if tabled else self._rules.verifier_profiles
        for kept in values.kept:
            record = Record(
                kept.line, kept.column, 0.0, rule.key, kept.value, kept.metadata
            )
            for check in rule.checks:
                self._own_check(rule, check, record, profiles)

    def _own_check(
        self,
        rule: KeyRule,
        check: Check,
        record: Record,
        profiles: tuple[Profile, ...],
    ) -> None:
        try:
            if check.test(record, self._state):
                return
            actual = shown(record.value)
            if isinstance(record.value, str):
                actual += ", a string"
        except CANNOT as error:
            actual = _cannot(check, record, error)
        self._findings.add(
            f"{rule.key}.{check.name}",
            "error",
            profiles,
            expected=check.expect,
            actual=actual,
            line=record.line,
            column=record.column,
            hint=_choice_hint(rule, record.value) or _typed_hint(record.value),
        )

    def _with_optimizer(
        self, optimizer: str, key: str, names: list[Any], run: Run
    ) -> None:
        expected = int(optimizer in names)
        count = run.values[key].count if key in run.values else 0
        if count == expected:
            return
        self._findings.add(
            f"{key}.with_optimizer",
            "error",
            OFFICIAL,
            expected=f"{'exactly one' if expected else 'no'} {key}, "
            f"opt_name {'being' if expected else 'not being'} {optimizer}",
            actual=f"{count:,}",
            line=_line_of(key, run),
        )


def _setter(value: Any) -> Any:
    """None stands for the least time so far; else an operand's function."""
    return None if value == "least_time" else operand(value)


def _of_metadata(record: Record) -> str:
    if isinstance(record.metadata, dict):
        rest = {k: v for k, v in record.metadata.items() if k not in ("file", "lineno")}
        return f"metadata {shown(rest)}"
    return f"metadata {shown(record.metadata)}"


def _cannot(check: Check, record: Record, error: BaseException) -> str:
    if check.about != "value":
        return _of_metadata(record)
    if isinstance(error, KeyError):
        return f"no {str(error.args[0])[:40]} in {shown(record.value)}"
    kind = type(record.value).__name__
    return f"{shown(record.value)}, of type {kind}"


def _choice_hint(rule: KeyRule, value: Any) -> str:
    if not rule.choices or not isinstance(value, str):
        return ""
    near = nearest(value.strip().lower()[:64], rule.choices)
    if near.startswith("known"):
        return ""
    return near.split(" Known")[0]


def _typed_hint(value: Any) -> str:
    if isinstance(value, str):
        return "log the number itself, not a string"
    if isinstance(value, float):
        return "log Python's own float: float32 rounds 0.0001 to 9.9999997e-05"
    return ""


def _near_miss(key: str, rules: Ruleset, run: Run) -> str:
    """Names an unknown key of the log that looks like the missing one."""
    unknown = [k[:80] for k in run.values if k not in rules.known_keys]
    near = nearest(key, unknown)
    if not near.startswith("did you mean"):
        return ""
    return f"the log has {near.split('?')[0].removeprefix('did you mean ')}"


def _line_of(key: str, run: Run) -> int:
    values = run.values.get(key)
    if values:
        return values.kept[0].line
    return run.first_in_file.get(key, run.stops[0].line if run.stops else 0)
