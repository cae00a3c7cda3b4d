"""A plan: the benchmark's own step, compiled for a slice, and the run it forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlperf_tpu.errors import BadInput
from mlperf_tpu.pod.compile import (
    MEMORY_REMEDY,
    Answer,
    DoesNotFit,
    Request,
    answer,
)
from mlperf_tpu.pod.forecast import (
    CORES_PER_HOST,
    GIB,
    Run,
    Step,
    collective_part,
    memory,
    run_time,
    step_time,
    utilisation,
)
from mlperf_tpu.pod.hlo import Collective
from mlperf_tpu.pod.machine import Slice, slice_for
from mlperf_tpu.pod.published import Published, published
from mlperf_tpu.spec import Resolved, benchmark_module
from mlperf_tpu.spec.loops import LoopCase
from mlperf_tpu.spec.validation import has_part
from mlperf_tpu.topology.links import V3, Links

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """One slice's forecast, and what was published for it."""

    resolved: Resolved
    where: Slice
    devices: list[list[int]]
    compiled: Answer
    evaluation: Answer
    step: Step
    run: Run
    hbm: dict[str, int]
    published: Published | None
    # What the step is the mean of, where its loops end with the data.
    cases: tuple[tuple[LoopCase, Step], ...] = ()

    @property
    def batch(self) -> int:
        return int(self.resolved.spec.training.global_batch)

    @property
    def gradient_sums(self) -> list[Collective]:
        n = len(self.devices)
        found = self.compiled.module.collectives
        return [c for c in found if collective_part(c, n) == "gradient_sum"]

    @property
    def by_traffic_ms(self) -> float:
        """What a step's ops without an estimate of the compiler's take, at least."""
        ops = self.compiled.module.ops
        return sum(self.where.core.ms(op) for op in ops if op.n_bytes)

    @property
    def flops(self) -> float:
        return float(self.compiled.stats["flops"])

    @property
    def published_step_ms(self) -> float | None:
        if self.published is None:
            return None
        return self.published.step_ms(self.run.steps_per_block)

    def document(self) -> dict[str, Any]:
        """The plan as a row of `--json`."""
        measured, step_ms = self.published, self.published_step_ms
        parts: dict[str, list[int]] = {}
        for found in self.compiled.module.collectives:
            part = parts.setdefault(collective_part(found, len(self.devices)), [0, 0])
            part[0] += found.count
            part[1] += found.n_bytes * found.count
        return {
            "benchmark": self.resolved.name,
            "scale": self.resolved.scale,
            "chips": self.where.chips,
            "topology": self.where.name,
            "replicas": len(self.devices),
            "partitions": len(self.devices[0]),
            "batch": self.batch,
            "batch_per_replica": self.batch // len(self.devices),
            "label": "forecast",
            "network": "modelled" if self.where.grid else "not modelled",
            "compiler": self.compiled.stats["compiler"],
            "module": self.compiled.key,
            "step_ms": self.step.document(),
            "steady_step_ms": round(self.run.steady_step_ms, 4),
            "update_share": round(self.step.update / self.step.total, 4),
            "flops": self.flops,
            "mxu_utilisation": round(
                utilisation(self.flops, self.step.total, self.where), 4
            ),
            "hbm_bytes": self.hbm,
            "collectives": {
                name: {"count": count, "bytes": n_bytes}
                for name, (count, n_bytes) in sorted(parts.items())
            },
            "by_traffic_ms": round(self.by_traffic_ms, 4),
            "unknown_loops": [
                f"{loop}, in the {name}"
                for name, found in (
                    ("step", self.compiled),
                    ("evaluation", self.evaluation),
                )
                for loop in found.module.unknown_loops
            ],
            "cases": [
                {
                    "batches": case.label,
                    "share": case.share,
                    "step_ms": round(step.total, 4),
                }
                for case, step in self.cases
            ],
            "steps": self.run.steps,
            "epochs": self.run.epochs,
            "epochs_from": self.epochs_from,
            "evaluations": self.run.n_blocks,
            "steps_per_block": self.run.steps_per_block,
            "evaluation_s": round(self.run.evaluation_s, 4),
            "start_s": round(self.run.start_s, 3),
            "scoring_s": self.run.scoring_s,
            "init_s": measured.init_s if measured else None,
            "time_to_train_s": round(self.run.time_to_train_s, 3),
            "published": measured
            and {
                "step_ms": step_ms and round(step_ms, 4),
                "time_to_train_s": measured.same_length_s,
                "score_s": measured.score_s,
                "seconds": list(measured.seconds),
                "epochs": list(measured.epochs),
                "source": measured.source,
            },
            "error": measured
            and {
                "step": step_ms and round(self.run.steady_step_ms / step_ms - 1, 4),
                "time_to_train": round(
                    self.run.time_to_train_s / measured.same_length_s - 1, 4
                ),
            },
        }

    @property
    def epochs_from(self) -> str:
        if self.published is None:
            return "the spec's whole length, as no published run of this scale is known"
        return "published: the median of the runs that met the target"


