"""GNMT's step with its loops hoisted and plain: forecast for pods, measured on the CPU.

    python scripts/gnmt_hoisting.py [--out results/gnmt_hoisting.md] [--rounds 3]

Each scale is compiled both ways (minutes each, unless `plan` has kept it); the CPU's
figures are those of scripts/bench_gnmt_step.py, medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import bench_gnmt_step
from contenders import PRECISION, measure
from plan_residuals import forecast

SCALES = ("v0.6-512", "v0.6-16")
PLAIN = ("--set", "model.hoisted=false")
SECONDS = 6.0  # of a measurement


def line(name: str, fast: float, slow: float) -> str:
    return f"| {name} | {fast:.2f} | {slow:.2f} | {slow / fast:.2f} |"


def forecasts() -> list[str]:
    lines = []
    for scale in SCALES:
        hoisted, plain = (
            forecast("gnmt", scale, *way)["step_ms"] for way in ((), PLAIN)
        )
        for what, part in (("step", "total"), ("computation alone", "compute")):
            name = f"forecast, {scale}, {what}"
            lines.append(line(name, hoisted[part], plain[part]))
    return lines


def measured(rounds: int) -> list[str]:
    cases = {
        precision: (bench_gnmt_step.BATCH, f"the proxy's size, {precision}")
        for precision in (PRECISION, "float32")
    }
    wide, width = bench_gnmt_step.PUBLISHED
    size = f"v0.6-512's width {width} and {wide // 2} pairs a replica"
    cases[f"{PRECISION}, wide"] = (wide, f"{size}, {PRECISION}")
    lines = []
    for ending, (pairs, what) in cases.items():
        fast, slow = (
            statistics.median(
                pairs
                / measure(bench_gnmt_step.__file__, f"ours, {way}, {ending}", SECONDS)
                for _ in range(rounds)
            )
            for way in ("hoisted", "plain")
        )
        lines.append(line(f"measured, CPU, {what}", fast * 1e3, slow * 1e3))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    text = "\n".join(
        [
            "# GNMT's step, hoisted and plain",
            "",
            f"`python scripts/gnmt_hoisting.py --rounds {options.rounds}`; "
            "milliseconds.",
            "",
            "| | hoisted | plain | plain / hoisted |",
            "|---|---:|---:|---:|",
            *forecasts(),
            *measured(options.rounds),
        ]
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
