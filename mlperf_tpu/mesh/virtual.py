"""The virtual mesh: TensorFlow's logical CPU devices, a thread a device.

The step is traced once, whatever the number of devices: its concrete function runs on
each device with that device's replica id as an argument. Since all devices share one
address space, a collective is an exchange of array views at a barrier: measured against
TensorFlow's ring (CollectiveReduceV2), a reduce-scatter and all-gather of ResNet-50's
gradients takes about half the time on 8 devices (scripts/bench_collectives.py).
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.errors import BadInput
from mlperf_tpu.mesh import (
    Batch,
    Evaluation,
    Feed,
    Metrics,
    Program,
    State,
    gathered,
    rows_of_each,
)
from mlperf_tpu.topology import Topology

# Above this an all-reduce splits the sum between its members: below it the second
# meeting costs more than the additions.
_SHARE_BYTES = 1 << 20

# Values of fewer bytes are exchanged together.
_SMALL_BYTES = 1 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Tells glibc to reuse freed blocks: a step frees and asks for the same gigabytes
    each time, and by default every large block is mapped and zeroed anew."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library: only the speed differs
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(_M_ARENA_MAX, 1)


class _Meeting:
    """One replica group's rendezvous: members exchange what they post.

    Each round has a list of its own, which a member holds before the barrier opens: no
    second barrier is needed before the next round may start.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.lock = threading.Lock()
        self.turns = [0] * size
        self.rounds: dict[int, list[Any]] = {}

    def exchange(self, member: int, value: Any) -> list[Any]:
        """Posts `value`; returns every member's, in the group's order."""
        with self.lock:
            turn = self.turns[member]
            self.turns[member] += 1
            posted = self.rounds.setdefault(turn, [None] * self.size)
        posted[member] = value
        if self.barrier.wait() == 0:
            del self.rounds[turn]
        return posted


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An empty array at a 64-byte boundary, which TensorFlow takes without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _share(value: np.ndarray, member: int, members: int) -> np.ndarray:
    """The member's contiguous part of the flattened value."""
    flat = value.reshape(-1)
    return flat[flat.size * member // members : flat.size * (member + 1) // members]


def _join(shares: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    out = _aligned(like.shape, like.dtype)
    np.concatenate(shares, out=out.reshape(-1))
    return out


def _sum(terms: Sequence[np.ndarray]) -> np.ndarray:
    """The terms' sum in the group's order; bf16 terms are added in float32, then
    rounded once."""
    dtype = terms[0].dtype
    if dtype.kind == "V" or dtype.itemsize < 4:  # bfloat16
        return _sum([t.astype(np.float32) for t in terms]).astype(dtype)
    out = _aligned(terms[0].shape, dtype)
    if len(terms) == 1:
        np.copyto(out, terms[0])
        return out
    np.add(terms[0], terms[1], out=out)
    for term in terms[2:]:
        np.add(out, term, out=out)
    return out


class _Exchange:
    """The collectives of one mesh, called by its devices' threads."""

    def __init__(self, n_replicas: int) -> None:
        self.n_replicas = n_replicas
        self.meetings: dict[tuple[int, ...], _Meeting] = {}
        self.lock = threading.Lock()
        self.broken = False

    def meet(self, replica: int, groups: collectives.Groups):
        group = next(g for g in groups if replica in g)
        with self.lock:
            meeting = self.meetings.get(group)
            if meeting is None:
                meeting = self.meetings[group] = _Meeting(len(group))
            if self.broken:
                meeting.barrier.abort()
        return meeting, group.index(replica)

    def abort(self) -> None:
        """Wakes every device that waits for one that failed."""
        with self.lock:
            self.broken = True
            for meeting in self.meetings.values():
                meeting.barrier.abort()

    def reset(self) -> None:
        with self.lock:
            self.broken = False
            self.meetings.clear()

    def all_reduce(self, groups, replica, *values):
        meeting, member = self.meet(int(replica), groups)
        posted = meeting.exchange(member, values)
        if sum(v.nbytes for v in values) < _SHARE_BYTES:
            return [_sum(terms) for terms in zip(*posted, strict=True)]
        # Large values: each member sums its share of them, then all read all shares.
        shares = [
            _sum([_share(t, member, meeting.size) for t in terms])
            for terms in zip(*posted, strict=True)
        ]
        all_shares = meeting.exchange(member, shares)
        # A copy for each member: TensorFlow may compute in place on what it is given.
        return [
            _join(parts, v)
            for parts, v in zip(zip(*all_shares, strict=True), values, strict=True)
        ]

    def reduce_scatter(self, groups, replica, *values):
        meeting, member = self.meet(int(replica), groups)
        posted = meeting.exchange(member, values)
        return [_sum([t[member] for t in terms]) for terms in zip(*posted, strict=True)]

    def all_gather(self, groups, replica, *values):
        meeting, member = self.meet(int(replica), groups)
        # The first member makes the arrays that all will share.
        outs = (
            [_aligned((meeting.size, *v.shape), v.dtype) for v in values]
            if member == 0
            else None
        )
        outs = meeting.exchange(member, outs)[0]
        for out, value in zip(outs, values, strict=True):
            out[member] = value
        meeting.exchange(member, None)
        return outs

    def permute(self, pairs, replica, *values):
        meeting, member = self.meet(int(replica), (tuple(range(self.n_replicas)),))
        posted = meeting.exchange(member, values)
        for source, target in pairs:
            if target == member:
                return [v.copy() for v in posted[source]]
        return [np.zeros_like(v) for v in values]


class _VirtualPlace:
    """The collectives as ops: `tf.numpy_function` into the exchange.

    One after the other in the order of the trace, on every device alike: two that
    waited for different peers at once could wait for ever.
    """

    def __init__(
        self, exchange: _Exchange, topology: Topology, replica: tf.Tensor
    ) -> None:
        self.exchange = exchange
        self.n_replicas = exchange.n_replicas
        self.placement = topology.replicas()
        self.replica = replica
        self.last: list[tf.Operation] = []

    def replica_id(self):
        return self.replica

    def _call(self, method, layout, values, shapes):
        if not values:
            return []

        def call(replica, *arrays):
            return method(layout, replica, *arrays)

        with tf.control_dependencies(self.last):
            outs = tf.numpy_function(
                call, [self.replica, *values], [v.dtype for v in values]
            )
        self.last = [outs[0].op]
        for out, shape in zip(outs, shapes, strict=True):
            out.set_shape(shape)
        return outs

    def all_reduce(self, values, groups):
        return self._together(
            self.exchange.all_reduce, groups, values, [v.shape for v in values], ()
        )

    def reduce_scatter(self, values, groups):
        size = len(groups[0])
        return self._together(
            self.exchange.reduce_scatter,
            groups,
            values,
            [v.shape[1:] for v in values],
            (size,),
        )

    def all_gather(self, values, groups):
        size = len(groups[0])
        return self._together(
            self.exchange.all_gather,
            groups,
            values,
            [[size, *v.shape] for v in values],
            (),
            (size,),
        )

    def _together(self, method, groups, values, shapes, lead, lead_out=()):
        """`_call` of values of which the small ones of a dtype go as one array, laid
        end to end behind their leading dimensions, `lead`, and `lead_out` of what
        comes back.

        Each of NumPy's calls gives up the interpreter for its length: the devices'
        threads would wait for it longer, at each value, than they add.
        """
        alone, joined = [], {}
        for k, value in enumerate(values):
            if value.shape.num_elements() * value.dtype.size < _SMALL_BYTES:
                joined.setdefault(value.dtype, []).append(k)
            else:
                alone.append(k)
        sent, back = [values[k] for k in alone], [shapes[k] for k in alone]
        for numbers in joined.values():
            flat = [tf.reshape(values[k], [*lead, -1]) for k in numbers]
            sent.append(tf.concat(flat, -1))
            back.append([*lead_out, sent[-1].shape[-1]])
        found = self._call(method, groups, sent, back)
        outs = dict(zip(alone, found, strict=False))
        for numbers, whole in zip(joined.values(), found[len(alone) :], strict=True):
            sizes = [math.prod(shapes[k]) // math.prod(lead_out) for k in numbers]
            for k, part in zip(numbers, tf.split(whole, sizes, -1), strict=True):
                outs[k] = tf.reshape(part, shapes[k])
        return [outs[k] for k in range(len(values))]

    def permute(self, values, pairs):
        return self._call(
            self.exchange.permute, tuple(pairs), values, [v.shape for v in values]
        )

    write = collectives.OneReplica.write


class VirtualMesh:
    """`n_devices` logical CPU devices, a replica each. One mesh size a process.

    They stand for the cores of `topology`, without those of failed chips.
    """

    name = "virtual"

    def __init__(self, n_devices: int, topology: Topology | None = None) -> None:
        self.n_replicas = n_devices
        self.topology = topology or Topology.virtual(n_devices)
        _configure_devices(n_devices)
        self._devices = [f"/cpu:{d}" for d in range(n_devices)]
        self._pool = ThreadPoolExecutor(n_devices, thread_name_prefix="device")
        self._exchange = _Exchange(n_devices)
        self._states: list[State] = []

    def start(
        self,
        program: Program,
        state: State,
        batch: Batch,
        eval_batch: Batch | None = None,
    ) -> None:
        """Takes the state, traces the step and the evaluation, runs each once.

        `batch` is a global batch of the right shapes that may hold anything, and so is
        `eval_batch` where evaluation takes another; what the first runs compute is
        dropped. They fall into the initialisation, off the clock.
        """
        self._sharded = program.step.update.sharded
        self.load(state)
        self._feed = Feed(self.n_replicas, getattr(program, "infeed_hosts", 0))
        first, pieces = self._states[0], self._placed(self._feed(batch))
        self._step = self._trace(program.step, first, pieces[0])
        evaluated = self._split(eval_batch or batch)
        self._evaluation = self._trace(program.evaluate, first, evaluated[0])
        for traced, data in ((self._step, pieces), (self._evaluation, evaluated)):
            self._on_devices(lambda r, f=traced, d=data: f(r, self._states[r], d[r]))

    def train(self, batches: Iterator[Batch], n_steps: int) -> Iterator[Metrics]:
        """Takes `n_steps` steps, one global batch each; yields each step's metrics."""

        def step(replica: int):
            return self._step(replica, self._states[replica], pieces[replica])

        for batch in itertools.islice(batches, n_steps):
            pieces = self._placed(self._feed(batch))
            done = self._on_devices(step)
            self._states = [state for state, _ in done]
            yield {name: float(value) for name, value in done[0][1].items()}

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """The sums and predictions of all batches (mesh.gathered)."""

        def parts() -> Iterator[Metrics]:
            for batch in batches:
                pieces = self._split(batch)
                yield from self._on_devices(
                    lambda r, p=pieces: self._evaluation(r, self._states[r], p[r])
                )

        return gathered(parts())

    def fetch(self) -> State:
        """The state of all replicas as host arrays: slots as [replicas, row]."""
        state = tf.nest.map_structure(lambda t: t.numpy(), self._states[0])
        if self._sharded:
            state["slots"] = tf.nest.map_structure(
                lambda *rows: np.stack([row.numpy() for row in rows]),
                *(s["slots"] for s in self._states),
            )
        return state

    def device_state(self, replica: int) -> State:
        """What one device holds."""
        return self._states[replica]

    def load(self, state: State) -> None:
        """Takes another state of the program that was started."""
        self._states = []
        for replica, device in enumerate(self._devices):
            with tf.device(device):
                mine = {
                    k: tf.nest.map_structure(tf.convert_to_tensor, v)
                    for k, v in state.items()
                    if k != "slots" or not self._sharded
                }
                if self._sharded:
                    mine["slots"] = tf.nest.map_structure(
                        lambda rows, r=replica: tf.convert_to_tensor(rows[r]),
                        state["slots"],
                    )
            self._states.append(mine)

    def _split(self, batch: Batch) -> list[Batch]:
        """The replicas' equal parts of a global batch, on their devices."""
        return self._placed(rows_of_each(batch, self.n_replicas))

    def _placed(self, parts: list[Batch]) -> list[Batch]:
        placed = []
        for device, part in zip(self._devices, parts, strict=True):
            with tf.device(device):
                placed.append({k: tf.convert_to_tensor(v) for k, v in part.items()})
        return placed

    def _trace(self, function: Callable, *arguments: Any) -> Callable:
        """`function` traced once, to be called as traced(replica, *arguments)."""

        def traced(replica, *arguments):
            if self.n_replicas == 1:
                return function(*arguments)
            here = _VirtualPlace(self._exchange, self.topology, replica)
            with collectives.running_on(here):
                return function(*arguments)

        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, arguments)
        concrete = tf.function(traced, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32), *specs
        )
        # Called flat: TensorFlow's check of each tensor of a state against the traced
        # one takes a tenth of the step of SSD's proxy.
        call, structure = concrete.inference_fn.call_flat, concrete.structured_outputs

        def run(replica, *arguments):
            flat = tf.nest.flatten(arguments)
            found = call(tf.constant(replica), *flat, *concrete.captured_inputs)
            return tf.nest.pack_sequence_as(structure, found)

        return run

    def _on_devices(self, work: Callable[[int], Any]) -> list[Any]:
        """Calls `work(replica)` on every device at once, each in its thread.

        The first error of a device is raised, once all devices have stopped.
        """

        def on_device(replica: int) -> Any:
            try:
                with tf.device(self._devices[replica]):
                    return work(replica)
            except BaseException:
                self._exchange.abort()
                raise

        futures = [self._pool.submit(on_device, r) for r in range(self.n_replicas)]
        errors = [e for e in (f.exception() for f in futures) if e is not None]
        if errors:
            self._exchange.reset()
            # A device that was only waiting reports a broken barrier: not the cause.
            raise next((e for e in errors if "BrokenBarrier" not in str(e)), errors[0])
        return [f.result() for f in futures]


def _configure_devices(n_devices: int) -> None:
    """Devices and thread pools; TensorFlow fixes both at its first use."""
    keep_freed_memory()
    [cpu] = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is not None:
        if len(configured) != n_devices:
            raise _another_size(n_devices, len(configured))
        return
    try:
        # A collective holds an inter-op thread while it waits for its peers, so there
        # must be one a device; and with more threads than cores the convolutions of
        # different devices, or two of one device's, fight each other: the intra-op
        # threads come beside the one that calls.
        tf.config.threading.set_inter_op_parallelism_threads(max(2, n_devices))
        spare = len(os.sched_getaffinity(0)) - 1 if n_devices == 1 else 1
        tf.config.threading.set_intra_op_parallelism_threads(max(1, spare))
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * n_devices
        )
    except RuntimeError as error:
        found = len(tf.config.list_logical_devices("CPU"))
        raise _another_size(n_devices, found) from error


def _another_size(asked: int, found: int) -> BadInput:
    return BadInput(
        f"a mesh of {asked} virtual devices in a process that already has {found}: one "
        "mesh size a process; start another process"
    )
