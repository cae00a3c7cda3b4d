"""Reports on logs in the forms that people and machines read."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlperf_tpu import __version__
from mlperf_tpu.errors import BadInput
from mlperf_tpu.log.findings import Finding, Occurrence, Profile
from mlperf_tpu.log.score import Entry
from mlperf_tpu.log.submission import SubmissionReport
from mlperf_tpu.log.validate import FileReport

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def plain(text: str) -> str:
    """Text without control characters or halves of characters: fit for any output.

    A log or a file name may hold terminal codes, or line breaks that would start a
    command in a CI's output.

    >>> plain("a\\n::error::b")
    'a ::error::b'
    """
    return _CONTROL.sub(" ", text)


def write(path: Path, text: str) -> None:
    """Writes a report; BadInput where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"cannot write {path}: {error.strerror}; give a path that may be written"
        ) from None


def sentence(finding: Finding, place: Occurrence | None = None) -> str:
    """A finding as one line: what is expected, what is, what to do."""
    place = place or finding.places[0]
    text = f"expected {finding.expected}"
    if place.actual:
        text += f"; found {place.actual}"
    if finding.hint:
        text += f" ({finding.hint})"
    return plain(text)


def where(finding: Finding) -> str:
    first = finding.places[0]
    place = f"{first.line}:{first.column or 1}" if first.line else "-"
    return place + (f" x{finding.count:,}" if finding.count > 1 else "")


def text(
    reports: Sequence[FileReport], profiles: Sequence[Profile], *, notes: bool
) -> str:
    """The table for people: a line a file, its findings below it."""
    width = max((len(plain(r.path)) for r in reports), default=4)
    lines = []
    for report in reports:
        verdicts = "  ".join(
            f"{profile} {report.verdicts[profile]}" for profile in profiles
        )
        about = f"{report.ruleset:7} {plain(report.benchmark or '?')[:16]:12}"
        lines.append(f"{plain(report.path):{width}}  {about}  {verdicts}")
        lines.extend(_tool_line(report))
        for finding in _shown(report, profiles, notes=notes):
            lines.append(
                f"  {finding.severity:7} {where(finding):12} {finding.rule}: "
                f"{sentence(finding)} [{', '.join(finding.profiles)}]"
            )
    said = sorted({(r.ruleset, r.inferred) for r in reports if r.inferred})
    lines += [f"ruleset {name} inferred: {plain(why)}" for name, why in said]
    lines.append(summary(reports, profiles))
    return "\n".join(lines)


def submission_text(report: SubmissionReport) -> str:
    """A submission's verdict and findings, a line each."""
    lines = [f"submission {plain(report.path)}: {report.verdict}"]
    for about, finding in report.findings:
        lines.append(
            f"  {finding.severity:7} {plain(about)} {finding.rule}: {sentence(finding)}"
        )
    return "\n".join(lines)


def _tool_line(report: FileReport) -> Iterator[str]:
    tool = report.official_tool
    if tool is not None:
        word = "agrees" if tool["agrees"] else "DISAGREES"
        reason = f": {plain(tool['reason'])}" if tool["reason"] else ""
        yield f"  mlperf_logging {word}: {tool['verdict']}{reason}"


def _shown(
    report: FileReport, profiles: Sequence[Profile], *, notes: bool
) -> Iterator[Finding]:
    for finding in report.findings:
        asked = set(finding.profiles) & set(profiles)
        if asked and (notes or finding.severity != "note"):
            yield finding


def summary(reports: Sequence[FileReport], profiles: Sequence[Profile]) -> str:
    """One line a profile: how many logs have which verdict."""
    lines = []
    for profile in profiles:
        counts: dict[str, int] = {}
        for report in reports:
            word = report.verdicts[profile]
            counts[word] = counts.get(word, 0) + 1
        words = ", ".join(f"{n:,} {word}" for word, n in sorted(counts.items()))
        lines.append(f"{profile}: {words} of {len(reports):,}")
    return "\n".join(lines)


