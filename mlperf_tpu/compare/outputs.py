"""A comparison in the forms that people and CIs read."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from mlperf_tpu.compare import Comparison
from mlperf_tpu.compare.stats import MetricResult
from mlperf_tpu.log.outputs import markdown_table, plain

HEAD = ("metric", "baseline", "candidate", "change", "bounds", "p", "shows", "verdict")


def rows(comparison: Comparison) -> list[list[str]]:
    """A row a metric, as text."""
    return [_row(metric) for metric in comparison.metrics]


def _row(m: MetricResult) -> list[str]:
    change = "-" if m.ratio is None else f"{(m.ratio - 1) * 100:+.2f} %"
    bounds = "-"
    if m.interval is not None:
        low, high = ((x - 1) * 100 for x in m.interval)
        bounds = f"{low:+.2f} to {high:+.2f} %" if high < 1e5 else "wide"
    shows = m.minimum_detectable
    return [
        m.name if m.gating else f"({m.name})",
        _figure(m.baseline),
        _figure(m.candidate),
        change,
        bounds,
        "-" if m.p is None else f"{m.p:.3g}",
        "-" if shows is None or shows > 1e3 else f"{shows * 100:.2f} %",
        m.decision,
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def text(comparison: Comparison) -> str:
    """The decision, why, what differs, and the figures."""
    c = comparison
    lines = [
        f"{plain(side.path)}: {plain(side.system)} {plain(side.benchmark)} "
        f"{side.ruleset}, {side.converged} of {len(side.runs)} runs converged, "
        + ("no score" if not side.score_minutes else f"{side.score_minutes:.3f} min")
        for side in (c.baseline, c.candidate)
    ]
    for one in c.differences:
        lines.append(
            f"  differs: {plain(one['name'])}  {plain(str(one['baseline']))} -> "
            f"{plain(str(one['candidate']))}"
        )
    if c.metrics:
        lines += ["", *_aligned([list(HEAD), *rows(c)])]
        lines += [f"  {m.name}: {m.note}" for m in c.metrics if m.note]
        lines.append(
            f"  margin {c.limits.margin * 100:g} %, alpha {c.limits.alpha:g}; shows: "
            "the change seen with 80 % probability; (in brackets): does not decide"
        )
    if c.too_fast is not None:
        word = "credible" if c.too_fast["ok"] else "TOO FAST"
        lines.append(
            f"  convergence {word}: {c.too_fast['mean_epochs']:.2f} epochs, at least "
            f"{c.too_fast['least_epochs']:.2f} by {c.too_fast['source']}"
        )
    lines += ["", c.decision + "".join(f"\n  {plain(r)}" for r in c.reasons)]
    return "\n".join(lines)


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  " + "  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def markdown(comparison: Comparison) -> str:
    c = comparison
    lines = [f"# {c.decision}", ""]
    lines += [f"- {plain(reason)}" for reason in c.reasons]
    if c.metrics:
        lines += ["", markdown_table(HEAD, rows(c))]
    if c.differences:
        table = [
            [d["name"], str(d["baseline"]), str(d["candidate"])] for d in c.differences
        ]
        lines += ["", markdown_table(("differs", "baseline", "candidate"), table)]
    return "\n".join(lines) + "\n"


def junit(comparison: Comparison) -> str:
    """JUnit XML: a test case for each metric that decides, one for comparability."""
    c = comparison
    cases = [_case("comparable", c.decision == "incomparable", c.reasons)]
    cases += [
        _case(m.name, m.decision == "regression", [m.note or m.decision])
        for m in c.metrics
        if m.gating
    ]
    if c.too_fast is not None:
        cases.append(_case("convergence", not c.too_fast["ok"], c.reasons))
    lost = c.decision == "regression" and not any("<failure" in case for case in cases)
    cases.append(_case("decision", lost, c.reasons))
    failures = sum("<failure" in case for case in cases)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites><testsuite name="mlperf-tpu compare" tests="{len(cases)}" '
        f'failures="{failures}">\n' + "\n".join(cases) + "\n</testsuite></testsuites>\n"
    )


def _case(name: str, failed: bool, reasons: Sequence[str]) -> str:
    head = f'<testcase classname="compare" name="{html.escape(name)}"'
    if not failed:
        return head + "/>"
    message = html.escape(plain("; ".join(reasons)))
    return f'{head}><failure message="{message}"/></testcase>'


def benchmark_json(comparison: Comparison) -> str:
    """The candidate's metrics as github-action-benchmark's customSmallerIsBetter."""
    side = comparison.candidate
    name = f"{side.benchmark} {side.ruleset} {side.system}"
    documents: list[dict[str, Any]] = [
        {
            "name": plain(f"{name}: {m.name}"),
            "unit": "epochs" if m.name == "epochs" else "s",
            "value": m.candidate,
            "range": "" if m.interval is None else f"ratio {_row(m)[4]}",
            "extra": f"{len(side.runs)} runs; {m.decision} against the baseline",
        }
        for m in comparison.metrics
        if m.candidate is not None
    ]
    return json.dumps(documents, indent=1) + "\n"
