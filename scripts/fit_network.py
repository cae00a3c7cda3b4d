"""Fits the network's figures on the v0.6 ResNet-50 rows; writes their residuals.

    python scripts/fit_network.py [--out results/plan_resnet50.md] [SCALE ...]

Needs the extra [pod]. Every scale is compiled once (about a minute on two idle cores)
and then comes from the cache. What is fitted, on the v0.6 rows alone: what a cycle of
the compiler's estimate takes, to the steady steps; the start of a run and the images
that a host decodes a second, to its first block. The microseconds of a message stay an
assumption, as those steps hardly tell them: a table shows both. The figures it finds
are to be copied by hand into topology/links.py, pod/machine.py and pod/forecast.py; the
residuals are those of the figures that stand there.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlperf_tpu.pod import forecast as figures
from mlperf_tpu.pod import outputs
from mlperf_tpu.pod.machine import CORES
from mlperf_tpu.pod.plan import Plan, forecast, plan
from mlperf_tpu.spec import load, resolve
from mlperf_tpu.topology.links import V3

SCALES = ("16", "64", "128", "256", "512", "1024")
MESSAGE_US = [k / 10 for k in range(1, 31)]
SCALE = [k / 200 for k in range(180, 206)]
SHOWN_US, SHOWN_SCALE = (0.1, 0.5, 1.0, 2.0), (0.9, 0.92, 0.94, 0.96, 0.98)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scales", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("results/plan_resnet50.md"))
    arguments = parser.parse_args()
    names = arguments.scales or [
        *(f"v0.6-{n}" for n in SCALES),
        "v0.7-4096-jax",
        "v0.7-4096-tf",
    ]
    document = load("resnet50")
    plans = [
        plan(
            resolve(document, scale_name=name), say=lambda t: print(t, file=sys.stderr)
        )
        for name in names
    ]
    fitted = [p for p in plans if p.resolved.scale.startswith("v0.6")]
    text = "\n".join([head(), steps(plans), fit(fitted), start(fitted)])
    arguments.out.write_text(text)
    print(text)


def head() -> str:
    return """# ResNet-50: forecast and published

Made by `python scripts/fit_network.py`. Steps, memory and times to train are forecasts
from the compiled step; "published" is what Google's submitted logs say. A steady step
holds its share of the evaluation, as the logs show no other. The number of evaluations
to the target is taken from the published runs, and the time beside it is the median of
the runs of so many. No figure is one benchmark's or scale's.
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


def fit(plans: Sequence[Plan]) -> str:
    """The steps' root mean square error over both figures that they are fitted by."""

    def error(message_us: float, scale: float) -> float:
        links = replace(V3, message_us=message_us)
        found = []
        for p in plans:
            where = replace(p.where, core=replace(p.where.core, estimate_scale=scale))
            answers = (p.compiled, p.evaluation)
            row = forecast(p.resolved, where, p.devices, answers, p.published, links)
            found.append(row.document()["error"]["step"])
        return math.sqrt(statistics.fmean(e * e for e in found))

    errors = {(us, scale): error(us, scale) for us in MESSAGE_US for scale in SCALE}
    us, scale = min(errors, key=lambda each: errors[each])
    at_used = {s: error(V3.message_us, s) for s in SCALE}
    best = min(at_used, key=lambda s: at_used[s])
    rows = [["us a message", *(f"{s:g}" for s in SHOWN_SCALE)]]
    for each in sorted({us, V3.message_us, *SHOWN_US}):
        cells = [f"{error(each, s):.2%}" for s in SHOWN_SCALE]
        rows.append([f"{each:g}", *cells])
    used = CORES["v3"].estimate_scale
    return f"""
## The two figures of a step

Root mean square error of the six steps of v0.6, by the microseconds of a message and by
what a cycle of the compiler's estimate takes (columns):

{outputs.markdown(rows)}

Best: {us:g} us and {scale:g} ({errors[us, scale]:.2%}). In use: {V3.message_us:g} us
(`topology/links.py`), with which the best scale is {best:g} ({at_used[best]:.2%}), and
{used:g} (`pod/machine.py`). The six steps tell the scale, but hardly the microseconds,
as only those of 1024 chips wait much for messages. What they prefer makes the step of
4096 chips, with its lines of 128 chips, far too long; {V3.message_us:g} us is an
assumption that both can live with.
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
