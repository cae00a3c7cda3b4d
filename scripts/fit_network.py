"""Fits the network's figures on the v0.6 ResNet-50 rows; writes their residuals.

    python scripts/fit_network.py [--out results/plan_resnet50.md] [SCALE ...]

Needs the extra [pod]. Every scale is compiled once (about a minute on two idle cores)
and then comes from the cache. What is fitted, on the v0.6 rows alone: the microseconds
of a message, to the steady steps; the start of a run and the images that a host decodes
a second, to its first block. The figures it finds are to be copied by hand into
topology/links.py and pod/forecast.py; the residuals are those of the figures that stand
there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlperf_tpu.pod import forecast as figures
from mlperf_tpu.pod import outputs
from mlperf_tpu.pod.plan import Plan, forecast, plan
from mlperf_tpu.spec import load, resolve
from mlperf_tpu.topology.links import V3

SCALES = ("16", "64", "128", "256", "512", "1024")
MESSAGE_US = [k / 20 for k in range(1, 61)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scales", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("results/plan_resnet50.md"))
    arguments = parser.parse_args()
    names = arguments.scales or [*(f"v0.6-{n}" for n in SCALES), "v0.7-4096-tf"]
    document = load("resnet50")
    plans = [
        plan(
            resolve(document, scale_name=name), say=lambda t: print(t, file=sys.stderr)
        )
        for name in names
    ]
    fitted = [p for p in plans if p.resolved.scale.startswith("v0.6")]
    text = "\n".join([head(), steps(plans), network(fitted), start(fitted)])
    arguments.out.write_text(text)
    print(text)


def head() -> str:
    return """# ResNet-50: forecast and published

Made by `python scripts/fit_network.py`. Steps, memory and times to train are forecasts
from the compiled step; "published" is what Google's submitted logs say. A steady step
holds its share of the evaluation, as the logs show no other. The number of evaluations
to the target is taken from the published runs. No figure is one benchmark's or scale's.
"""


def steps(plans: Sequence[Plan]) -> str:
    rows = [p.document() for p in plans]
    errors = [abs(row["error"]["step"]) for row in rows]
    times = [abs(row["error"]["time_to_train"]) for row in rows]
    seconds = [p.compiled.stats["compile_s"] for p in plans]
    return f"""
## Steps and times to train

{outputs.table(rows, outputs.markdown)}

Steady step: {statistics.mean(errors):.1%} off in the mean, {max(errors):.1%} at most
(aim: 5 % and 8 %). Time to train: {statistics.mean(times):.1%} off in the mean (aim:
8 %).
Compiling the step took {min(seconds):.0f} to {max(seconds):.0f} s, on a shared machine.
"""


def network(plans: Sequence[Plan]) -> str:
    def mean_error(message_us: float) -> float:
        links = replace(V3, message_us=message_us)
        found = [
            forecast(
                p.resolved,
                p.where,
                p.devices,
                (p.compiled, p.evaluation),
                p.published,
                links,
            ).document()["error"]["step"]
            for p in plans
        ]
        return statistics.mean(abs(error) for error in found)

    errors = {us: mean_error(us) for us in MESSAGE_US}
    best = min(errors, key=lambda us: errors[us])
    rows = [["us a message", "mean error of the v0.6 steps"]]
    shown = sorted({best, V3.message_us, 0.05, 0.5, 1.0, 2.0, 3.0})
    rows += [[f"{us:g}", f"{mean_error(us):.2%}"] for us in shown]
    return f"""
## Network

{outputs.markdown(rows)}

Best: {best:g} us; in use: {V3.message_us:g} us (`topology/links.py`).
"""


def start(plans: Sequence[Plan]) -> str:
    """First blocks: seconds over a steady one, and what the figures in use give."""
    rows = [
        ["scale", "hosts", "published, s", "forecast, s", "first epoch, images/s host"]
    ]
    for p in plans:
        entry = p.published
        assert entry is not None and entry.first_block_s and entry.block_s
        hosts = max(1.0, p.where.n_devices / figures.CORES_PER_HOST)
        extra = entry.first_block_s - entry.block_s
        epoch = entry.block_s / (entry.epochs_per_block or 1)
        examples = p.resolved.spec.data.train_examples
        rate = examples / hosts / (epoch + extra - figures.START_S)
        rows.append(
            [
                str(p.resolved.scale),
                f"{hosts:g}",
                f"{extra:.1f}",
                f"{p.run.start_s:.1f}",
                f"{rate:.0f}",
            ]
        )
    return f"""
## The first block over a later one

{outputs.markdown(rows)}

In use: {figures.START_S:g} s for every run, and {figures.HOST_IMAGES_PER_S:g}
images a second and host in the first epoch. Where few hosts decode much, the last
column is their rate; elsewhere it says little.
"""


if __name__ == "__main__":
    main()
