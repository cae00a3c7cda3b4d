"""The rules of each round as data: two rulesets, and a table for later rounds."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.log.conditions import Condition, condition
from mlperf_tpu.log.findings import Profile
from mlperf_tpu.log.records import Format

OWN = ("0.6.0", "0.7.0")


@dataclass(frozen=True, slots=True)
class Check:
    """A named condition, and in words what it expects."""

    name: str
    expect: str
    test: Condition
    about: str  # what it looks at first: value, meta, state or since


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What a ruleset says of a key: how often, with what values, moving what state."""

    key: str
    count: str  # one, some, any
    other: str | None  # the key that may stand in for this one
    checks: tuple[Check, ...]
    sets: tuple[tuple[str, Any], ...]
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BenchmarkRules:
    keys: dict[str, KeyRule]
    by_optimizer: dict[str, dict[str, KeyRule]]
    excuses: tuple[str, ...]
    exactly_with_optimizer: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the written hyperparameter table."""

    key: str
    expect: str
    tests: tuple[Condition, ...]
    when: tuple[tuple[str, Condition], ...]
    warns: bool


@dataclass(frozen=True)
class Ruleset:
    """One round's rules: `closed` and `common` the verifier's, the rest the text's."""

    name: str
    format: Format
    benchmarks: tuple[str, ...]
    runs: dict[str, int]
    caps_ms: dict[str, float]
    targets: dict[str, dict[str, float]]
    state: dict[str, Any]
    common: dict[str, KeyRule]
    closed: dict[str, BenchmarkRules]
    data: dict[str, dict[str, int]]
    schedule: dict[str, dict[str, Any]]
    table: dict[str, dict[str, list[Row]]]
    # Keys by benchmark that the table has rows of: there it judges, not the verifier.
    tabled: dict[str, frozenset[str]]
    # Whether the written rules, too, ask for what the verifier counts and orders.
    verifier_profiles: tuple[Profile, ...]
    verifier_ignores_target: bool
    structure_only: tuple[str, ...] = ()
    known_keys: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True, slots=True)
class Round:
    """A later round, judged by the official checker: what guards and complements it."""

    name: str
    deadline: str  # YYYY-MM
    benchmarks: tuple[str, ...]
    caps_ms: dict[str, float]


def _yaml(name: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=loader)


def known_rulesets() -> list[str]:
    return [*OWN, *rounds()]


def check_name(name: str) -> str:
    """The name itself; BadInput for what is no ruleset."""
    if name not in known_rulesets():
        raise BadInput(f"no ruleset {name!r}; {nearest(name, known_rulesets())}")
    return name


@functools.cache
def rounds() -> dict[str, Round]:
    table = _yaml("rounds")
    minute = 60_000.0
    return {
        name: Round(
            name,
            row["deadline"],
            tuple(row["benchmarks"]),
            {
                "closed": table["closed_cap_minutes"] * minute,
                "open": row.get("open_cap_minutes", table["open_cap_minutes"]) * minute,
            },
        )
        for name, row in table["rounds"].items()
    }


@functools.cache
def later_keys() -> tuple[str, ...]:
    return tuple(_yaml("rounds")["later_keys"])


@functools.cache
def ruleset(name: str) -> Ruleset:
    """One of OWN, read from its YAML and compiled; never a name taken from a log."""
    assert name in OWN
    spec = _yaml(name)
    closed = {b: _benchmark(rules) for b, rules in spec["closed"].items()}
    common = _keys(spec["common"], "any")
    known = set(common)
    table = {
        b: {opt: [_row(r) for r in rows] for opt, rows in parts.items()}
        for b, parts in spec["table"].items()
    }
    for rules in closed.values():
        known.update(rules.keys, *rules.by_optimizer.values())
    profiles: tuple[Profile, ...] = ("official", "rules")
    return Ruleset(
        name=spec["ruleset"],
        format=spec["format"],
        benchmarks=tuple(spec["benchmarks"]),
        runs=spec["runs"],
        caps_ms=spec["initialization_cap_ms"],
        targets=spec["targets"],
        state=spec["state"],
        common=common,
        closed=closed,
        data=spec["data"],
        schedule=spec["schedule"],
        table=table,
        tabled={
            b: frozenset(row.key for rows in parts.values() for row in rows)
            for b, parts in table.items()
        },
        verifier_profiles=profiles if name != "0.6.0" else ("official",),
        verifier_ignores_target=spec.get("verifier_ignores_target", False),
        structure_only=tuple(spec.get("structure_only", ())),
        known_keys=frozenset(known),
    )


def _benchmark(spec: dict[str, Any]) -> BenchmarkRules:
    return BenchmarkRules(
        keys=_keys(spec["keys"], "one"),
        by_optimizer={
            name: _keys(keys, "one")
            for name, keys in spec.get("by_optimizer", {}).items()
        },
        excuses=tuple(spec.get("excuses", ())),
        exactly_with_optimizer=spec.get("exactly_with_optimizer", {}),
    )


def _keys(specs: dict[str, Any], count: str) -> dict[str, KeyRule]:
    return {key: _key(key, spec, count) for key, spec in specs.items()}


def _key(key: str, spec: dict[str, Any], count: str) -> KeyRule:
    choices = tuple(spec.get("choices", ()))
    checks = [
        Check(c["name"], c["expect"], _all(c["if"]), _about(c["if"]))
        for c in spec.get("checks", ())
    ]
    if choices:
        expect = "one of " + ", ".join(choices)
        test = condition(["value", "in", list(choices)])
        checks.append(Check("choice", expect, test, "value"))
    return KeyRule(
        key=key,
        count=spec.get("count", count),
        other=spec.get("or"),
        checks=tuple(checks),
        sets=tuple((name, value) for name, value in spec.get("sets", ())),
        choices=choices,
    )


def _about(specs: list[Any]) -> str:
    first = specs[0]
    return str(first[0]).partition(".")[0] if isinstance(first, list) else "state"


def _all(specs: list[Any]) -> Condition:
    tests = [condition(spec) for spec in specs]
    if len(tests) == 1:
        return tests[0]
    return lambda record, state: all(test(record, state) for test in tests)


def _row(spec: dict[str, Any]) -> Row:
    return Row(
        key=spec["key"],
        expect=spec["expect"],
        tests=tuple(condition(c) for c in spec["if"]),
        when=tuple(
            (key, condition(["value", op, limit]))
            for key, op, limit in spec.get("when", ())
        ),
        warns=spec.get("warns", False),
    )
