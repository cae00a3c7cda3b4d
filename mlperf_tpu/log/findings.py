"""What a check has to say: findings, grouped, each with all its places."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
Profile = Literal["official", "rules", "published"]
Verdict = Literal["pass", "fail", "not_converged", "unreadable"]

PROFILES: tuple[Profile, ...] = ("official", "rules", "published")
BOTH: tuple[Profile, ...] = ("official", "rules")
OFFICIAL: tuple[Profile, ...] = ("official",)
RULES: tuple[Profile, ...] = ("rules",)
PUBLISHED: tuple[Profile, ...] = ("published",)

# Occurrences of one finding that are listed with their lines; the rest are counted.
LISTED = 20
# Longest piece of a log that a finding repeats, in characters.
SHOWN = 120
# Longest text of what is there instead, in characters.
LONGEST = 300
# Distinct findings kept of one file: a hostile log must not fill the memory.
KEPT = 2000


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Where a finding was made: line and column from 1, line 0 for the whole file."""

    line: int
    column: int
    actual: str


@dataclass(slots=True)
class Finding:
    """One rule that one log breaks, with every place where it does."""

    rule: str
    severity: Severity
    profiles: tuple[Profile, ...]
    expected: str
    hint: str
    count: int = 0
    places: list[Occurrence] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The finding as design.md lays down for `--json`."""
        first = self.places[0]
        return {
            "rule": self.rule,
            "severity": self.severity,
            "profiles": list(self.profiles),
            "line": first.line,
            "column": first.column,
            "expected": self.expected,
            "actual": first.actual,
            "hint": self.hint,
            "count": self.count,
            "places": [
                {"line": p.line, "column": p.column, "actual": p.actual}
                for p in self.places
            ],
        }


class Findings:
    """Collects findings; repeats of a rule with one expectation become one finding."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, Severity, tuple[Profile, ...], str], Finding] = {}

    def add(
        self,
        rule: str,
        severity: Severity,
        profiles: tuple[Profile, ...],
        *,
        expected: str,
        actual: str = "",
        line: int = 0,
        column: int = 0,
        hint: str = "",
    ) -> None:
        """Adds one occurrence; past KEPT distinct findings only known ones count on."""
        key = (rule, severity, profiles, expected)
        finding = self._by_key.get(key)
        if finding is None:
            if len(self._by_key) >= KEPT:
                return
            finding = self._by_key[key] = Finding(
                rule, severity, profiles, expected, hint
            )
        finding.count += 1
        if len(finding.places) < LISTED:
            finding.places.append(Occurrence(line, column, actual[:LONGEST]))

    def extend(self, other: Iterable[Finding]) -> None:
        """Takes over whole findings, as another collector grouped them."""
        for one in other:
            self._by_key.setdefault(
                (one.rule, one.severity, one.profiles, one.expected), one
            )

    def drop(self, rules: Iterable[str]) -> None:
        """Forgets findings whose rule starts with one of these names and a dot."""
        starts = tuple(f"{rule}." for rule in rules)
        for key in [k for k in self._by_key if k[0].startswith(starts)]:
            del self._by_key[key]

    def errors(self, profile: Profile) -> bool:
        return any(
            f.severity == "error" and profile in f.profiles
            for f in self._by_key.values()
        )

    def sorted(self) -> list[Finding]:
        """Errors first, then by line: the order in which a person wants to read them.

        What only `published` says again of a rule and a line joins the other's finding.
        """
        rank = {"error": 0, "warning": 1, "note": 2}
        merged: dict[tuple[str, Severity, int], Finding] = {}
        kept = []
        for f in sorted(self._by_key.values(), key=lambda f: f.profiles == PUBLISHED):
            place = (f.rule, f.severity, f.places[0].line)
            if f.profiles == PUBLISHED and place in merged:
                other = merged[place]
                if "published" not in other.profiles:
                    other.profiles = (*other.profiles, "published")
                continue
            merged[place] = f
            kept.append(f)
        return sorted(
            kept,
            key=lambda f: (rank[f.severity], f.places[0].line, f.rule, f.expected),
        )


def shown(value: object) -> str:
    """A value of a log as JSON, cut to SHOWN characters, free of control characters.

    >>> shown("Closed"), shown(float("nan")), shown(None)
    ('"Closed"', 'NaN', 'null')
    """
    if isinstance(value, str) and len(value) > SHOWN:
        value = value[:SHOWN]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        return f"an integer of about {int(math.log10(abs(value))) + 1} digits"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
