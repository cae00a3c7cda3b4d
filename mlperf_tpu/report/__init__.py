"""One HTML page on the runs of one or more entries, whole in itself: no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from mlperf_tpu import __version__
from mlperf_tpu.log.outputs import plain, sentence, where
from mlperf_tpu.log.score import Entry
from mlperf_tpu.report import pictures

# Findings of one log that the page lists; the rest are counted.
FINDINGS = 40

_STYLE = """
:root { color-scheme: light dark; --edge: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
       padding: 0 1rem; background: Canvas; color: CanvasText; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--edge); padding: .2rem .8rem .2rem 0;
         text-align: left; vertical-align: top; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; opacity: .8; }
figure svg { width: 100%; height: auto; max-width: 60rem; }
.score { font-size: 1.2rem; font-weight: 600; }
""".strip()


def page(entries: Sequence[Entry]) -> str:
    """The page's HTML. Text from logs is escaped; no script, no link, no font."""
    names = ", ".join(f"{e.benchmark} on {e.system}" for e in entries)
    title = f"MLPerf runs: {plain(names)[:120]}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _scores(entries),
    ]
    if len(entries) > 1:
        parts += [_scaling(entries), _settings(entries)]
    for number, entry in enumerate(entries):
        parts.append(_entry(entry, number, alone=len(entries) == 1))
    parts.append(f"<footer><p>Made by mlperf-tpu {__version__}.</p></footer>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return escape(plain(str(value)))


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _scores(entries: Sequence[Entry]) -> str:
    head = ("system", "benchmark", "round", "runs", "score, minutes", "task", "note")
    rows = [
        (e.system, e.benchmark, e.ruleset, len(e.runs), e.score_minutes, e.task, e.note)
        for e in entries
    ]
    return "<h2>Scores</h2>" + _table(head, rows)


def _settings(entries: Sequence[Entry]) -> str:
    """Hyperparameters and sizes, a column an entry."""
    names = sorted({name for e in entries for name in e.settings})
    rows = [(name, *(e.settings.get(name) for e in entries)) for name in names]
    head = ("logged", *(f"{e.system} {e.benchmark}" for e in entries))
    return "<h2>Hyperparameters</h2>" + _table(head, rows)


def _scaling(entries: Sequence[Entry]) -> str:
    parts = []
    for number, key in enumerate(sorted({(e.benchmark, e.ruleset) for e in entries})):
        chosen = [e for e in entries if (e.benchmark, e.ruleset) == key]
        picture = pictures.scaling(chosen, f"s{number}")
        if picture is not None:
            parts.append(_figure(picture))
    if not parts:
        return ""
    return "<h2>Scaling, with Google's published results</h2>" + "".join(parts)


def _figure(picture: pictures.Picture) -> str:
    return (
        f"<figure>{picture.svg}<figcaption>{escape(picture.caption)}"
        "</figcaption></figure>"
    )


def _entry(entry: Entry, number: int, *, alone: bool) -> str:
    title = f"{entry.benchmark} on {entry.system}, round {entry.ruleset}"
    parts = [f"<h2>{escape(plain(title))}</h2>"]
    minutes = entry.score_minutes
    if minutes is not None:
        parts.append(f'<p class="score">{minutes:.2f} minutes</p>')
    if entry.task == "proxy":
        parts.append("<p>A proxy task on another data set: no MLPerf result.</p>")
    for picture in (
        pictures.accuracy(entry, f"a{number}"),
        pictures.time_line(entry, f"t{number}"),
    ):
        if picture is not None:
            parts.append(_figure(picture))
    parts += [_runs(entry), _findings(entry)]
    if alone:
        parts.append("<h3>Hyperparameters</h3>")
        parts.append(_table(("logged", "value"), list(entry.settings.items())))
    return "\n".join(parts)


def _runs(entry: Entry) -> str:
    head = (
        "run", "status", "seconds", "epochs", "s per epoch", "evaluations, s",
        "initialization, s", "dropped", "verdicts",
    )  # fmt: skip
    rows: list[Sequence[Any]] = []
    for run, report in zip(entry.runs, entry.reports, strict=True):
        name = run.path.rsplit("/", 1)[-1]
        verdicts = ", ".join(f"{k} {v}" for k, v in report.verdicts.items())
        rows.append(
            (
                name, run.status, run.seconds, run.epochs, run.s_per_epoch,
                run.evaluation_s, run.initialization_s, run.dropped or None, verdicts,
            )
        )  # fmt: skip
    return "<h3>Runs</h3>" + _table(head, rows)


def _findings(entry: Entry) -> str:
    rows: list[Sequence[str]] = []
    for report in entry.reports:
        name = report.path.rsplit("/", 1)[-1]
        found = [f for f in report.findings if f.severity != "note"]
        rows += [
            (name, where(f), f.severity, f.rule, sentence(f), ", ".join(f.profiles))
            for f in found[:FINDINGS]
        ]
        if len(found) > FINDINGS:
            rows.append((name, "", "", "", f"{len(found) - FINDINGS} more", ""))
    if not rows:
        return "<h3>Findings</h3><p>None.</p>"
    head = ("run", "line", "severity", "rule", "finding", "profiles")
    return "<h3>Findings</h3>" + _table(head, rows)
