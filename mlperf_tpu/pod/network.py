"""What one collective of a compiled step takes on the network of a slice (alpha-beta).

A replica group that is a regular grid of chips (the whole slice, a row, a column, a
batch-norm tile, every second column) is costed by the closed formulas of the schedules
in `mlperf_tpu.collectives`; the fastest of them is taken, and one ring where the
compiler says that it runs one. Any other group is a ring in its listed order; the
messages of all such groups are routed, the fullest link counts.
On a grid with failed chips a sum over all survivors is the fastest simulated schedule.
Link figures and their sources: `mlperf_tpu.topology.links`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from mlperf_tpu.collectives.schedules_choice import every_gradient_sum
from mlperf_tpu.collectives.simulate import fastest, simulate
from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.topology import Chip, Topology
from mlperf_tpu.topology.links import V3, Links
from mlperf_tpu.topology.routing import Router

# How many sweeps a kind takes: one sums the shares, one hands them to everyone.
SWEEPS = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
KINDS = (*SWEEPS, "collective-permute", "all-to-all")


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one collective; `latency_ms` of them at any size."""

    total_ms: float
    latency_ms: float
    algorithm: str

    @property
    def payload_ms(self) -> float:
        return self.total_ms - self.latency_ms


def collective_cost(
    kind: str,
    n_bytes: float,
    groups: Sequence[Sequence[int]],
    topology: Topology,
    links: Links = V3,
    one_ring: bool = False,
) -> Cost:
    """The cost of a collective that all `groups` of device ids run at the same time.

    `n_bytes` is the whole array of one device: the operand of an all-reduce,
    reduce-scatter, all-to-all or collective-permute, the result of an all-gather. A
    collective-permute's groups are its (source, target) pairs. `one_ring`: each group
    is one ring of chips, which takes two links of a chip and not four.

    >>> grid = Topology.for_chips(1024)
    >>> cost = collective_cost("all-reduce", 102e6, [range(2048)], grid)
    >>> round(cost.total_ms, 2), cost.algorithm
    (0.89, '2-D two colours over 32x32 chips, cores first')
    """
    if kind not in KINDS:
        raise BadInput(f"no collective {kind!r}; {nearest(kind, KINDS)}")
    per_chip = topology.cores_per_chip
    n_devices = topology.columns * topology.rows * per_chip
    for device in (device for group in groups for device in group):
        if not 0 <= device < n_devices or topology.chip_at(device // per_chip) in (
            topology.failed
        ):
            raise BadInput(
                f"device {device} is not one of the working devices of the "
                f"{topology.name} grid, numbered 0 to {n_devices - 1}; check the groups"
            )
    if kind == "collective-permute":
        return _routed([tuple(pair) for pair in groups], n_bytes, topology, links)
    if kind == "all-to-all":
        pairs = [(a, b) for group in groups for a in group for b in group if a != b]
        share = n_bytes / max(len(group) for group in groups)
        return _routed(pairs, share, topology, links)
    shapes = [_shape(group, topology) for group in groups if len(group) > 1]
    # Groups that meet on a chip share its links.
    meet = _groups_per_chip(groups, per_chip)
    costs = [
        _with_cores(shape, _shared(cost, meet), n_bytes, links)
        for shape in dict.fromkeys(shapes)
        if (cost := _sweep(shape, n_bytes, topology, links, one_ring)) is not None
    ]
    listed = [s for s in shapes if s.lattice is None and not s.all_survivors]
    if listed:
        cost = _listed_rings_sweep(listed, n_bytes, topology, links)
        costs.append(_with_cores(listed[0], cost, n_bytes, links))
    worst = max(
        costs, key=lambda c: c.total_ms, default=Cost(0.0, 0.0, "nothing to do")
    )
    sweeps = SWEEPS[kind]
    return Cost(worst.total_ms * sweeps, worst.latency_ms * sweeps, worst.algorithm)


@dataclass(frozen=True)
class Lattice:
    """A regular grid of chips: how many each way, how far apart, and what closes."""

    columns: int
    rows: int
    step_x: int
    step_y: int
    wrap_x: bool
    wrap_y: bool
    crossings: int  # links between pods that a row of it spans


