"""The report's pictures: SVG by matplotlib, made to be read on light and on dark.

Lines and text take the page's own colour (currentColor); series have colours of middle
lightness and markers of their own. Each has a text that says what it shows.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

from mlperf_tpu.compare.too_fast import published
from mlperf_tpu.log import dialect
from mlperf_tpu.log.outputs import plain
from mlperf_tpu.log.run import Run
from mlperf_tpu.log.score import Entry

T = TypeVar("T")

# A colour of no series, replaced in the SVG by the page's text colour.
INK = "#010203"
# Okabe and Ito's palette, told apart by the colour-blind; none too light or too dark.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
KINDS = {"initialization": SERIES[5], "training": SERIES[0], "evaluation": SERIES[4]}
MARKERS = "osD^vP"
RUNS = 12  # runs drawn in one picture
POINTS = 2_000  # evaluations or spans drawn of one run


@dataclass(frozen=True)
class Picture:
    svg: str
    caption: str


def _drawn(
    draw: Callable[[T, str], Picture | None],
) -> Callable[[T, str], Picture | None]:
    """Draws with text kept as text, and none of it read as mathematics ("$")."""

    @functools.wraps(draw)
    def drawn(what: T, prefix: str) -> Picture | None:
        import matplotlib

        # Element names in the SVG follow from the salt: equal input, equal page.
        settings: dict[Any, Any] = {
            "svg.fonttype": "none",
            "svg.hashsalt": prefix,
            "text.parse_math": False,
        }
        with matplotlib.rc_context(settings):
            return draw(what, prefix)

    return drawn


def _blank(height: float) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def _dress(axes: Any) -> None:
    """Gives axes the page's colour and no box."""
    axes.patch.set_alpha(0)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    for name in ("left", "bottom"):
        axes.spines[name].set_color(INK)
    axes.tick_params(colors=INK, which="both")
    axes.grid(color=INK, alpha=0.12)


def _figure(height: float) -> tuple[Any, Any]:
    figure = _blank(height)
    axes = figure.add_subplot()
    _dress(axes)
    return figure, axes


def _labels(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, labelcolor=INK, fontsize="small")


def _svg(figure: Any, alt: str, prefix: str) -> str:
    """The figure as SVG to put into a page; `prefix` keeps its ids its own."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = re.sub(r'\b(id|clip-path)="(url\(#)?', rf'\1="\2{prefix}-', text)
    text = text.replace('href="#', f'href="#{prefix}-').replace(INK, "currentColor")
    label = escape(plain(alt))
    head, end, rest = text.partition(">")
    head = head.replace("<svg", f'<svg role="img" aria-label="{label}"')
    return f"{head}{end}<title>{label}</title>{rest}"


def _runs(entry: Entry) -> list[tuple[str, Run]]:
    """(name, facts) of the runs that a picture shows."""
    pairs = [
        (run.path.rsplit("/", 1)[-1].rsplit(".", 1)[0], report.run)
        for run, report in zip(entry.runs, entry.reports, strict=True)
    ]
    return [(n, r) for n, r in pairs if r is not None and _start(r) is not None][:RUNS]


def _start(run: Run) -> float | None:
    moment = run.first.get("run_start")
    if moment is None or not math.isfinite(moment.time_ms):
        return None
    return moment.time_ms


def _curve(run: Run, part: str | None) -> list[tuple[float, float]]:
    """(minutes since run_start, quality) of each evaluation, by time."""
    start = _start(run)
    points = []
    for one in run.evaluations:
        value = run.quality(one)
        if part is not None and isinstance(value, dict):
            value = value.get(part)
        if start is None or not dialect.is_number(value):
            continue
        minutes = (one.time_ms - start) / 60e3
        if math.isfinite(minutes) and abs(minutes) < 1e9 and abs(value) < 1e9:
            points.append((minutes, value))
    points.sort()
    step = max(1, len(points) // POINTS)
    return points[::step]


@_drawn
def accuracy(entry: Entry, prefix: str) -> Picture | None:
    """Quality against time, each run a line, the target a dashed one."""
    parts: list[str | None] = [None]
    targets = entry.target or {}
    if "BBOX" in targets:
        parts = ["BBOX", "SEGM"]
    curves = [
        (name if part is None else f"{name} {part}", number, _curve(run, part))
        for number, (name, run) in enumerate(_runs(entry))
        for part in parts
    ]
    curves = [(name, number, points) for name, number, points in curves if points]
    if not curves:
        return None
    figure, axes = _figure(4)
    for name, number, points in curves:
        x, y = zip(*points, strict=True)
        style = {"linestyle": ":"} if name.endswith("SEGM") else {}
        axes.plot(
            x,
            y,
            color=SERIES[number % len(SERIES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=3,
            linewidth=1.2,
            label=plain(name).replace("_", " ").lstrip(),
            **style,
        )
    lines = {k: v for k, v in targets.items() if k in ("value", "BBOX", "SEGM")}
    for name, level in lines.items():
        axes.axhline(level, color=INK, linestyle="--", linewidth=1)
        word = "target" if name == "value" else f"target {name}"
        axes.annotate(
            f"{word} {level:g}", (1, level), (0, 3), ("axes fraction", "data"),
            textcoords="offset points", ha="right", color=INK, fontsize="small",
        )  # fmt: skip
    _labels(axes, "minutes since run_start", "quality")
    _legend(axes)
    best = max(y for _, _, points in curves for _, y in points)
    aim = " and ".join(f"{level:g}" for level in lines.values()) or "none known"
    caption = (
        f"Quality over time in {len(curves)} curves; target {aim}, best {best:.4g}."
    )
    return Picture(_svg(figure, caption, prefix), caption)


@_drawn
def time_line(entry: Entry, prefix: str) -> Picture | None:
    """Each run a row: its initialization apart, then training and its evaluations."""
    runs = _runs(entry)
    bars = [_bars(run) for _, run in runs]
    totals = {
        kind: [sum(width for _, width in one[kind]) for one in bars if one[kind]]
        for kind in KINDS
    }
    if not any(totals.values()):
        return None
    figure = _blank(1.4 + 0.35 * len(runs))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 3))
    for kind, color in KINDS.items():
        axes = left if kind == "initialization" else right
        for row, one in enumerate(bars):
            label = kind if row == 0 else None
            axes.broken_barh(
                one[kind], (row - 0.35, 0.7), color=color, label=label, linewidth=0
            )
    for axes in (left, right):
        _dress(axes)
        axes.grid(visible=False, axis="y")
        axes.autoscale_view()
    left.set_yticks(range(len(runs)), [plain(name) for name, _ in runs])
    left.invert_yaxis()
    _labels(left, "minutes of initialization", "")
    _labels(right, "minutes since run_start", "")
    figure.legend(
        loc="outside upper center", ncols=3, frameon=False, labelcolor=INK,
        fontsize="small",
    )  # fmt: skip
    words = ", ".join(
        f"{sum(totals[kind]) / len(totals[kind]):.3g} minutes {phrase}"
        for kind, phrase in (
            ("initialization", "of initialization"),
            ("training", "on the clock"),
            ("evaluation", "of evaluation"),
        )
        if totals[kind]
    )
    caption = f"Time line of {len(runs)} runs, on average {words}."
    return Picture(_svg(figure, caption, prefix), caption)


def _bars(run: Run) -> dict[str, list[tuple[float, float]]]:
    """(start, width) in minutes since run_start, or the initialization's, by kind."""
    zero = _start(run) or 0.0
    bars: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}

    def add(kind: str, start: float, stop: float) -> None:
        origin = start if kind == "initialization" else zero
        begin, width = (start - origin) / 60e3, (stop - start) / 60e3
        if math.isfinite(begin + width) and 0 < width < 1e7 and abs(begin) < 1e7:
            bars[kind].append((begin, width))

    init, stop = run.first.get("init_start"), run.stop
    if init is not None:
        add("initialization", init.time_ms, zero)
    if stop is not None:
        add("training", zero, stop.time_ms)
    began = None
    for span in sorted(run.spans[:POINTS], key=lambda s: s.time_ms):
        if span.key == "eval_start":
            began = span.time_ms
        elif span.key == "eval_stop" and began is not None:
            add("evaluation", began, span.time_ms)
            began = None
    return bars


