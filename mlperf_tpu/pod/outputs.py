"""A plan as text, Markdown and a chart. Each figure says whether it is a forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlperf_tpu.errors import BadInput
from mlperf_tpu.pod.forecast import GIB

if TYPE_CHECKING:
    from mlperf_tpu.pod.plan import Plan

Row = dict[str, Any]
Style = Callable[[Sequence[Sequence[str]]], str]
PARTS = ("compute", "update", "gradient_sum", "batch_norm", "halo", "input")


def text(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "| --- |" + " ---: |" * (len(rows[0]) - 1)
    return "\n".join([lines[0], rule, *lines[1:]])


def one(row: Row, style: Style = text) -> str:
    """One slice's plan: the machine, the step by parts, memory, the run."""
    generation = row["topology"].partition(":")[0]
    head = (
        f"{row['benchmark']} on {row['chips']} {generation} chips ({row['topology']}): "
        f"{row['replicas']} replicas x {row['partitions']} "
        f"partition{'s' if row['partitions'] > 1 else ''}, batch {row['batch']}, "
        f"{row['batch_per_replica']} a replica"
    )
    step = row["step_ms"]
    lines = [["step, forecast", "ms", "share"]]
    lines += [
        [
            name.replace("_", " "),
            f"{step[name]:.2f}",
            f"{step[name] / step['total']:.1%}",
        ]
        for name in PARTS
    ]
    lines.append(["total", f"{step['total']:.2f}", ""])
    hbm = row["hbm_bytes"]
    kinds = [["memory a core", "GiB"]]
    kinds += [
        [kind, f"{n / GIB:.2f}"]
        for kind, n in hbm.items()
        if kind not in ("total", "limit") and n >= GIB / 200
    ]
    kinds.append([f"total, of {hbm['limit'] / GIB:.0f}", f"{hbm['total'] / GIB:.2f}"])
    collectives = ", ".join(
        f"{part.replace('_', ' ')} {found['count']} of {found['bytes'] / 1e6:.1f} MB"
        for part, found in row["collectives"].items()
    )
    notes = [
        f"{row['flops'] / 1e9:.0f} GFLOP a core and step, {row['mxu_utilisation']:.1%} "
        f"of the matrix units' peak; collectives: {collectives or 'none'}",
        *_notes(row),
    ]
    parts = [head, style(lines), *_cases(row, style), style(kinds)]
    return "\n\n".join([*parts, "\n".join(notes), _run(row, style)])


def _cases(row: Row, style: Style) -> list[str]:
    """What the step is the mean of, where loops end with the data."""
    if not row["cases"]:
        return []
    lines = [["batches", "share", "ms"]]
    lines += [
        [case["batches"], f"{case['share']:.1%}", f"{case['step_ms']:.2f}"]
        for case in row["cases"]
    ]
    return [style(lines)]


def _notes(row: Row) -> list[str]:
    notes = []
    if row["network"] != "modelled":
        notes.append(
            f"note: the network of {row['topology']} is not modelled; its time is "
            "missing from the step"
        )
    if row["by_traffic_ms"] > 0.01 * row["step_ms"]["total"]:
        notes.append(
            f"note: {row['by_traffic_ms']:.2f} ms of it are ops that the compiler "
            "does not estimate: what they move through memory, at least"
        )
    for loop in row["unknown_loops"]:
        notes.append(f"note: the iterations of {loop} are not known; counted once")
    if row["published"] is None:
        notes.append("note: no published result for this slice and batch")
    return notes


def _run(row: Row, style: Style) -> str:
    measured, error = row["published"] or {}, row["error"] or {}
    lines = [["run", "forecast", "published", "difference"]]

    def line(name: str, value: str, there: str = "", off: float | None = None) -> None:
        lines.append([name, value, there, "" if off is None else f"{off:+.1%}"])

    step = measured.get("step_ms")
    line(
        "steady step, evaluation included, ms",
        f"{row['steady_step_ms']:.2f}",
        f"{step:.2f}" if step else "",
        error.get("step"),
    )
    line("evaluation, s", f"{row['evaluation_s']:.3f}")
    line("first block over a later one, s", f"{row['start_s']:.1f}")
    line("scoring the last evaluation, s", f"{row['scoring_s']:.1f}")
    line("steps", str(row["steps"]))
    line("epochs", f"{row['epochs']:g}")
    seconds = measured.get("time_to_train_s")
    line(
        "time to train, s",
        f"{row['time_to_train_s']:.1f}",
        f"{seconds:.1f}" if seconds else "",
        error.get("time_to_train"),
    )
    if row["init_s"] is not None:
        line("initialisation, before the clock, s", "", f"{row['init_s']:.0f}")
    tail = f"epochs: {row['epochs_from']}"
    if measured:
        tail += (
            f"\npublished: {measured['source']}; the median of the runs of so many "
            f"epochs (all runs' score: {measured['score_s']:.1f} s)"
        )
    return style(lines) + "\n" + tail


