"""Training batches of one length bucket each, the same on all hosts.

Every step ends in an exchange of gradients, so that a host whose batch is short waits
for the one whose batch is longest: buckets must be chosen for the *global* batch
(papers.md 1.6: up to 50 % on large slices). A pair's bucket is that of its longer side;
a batch is given out when so many pairs of one bucket have come together, in the order
of the epoch's permutation; what is left over waits for the next epoch's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from mlperf_tpu.data.batches import Arrays, Batch, InMemory, refuse_large_batch
from mlperf_tpu.errors import BadInput


def bucket_of(lengths: np.ndarray, max_length: int, n_buckets: int) -> np.ndarray:
    """int64 [n]: each length's bucket, of equal width over 1 .. max_length.

    The width is rounded up: lengths of 48 in 5 buckets fall into those of up to 10, 20,
    30, 40 and 48.

    >>> bucket_of(np.array([1, 10, 11, 48]), max_length=48, n_buckets=5).tolist()
    [0, 0, 1, 4]
    """
    width = -(-max_length // n_buckets)
    return (np.maximum(lengths, 1) - 1) // width


@dataclass(frozen=True)
class Bucketed:
    """A split in memory whose training batches are of one bucket each.

    `buckets` int64 [examples]. Nothing is dropped: over the run each example is seen
    as often as any other, but for those that wait in a bucket.
    """

    arrays: Arrays
    padding: Mapping[str, int]
    buckets: np.ndarray = field(repr=False)

    @property
    def n_examples(self) -> int:
        return len(self.buckets)

    def fingerprint(self) -> str:
        """A hash of every byte, of the buckets' too."""
        plain = InMemory(self.arrays, self.padding).fingerprint()
        return hashlib.sha256(plain.encode() + self.buckets.tobytes()).hexdigest()

    def train_batches(self, batch: int, seed: int, first_step: int) -> Iterator[Batch]:
        """Global batches from `first_step` on, without end."""
        refuse_large_batch(batch, self.n_examples)
        largest = np.bincount(self.buckets).max()
        if largest < batch and self.n_examples < batch * len(np.unique(self.buckets)):
            raise BadInput(
                f"data.buckets: the largest holds {largest} pairs, less than a batch "
                f"(training.global_batch: {batch}); choose fewer buckets or a smaller "
                "batch"
            )
        for step, rows in enumerate(batches_of(self.buckets, batch, seed)):
            if step >= first_step:
                yield {name: values[rows] for name, values in self.arrays.items()}

    def eval_batches(self, batch: int) -> Iterator[Batch]:
        return InMemory(self.arrays, self.padding).eval_batches(batch)


def batches_of(buckets: np.ndarray, batch: int, seed: int) -> Iterator[np.ndarray]:
    """The rows of each batch, int64 [batch], epoch after epoch without end."""
    n_buckets = int(buckets.max()) + 1
    waiting = [np.empty(0, np.int64)] * n_buckets
    epoch = 0
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(len(buckets))
        its_bucket = buckets[order]
        full: list[tuple[int, np.ndarray]] = []
        for k in range(n_buckets):
            places = np.flatnonzero(its_bucket == k)
            held = len(waiting[k])
            rows = np.concatenate([waiting[k], order[places]])
            n_full = len(rows) // batch
            for i in range(n_full):
                # Given out where its last pair stands in the epoch's order.
                last = (i + 1) * batch - held - 1
                full.append((int(places[last]), rows[i * batch : (i + 1) * batch]))
            waiting[k] = rows[n_full * batch :]
        for _, rows in sorted(full, key=lambda each: each[0]):
            yield rows
        epoch += 1
