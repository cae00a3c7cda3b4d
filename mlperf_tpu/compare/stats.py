"""Is one sample of positive times larger than another, by more than a margin?

Welch's t on logarithms where times are continuous; an exact permutation test on ranks
where runs did not converge (they are slower than any) or values tie (epochs). "Worse"
is a two-sided test at `alpha`, with Holm's correction over the metrics that decide;
"not worse by the margin" is a one-sided one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Exact enumeration up to this many ways to split the runs (10 against 10: 184,756).
EXACT_SPLITS = 200_000
RESAMPLES = 9_999
POWER = 0.8
# Share of distinct values below which a sample counts as tied.
DISTINCT_SHARE = 0.7


@dataclass(frozen=True)
class Limits:
    """Changes below `margin` (a share) do not matter; `alpha`: rate of false alarms."""

    margin: float = 0.01
    alpha: float = 0.05


@dataclass(frozen=True)
class MetricResult:
    """One metric's verdict. `p` is two-sided for "worse" (1 where better), before Holm.

    `interval` is the two-sided confidence interval of the ratio. `p_no_worse` is for
    "not worse by the margin". Values are geometric means, None where not finite.
    """

    name: str
    baseline: float | None
    candidate: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    p: float | None
    p_no_worse: float | None
    decision: str  # ok, regression, undecided, missing
    minimum_detectable: float | None
    method: str
    gating: bool
    note: str

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "ratio": self.ratio,
            "interval": None if self.interval is None else list(self.interval),
            "p": self.p,
            "decision": self.decision,
            "minimum_detectable": self.minimum_detectable,
            "p_no_worse": self.p_no_worse,
            "method": self.method,
            "gating": self.gating,
            "note": self.note,
        }


def judge_metrics(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    gating: Sequence[str],
    limits: Limits,
) -> list[MetricResult]:
    """Tests each metric, then corrects the p of those that decide (Holm 1979)."""
    tested = [
        _test(name, list(a), list(b), name in gating, limits)
        for name, (a, b) in pairs.items()
    ]
    deciding = [m for m in tested if m.gating and m.p is not None]
    worse = dict(
        zip(
            (m.name for m in deciding),
            holm([m.p for m in deciding if m.p is not None]),
            strict=True,
        )
    )
    return [_decide(m, worse.get(m.name, m.p), limits) for m in tested]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given.

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = highest
    return adjusted


def _test(
    name: str, a: list[float], b: list[float], gating: bool, limits: Limits
) -> MetricResult:
    result = MetricResult(
        name=name,
        baseline=_center(a),
        candidate=_center(b),
        ratio=None,
        interval=None,
        p=None,
        p_no_worse=None,
        decision="missing",
        minimum_detectable=None,
        method="",
        gating=gating and bool(a and b),
        note="" if a and b else "not logged by both sides",
    )
    if not a or not b:
        return result
    if result.baseline is not None and result.candidate is not None:
        result = replace(result, ratio=result.candidate / result.baseline)
    if set(a) == set(b) and len(set(a)) == 1:
        return replace(result, decision="ok", method="all equal", note="all runs equal")
    if len(a) == 1 or len(b) == 1:
        return replace(result, method="threshold")
    pooled = a + b
    tied = len(set(pooled)) <= DISTINCT_SHARE * len(pooled)
    if tied or not all(map(math.isfinite, pooled)):
        return _permuted(result, a, b, limits)
    return _welch(result, a, b, limits)


def _center(values: Sequence[float]) -> float | None:
    """The geometric mean, None for an empty sample or one that is not finite."""
    if not values or not all(map(math.isfinite, values)):
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _moments(logs: Sequence[float]) -> tuple[float, float]:
    """(mean, squared standard error of the mean)."""
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((x - mean) ** 2 for x in logs)
    return mean, squares / (len(logs) - 1) / len(logs)


def welch(
    a: Sequence[float], b: Sequence[float], shift: float = 0.0
) -> tuple[float, float, float, float]:
    """Welch's t for mean(b) - mean(a) > shift: (p, difference, standard error, df).

    Two samples of one value each side's own have p 0 or 1.
    """
    from scipy.special import stdtr

    (mean_a, var_a), (mean_b, var_b) = _moments(a), _moments(b)
    difference, error = mean_b - mean_a, math.sqrt(var_a + var_b)
    if error == 0:
        return float(difference <= shift), difference, 0.0, math.inf
    df = (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
    return float(stdtr(df, -(difference - shift) / error)), difference, error, df


def _welch(
    result: MetricResult, a: list[float], b: list[float], limits: Limits
) -> MetricResult:
    from scipy.special import stdtrit

    logs_a, logs_b = [math.log(x) for x in a], [math.log(x) for x in b]
    p, difference, error, df = welch(logs_a, logs_b)
    worse_by_margin, *_ = welch(logs_a, logs_b, math.log1p(limits.margin))
    half = float(stdtrit(df, 1 - limits.alpha / 2)) * error if error else 0.0
    reach = half + (float(stdtrit(df, POWER)) * error if error else 0.0)
    return replace(
        result,
        p=min(1.0, 2 * p),
        p_no_worse=1 - worse_by_margin,
        interval=(_exp(difference - half), _exp(difference + half)),
        minimum_detectable=_exp(reach) - 1,
        method="Welch's t on log",
    )


def _exp(x: float) -> float:
    """exp, finite: two runs of wild times have bounds past what a float holds."""
    return math.exp(min(x, 700.0))


def permutation(a: Sequence[float], b: Sequence[float]) -> float:
    """One-sided p that b's ranks are as high as this by chance; exact if it can be."""
    import numpy as np
    from scipy.stats import permutation_test, rankdata

    ranks = rankdata([*a, *b])

    def total(x: Any, y: Any, axis: int = -1) -> Any:
        return np.sum(y, axis=axis)

    exact = math.comb(len(ranks), len(b)) <= EXACT_SPLITS
    outcome = permutation_test(
        (ranks[: len(a)], ranks[len(a) :]),
        total,
        alternative="greater",
        vectorized=True,
        n_resamples=np.inf if exact else RESAMPLES,
        batch=10_000,
        rng=np.random.default_rng(0),  # One decision for one input.
    )
    return float(outcome.pvalue)


