"""Batches from data sets in memory: exact epochs, exact resume, no example lost.

The order is a function of (seed, epoch) alone, so that a run that starts at any step
sees what one from the beginning would have seen there (on several hosts: on as many).
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from mlperf_tpu.errors import BadInput

if TYPE_CHECKING:
    import tensorflow as tf

# Field -> array of [examples, ...].
Arrays = Mapping[str, np.ndarray]
Batch = dict[str, np.ndarray]


class Dataset(Protocol):
    """One split of a data set, in memory or on disk."""

    n_examples: int

    def fingerprint(self) -> str:
        """Tells one data set from another when a run resumes."""

    def train_batches(self, batch: int, seed: int, first_step: int) -> Iterator[Batch]:
        """Global batches from `first_step` on, without end: what a run from the
        beginning would have seen there."""

    def eval_batches(self, batch: int) -> Iterator[Batch]:
        """Every example once; the last batch padded, its padded labels -1."""


@dataclass(frozen=True)
class InMemory:
    """A split whose examples are arrays; padding gives a field's value in padded rows,
    zero where it gives none."""

    arrays: Arrays
    padding: Mapping[str, int]

    @property
    def n_examples(self) -> int:
        return len(next(iter(self.arrays.values())))

    def fingerprint(self) -> str:
        """A hash of every byte."""
        digest = hashlib.sha256()
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(self.arrays[name])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.data)
        return digest.hexdigest()

    def train_batches(self, batch: int, seed: int, first_step: int) -> Iterator[Batch]:
        made = self.arrays, batch, seed, first_step
        return HostBatches(shuffled_batches(*made), partial(_shuffled_on_host, *made))

    def eval_batches(self, batch: int) -> Iterator[Batch]:
        made = self.arrays, batch, self.padding
        return HostBatches(padded_batches(*made), partial(_padded_on_host, *made))


@runtime_checkable
class HostFed(Protocol):
    """Global batches that each host of a slice can read its own rows of."""

    def __iter__(self) -> Iterator[Batch]: ...

    def on_host(self, host: int, n_hosts: int) -> tf.data.Dataset:
        """The host's rows of each batch, in TensorFlow's own ops: they run there."""


@dataclass(frozen=True)
class Repeated:
    """One batch without end."""

    batch: Batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.batch

    def on_host(self, host: int, n_hosts: int) -> tf.data.Dataset:
        import tensorflow as tf

        rows = {k: np.split(v, n_hosts)[host] for k, v in self.batch.items()}
        return tf.data.Dataset.from_tensors(rows).repeat()


@dataclass(frozen=True)
class Host:
    """One of the hosts that feed a slice."""

    number: int = 0
    n_hosts: int = 1

    def rows(self, batch: int) -> int:
        """Its rows of a global batch."""
        if batch % self.n_hosts:
            raise BadInput(
                f"training.global_batch: {batch} examples do not divide over "
                f"{self.n_hosts} hosts; choose a multiple of {self.n_hosts}"
            )
        return batch // self.n_hosts


ONE_HOST = Host()


@dataclass(frozen=True)
class HostBatches:
    """Batches of a split, of which any host can be asked for its own (HostFed)."""

    batches: Iterator[Batch]
    of_host: Callable[[Host], tf.data.Dataset]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self.batches)

    def on_host(self, host: int, n_hosts: int) -> tf.data.Dataset:
        return self.of_host(Host(host, n_hosts))


def shuffled_epochs(items: np.ndarray, seed: int, position: int) -> tf.data.Dataset:
    """(epoch, item), int64 both, from `position` on, without end; an epoch's order is a
    function of (seed, epoch)."""
    import tensorflow as tf

    held = tf.constant(items, tf.int64)

    def order(epoch: tf.Tensor) -> tf.data.Dataset:
        seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
        shuffled = tf.random.experimental.stateless_shuffle(held, seeds)
        numbered = tf.data.Dataset.from_tensor_slices(shuffled)
        return numbered.map(lambda item: (epoch, item))

    first, rest = divmod(position, len(items))
    return tf.data.Dataset.counter(first).flat_map(order).skip(rest)


def _shuffled_on_host(
    dataset: Arrays, batch: int, seed: int, first_step: int, host: Host
) -> tf.data.Dataset:
    """A host's share, every n-th row, which it shuffles by itself: it is sent to the
    host once, and each row seen once an epoch."""
    import tensorflow as tf

    mine = {k: tf.constant(v[host.number :: host.n_hosts]) for k, v in dataset.items()}
    n, rows = len(next(iter(mine.values()))), host.rows(batch)
    refuse_large_batch(batch, n * host.n_hosts)
    order = shuffled_epochs(np.arange(n), seed, first_step * rows)
    return order.batch(rows, drop_remainder=True).map(
        lambda _, picked: {k: tf.gather(v, picked) for k, v in mine.items()}
    )


def _padded_on_host(
    dataset: Arrays, batch: int, padding: Mapping[str, int], host: Host
) -> tf.data.Dataset:
    """A host's rows of every batch."""
    import tensorflow as tf

    rows = host.rows(batch)
    mine = slice(host.number * rows, (host.number + 1) * rows)
    batches = list(padded_batches(dataset, batch, padding))
    return tf.data.Dataset.from_tensor_slices(
        {k: np.stack([b[k][mine] for b in batches]) for k in batches[0]}
    )