def chips_of(system: str) -> int | None:
    """Chips of a Google system's name, which counts cores, two a chip.

    >>> chips_of("tpu-v3-2048-TF"), chips_of("dgx2")
    (1024, None)
    """
    match = re.match(r"tpu-v\d-(\d{1,6})(?!\d)", system)
    return int(match[1]) // 2 if match else None


@_drawn
def scaling(entries: Sequence[Entry], prefix: str) -> Picture | None:
    """Minutes against chips, logarithmic, with Google's published results."""
    first = entries[0]
    mine = [
        (chips, e.score_minutes)
        for e in entries
        if e.score_minutes and e.task == "full" and (chips := chips_of(e.system))
    ]
    theirs = sorted(
        (p["chips"], p["score_minutes"])
        for p in published()
        if (p["ruleset"], p["benchmark"]) == (first.ruleset, first.benchmark)
        and p["score_minutes"] > 0
    )
    if not mine or not theirs:
        return None
    figure, axes = _figure(4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    x, y = zip(*theirs, strict=True)
    axes.plot(
        x, y, color=SERIES[0], marker="o", linestyle="none", label="published by Google"
    )
    axes.plot(
        x, [y[0] * x[0] / n for n in x], color=INK, linestyle="--", linewidth=1,
        label="twice the chips, half the time",
    )  # fmt: skip
    x, y = zip(*sorted(mine), strict=True)
    axes.plot(
        x, y, color=SERIES[1], marker="x", markersize=9, linestyle="none",
        label="these runs",
    )  # fmt: skip
    axes.set_xticks(sorted({*(n for n, _ in theirs), *x}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    _labels(axes, "chips", "minutes to train")
    _legend(axes)
    points = ", ".join(f"{minutes:.3g} minutes on {n} chips" for n, minutes in mine)
    caption = (
        f"{first.benchmark}, round {first.ruleset}: {points}; "
        f"published: {theirs[0][1]:.3g} minutes on {theirs[0][0]} chips to "
        f"{theirs[-1][1]:.3g} on {theirs[-1][0]}."
    )
    return Picture(_svg(figure, plain(caption), prefix), plain(caption))
