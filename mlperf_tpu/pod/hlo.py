"""Reads a module that libtpu compiled: its ops, their cycles, its collectives.

The text is HLO's own (`HloModule.to_string`): one instruction a line, computations in
braces. The compiler writes its estimate of an op's cycles into its backend_config; a
collective has none, as its time depends on the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from mlperf_tpu.pod.traffic import moved_bytes, shape_bytes
from mlperf_tpu.spec.loops import LoopCase

Groups = tuple[tuple[int, ...], ...]

COLLECTIVES = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "collective-permute",
)

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][\w\-]*)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(
    r"\b(?:calls|called_computations|body|condition|to_apply|branch_computations"
    r"|true_computation|false_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# The algorithms that libtpu 0.0.52 says a collective runs over one ring of devices.
_ONE_RING = re.compile(r'"emitter":"1DAllGather|"strategy":"StrategyRing"')


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str  # the result's type, layouts included
    opcode: str
    rest: str  # operands and attributes

    @cached_property
    def op_name(self) -> str:
        """The framework's name of the op it came from, scopes before it."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @cached_property
    def cycles(self) -> int:
        found = _CYCLES.search(self.rest)
        return int(found[1]) if found else 0

    @cached_property
    def one_ring(self) -> bool:
        """Whether the compiler says that this collective runs over one ring."""
        return bool(_ONE_RING.search(self.rest))

    @cached_property
    def called(self) -> dict[str, str]:
        """The computations it calls, by the attribute that names them."""
        calls = {}
        for found in _CALLED.finditer(self.rest):
            attribute = found[0].split("=", 1)[0]
            names = (found[1] or found[2]).split(",")
            for k, name in enumerate(names):
                calls[f"{attribute}{k or ''}"] = name.strip().lstrip("%")
        return calls

    @cached_property
    def operands(self) -> list[str]:
        end = _closing(self.rest)
        return re.findall(r"%([\w.\-]+)", self.rest[:end])


@dataclass(frozen=True)
class Collective:
    """One collective: each device's whole array in bytes, and who takes part.

    `devices` says what the ids of the groups are: "replica" (each partition with its
    own kind), "partition" (inside each replica) or "both" (replica * partitions +
    partition). A collective-permute's groups are (source, target) pairs.
    """

    kind: str
    n_bytes: int
    groups: Groups
    devices: str
    op_name: str
    n_arrays: int
    count: int = 1
    loops: tuple[str, ...] = ()
    at_once: str = ""  # those of one name run at the same time, on links of their own
    one_ring: bool = False  # by the compiler's own word; else the best the grid allows


@dataclass
class Op:
    """An op of the compiled step, all its executions in one step together: of one
    iteration of each of `loops`, whose number the data decides. One without estimated
    `cycles` has the `n_bytes` that it moves."""

    name: str
    opcode: str
    op_name: str
    shape: str
    cycles: int
    count: int = 1
    n_bytes: int = 0
    loops: tuple[str, ...] = ()


@dataclass
class Module:
    """What a step executes, loops multiplied out."""

    ops: list[Op] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    # Loops whose number of iterations is not in the text: counted once.
    unknown_loops: list[str] = field(default_factory=list)

    @property
    def cycles(self) -> int:
        return sum(op.cycles for op in self.ops)

    def counted(self, cases: Sequence[LoopCase]) -> Module:
        """The mean step over these cases, in which no loop is unknown that they name.

        A loop inside another runs as often as the product says.
        """

        @cache
        def times(loops: tuple[str, ...]) -> float:
            return sum(
                case.share * math.prod(case.iterations(name) or 1 for name in loops)
                for case in cases
            ) / sum(case.share for case in cases)

        return Module(
            [
                replace(
                    op,
                    cycles=round(op.cycles * times(op.loops)),
                    n_bytes=round(op.n_bytes * times(op.loops)),
                    count=round(op.count * times(op.loops)),
                    loops=(),
                )
                if op.loops
                else op
                for op in self.ops
            ],
            [
                replace(each, count=round(each.count * times(each.loops)), loops=())
                if each.loops
                else each
                for each in self.collectives
            ],
            [
                name
                for name in self.unknown_loops
                if any(case.iterations(name) is None for case in cases)
            ],
        )


def read(text: str) -> Module:
    """The module's ops that take time, and its collectives, wherever they stand."""
    entry, computations = _computations(text)
    module = Module()
    _walk(entry, 1, (), computations, module)
    return module