def shuffled_batches(
    dataset: Arrays, batch: int, seed: int, first_step: int
) -> Iterator[Batch]:
    """Global batches from `first_step` on, without end.

    Each epoch is a permutation of its own (shuffle before repeat): the first n examples
    are n different ones. A batch may span two epochs; nothing is dropped.
    """
    n = len(next(iter(dataset.values())))
    refuse_large_batch(batch, n)
    epoch, order = -1, np.empty(0, np.int64)
    step = first_step
    while True:
        wanted = np.arange(step * batch, (step + 1) * batch)
        picked = np.empty(batch, np.int64)
        for e in range(wanted[0] // n, wanted[-1] // n + 1):
            if e != epoch:
                epoch, order = e, np.random.default_rng([seed, e]).permutation(n)
            here = wanted // n == e
            picked[here] = order[wanted[here] % n]
        yield {name: values[picked] for name, values in dataset.items()}
        step += 1


def refuse_large_batch(batch: int, n_examples: int) -> None:
    if batch > n_examples:
        raise BadInput(
            f"training.global_batch: {batch} examples, but the training set has "
            f"{n_examples}; choose a smaller batch"
        )


def padded_batches(
    dataset: Arrays, batch: int, padding: Mapping[str, int]
) -> Iterator[Batch]:
    """Each example once, in order; the last batch filled up with zeros, or with the
    value that `padding` gives for a field."""
    n = len(next(iter(dataset.values())))
    for start in range(0, n, batch):
        rows = {name: values[start : start + batch] for name, values in dataset.items()}
        missing = batch - min(batch, n - start)
        yield {
            name: np.concatenate(
                [
                    values,
                    np.full(
                        (missing, *values.shape[1:]), padding.get(name, 0), values.dtype
                    ),
                ]
            )
            if missing
            else values
            for name, values in rows.items()
        }


def prefetched(batches: Iterator[Any], depth: int = 2) -> Iterator[Any]:
    """The same batches, the next `depth` of them made in a thread beside the training.

    An error in `batches` is raised where its batch would have come.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    closed = threading.Event()

    def put(kind: str, value: Any) -> bool:
        while not closed.is_set():
            try:
                ready.put((kind, value), timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not put("batch", batch):
                    return
            put("end", None)
        except Exception as error:
            put("error", error)

    threading.Thread(target=work, name="prefetch", daemon=True).start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        closed.set()
