"""Compiles every v0.6 scale of a benchmark and writes how far its forecasts are off.

    python scripts/plan_residuals.py BENCHMARK [SCALE ...]

Needs the extra [pod]; a scale is compiled once and then comes from the cache. Writes
results/plan_BENCHMARK.md. Nothing is fitted here: the network's and the start's figures
are those of topology/links.py and pod/forecast.py, the same for every benchmark.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from mlperf_tpu.errors import RunFailed
from mlperf_tpu.pod.plan import Plan, plan
from mlperf_tpu.spec import load, resolve

WITHOUT_SHARDING = "update.sharded=false"


def main() -> None:
    benchmark, *names = sys.argv[1:]
    document = load(benchmark)
    names = names or [s.name for s in document.scales]
    rows, update = [], []
    for name in names:
        found = _plan(benchmark, name)
        if found is not None:
            rows.append(found)
    largest = next((r for r in rows if r.resolved.chips == 1024), None)
    if largest is not None:
        plain = _plan(benchmark, str(largest.resolved.scale), WITHOUT_SHARDING)
        update = [plan for plan in (largest, plain) if plan is not None]
    text = "\n".join(
        [_head(benchmark), *_table(rows), *_summary(rows), *_share(update)]
    )
    Path(f"results/plan_{benchmark}.md").write_text(text + "\n")
    print(text)


def _plan(benchmark: str, scale: str, *settings: str) -> Plan | None:
    resolved = resolve(load(benchmark), scale_name=scale, settings=settings)
    try:
        return plan(resolved, say=lambda t: print(scale, t, file=sys.stderr))
    except RunFailed as error:
        print(f"{scale}: {error}", file=sys.stderr)
        return None


def _head(benchmark: str) -> str:
    return f"""# {benchmark}: forecast and published

Made by `python scripts/plan_residuals.py {benchmark}`. Milliseconds a step and seconds
a run, forecast from the compiled step; "published" is what Google's submitted logs say.
A steady step holds its share of the evaluation, as the logs show no other; the number
of evaluations to the target is taken from the published runs. No figure is fitted to
this benchmark.
"""


def _table(rows: list[Plan]) -> list[str]:
    out = [
        "| scale | chips | batch | forward, backward | update | sum | partitions "
        "| step | steady | published | off | evaluation s | run s | published | off |",
        "|---" * 15 + "|",
    ]
    for found in rows:
        row = found.document()
        step, error, known = row["step_ms"], row["error"], row["published"]
        cells = [
            row["scale"],
            row["chips"],
            row["batch"],
            f"{step['compute']:.2f}",
            f"{step['update']:.2f}",
            f"{step['gradient_sum']:.2f}",
            f"{step['halo']:.2f}",
            f"{step['total']:.2f}",
            f"{row['steady_step_ms']:.2f}",
            f"{known['step_ms']:.2f}" if known else "",
            f"{error['step']:+.1%}" if known else "",
            f"{row['evaluation_s']:.2f}",
            f"{row['time_to_train_s']:.1f}",
            f"{known['time_to_train_s']:.1f}" if known else "",
            f"{error['time_to_train']:+.1%}" if known else "",
        ]
        out.append("| " + " | ".join(map(str, cells)) + " |")
    return out


def _summary(rows: list[Plan]) -> list[str]:
    out = []
    for round_ in ("v0.6", "v0.7"):
        known = [
            row["error"]
            for row in (found.document() for found in rows)
            if row["error"] and str(row["scale"]).startswith(round_)
        ]
        if known:
            off = statistics.mean(abs(e["time_to_train"]) for e in known)
            step = statistics.mean(abs(e["step"]) for e in known)
            out.append(
                f"\n{round_}, {len(known)} scales: the time to train is off by "
                f"{off:.1%} in the mean, the steady step by {step:.1%}."
            )
    return out


def _share(rows: list[Plan]) -> list[str]:
    out = ["\n## The weight update\n"] if rows else []
    for found in rows:
        row = found.document()
        kind = "sharded" if found.resolved.spec.update.sharded else "on every core"
        core = found.step.update / (found.step.compute + found.step.update)
        out.append(
            f"- {row['scale']}, {kind}: {row['step_ms']['update']:.2f} ms of "
            f"{row['step_ms']['total']:.2f} ms, {row['update_share']:.1%}; "
            f"{core:.1%} of what a core computes"
        )
    return out


if __name__ == "__main__":
    main()