def _computations(text: str) -> tuple[str, dict[str, dict[str, Instruction]]]:
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    current: dict[str, Instruction] = {}
    for line in text.splitlines():
        if line.endswith("{") and (head := _COMPUTATION.match(line)):
            current = computations[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            instruction = _instruction(found[1], found[2])
            if instruction is not None:
                current[instruction.name] = instruction
    if not entry:
        raise ValueError("the text has no entry computation: it is no HLO module")
    return entry, computations


def _instruction(name: str, rest: str) -> Instruction | None:
    # A tuple's type is in brackets and may hold layouts such as {0:T(8,128)}.
    start = _closing(rest, 1) + 1 if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.search(rest, start)
    if opcode is None:
        return None
    return Instruction(name, rest[: opcode.start(1)], opcode[1], rest[opcode.end() :])


def _closing(text: str, start: int = 0) -> int:
    """The place of the bracket that closes what is open at `start`."""
    depth = 1
    for found in re.finditer(r"[()]", text[start:]):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return start + found.start()
    return len(text)


def _walk(
    name: str,
    times: int,
    loops: tuple[str, ...],
    computations: dict[str, dict[str, Instruction]],
    module: Module,
) -> None:
    around = computations.get(name, {})
    for op in around.values():
        if _collective_kind(op.opcode) and not op.opcode.endswith("-done"):
            found = _collective(op, around)
            module.collectives.append(replace(found, count=times, loops=loops))
            continue
        inner = _wrapped(op, computations)
        module.collectives += [
            replace(found, count=times, loops=loops) for found in inner
        ]
        if inner and op.opcode != "fusion":
            continue
        moved = 0 if op.cycles or inner else moved_bytes(op, around, computations)
        if op.cycles or moved:
            what = (op.name, op.opcode, op.op_name, op.shape)
            cost = (op.cycles * times, times, moved * times)
            module.ops.append(Op(*what, *cost, loops))
        if op.opcode == "while":
            trips = _trip_count(op, computations)
            inside = loops
            if trips is None:
                inside = (*loops, op.op_name or op.name)
                module.unknown_loops.append(inside[-1])
            body = op.called["body"]
            _walk(body, times * (trips or 1), inside, computations, module)
        elif op.opcode in ("call", "conditional"):
            for called in op.called.values():
                _walk(called, times, loops, computations, module)


def _collective_kind(opcode: str) -> str | None:
    for kind in COLLECTIVES:
        if opcode in (kind, f"{kind}-start", f"{kind}-done"):
            return kind
    return None


def _wrapped(
    op: Instruction, computations: dict[str, dict[str, Instruction]]
) -> list[Collective]:
    """The collectives inside of a fusion or an async-start.

    They take their operands from within, so what they move is known there. Several in
    one fusion are the colours of a sum on a torus, at once on links of their own.
    """
    if op.opcode not in ("fusion", "async-start"):
        return []
    found = []
    for called in op.called.values():
        around = computations.get(called, {})
        colours = [i for i in around.values() if _collective_kind(i.opcode)]
        for inner in colours:
            each = _fused(_collective(inner, around), inner, around, len(colours))
            at_once = op.name if len(colours) > 1 else ""
            one_ring = op.one_ring or each.one_ring
            found.append(replace(each, at_once=at_once, one_ring=one_ring))
        for inner in around.values():
            found += _wrapped(inner, computations)
    return found


def _fused(
    found: Collective, op: Instruction, around: dict[str, Instruction], colours: int
) -> Collective:
    """A fused all-reduce as what the compiler's emitter makes of it.

    Where only slices of its result are used (AllReduceScatterFusion) it is a
    reduce-scatter, of each colour's part; of zeros into which a shard was written
    (AllGatherFusion), an all-gather.
    """
    if found.kind != "all-reduce":
        return found
    fed = {around[name].opcode for name in op.operands if name in around}
    if fed == {"dynamic-update-slice"}:
        return replace(found, kind="all-gather")
    of_it, used = {op.name}, set()
    for each in around.values():
        if of_it & set(each.operands):
            if each.opcode == "get-tuple-element":
                of_it.add(each.name)
            else:
                used.add(each.opcode)
    if used == {"dynamic-slice"}:
        n_bytes = found.n_bytes // colours
        return replace(found, kind="reduce-scatter", n_bytes=n_bytes)
    return found


def _collective(op: Instruction, around: dict[str, Instruction]) -> Collective:
    kind = _collective_kind(op.opcode)
    assert kind is not None
    shapes = [around[name].shape for name in op.operands if name in around]
    moved = sum(shape_bytes(shape) for shape in shapes)
    groups = _groups(op.rest)
    if kind == "all-gather":  # its result is the whole array
        moved *= max((len(group) for group in groups), default=1)
    return Collective(
        kind,
        moved,
        groups,
        _ids(kind, op.rest),
        op.op_name,
        len(shapes),
        one_ring=op.one_ring,
    )


def _ids(kind: str, rest: str) -> str:
    """What a group's ids are (xla/service/collective_ops_utils.h)."""
    if "channel_id=" not in rest:
        return "replica"
    if "use_global_device_ids=true" in rest:
        return "both"
    # With a channel, an all-reduce or all-gather spans replicas and their partitions;
    # the others stay inside a replica.
    across = kind in ("all-reduce", "reduce-scatter", "all-gather")
    return "replica and partitions" if across else "partition"


def _groups(rest: str) -> Groups:
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest)
    if pairs:
        return tuple(
            (int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs[0])
        )
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest)
    if listed:
        return tuple(
            tuple(int(i) for i in group.split(","))
            for group in re.findall(r"\{([\d,]+)\}", listed[1])
        )
    iota = re.search(
        r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest
    )
    if iota:
        return _iota(*iota.groups())
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", rest)
    if mesh:
        return _mesh(*mesh.groups())
    unknown = re.search(r"replica_groups=(?!\{\})[^ ]*", rest)
    if unknown:
        raise ValueError(f"replica groups in a form that is not known: {unknown[0]}")
    return ()


