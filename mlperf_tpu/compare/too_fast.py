"""Too fast to be true: MLPerf's reference-convergence-point (RCP) test, in closed form.

A submission whose runs converge in fewer epochs than chance makes credible, given
reference runs at the same batch, did not do the benchmark's work. The official test
starts with v1.0; here Google's published runs are the reference for v0.6 and v0.7.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlperf_tpu.compare.sides import Side

ALPHA = 0.05
# Benchmarks whose epoch_num is no epoch (steps, placeholders): nothing to compare.
UNNUMBERED = ("bert", "dlrm", "minigo")


@dataclass(frozen=True)
class ReferencePoint:
    """Reference runs at one batch: mean and stdev of epochs, and how many count."""

    mean: float
    stdev: float
    n: int


def reference_point(
    runs: Sequence[float],
    stdev_over: Literal["middle", "all"] = "middle",
    drop: int = 1,
) -> ReferencePoint:
    """The reference of some runs, `drop` of them dropped at each end.

    The stdev is the population's. The rules take it over the middle runs, the official
    code over all of them, which is looser.

    >>> point = reference_point([16, 14, 16, 17, 16, 16, 15, 16, 15, 16])
    >>> point.mean, round(point.stdev, 3), point.n
    (15.75, 0.433, 8)
    """
    if len(runs) <= 2 * drop:
        raise ValueError(f"{len(runs)} runs, of which {2 * drop} are dropped")
    order = sorted(runs)
    middle = order[drop : len(order) - drop]
    mean = math.fsum(middle) / len(middle)
    over = middle if stdev_over == "middle" else order
    center = math.fsum(over) / len(over)
    variance = math.fsum((x - center) ** 2 for x in over) / len(over)
    return ReferencePoint(mean, math.sqrt(variance), len(middle))


def least_mean(point: ReferencePoint, n_submission: int) -> float:
    """The lowest credible olympic mean of `n_submission` runs (two of them dropped).

    One-sided two-sample Student's t; the submission's stdev is taken to be the
    reference's.
    """
    from scipy.special import stdtrit

    n = n_submission - 2
    if n < 1:
        raise ValueError(f"{n_submission} runs; the test needs at least 3")
    t = float(stdtrit(point.n + n - 2, 1 - ALPHA))
    return point.mean - t * point.stdev * math.sqrt(1 / point.n + 1 / n)


def interpolated(
    low: tuple[int, ReferencePoint], high: tuple[int, ReferencePoint], batch: int
) -> ReferencePoint:
    """The reference at a batch between two that have one; all 2N runs count there."""
    (batch_low, a), (batch_high, b) = low, high
    share = (batch - batch_low) / (batch_high - batch_low)
    return ReferencePoint(
        a.mean + share * (b.mean - a.mean),
        a.stdev + share * (b.stdev - a.stdev),
        a.n + 2,
    )


@functools.cache
def published() -> list[dict[str, Any]]:
    """Google's v0.6 and v0.7 entries: times, epochs, scores, one dict an entry."""
    path = Path(__file__).parents[1] / "log" / "published.json"
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def against_published(side: Side) -> dict[str, Any] | None:
    """The test of a side against published runs at its batch; None where none are."""
    if side.task != "full" or side.benchmark in UNNUMBERED or len(side.runs) < 3:
        return None
    batch = side.settings.get("global_batch_size")
    runs = [
        epochs
        for entry in published()
        if (entry["ruleset"], entry["benchmark"]) == (side.ruleset, side.benchmark)
        and str(entry["batch"]) == str(batch)
        for epochs, status in zip(entry["epochs"], entry["statuses"], strict=True)
        if status == "success"
    ]
    mine = sorted(side.metric("epochs"))
    if len(runs) < 3 or not mine or not all(map(math.isfinite, mine[:-1])):
        return None
    point = reference_point(runs)
    least = least_mean(point, len(mine))
    mean = math.fsum(mine[1:-1]) / (len(mine) - 2)
    return {
        "ok": mean >= least - 1e-9,
        "mean_epochs": mean,
        "least_epochs": least,
        "reference_mean": point.mean,
        "reference_runs": len(runs),
        "source": f"Google's published {side.ruleset} runs at batch {batch}",
    }
