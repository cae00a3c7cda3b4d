"""Communication between replicas, spelled out in the step: one API in every place.

A step is traced for a place (mesh/): the virtual mesh, the XLA mesh, a TPU slice or a
pod that is not there. While it is traced, `running_on(place)` names the place, and the
functions below emit that place's ops. Outside of `running_on` there is one replica and
every collective is the identity of its group of one.

Each function takes a list of tensors and moves them together: how a place fuses them
(one rendezvous, one XLA op that the combiner merges) is the place's own affair.
Replica groups are rows of replica ids; every replica stands in exactly one row.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import Placement, Topology

if TYPE_CHECKING:  # schedules, their proofs and their times need no TensorFlow
    import tensorflow as tf

Groups = tuple[tuple[int, ...], ...]

LANES = 128  # elements of a row that a TPU holds together
TILE = 8 * LANES  # and of a matrix


class Place(Protocol):
    """What a place must offer to the step that is traced for it."""

    n_replicas: int

    @property
    def placement(self) -> Placement: ...

    def replica_id(self) -> tf.Tensor: ...

    def all_reduce(
        self, values: Sequence[tf.Tensor], groups: Groups
    ) -> list[tf.Tensor]: ...

    def reduce_scatter(
        self, values: Sequence[tf.Tensor], groups: Groups
    ) -> list[tf.Tensor]: ...

    def all_gather(
        self, values: Sequence[tf.Tensor], groups: Groups
    ) -> list[tf.Tensor]: ...

    def permute(
        self, values: Sequence[tf.Tensor], pairs: Sequence[tuple[int, int]]
    ) -> list[tf.Tensor]: ...

    def write(
        self, value: tf.Tensor, first: tf.Tensor, block: tf.Tensor
    ) -> tf.Tensor: ...


class OneReplica:
    """The place without peers."""

    n_replicas = 1
    placement = Topology.virtual(1).replicas()

    def replica_id(self) -> tf.Tensor:
        import tensorflow as tf

        return tf.constant(0, tf.int32)

    def all_reduce(
        self, values: Sequence[tf.Tensor], groups: Groups
    ) -> list[tf.Tensor]:
        return list(values)

    def reduce_scatter(
        self, values: Sequence[tf.Tensor], groups: Groups
    ) -> list[tf.Tensor]:
        return [value[0] for value in values]

    def all_gather(
        self, values: Sequence[tf.Tensor], groups: Groups
    ) -> list[tf.Tensor]:
        return [value[None] for value in values]

    def permute(
        self, values: Sequence[tf.Tensor], pairs: Sequence[tuple[int, int]]
    ) -> list[tf.Tensor]:
        return [value if (0, 0) in pairs else 0 * value for value in values]

    def write(self, value: tf.Tensor, first: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        rows = first + tf.range(block.shape[0])
        return tf.tensor_scatter_nd_update(value, rows[:, None], block)


_place: contextvars.ContextVar[Place] = contextvars.ContextVar("place")
_one_replica = OneReplica()


def place() -> Place:
    """The place that is being traced for."""
    return _place.get(_one_replica)


@contextlib.contextmanager
def running_on(new: Place) -> Iterator[None]:
    """Traces for `new` within the block."""
    token = _place.set(new)
    try:
        yield
    finally:
        _place.reset(token)


def n_replicas() -> int:
    """The number of replicas, known when the step is traced."""
    return place().n_replicas


def placement() -> Placement:
    """Where the replicas stand on the place's grid."""
    return place().placement


def replica_id() -> tf.Tensor:
    """This replica's id, an int32 scalar that only the running step knows."""
    return place().replica_id()


def everyone() -> Groups:
    """The one group of all replicas."""
    return (tuple(range(n_replicas())),)


def consecutive(group_size: int) -> Groups:
    """Groups of `group_size` replicas with consecutive ids.

    With 4 replicas, `consecutive(2)` is ((0, 1), (2, 3)). `group_size` divides the
    number of replicas: the spec is refused earlier if it doesn't.
    """
    n = n_replicas()
    return tuple(tuple(range(i, i + group_size)) for i in range(0, n, group_size))


def tiles(group_size: int) -> Groups:
    """Groups of `group_size` replicas that share a 2-D tile of the place's grid.

    Raises BadInput where no such tile divides the grid, or a tile lost replicas to
    failed chips: the groups of one collective are of one size.
    """
    groups = placement().tiles(group_size)
    short = sum(len(group) < group_size for group in groups)
    if short:
        raise BadInput(
            f"batch_norm.groups: tiles of {group_size} replicas, but {short} of "
            f"{len(groups)} lost some to failed chips; use consecutive groups"
        )
    return groups


def all_reduce(
    values: Sequence[tf.Tensor], groups: Groups | None = None
) -> list[tf.Tensor]:
    """The sum of each value over the replica's group; same shapes and dtypes."""
    return place().all_reduce(values, groups or everyone())


def reduce_scatter(
    values: Sequence[tf.Tensor], groups: Groups | None = None
) -> list[tf.Tensor]:
    """Sums values of shape [group size, ...] over the group; the k-th member of the
    group keeps row k, of shape [...]."""
    return place().reduce_scatter(values, groups or everyone())


def all_gather(
    values: Sequence[tf.Tensor], groups: Groups | None = None
) -> list[tf.Tensor]:
    """Stacks the group's values, of shape [...], to [group size, ...], in the group's
    order. What comes back may be shared between replicas: don't write into it."""
    return place().all_gather(values, groups or everyone())


def permute(
    values: Sequence[tf.Tensor], pairs: Sequence[tuple[int, int]]
) -> list[tf.Tensor]:
    """Sends each value along (source, target) pairs; zeros where nothing arrives."""
    return place().permute(values, pairs)


def write(value: tf.Tensor, first: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
    """`value` with its rows from `first` on replaced by those of `block`.

    No communication, but each place's own op: `first` may depend on the replica id,
    and TensorFlow's ops that write there become a scatter in XLA, or do not compile.
    """
    return place().write(value, first, block)
