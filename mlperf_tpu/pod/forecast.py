"""From compiled modules to a step's time, and from that to a run's: pure arithmetic.

A step is its computation and the update (the compiler's cycles, or what an op without
such an estimate moves: pod.traffic), and the collectives that the compiled module
holds, each costed on the slice's network (pod.network). Nothing overlaps: a v3 core
computes or communicates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mlperf_tpu.pod.hlo import Collective, Groups, Module, Op
from mlperf_tpu.pod.machine import Slice
from mlperf_tpu.pod.network import collective_cost
from mlperf_tpu.topology.links import V3, Links

UPDATE_SCOPE = "weight_update"  # optim.training_step names the ops of the update so
GRADIENT_SCOPE = "gradient_tape"  # TensorFlow's name for what a gradient tape adds
GIB = 2**30
# Scopes that are no layer's: of the phases, of loops, and XLA's own of calls.
_NOT_A_LAYER = re.compile(
    rf"{GRADIENT_SCOPE}|{UPDATE_SCOPE}|call\.\d+|while(_\d+)?|body|cond"
    r"|\w*_(steps|blocks)(_\d+)?"
)

# From the first blocks of the v0.6 ResNet-50 rows (scripts/fit_network.py shows how
# near they come); the same for every benchmark and scale.
START_S = 4.2  # the first block over a later one, where nothing is to be decoded
HOST_IMAGES_PER_S = 2880.0  # what a host decodes in the first epoch, not yet cached
# Assumption: PCIe 3.0 x16, which the cores of a host share; a batch is sent while the
# step before computes.
HOST_LINK_GB_S = 12.0
CORES_PER_HOST = 8  # v3: four chips a host board


@dataclass(frozen=True)
class Step:
    """Milliseconds of one step on every core."""

    forward: float
    backward: float
    update: float
    gradient_sum: float
    batch_norm: float
    halo: float
    input: float

    @property
    def compute(self) -> float:
        return self.forward + self.backward

    @property
    def total(self) -> float:
        network = self.gradient_sum + self.batch_norm + self.halo
        return self.compute + self.update + network + self.input

    def document(self) -> dict[str, float]:
        parts = ("total", "compute", "forward", "backward", "update", "gradient_sum")
        names = (*parts, "batch_norm", "halo", "input")
        return {name: round(getattr(self, name), 4) for name in names}


def phase(op: Op) -> str:
    """forward, backward or update, by the scopes in the op's name.

    The compiler's own ops (zeros to gather into, copies) have no name: they go to the
    phase of the ops around them, which `phases` knows.
    """
    if UPDATE_SCOPE in op.op_name:
        return "update"
    return "backward" if GRADIENT_SCOPE in op.op_name else "forward"


def phases(ops: Sequence[Op]) -> list[str]:
    """Each op's phase, in the module's order; one without a name follows the last."""
    found: list[str] = []
    for op in ops:
        known = phase(op) if op.op_name else (found[-1] if found else "forward")
        found.append(known)
    return found


def layer(op: Op) -> str:
    """The layer an op belongs to, as the model names it.

    >>> layer(Op("f", "fusion", "gradient_tape/stage1_block2_1/conv_1/Mul", "", 1))
    'stage1_block2/conv'
    """
    parts = op.op_name.split(";")[0].split("/")
    kept = [p for p in parts[:-1] if not _NOT_A_LAYER.fullmatch(p)]
    # TensorFlow numbers a scope that it enters again.
    name = "/".join(re.sub(r"_\d+$", "", p) for p in kept)
    if name:
        return name
    return "(update)" if UPDATE_SCOPE in op.op_name else "(outside of layers)"


def collective_part(found: Collective, n_replicas: int) -> str:
    """What a collective is for: gradient_sum, batch_norm or halo.

    Between the partitions of a replica: halo, what partitioning costs. In a batch
    norm's scope: batch_norm. All others: the gradient sum, over all replicas or line by
    line, with the norms, metrics and statistics that go over all replicas too.
    """
    messages = found.kind in ("collective-permute", "all-to-all")
    if found.devices == "partition" or (messages and found.devices != "replica"):
        return "halo"
    if "batch_norm" in found.op_name:
        return "batch_norm"
    if found.devices == "both" and len(found.groups) >= n_replicas:
        return "halo"
    between = found.devices == "both" and len(found.groups) > 1
    return "batch_norm" if between else "gradient_sum"


def device_groups(found: Collective, devices: list[list[int]]) -> Groups:
    """A collective's groups as device ids: every group of every partition."""
    partitions = range(len(devices[0]))
    if found.devices == "partition":
        return tuple(
            tuple(row[p] for p in group) for row in devices for group in found.groups
        )
    if found.devices == "both":
        n = len(partitions)
        return tuple(
            tuple(devices[i // n][i % n] for i in group) for group in found.groups
        )
    groups = found.groups or (tuple(range(len(devices))),)
    if found.devices == "replica":
        return tuple(
            tuple(devices[r][p] for r in group) for group in groups for p in partitions
        )
    return tuple(tuple(devices[r][p] for r in g for p in partitions) for g in groups)


_cost = lru_cache(maxsize=4096)(collective_cost)


def step_time(
    module: Module,
    where: Slice,
    devices: list[list[int]],
    batch_bytes: int,
    links: Links = V3,
) -> Step:
    """The forecast of one step; a network that is not modelled counts as nothing."""
    times = {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for op, name in zip(module.ops, phases(module.ops), strict=True):
        times[name] += where.core.ms(op)
    network = {"gradient_sum": 0.0, "batch_norm": 0.0, "halo": 0.0}
    if where.grid is not None:
        expanded: dict[tuple[str, int], Groups] = {}
        slowest: dict[object, tuple[float, str]] = {}
        for i, found in enumerate(module.collectives):
            key = (found.devices, id(found.groups))
            if key not in expanded:
                expanded[key] = device_groups(found, devices)
            what = (found.kind, found.n_bytes, expanded[key])
            cost = _cost(*what, where.grid, links, found.one_ring).total_ms
            part = collective_part(found, len(devices))
            together: object = found.at_once or i
            each = (cost * found.count, part)
            slowest[together] = max(each, slowest.get(together, each))
        for cost, part in slowest.values():
            network[part] += cost
    busy = sum(times.values()) + sum(network.values())
    host_bytes = batch_bytes * CORES_PER_HOST / len(devices[0])
    exposed = max(0.0, host_bytes / HOST_LINK_GB_S * 1e-6 - busy)
    return Step(**times, **network, input=exposed)


@dataclass(frozen=True)
class Run:
    """A whole run's forecast. A block is what is trained between two evaluations."""

    steps: int
    epochs: float
    n_blocks: int
    steps_per_block: int
    evaluation_s: float
    block_s: float
    start_s: float
    scoring_s: float
    time_to_train_s: float

    @property
    def steady_step_ms(self) -> float:
        """A block's time a step, evaluation included: what the logs let one see."""
        return self.block_s / self.steps_per_block * 1e3


def run_time(
    step_ms: float,
    evaluation_step_ms: float,
    block_ends: Sequence[int],
    evaluation_steps: int,
    block_epochs: Sequence[int],
    images_to_decode: int,
    n_hosts: float,
    scoring_s: float = 0.0,
) -> Run:
    """A run of blocks that end at the steps `block_ends`, each with its evaluation.

    The first epoch decodes every image once, on `n_hosts` hosts, before they are kept
    (google_submissions.md 3.9): it lasts no less than that takes. The host scores an
    evaluation in `scoring_s` while training goes on, and ends the run after the last.
    """
    evaluation_s = evaluation_steps * evaluation_step_ms / 1e3
    steps = block_ends[-1]
    spans = [b - a for a, b in zip((0, *block_ends), block_ends, strict=False)]
    usual = max(spans, key=spans.count)
    epochs = sum(block_epochs)
    epoch_s = steps / epochs * step_ms / 1e3
    decoding_s = images_to_decode / n_hosts / HOST_IMAGES_PER_S
    start_s = START_S + max(0.0, decoding_s - epoch_s)
    seconds = start_s + steps * step_ms / 1e3 + len(block_ends) * evaluation_s
    seconds += scoring_s
    return Run(
        steps,
        epochs,
        len(block_ends),
        usual,
        evaluation_s,
        usual * step_ms / 1e3 + evaluation_s,
        start_s,
        scoring_s,
        seconds,
    )


def memory(
    stats: dict[str, Any], state_bytes: dict[str, int], where: Slice
) -> dict[str, int]:
    """Bytes of a core's memory by kind, against what it has.

    The compiler's figures, padding included; arguments that are neither weights, slots,
    statistics nor batch are that padding.
    """
    known = sum(state_bytes.values())
    padding = max(0, stats["argument_bytes"] - known)
    results = max(0, stats["output_bytes"] - stats["alias_bytes"])
    kinds = {
        **state_bytes,
        "activations": stats["temporary_bytes"],
        "results": results,
        "padding": padding,
        "code": stats["code_bytes"],
    }
    limit = int(where.core.hbm_gib * GIB)
    return {"total": sum(kinds.values()), "limit": limit, **kinds}


def utilisation(flops: float, step_ms: float, where: Slice) -> float:
    """Share of the matrix units' peak over the whole step."""
    return flops / (step_ms * 1e-3) / (where.core.peak_tflops * 1e12)


def round_up(examples: int, batch: int) -> int:
    return math.ceil(examples / batch)
