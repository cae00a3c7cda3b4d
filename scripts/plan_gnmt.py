"""Forecasts GNMT at every published scale, with the loops hoisted and plain.

    python scripts/plan_gnmt.py [--out results/plan_gnmt.md] [--rounds 3]

Each scale is compiled for its slice (minutes each, unless `plan` has kept it); the file
is written anew after each. The CPU's figures are scripts/bench_gnmt_step.py's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import bench_gnmt_step
from contenders import measure

from mlperf_tpu.errors import RunFailed
from mlperf_tpu.pod import outputs
from mlperf_tpu.pod.plan import plan
from mlperf_tpu.spec import load, resolve

SCALES = ("v0.6-512", "v0.6-16", "v0.6-64", "v0.6-256", "v0.6-128", "v0.7-512")
BOTH_WAYS = ("v0.6-512", "v0.6-16")
PLAIN = "model.hoisted=false"


def forecast(scale: str, *settings: str) -> dict[str, Any] | None:
    """The plan's document; None where the compiler gave none, which is said."""
    resolved = resolve(load("gnmt"), scale_name=scale, settings=list(settings))
    try:
        return plan(resolved, say=lambda text: print(text, file=sys.stderr)).document()
    except RunFailed as error:
        print(f"{scale} {settings}: {error}", file=sys.stderr)
        return None


def scale_table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The sweep, what each step is made of, and the residuals."""
    known = [rows[s] for s in sorted(rows, key=lambda s: (s[:4], rows[s]["chips"]))]
    lines = [outputs.table(known, outputs.markdown), ""]
    errors = [abs(row["error"]["time_to_train"]) for row in known if row["error"]]
    v06 = [
        abs(row["error"]["time_to_train"])
        for row in known
        if row["error"] and row["scale"].startswith("v0.6")
    ]
    for what, values in (("v0.6 scales", v06), ("scales", errors)):
        if values:
            lines.append(
                f"Time to train, mean difference without its sign over {len(values)} "
                f"{what}: {statistics.mean(values):.1%} (aim: 15 %).  "
            )
    lines += ["", "## By bucket", "", "| scale | batches | share | step, ms |"]
    lines.append("|---|---|---:|---:|")
    lines += [
        f"| {row['scale']} | {case['batches']} | {case['share']:.1%} | "
        f"{case['step_ms']:.1f} |"
        for row in known
        for case in row["cases"]
    ]
    return lines


def hoisting_table(
    hoisted: dict[str, dict[str, Any]],
    plain: dict[str, dict[str, Any]],
    cpu: dict[str, float],
) -> list[str]:
    lines = [
        "| step | hoisted, ms | plain, ms | plain / hoisted |",
        "|---|---:|---:|---:|",
    ]

    def line(name: str, fast: float, slow: float) -> None:
        lines.append(f"| {name} | {fast:.2f} | {slow:.2f} | {slow / fast:.2f} |")

    for scale, row in plain.items():
        fast, slow = hoisted[scale]["step_ms"], row["step_ms"]
        name = f"forecast, {row['chips']} chips ({scale})"
        line(name, fast["total"], slow["total"])
        line(f"{name}, computation alone", fast["compute"], slow["compute"])
    for precision in ("bfloat16", "float32"):
        names = [f"ours, {way}, {precision}" for way in ("hoisted", "plain")]
        if all(name in cpu for name in names):
            fast, slow = (128 / cpu[name] * 1e3 for name in names)
            line(f"measured, CPU, the proxy's size, {precision}", fast, slow)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/plan_gnmt.md"))
    parser.add_argument("--rounds", type=int, default=3, help="of the CPU's; 0: none")
    options = parser.parse_args()
    hoisted: dict[str, dict[str, Any]] = {}
    plain: dict[str, dict[str, Any]] = {}
    cpu: dict[str, float] = {}

    def write() -> None:
        text = [
            "# plan gnmt: every published scale",
            "",
            "`python scripts/plan_gnmt.py`; all times are forecasts but those named as "
            "published or measured. The loops' iterations are those of the bucket's "
            "longest sentence, the buckets' shares are of `data.bucket_shares` "
            "(scripts/gnmt_bucket_shares.py). No figure is fitted to GNMT.",
            "",
            *scale_table(hoisted),
            "",
            "## Hoisting",
            "",
            *hoisting_table(hoisted, plain, cpu),
        ]
        options.out.write_text("\n".join(text) + "\n", encoding="utf-8")

    for scale in SCALES:
        row = forecast(scale)
        if row is not None:
            hoisted[scale] = row
            write()
        if row is not None and scale in BOTH_WAYS:
            other = forecast(scale, PLAIN)
            if other is not None:
                plain[scale] = other
                write()
    if options.rounds:
        for name in [n for n in bench_gnmt_step.CONTENDERS if n.startswith("ours")]:
            rounds = [
                measure(bench_gnmt_step.__file__, name, 6.0)
                for _ in range(options.rounds)
            ]
            cpu[name] = statistics.median(rounds)
    write()


if __name__ == "__main__":
    main()
