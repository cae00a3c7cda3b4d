"""Forecasts of every published scale of a benchmark beside what was published.

    python scripts/plan_residuals.py ssd --out results/plan_ssd.md

Runs `mlperf-tpu plan BENCHMARK --scale NAME --json` for each scale, one after the other
(compiled modules are cached); one that does not compile is named. Where two scales
have the same replicas of the same images, one of them over several cores a replica, it
compares them; of the scale of 1024 chips it also forecasts the weight update on every
core, without shards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import RunFailed
from mlperf_tpu.pod.published import published
from mlperf_tpu.spec import Spec, load, resolve

Row = dict[str, Any]
PARTS = ("compute", "update", "gradient_sum", "batch_norm", "halo", "input")


def forecast(benchmark: str, scale: str, *options: str) -> Row:
    call = ["-m", "mlperf_tpu", "plan", benchmark, "--scale", scale, "--json", *options]
    done = subprocess.run([sys.executable, *call], capture_output=True, text=True)
    if done.returncode:
        # Without the log's place, which is this machine's.
        said = done.stderr.strip().splitlines()[-1].split("; the whole log:")[0]
        raise RunFailed(f"{scale}: {said}")
    row: Row = json.loads(done.stdout)["rows"][0]
    return row


def tail_s(benchmark: str, scale: str) -> float | None:
    """What a published run lasted after its last block of training and evaluation."""
    resolved = resolve(load(benchmark), scale_name=scale)
    entry, spec = published(resolved), resolved.spec
    if entry is None or not entry.first_block_s or not entry.block_s:
        return None
    ends = [block.last_step for block in spec.blocks()[: entry.n_evaluations]]
    later = (ends[-1] - ends[0]) / usual_steps(spec, len(ends)) * entry.block_s
    return entry.same_length_s - entry.first_block_s - later


def usual_steps(spec: Spec, n_blocks: int) -> int:
    ends = [0, *(block.last_step for block in spec.blocks()[:n_blocks])]
    spans = [b - a for a, b in itertools.pairwise(ends)]
    return statistics.mode(spans)


def table(lines: list[list[str]]) -> str:
    head, *rest = lines
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *rest])


def update_shares(benchmark: str, row: Row) -> str:
    """What the update takes of a step, sharded and on every core."""
    whole = forecast(benchmark, row["scale"], "--set", "update.sharded=false")
    shares = []
    for kind, each in (("sharded", row), ("on every core", whole)):
        step = each["step_ms"]
        computing = step["update"] / (step["update"] + step["compute"])
        shares.append(
            f"{kind} {step['update']:.2f} ms of {step['total']:.2f} "
            f"({each['update_share']:.1%}; {computing:.1%} of what a core computes)"
        )
    return f"\nThe weight update of {row['scale']}: {', '.join(shares)}."


def by_case(rows: list[Row]) -> list[str]:
    """Steps whose loops end with the data, by what the batches are."""
    lines = [
        [row["scale"], c["batches"], f"{c['share']:.1%}", f"{c['step_ms']:.1f}"]
        for row in rows
        for c in row["cases"]
        if len(row["cases"]) > 1
    ]
    return [table([["scale", "batches", "share", "step ms"], *lines])] if lines else []


def text(benchmark: str, rows: list[Row], failed: list[str]) -> str:
    steps = [["scale", "replicas x cores", "images", *PARTS, "total"]]
    columns = "scale|steady ms|published||train s|published||tail s|score s"
    times = [columns.split("|")]
    off = []
    for row in rows:
        step, measured, error = row["step_ms"], row["published"], row["error"]
        steps.append(
            [
                row["scale"],
                f"{row['replicas']} x {row['partitions']}",
                str(row["batch_per_replica"]),
                *(f"{step[part]:.2f}" for part in PARTS),
                f"{step['total']:.2f}",
            ]
        )
        line = [row["scale"], f"{row['steady_step_ms']:.2f}", "", ""]
        line += [f"{row['time_to_train_s']:.1f}", "", "", "", ""]
        if measured:
            tail = tail_s(benchmark, row["scale"])
            line[2] = f"{measured['step_ms']:.2f}" if measured["step_ms"] else ""
            line[3] = f"{error['step']:+.1%}" if error["step"] is not None else ""
            line[5] = f"{measured['time_to_train_s']:.1f}"
            line[6] = f"{error['time_to_train']:+.1%}"
            line[7] = "" if tail is None else f"{tail:.1f}"
            line[8] = f"{measured['score_s']:.1f}"
            if row["scale"].startswith("v0.6"):
                off.append(error["time_to_train"])
        times.append(line)
    mean = statistics.fmean(map(abs, off)) if off else None
    said = [
        f"# {benchmark}: forecasts beside published results",
        "",
        f"`python scripts/plan_residuals.py {benchmark}`; {rows[0]['compiler']}. "
        "Forecasts by `mlperf-tpu plan`, with no figure of this benchmark's own; "
        "milliseconds of one step:",
        "",
        table(steps),
        "",
        "A run: the steady block's time a step, evaluation included, and the time to "
        "train, which ends when the host has scored the last evaluation "
        f"({rows[0]['scoring_s']:.0f} s, scripts/measure_scoring.py). Published are "
        "the runs of as many evaluations as forecast, their median; `tail` is what "
        "they lasted after their last block, `score` the entry's result over runs of "
        "all lengths.",
        "",
        table(times),
        "",
    ]
    if mean is not None:
        said.append(
            f"Time to train over the {len(off)} scales of v0.6: {mean:.1%} off in the "
            f"mean, {statistics.fmean(off):+.1%} with its sign."
        )
    largest = next((row for row in rows if row["chips"] == 1024), None)
    if largest is not None:
        said.append(update_shares(benchmark, largest))
    pair = {(r["replicas"], r["batch_per_replica"], r["partitions"]): r for r in rows}
    for (replicas, images, cores), row in pair.items():
        one = pair.get((replicas, images, 1))
        if cores > 1 and one is not None:
            ratio = one["step_ms"]["total"] / row["step_ms"]["total"]
            said.append(
                f"\n{replicas} replicas of {images} images: {cores} cores a replica "
                f"({row['scale']}, {row['step_ms']['total']:.2f} ms, of which halos "
                f"{row['step_ms']['halo']:.2f}) are {ratio:.2f} x as fast as one "
                f"({one['scale']}, {one['step_ms']['total']:.2f} ms)."
            )
    said += [f"\nNo forecast of {each}." for each in failed]
    said += ["", *by_case(rows)]
    return "\n".join(said).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("benchmark")
    parser.add_argument("--scale", action="append")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.scale or [s.name for s in load(options.benchmark).scales]
    rows, failed = [], []
    for name in names:
        print(name, file=sys.stderr)
        try:
            rows.append(forecast(options.benchmark, name))
        except RunFailed as error:
            failed.append(str(error))
    written = text(options.benchmark, rows, failed)
    print(written)
    if options.out:
        options.out.write_text(written)


if __name__ == "__main__":
    main()