def markdown(reports: Sequence[FileReport], profiles: Sequence[Profile]) -> str:
    """A table of files and verdicts, then each file's findings."""
    table = [
        [
            report.path,
            report.ruleset,
            report.benchmark or "?",
            *(report.verdicts[p].replace("_", " ") for p in profiles),
        ]
        for report in reports
    ]
    head = ["log", "ruleset", "benchmark", *profiles]
    lines = ["# MLPerf logs", "", markdown_table(head, table)]
    lines += ["", *summary(reports, profiles).split("\n"), ""]
    for report in reports:
        findings = list(_shown(report, profiles, notes=False))
        if not findings:
            continue
        lines += [f"## {_cell(report.path)}", ""]
        cells = [[f.severity, where(f), f.rule, sentence(f)] for f in findings]
        lines.append(markdown_table(["severity", "line", "rule", "finding"], cells))
        lines.append("")
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text for a Markdown table: what would open a tag, a link or a cell is escaped."""
    return re.sub(r"([\\|<>\[\]`*_])", r"\\\1", plain(text))


def junit(reports: Sequence[FileReport], profiles: Sequence[Profile]) -> str:
    """JUnit XML: a test case for each log in each profile."""
    cases, failures, errors = [], 0, 0
    for report in reports:
        for profile in profiles:
            verdict = report.verdicts[profile]
            name = f"{report.path} ({report.ruleset}, {profile})"
            head = f"<testcase classname={_attribute(profile)} name={_attribute(name)}"
            if verdict == "pass":
                cases.append(head + "/>")
                continue
            kind = "error" if verdict == "unreadable" else "failure"
            failures += kind == "failure"
            errors += kind == "error"
            body = "\n".join(
                f"{where(f)} {f.rule}: {sentence(f)}"
                for f in report.findings
                if profile in f.profiles and f.severity != "note"
            )
            cases.append(
                f"{head}><{kind} message={_attribute(verdict)}>"
                f"{html.escape(body, quote=False)}</{kind}></testcase>"
            )
    total = len(reports) * len(profiles)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites><testsuite name="mlperf-tpu validate" tests="{total}" '
        f'failures="{failures}" errors="{errors}">\n'
        + "\n".join(cases)
        + "\n</testsuite></testsuites>\n"
    )


def _attribute(text: str) -> str:
    return f'"{html.escape(plain(text))}"'


def sarif(reports: Sequence[FileReport]) -> str:
    """SARIF 2.1.0, which code-scanning pages show beside the lines of a log."""
    rules = sorted({f.rule for report in reports for f in report.findings})
    run = {
        "tool": {
            "driver": {
                "name": "mlperf-tpu",
                "version": __version__,
                "rules": [{"id": rule} for rule in rules],
            }
        },
        "results": [
            _sarif_result(report, finding, place)
            for report in reports
            for finding in report.findings
            for place in finding.places
        ],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    document = {"$schema": schema, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=1) + "\n"


def _sarif_result(
    report: FileReport, finding: Finding, place: Occurrence
) -> dict[str, Any]:
    location: dict[str, Any] = {
        "artifactLocation": {"uri": Path(plain(report.path)).as_posix()}
    }
    if place.line:
        location["region"] = {
            "startLine": place.line,
            "startColumn": place.column or 1,
        }
    return {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": sentence(finding, place)},
        "locations": [{"physicalLocation": location}],
        "properties": {"profiles": list(finding.profiles)},
    }


def github(reports: Sequence[FileReport], profiles: Sequence[Profile]) -> str:
    """Workflow commands that GitHub shows as annotations on the log's lines."""
    lines = []
    for report in reports:
        for finding in _shown(report, profiles, notes=False):
            first = finding.places[0]
            file = _property(report.path)
            at = f",line={first.line},col={first.column or 1}" if first.line else ""
            title = _property(finding.rule)
            message = sentence(finding).replace("%", "%25")
            kind = _GITHUB[finding.severity]
            lines.append(f"::{kind} file={file}{at},title={title}::{message}")
    return "\n".join(lines)


def _property(text: str) -> str:
    text = plain(text).replace("%", "%25")
    return text.replace(":", "%3A").replace(",", "%2C")


def score_text(entry: Entry, reference_minutes: float | None) -> str:
    """An entry's score, and its runs one a line."""
    minutes = entry.score_minutes
    head = f"{plain(entry.system)}  {plain(entry.benchmark)}  {entry.ruleset}  "
    head += "no score" if minutes is None else f"{minutes:.2f} minutes"
    if minutes and reference_minutes:
        head += f", {reference_minutes / minutes:,.1f} x the reference"
    lines = [head + (f"  ({plain(entry.note)})" if entry.note else "")]
    for run in entry.runs:
        cells = [
            f"{plain(Path(run.path).name):16}",
            f"{_cut(run.seconds, '{:,.3f} s'):>14}",
            f"{_cut(run.epochs, 'epoch {:g}'):>12}",
            f"{_cut(run.s_per_epoch, '{:,.3f} s/epoch'):>16}",
            run.status,
        ]
        if run.reason:
            cells.append(f"({plain(run.reason)})")
        if run.dropped:
            cells.append(f"[dropped: {plain(run.dropped)}]")
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)


def _cut(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def score_markdown(table: Sequence[dict[str, Any]]) -> str:
    """The rows of a score as a Markdown table."""
    names = list(table[0]) if table else []
    rows = []
    for row in table:
        cells = ["" if row[n] is None else row[n] for n in names]
        rows.append([f"{c:.6g}" if isinstance(c, float) else str(c) for c in cells])
    return markdown_table(names, rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines)
