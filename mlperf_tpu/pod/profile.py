"""Where a compiled step's time goes: ops and layers by the compiler's estimate, or by
what they move where it has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from mlperf_tpu.pod.forecast import layer, phases

if TYPE_CHECKING:
    from mlperf_tpu.pod.plan import Plan

PHASES = ("forward", "backward", "update")
OPS = 20  # the ops listed


def by_layer(found: Plan) -> dict[str, dict[str, float]]:
    """Milliseconds of each layer by phase, the largest first. A fused op counts for the
    layer that the compiler names it after."""
    ops = found.compiled.module.ops
    layers: dict[str, dict[str, float]] = {}
    for op, phase in zip(ops, phases(ops), strict=True):
        name = layer(op) if op.op_name else f"(the compiler's own, {phase})"
        times = layers.setdefault(name, dict.fromkeys(PHASES, 0.0))
        times[phase] += found.where.core.ms(op)
    return dict(sorted(layers.items(), key=lambda item: -sum(item[1].values())))


def largest(found: Plan, n: int = OPS) -> list[list[str]]:
    """The ops that take longest, as rows of a table."""
    ops = found.compiled.module.ops
    total = found.step.total
    named = list(zip(ops, phases(ops), strict=True))
    rows = [["op", "phase", "made from", "times", "ms", "of the step"]]
    for op, phase in sorted(named, key=lambda e: -found.where.core.ms(e[0]))[:n]:
        ms = found.where.core.ms(op)
        made = op.op_name or op.opcode
        rows.append(
            [op.name, phase, made, str(op.count), f"{ms:.3f}", f"{ms / total:.1%}"]
        )
    return rows


def layer_rows(found: Plan) -> list[list[str]]:
    rows = [["layer", *PHASES, "ms"]]
    for name, times in by_layer(found).items():
        cells = [f"{times[phase]:.3f}" for phase in PHASES]
        rows.append([name, *cells, f"{sum(times.values()):.3f}"])
    return rows


def text(found: Plan, style: Callable[[Sequence[Sequence[str]]], str]) -> str:
    head = "\nprofile of the compiled step: the compiler's estimates, ms a step"
    return f"{head}\n\n{style(largest(found))}\n\n{style(layer_rows(found))}"


def page(found: Plan, summary: str) -> str:
    """One self-contained page: the plan, and a bar a layer."""
    layers = by_layer(found)
    widest = max((sum(times.values()) for times in layers.values()), default=1.0)
    bars = "\n".join(
        f"<tr><td>{escape(name)}</td><td class=bar>"
        + "".join(
            f'<i class={phase} style="width:{times[phase] / widest * 100:.2f}%" '
            f'title="{phase} {times[phase]:.3f} ms"></i>'
            for phase in PHASES
        )
        + f"</td><td class=n>{sum(times.values()):.3f}</td></tr>"
        for name, times in layers.items()
    )
    head, *rows = largest(found)
    ops = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    legend = " ".join(f"<i class={phase}></i>{phase}" for phase in PHASES)
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    title = f"{found.resolved.name} on {found.where.name}: forecast"
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2rem; color-scheme: light dark; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .1rem .6rem; text-align: left; }}
.bar {{ width: 50vw; white-space: nowrap; font-size: 0; }} .n {{ text-align: right; }}
i {{ display: inline-block; height: 12px; min-width: 0; }}
p i {{ width: 12px; margin: 0 .3rem 0 1rem; }}
.forward {{ background: #0072b2; }} .backward {{ background: #d55e00; }}
.update {{ background: #009e73; }}
</style>
<h1>{escape(title)}</h1>
<pre>{escape(summary)}</pre>
<h2>Layers, ms a step (the compiler's estimates)</h2>
<p>{legend}</p>
<table>{bars}</table>
<h2>The {len(rows)} longest ops</h2>
<table><tr>{titles}</tr>
{ops}
</table></html>
"""