def _permuted(
    result: MetricResult, a: list[float], b: list[float], limits: Limits
) -> MetricResult:
    smallest = 2 / math.comb(len(a) + len(b), len(b))
    note = ""
    if smallest >= limits.alpha:
        note = (
            f"{len(a)} against {len(b)} runs cannot tell: the smallest p is "
            f"{smallest:.3g}"
        )
    shrunk = [x / (1 + limits.margin) for x in b]
    return replace(
        result,
        p=min(1.0, 2 * permutation(a, b)),
        p_no_worse=permutation(shrunk, a),
        method="permutation of ranks",
        note=note,
    )


def _decide(result: MetricResult, p: float | None, limits: Limits) -> MetricResult:
    """Regression: surely worse, and by more than the margin. Ok: surely not by that."""
    if result.decision != "missing" or not result.method:
        return result
    worst = 1 + limits.margin
    if result.method == "threshold":
        worse = result.ratio is None or result.ratio > worst
        return replace(
            result,
            decision="regression" if worse else "ok",
            note="no statistics: one run on a side, compared with the margin alone",
        )
    assert p is not None and result.p_no_worse is not None
    if p < limits.alpha and (result.ratio is None or result.ratio > worst):
        return replace(result, decision="regression")
    if result.p_no_worse < limits.alpha:
        return replace(result, decision="ok")
    return replace(result, decision="undecided", note=result.note or _why_open(result))


def _why_open(result: MetricResult) -> str:
    if result.minimum_detectable is None:
        return "neither surely worse nor surely not"
    return (
        f"neither surely worse nor surely not; a change of "
        f"{result.minimum_detectable * 100:.2f} % would show with 80 % probability"
    )