def table(rows: Sequence[Row], style: Style = text) -> str:
    """A sweep: a line a scale."""
    head = ["scale", "chips", "batch", "step ms", "compute", "update", "sums"]
    head += ["batch norm", "steady ms", "published", "diff", "GiB"]
    lines = [[*head, "train s", "published", "diff"]]
    for row in rows:
        step, measured, error = row["step_ms"], row["published"], row["error"]
        lines.append(
            [row["scale"] or "-", str(row["chips"]), str(row["batch"])]
            + [f"{step[k]:.2f}" for k in ("total", "compute", "update")]
            + [f"{step[k]:.2f}" for k in ("gradient_sum", "batch_norm")]
            + [f"{row['steady_step_ms']:.2f}"]
            + [f"{measured['step_ms']:.2f}" if measured else "-"]
            + [f"{error['step']:+.1%}" if error else "-"]
            + [
                f"{row['hbm_bytes']['total'] / GIB:.2f}",
                f"{row['time_to_train_s']:.1f}",
            ]
            + [f"{measured['time_to_train_s']:.1f}" if measured else "-"]
            + [f"{error['time_to_train']:+.1%}" if error else "-"]
        )
    return (
        "forecasts beside published results ('published'); steady: a step with its "
        f"share of the evaluation\n\n{style(lines)}"
    )


def two_columns(
    rows: Sequence[Row], changes: Sequence[str], style: Style = text
) -> str:
    """The plan and what a change makes of it."""
    before, after = rows
    lines = [["forecast", "as it is", ", ".join(changes), "change"]]

    def line(name: str, a: float, b: float, form: str = ".2f") -> None:
        change = f"{b / a - 1:+.1%}" if a else ""
        lines.append([name, format(a, form), format(b, form), change])

    for part in ("total", *PARTS):
        line(
            f"{part.replace('_', ' ')}, ms",
            before["step_ms"][part],
            after["step_ms"][part],
        )
    line("update, % of the step", *(100 * r["update_share"] for r in rows))
    line("memory, GiB", *(r["hbm_bytes"]["total"] / GIB for r in rows))
    line("examples a second", *(r["batch"] / r["step_ms"]["total"] * 1e3 for r in rows))
    for name, form in (("steps", ".0f"), ("epochs", "g"), ("time_to_train_s", ".1f")):
        line(name.replace("_", " "), before[name], after[name], form)
    sources = dict.fromkeys(row["epochs_from"] for row in rows)
    return f"{style(lines)}\nepochs: {'; '.join(sources)}"


def failed(found: Plan, holes: Sequence[str]) -> Row:
    """What failed chips cost the run, the batch of a replica kept."""
    from mlperf_tpu.pod.failures import forecast_failure

    if found.where.grid is None:
        raise BadInput(f"--failed: the network of {found.where.name} is not modelled")
    grid = replace(found.where.grid).with_holes(holes)
    step = found.step
    payload = sum(
        c.n_bytes * c.count / (1 if c.kind == "all-reduce" else 2)
        for c in found.gradient_sums
    )
    other = step.total - step.gradient_sum
    loss = forecast_failure(grid, found.batch, other, payload, len(found.devices[0]))
    return {
        "holes": list(holes),
        "schedule": loss.schedule,
        "notes": list(loss.notes),
        "step_growth": loss.step_growth,
        "throughput_per_chip": loss.throughput_per_chip,
        "whole": vars(loss.whole),
        "left": vars(loss.left),
    }


def failed_text(row: Row) -> str:
    whole, left = row["whole"], row["left"]
    lines = [
        f"\nwith failed chips at {', '.join(row['holes'])}: {whole['chips']} to "
        f"{left['chips']} chips, {whole['replicas']} to {left['replicas']} replicas, "
        f"batch {whole['global_batch']} to {left['global_batch']}",
        f"gradient sum {whole['gradient_sum_ms']:.2f} to "
        f"{left['gradient_sum_ms']:.2f} ms ({row['schedule']}), "
        f"step {whole['step_ms']:.2f} to {left['step_ms']:.2f} ms "
        f"({row['step_growth']:+.1%}), throughput a surviving chip "
        f"{row['throughput_per_chip']:.3f} of the whole slice's",
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in row["notes"])])


def chart(plans: Sequence[Plan]) -> str:
    """Forecast and published times over chips, as SVG: steps and times to train."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    rows = sorted((p.document() for p in plans), key=lambda row: row["chips"])
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "plan"}):
        figure = Figure(figsize=(9, 4), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, title, mine, theirs in (
            (panels[0], "steady step, ms", "steady_step_ms", "step_ms"),
            (panels[1], "time to train, s", "time_to_train_s", "time_to_train_s"),
        ):
            chips = [row["chips"] for row in rows]
            axes.loglog(chips, [row[mine] for row in rows], "o-", label="forecast")
            known = [row for row in rows if row["published"]]
            axes.loglog(
                [row["chips"] for row in known],
                [row["published"][theirs] for row in known],
                "kx",
                markersize=9,
                label="published",
            )
            axes.set_title(title)
            axes.set_xlabel("TPU v3 chips")
            axes.set_xticks(chips, [str(n) for n in chips], minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.2)
            axes.legend()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