@dataclass(frozen=True)
class _Shape:
    """A group as the cost sees it: a lattice, all survivors, or a list of chips."""

    lattice: Lattice | None
    all_survivors: bool
    chips: tuple[Chip, ...]
    cores: int  # of a chip


def _shape(group: Sequence[int], topology: Topology) -> _Shape:
    per_chip = topology.cores_per_chip
    chips = tuple(
        dict.fromkeys(topology.chip_at(device // per_chip) for device in group)
    )
    cores = max(Counter(device // per_chip for device in group).values())
    if topology.failed and len(chips) == topology.n_chips:
        return _Shape(None, True, (), cores)
    lattice = _lattice(chips, topology)
    return _Shape(lattice, False, () if lattice else chips, cores)


def _lattice(chips: Iterable[Chip], topology: Topology) -> Lattice | None:
    members = set(chips)
    xs, ys = (sorted({chip[axis] for chip in members}) for axis in (0, 1))
    if len(members) != len(xs) * len(ys):
        return None
    steps = []
    for places in (xs, ys):
        gaps = {b - a for a, b in pairwise(places)} or {1}
        if len(gaps) > 1:
            return None
        steps.append(gaps.pop())
    step_x, step_y = steps
    pod = topology.pod_columns
    return Lattice(
        len(xs),
        len(ys),
        step_x,
        step_y,
        topology.wrap_x and len(xs) * step_x == topology.columns,
        topology.wrap_y and len(ys) * step_y == topology.rows,
        xs[-1] // pod - xs[0] // pod if pod else 0,
    )


def _groups_per_chip(groups: Sequence[Sequence[int]], per_chip: int) -> int:
    chips = (chip for group in groups for chip in {d // per_chip for d in group})
    return max(Counter(chips).values(), default=1)


def _sweep(
    shape: _Shape, n_bytes: float, topology: Topology, links: Links, one_ring: bool
) -> Cost | None:
    """One sweep of a group that needs no routing."""
    if shape.lattice is not None:
        return lattice_sweep(shape.lattice, n_bytes, links, one_ring)
    return _survivors_sweep(topology, n_bytes, links) if shape.all_survivors else None


def _shared(cost: Cost, groups: int) -> Cost:
    latency = cost.latency_ms
    return Cost(latency + cost.payload_ms * groups, latency, cost.algorithm)


def _with_cores(shape: _Shape, cost: Cost, n_bytes: float, links: Links) -> Cost:
    """The cores of a chip part the payload and swap their parts first."""
    if shape.cores == 1:
        return cost
    swap = n_bytes * (shape.cores - 1) / shape.cores / links.core_gb_s * 1e-6
    latency = (shape.cores - 1) * links.core_us * 1e-3
    return Cost(
        cost.total_ms + swap + latency,
        cost.latency_ms + latency,
        f"{cost.algorithm}, cores first",
    )


def lattice_sweep(
    grid: Lattice, n_bytes: float, links: Links = V3, one_ring: bool = False
) -> Cost:
    """The fastest reduce-scatter (or all-gather) over a lattice of chips.

    Formulas, for V bytes, alpha a step and bandwidth b each way of a link
    (1811.06992, 2011.03605; each is what the simulated schedule takes):
    ring of n: (n-1) alpha + V (n-1)/n / 2b; line: (n-1) alpha + V (n-1)/n / b;
    torus N x M in two colours: (N-1 + M-1) alpha + V (1 - 1/NM) / 4b; mesh by pairs of
    rows: (2N-1 + M/2-1) alpha + V (1 - 1/NM) / 2b, as a corner has two links; one
    circuit of all chips: (NM-1) alpha and the same payload.
    """
    nx, ny = grid.columns, grid.rows
    slow = min(links.gb_s, links.cross_pod_gb_s) if grid.crossings else links.gb_s
    # Lattices of a step s stand s deep beside each other and share the links.
    byte_x, byte_y = (
        s * 1e-6 / b for s, b in ((grid.step_x, slow), (grid.step_y, links.gb_s))
    )
    hop_x, hop_y = (
        (links.message_us + (s - 1) * links.hop_us) * 1e-3
        for s in (grid.step_x, grid.step_y)
    )
    crossing = grid.crossings * links.cross_pod_us * 1e-3
    latency = (nx - 1) * hop_x + (ny - 1) * hop_y + crossing
    found = []

    def along(n: int, wraps: bool, byte_ms: float) -> float:
        return byte_ms * (n - 1) / n / (2 if wraps else 1)

    payload = n_bytes * (
        along(nx, grid.wrap_x, byte_x) + along(ny, grid.wrap_y, byte_y) / nx
    )
    found.append((latency, payload, "x, then y"))
    payload = n_bytes * (
        along(ny, grid.wrap_y, byte_y) + along(nx, grid.wrap_x, byte_x) / ny
    )
    found.append((latency, payload, "y, then x"))
    both = n_bytes * (1 - 1 / (nx * ny)) * max(byte_x, byte_y)
    hops = max(hop_x, hop_y)
    circuit = ((nx * ny - 1) * hops + crossing, both / 2, "1-D circuit")
    if one_ring and nx > 1 and ny > 1:
        found = [circuit]
    elif grid.wrap_x and grid.wrap_y:
        found.append((latency, both / 4, "2-D two colours"))
    elif nx > 1 and ny > 1:
        pairs = max(_pair_steps(nx, ny), _pair_steps(ny, nx))
        found.append((pairs * hops + crossing, both / 2, "2-D row pairs"))
        if nx * ny % 2 == 0:
            found.append(circuit)
    latency, payload, name = min(found, key=lambda f: f[0] + f[1])
    return Cost(latency + payload, latency, f"{name} over {nx}x{ny} chips")


def _pair_steps(along: int, across: int) -> int:
    return 2 * along - 1 + max(across // 2 - 1, 0)


@lru_cache(maxsize=64)
def _survivors_sweep(topology: Topology, n_bytes: float, links: Links) -> Cost:
    """Half of the fastest simulated all-reduce around the failed chips."""
    schedule, forecast = fastest(every_gradient_sum(topology), n_bytes, links)
    whole = forecast.total_ms
    latency = simulate(schedule, 0.0, links).total_ms
    return Cost(whole / 2, latency / 2, f"{schedule.name} around failed chips")


def _listed_rings_sweep(
    shapes: Sequence[_Shape], n_bytes: float, topology: Topology, links: Links
) -> Cost:
    """Rings in the listed order, all at once, as many steps as the longest takes."""
    per_chip = topology.cores_per_chip
    pairs = []
    for shape in shapes:
        ids = [topology.chip_id(chip) * per_chip for chip in shape.chips]
        pairs += list(zip(ids, ids[1:] + ids[:1], strict=True))
    longest = max(len(shape.chips) for shape in shapes)
    shortest = min(len(shape.chips) for shape in shapes)
    step = _routed(pairs, n_bytes / shortest, topology, links)
    n = longest - 1
    return Cost(step.total_ms * n, step.latency_ms * n, f"ring of {longest} as listed")


def _routed(
    pairs: Sequence[tuple[int, ...]], n_bytes: float, topology: Topology, links: Links
) -> Cost:
    """All messages at once: the longest path, and what the fullest link carries."""
    router = Router(topology)
    per_chip = topology.cores_per_chip
    load: Counter[tuple[Chip, Chip]] = Counter()
    latency_us = payload_ms = 0.0
    for source, target in pairs:
        a, b = (
            topology.chip_at(source // per_chip),
            topology.chip_at(target // per_chip),
        )
        if a == b:
            if source != target:
                latency_us = max(latency_us, links.core_us)
                payload_ms = max(payload_ms, n_bytes / links.core_gb_s * 1e-6)
            continue
        path = router.path(a, b)
        hops = list(pairwise(path))
        load.update(hops)
        crossings = sum(topology.crosses_pods(*hop) for hop in hops)
        latency_us = max(
            latency_us,
            links.message_us
            + (len(hops) - 1) * links.hop_us
            + crossings * links.cross_pod_us,
        )
    for hop, n_messages in load.items():
        gb_s = links.cross_pod_gb_s if topology.crosses_pods(*hop) else links.gb_s
        payload_ms = max(payload_ms, n_messages * n_bytes / gb_s * 1e-6)
    latency_ms = latency_us * 1e-3
    return Cost(latency_ms + payload_ms, latency_ms, "routed messages")