def plan(
    resolved: Resolved,
    topology: str | None = None,
    say: Say = lambda text: None,
    links: Links = V3,
) -> Plan:
    """Compiles a resolved spec's step and evaluation, and forecasts its run.

    Raises DoesNotFit where the step needs more memory than a core has.
    """
    chips = resolved.chips
    if chips is None:
        raise BadInput("say how many chips: --chips 1024")
    where = slice_for(chips, topology)
    spec = resolved.spec
    devices = where.assignment(spec.training.partitions)
    spec.check_replicas(len(devices))
    answers = []
    batch, eval_batch = spec.training.global_batch, spec.eval_batch
    for function, name, size in (
        ("step", "step", batch),
        ("evaluate", "evaluation", eval_batch),
    ):
        say(f"compiling the {name} for {where.name} ({len(devices)} replicas)")
        request = Request(
            f"mlperf_tpu.benchmarks.{spec.benchmark}.program:Program",
            function,
            resolved.record(),
            where.name,
            devices,
            size // len(devices),
        )
        answers.append(answer(request))
    entry = (
        published(resolved) if topology is None or where.generation == "v3" else None
    )
    return forecast(resolved, where, devices, (answers[0], answers[1]), entry, links)


def forecast(
    resolved: Resolved,
    where: Slice,
    devices: list[list[int]],
    answers: tuple[Answer, Answer],
    entry: Published | None,
    links: Links = V3,
) -> Plan:
    """The forecast of what was compiled. No compiler is called."""
    spec = resolved.spec
    n = len(devices)
    trips = loop_cases(spec, "step", spec.training.global_batch // n)
    compiled = _counted(answers[0], trips)
    evaluation = _counted(
        answers[1], loop_cases(spec, "evaluate", spec.eval_batch // n)
    )
    sizes = dict(compiled.stats["state_bytes"])
    sizes["weights"] += sizes.pop("step", 0) + sizes.pop("seed", 0)
    hbm = memory(compiled.stats, sizes, where)
    if hbm["total"] > hbm["limit"]:
        raise DoesNotFit(_too_much(hbm))
    step = step_time(compiled.module, where, devices, sizes["batch"], links)
    eval_bytes = evaluation.stats["state_bytes"]["batch"]
    evaluating = step_time(evaluation.module, where, devices, eval_bytes, links)
    cases = tuple(
        (
            case,
            step_time(
                answers[0].module.counted([case]),
                where,
                devices,
                sizes["batch"],
                links,
            ),
        )
        for case in trips
    )
    blocks = spec.blocks()[: entry.n_evaluations if entry else None]
    run = run_time(
        step.total,
        evaluating.total,
        [block.last_step for block in blocks],
        math.ceil(spec.data.eval_examples / spec.eval_batch),
        [block.epochs for block in blocks],
        spec.data.train_examples if hasattr(spec.data, "image_size") else 0,
        max(1.0, where.n_devices / CORES_PER_HOST),
        spec.evaluation.scoring_s,
    )
    return Plan(
        resolved, where, devices, compiled, evaluation, step, run, hbm, entry, cases
    )


def loop_cases(spec: Any, function: str, batch_per_replica: int) -> list[LoopCase]:
    """What the benchmark says of the loops that end with its data (spec.loops)."""
    if not has_part(spec.benchmark, "loops"):
        return []
    loops = benchmark_module(spec.benchmark, "loops")
    found: list[LoopCase] = loops.cases(spec, function, batch_per_replica)
    return found


def _counted(found: Answer, cases: Sequence[LoopCase]) -> Answer:
    return replace(found, module=found.module.counted(cases)) if cases else found


def _too_much(hbm: dict[str, int]) -> str:
    over = hbm["total"] - hbm["limit"]
    kinds = sorted(
        ((n, k) for k, n in hbm.items() if k not in ("total", "limit")), reverse=True
    )
    largest = ", ".join(f"{kind} {n / GIB:.2f} GiB" for n, kind in kinds[:3])
    return (
        f"the step needs {hbm['total'] / GIB:.2f} GiB of the {hbm['limit'] / GIB:.0f} "
        f"GiB a core has, {over / GIB:.2f} GiB too much; the largest: {largest}; "
        f"{MEMORY_REMEDY}"
    )
