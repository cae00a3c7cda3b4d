"""Whether, and when, a run reached its quality target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlperf_tpu.log import dialect
from mlperf_tpu.log.conditions import CANNOT
from mlperf_tpu.log.rulesets import Ruleset
from mlperf_tpu.log.run import Evaluation, Run


@dataclass
class Reach:
    """The first evaluation at the target, and those whose value is no quality."""

    first: Evaluation | None = None
    unusable: list[Evaluation] = field(default_factory=list)
    not_finite: list[Evaluation] = field(default_factory=list)


def reached(targets: dict[str, float], batch: Any, value: Any) -> bool:
    """True at or above the target, below 1; raises one of CANNOT for no number.

    >>> reached({"value": 0.759}, 4096, 0.7591)
    True
    >>> reached({"BBOX": 0.377, "SEGM": 0.339}, 128, {"BBOX": 0.38, "SEGM": 0.33})
    False
    """
    if "BBOX" in targets:
        return all(
            targets[part] <= value[part] and value[part] < 1
            for part in ("BBOX", "SEGM")
        )
    least = targets["value"]
    from_batch = targets.get("from_batch")
    if from_batch is not None and batch is not None and batch >= from_batch:
        least = targets["large_batch_value"]
    return bool(value >= least and value < 1)


def reach(run: Run, rules: Ruleset, *, lenient: bool) -> Reach:
    """Tests every evaluation; `lenient` reads the published dialects' values too."""
    result = Reach()
    benchmark = run.benchmark or ""
    targets = rules.targets.get(benchmark)
    if targets is None:
        return result
    batch = (
        run.number("global_batch_size") if lenient else run.value("global_batch_size")
    )
    hits = []
    for one in run.evaluations:
        value = run.quality(one) if lenient else one.value
        try:
            if reached(targets, batch, value):
                hits.append(one)
            if value != value:
                result.not_finite.append(one)
        except CANNOT:
            result.unusable.append(one)
    result.first = min(hits, key=lambda e: e.time_ms, default=None)
    return result


def target_text(targets: dict[str, float]) -> str:
    """The target as a person writes it.

    >>> target_text({"BBOX": 0.377, "SEGM": 0.339})
    'BBOX 0.377 and SEGM 0.339'
    """
    if "BBOX" in targets:
        return f"BBOX {targets['BBOX']} and SEGM {targets['SEGM']}"
    text = f"{targets['value']}"
    if "from_batch" in targets:
        text += (
            f", or {targets['large_batch_value']} from batch {targets['from_batch']} on"
        )
    return text


def best(run: Run) -> str:
    """The highest quality logged, for a finding."""
    numbers = [
        v
        for one in run.evaluations
        if dialect.is_number(v := run.quality(one)) and v == v
    ]
    if numbers:
        return f"{max(numbers):.6g} at best, of {len(run.evaluations):,} evaluations"
    return f"no evaluation at it, of {len(run.evaluations):,}"
