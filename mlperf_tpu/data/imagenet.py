"""ImageNet from its files: the same batches from any step on, every example once.

An epoch's order is a function of (seed, epoch): the files in a random order, ten read
at a time, then a shuffle buffer. An example's crop and flip are functions of (seed,
epoch, example). So a run that starts at any step sees what one from the beginning would
have seen there; what is skipped is read but not decoded.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from mlperf_tpu.data import jpeg
from mlperf_tpu.data.batches import (
    ONE_HOST,
    Batch,
    Host,
    HostBatches,
    refuse_large_batch,
)
from mlperf_tpu.data.imagenet_files import Form
from mlperf_tpu.data.tfrecord import DamagedRecord, Framing, reader, records
from mlperf_tpu.errors import BadInput, RunFailed

# As Google's v0.7 code had them (papers.md 2.6).
SHUFFLE_EXAMPLES = 16384
FILES_AT_ONCE = 10
# An image of ImageNet is 469 x 387 on the average, three bytes a pixel.
DECODED_BYTES = 469 * 387 * 3


@dataclass(frozen=True)
class Settings:
    """How images become a batch's pixels (the spec's data section)."""

    classes: int
    image_size: int
    resize: str
    cache_decoded: bool


# A run of records in one file: (path, byte of the first, its number in the whole split,
# how many).
_Part = tuple[str, int, int, int]


@dataclass(frozen=True)
class ImageNet:
    """One host's share of a split whose files were checked (data.check)."""

    form: Form
    files: tuple[Framing, ...]
    settings: Settings
    host: Host = ONE_HOST

    @property
    def n_examples(self) -> int:
        """Of the whole split, all hosts together."""
        return sum(file.n_records for file in self.files)

    def fingerprint(self) -> str:
        """Of every record's length and checksum, in order: one data set in either
        folder has one fingerprint, a changed byte another."""
        digests = "".join(file.digest for file in self.files)
        return hashlib.sha256(digests.encode()).hexdigest()

    def train_batches(self, batch: int, seed: int, first_step: int) -> Iterator[Batch]:
        refuse_large_batch(batch, self.n_examples)
        return self._batches(lambda host: host._train_rows(batch, seed, first_step), 0)

    def eval_batches(self, batch: int) -> Iterator[Batch]:
        return self._batches(lambda host: host._eval_rows(batch), lowest_label=-1)

    def _batches(
        self, rows: Callable[[ImageNet], tf.data.Dataset], lowest_label: int
    ) -> HostBatches:
        own = self._numpy(rows(self), lowest_label)
        return HostBatches(own, lambda host: rows(replace(self, host=host)))

    def _train_rows(self, batch: int, seed: int, first_step: int) -> tf.data.Dataset:
        rows = self.host.rows(batch)
        count = self._share()[1] - self._share()[0]
        position = first_step * rows
        epochs = tf.data.Dataset.range(position // count, np.iinfo(np.int64).max)
        if self.settings.cache_decoded:
            order = functools.partial(_shuffled, self._decoded, count, seed)
            image_of = self._crop_of_decoded
        else:
            order = self._in_epoch_order(count, seed)
            image_of = self._crop_of_encoded
        examples = epochs.flat_map(order).skip(position % count).enumerate(position)

        def example(position, row):
            # Two draws an example, told apart by the second seed's sign.
            index, payload, *label = row
            first = tf.cast(seed, tf.int64) + position // count * 2**32
            image, label = image_of(payload, label, tf.stack([first, index]))
            flip = tf.random.stateless_uniform([], tf.stack([first, -1 - index])) < 0.5
            image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
            return self._fields(image, label)

        return self._mapped(examples, example).batch(rows, drop_remainder=True)

    def _eval_rows(self, batch: int) -> tf.data.Dataset:
        """Each host the same number of batches, so that no host waits in vain for
        another (google_submissions.md 3.2)."""
        rows = self.host.rows(batch)
        largest = -(-self.n_examples // self.host.n_hosts)
        padded = -(-largest // rows) * rows
        missing = padded - (self._share()[1] - self._share()[0])
        size = self.settings.image_size
        padding = tf.data.Dataset.from_tensors(
            self._fields(tf.zeros([size, size, 3], tf.uint8), tf.constant(-1))
        ).repeat(missing)
        examples = self._eval_examples.concatenate(padding)
        return examples.batch(rows, drop_remainder=True)

    @functools.cached_property
    def _eval_examples(self) -> tf.data.Dataset:
        size, method = self.settings.image_size, self.settings.resize

        def example(index, record):
            encoded, label = parsed(record, self.form)
            image = jpeg.cropped(encoded, lambda shape: jpeg.centre_crop(shape, size))
            return self._fields(jpeg.resized(image, size, method), label)

        examples = self._mapped(_in_file_order(self._parts()), example)
        # Kept at its final size, the set is decoded once for all evaluations.
        return examples.cache() if self.settings.cache_decoded else examples

    @functools.cached_property
    def _decoded(self) -> tf.data.Dataset:
        """(index, pixels, label) of this host's examples, decoded in the first epoch
        and then kept."""

        def example(index, record):
            encoded, label = parsed(record, self.form)
            return index, jpeg.decoded(encoded), label

        return self._mapped(_in_file_order(self._parts()), example).cache()

    def _in_epoch_order(self, count: int, seed: int) -> Callable:
        parts = _columns(self._parts())

        def epoch_records(epoch):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(len(parts[0])), tf.stack([tf.cast(seed, tf.int64), epoch])
            )
            ordered = tuple(tf.gather(column, order) for column in parts)
            files = tf.data.Dataset.from_tensor_slices(ordered)
            mixed = files.interleave(
                _read,
                cycle_length=FILES_AT_ONCE,
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            return _shuffled(mixed, count, seed, epoch)

        return epoch_records

    def _crop_of_encoded(self, record, _, seed):
        encoded, label = parsed(record, self.form)
        image = jpeg.cropped(encoded, lambda shape: jpeg.training_crop(shape, seed))
        return self._resized(image), label

    def _crop_of_decoded(self, pixels, label, seed):
        crop = jpeg.training_crop(tf.shape(pixels), seed)
        return self._resized(jpeg.cut(pixels, crop)), label[0]

    def _resized(self, image):
        return jpeg.resized(image, self.settings.image_size, self.settings.resize)

    def _fields(self, image, label):
        size = self.settings.image_size
        return {"image": tf.ensure_shape(image, [size, size, 3]), "label": label}

    @staticmethod
    def _mapped(examples: tf.data.Dataset, function: Callable) -> tf.data.Dataset:
        """In order, one image a core: an op of one image gains nothing from more."""
        cores = len(os.sched_getaffinity(0))
        options = tf.data.Options()
        options.threading.private_threadpool_size = cores
        options.threading.max_intra_op_parallelism = 1
        return examples.map(
            function, num_parallel_calls=cores, deterministic=True
        ).with_options(options)

    def _share(self) -> tuple[int, int]:
        """This host's examples, of the split's in the order of its files: contiguous,
        so whole files but for the first and last, and fewer files than hosts do."""
        n, hosts = self.n_examples, self.host.n_hosts
        return n * self.host.number // hosts, n * (self.host.number + 1) // hosts

    def _parts(self) -> list[_Part]:
        start, stop = self._share()
        parts, first = [], 0
        for file in self.files:
            low, high = max(start - first, 0), min(stop - first, file.n_records)
            if low < high:
                offset = int(file.offsets[low])
                parts.append((str(file.path), offset, first + low, high - low))
            first += file.n_records
        if not parts:
            raise BadInput(
                f"host {self.host.number} of {self.host.n_hosts}: no examples left of "
                f"{self.n_examples}; use fewer hosts"
            )
        return parts

    def _numpy(self, batches: tf.data.Dataset, lowest_label: int) -> Iterator[Batch]:
        """The batches as arrays; what goes wrong in a file is said with its name."""
        try:
            for batch in batches.prefetch(1).as_numpy_iterator():
                label = batch["label"]
                if label.min() < lowest_label or label.max() >= self.settings.classes:
                    raise RunFailed(
                        f"a label is outside of 0..{self.settings.classes - 1}; "
                        "`mlperf-tpu data check` says where"
                    )
                yield batch
        except tf.errors.DataLossError as error:
            raise RunFailed(_locate(self.files, error)) from error
        except tf.errors.OpError as error:
            raise RunFailed(
                "a record is no image, or a file has changed since it was checked: "
                f"{error.message.splitlines()[0]}; `mlperf-tpu data check --level "
                "decode` says where"
            ) from error


def parsed(record, form: Form):
    """(encoded image, label int32 from 0) of a record, or of many."""
    fields = {
        form.image: tf.io.FixedLenFeature([], tf.string),
        form.label: tf.io.FixedLenFeature([], tf.int64),
    }
    found = tf.io.parse_example(record, fields)
    return found[form.image], tf.cast(found[form.label] - form.first_label, tf.int32)


def _columns(parts: Sequence[_Part]) -> tuple[tf.Tensor, ...]:
    return tuple(tf.constant(column) for column in zip(*parts, strict=True))


def _in_file_order(parts: Sequence[_Part]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_columns(parts)).flat_map(_read)


def _read(path, offset, first, count):
    """(index, record) of a part.

    Fewer than `count`, in a file cut since it was checked, are an error.
    """
    first, count = tf.cast(first, tf.int64), tf.cast(count, tf.int64)
    numbered = tf.data.Dataset.zip(
        tf.data.Dataset.range(first, first + count), reader(path, offset).take(count)
    )
    return numbered.apply(tf.data.experimental.assert_cardinality(count))


def _shuffled(examples: tf.data.Dataset, count: int, seed: int, epoch):
    """By (seed, epoch) alone: Dataset.shuffle would mix in the process's global seed,
    which a run sets when it starts and not when it resumes."""
    flat = tf.nest.flatten(examples.element_spec)
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(examples),
        buffer_size=min(SHUFFLE_EXAMPLES, count),
        seed=tf.cast(seed, tf.int64),
        seed2=epoch + 1,
        output_types=[spec.dtype for spec in flat],
        output_shapes=[spec.shape for spec in flat],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, examples.element_spec)


def _locate(files: Sequence[Framing], error: Exception) -> str:
    """The damage behind TensorFlow's error, which names no file."""
    for file in files:
        try:
            for _ in records(file, 64):
                pass
        except DamagedRecord as damaged:
            return str(damaged)
    return f"a record failed its checksum once: {error}"


def refuse_small_memory(n_examples: int) -> None:
    """A cache that will not fit ends before the run does."""
    need = n_examples * DECODED_BYTES
    free = _available_bytes()
    if need > free:
        raise BadInput(
            f"data.cache_decoded: {n_examples:,} decoded images take about "
            f"{need >> 30} GiB a host, {free >> 30} GiB are free; add "
            "--set data.cache_decoded=false"
        )


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
