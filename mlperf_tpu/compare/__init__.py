"""Compares two sets of runs of one benchmark, for a CI: is the candidate worse?

Time to train is epochs (few, quantised by the evaluations, noisy) times time per epoch
(steady), so each is tested by itself: by v0.7's published results a change of 1 % in
time per epoch shows with 5 runs; in a translation benchmark's raw time it never does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mlperf_tpu.compare import too_fast
from mlperf_tpu.compare.sides import Side
from mlperf_tpu.compare.stats import Limits, MetricResult, judge_metrics

# Metric -> what a finding calls it. Those in GATING decide, the others inform.
METRICS = {
    "time_to_train_s": "s",
    "epochs": "epochs",
    "s_per_epoch": "s",
    "evaluation_s": "s",
    "initialization_s": "s",
}
GATING = ("time_to_train_s", "epochs", "s_per_epoch")
# Settings that are expected to differ, or say nothing of the work done.
_SILENT = ("submission_poc_name", "submission_poc_email")


@dataclass
class Comparison:
    """The decision, why, and the figures behind it."""

    decision: str  # ok, regression, incomparable, undecided
    reasons: list[str]
    differences: list[dict[str, Any]]
    metrics: list[MetricResult]
    baseline: Side
    candidate: Side
    too_fast: dict[str, Any] | None = None
    limits: Limits = field(default_factory=Limits)

    def document(self) -> dict[str, Any]:
        return {
            "decision": self.decision,
            "reasons": self.reasons,
            "differences": self.differences,
            "metrics": [metric.document() for metric in self.metrics],
            "baseline": self.baseline.document(),
            "candidate": self.candidate.document(),
            "too_fast": self.too_fast,
            "margin": self.limits.margin,
            "alpha": self.limits.alpha,
        }


def compare(
    baseline: Side, candidate: Side, limits: Limits | None = None
) -> Comparison:
    """Compares two sides; never raises for what they hold."""
    limits = limits or Limits()
    refusals = _refusals(baseline, candidate)
    found = differences(baseline, candidate)
    if refusals:
        return Comparison(
            "incomparable", refusals, found, [], baseline, candidate, limits=limits
        )
    pairs = {name: (baseline.metric(name), candidate.metric(name)) for name in METRICS}
    metrics = judge_metrics(pairs, GATING, limits)
    fast = too_fast.against_published(candidate)
    decision, reasons = _decide(baseline, candidate, metrics, fast)
    return Comparison(
        decision, reasons, found, metrics, baseline, candidate, fast, limits
    )


def _refusals(baseline: Side, candidate: Side) -> list[str]:
    """Why two sides cannot be compared, empty where they can."""
    reasons = []
    for what in ("benchmark", "ruleset", "task", "target"):
        one, other = getattr(baseline, what), getattr(candidate, what)
        if one != other:
            reasons.append(f"another {what}: {_word(one)} against {_word(other)}")
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        reasons += [
            f"the {name}'s {run.name} has no usable time: {run.reason}"
            for run in side.runs
            if run.status == "invalid"
        ]
    if not baseline.converged:
        reasons.append("no run of the baseline reached the target")
    return reasons


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return " and ".join(f"{name} {part}" for name, part in value.items())
    return str(value)


def differences(baseline: Side, candidate: Side) -> list[dict[str, Any]]:
    """Settings that differ: hyperparameters, sizes, system, number of runs."""
    one = {**baseline.settings, "system": baseline.system, "runs": len(baseline.runs)}
    other = {
        **candidate.settings,
        "system": candidate.system,
        "runs": len(candidate.runs),
    }
    return [
        {"name": name, "baseline": one.get(name), "candidate": other.get(name)}
        for name in sorted({*one, *other})
        if not _equal(one.get(name), other.get(name)) and name not in _SILENT
    ]


def _equal(one: Any, other: Any) -> bool:
    """Whether two settings are one; 2 and 2.0 are, as logged by two programs."""
    try:
        return one == other or float(one) == float(other)
    except (TypeError, ValueError):
        return False


def _decide(
    baseline: Side,
    candidate: Side,
    metrics: list[MetricResult],
    fast: dict[str, Any] | None,
) -> tuple[str, list[str]]:
    reasons = []
    lost = len(candidate.runs) - candidate.converged
    had = len(baseline.runs) - baseline.converged
    if lost > 1 and lost / len(candidate.runs) > had / len(baseline.runs):
        reasons.append(
            f"{lost} of the candidate's {len(candidate.runs)} runs did not converge, "
            f"{had} of the baseline's {len(baseline.runs)}: a score allows one"
        )
    reasons += [
        f"{m.name} is worse by {(m.ratio - 1) * 100:.2f} %"
        if m.ratio is not None and math.isfinite(m.ratio)
        else f"{m.name} is worse"
        for m in metrics
        if m.gating and m.decision == "regression"
    ]
    if fast is not None and not fast["ok"]:
        reasons.append(
            f"converges in {fast['mean_epochs']:.2f} epochs, faster than the "
            f"{fast['least_epochs']:.2f} that published runs make credible"
        )
    if reasons:
        return "regression", reasons
    open_ = [m for m in metrics if m.gating and m.decision == "undecided"]
    if open_:
        return "undecided", [f"{m.name}: {m.note}" for m in open_]
    return "ok", []