def _mesh(axes: str, spanned: str) -> Groups:
    """Groups that span some axes of a mesh of devices, numbered with the last fastest.

    >>> _mesh("'replica'=2,'axis_0'=2", "'axis_0'")
    ((0, 1), (2, 3))
    """
    extents = {name: int(n) for name, n in re.findall(r"'([\w.]+)'=(\d+)", axes)}
    names = list(extents)
    inner = re.findall(r"'([\w.]+)'", spanned)
    if ":" in spanned or not set(inner) <= set(names):
        raise ValueError(f"a group over {spanned} of the mesh {axes} is not known")
    order = [n for n in names if n not in inner] + inner
    size = math.prod(extents[n] for n in inner)
    count = math.prod(extents.values()) // size
    transposed = ",".join(str(names.index(n)) for n in order)
    return _iota(
        f"{count},{size}", ",".join(str(extents[n]) for n in names), transposed
    )


def _iota(groups: str, extents: str, order: str | None) -> Groups:
    """Groups written as a reshaped, transposed count: [2,4]<=[4,2]T(1,0)."""
    n_groups, size = (int(e) for e in groups.split(","))
    dims = [int(e) for e in extents.split(",")]
    axes = [int(a) for a in order.split(",")] if order else list(range(len(dims)))
    strides = [math.prod(dims[k + 1 :]) for k in range(len(dims))]

    def ids(axis: int, base: int) -> Iterator[int]:
        if axis == len(axes):
            yield base
            return
        for k in range(dims[axes[axis]]):
            yield from ids(axis + 1, base + k * strides[axes[axis]])

    flat = list(ids(0, 0))
    return tuple(tuple(flat[k * size : (k + 1) * size]) for k in range(n_groups))


def _trip_count(
    loop: Instruction, computations: dict[str, dict[str, Instruction]]
) -> int | None:
    """Iterations of a loop, from the compiler's note or from its condition.

    A condition is read where it compares with a constant, or with an element of the
    loop's tuple that the loop starts from as a constant.
    """
    noted = _TRIPS.search(loop.rest)
    if noted:
        return int(noted[1])
    condition = computations.get(loop.called.get("condition", ""), {})
    constants = [
        int(found[1])
        for op in condition.values()
        if op.opcode == "constant" and (found := re.match(r"(\d+)\)", op.rest))
    ]
    less = any(
        "direction=LT" in op.rest
        for computation in (condition, *_callees(condition, computations))
        for op in computation.values()
    )
    return constants[0] if less and len(constants) == 1 else None


def _callees(
    computation: dict[str, Instruction],
    computations: dict[str, dict[str, Instruction]],
) -> list[dict[str, Instruction]]:
    return [
        computations[called]
        for op in computation.values()
        for called in op.called.values()
        if called in computations
    ]
