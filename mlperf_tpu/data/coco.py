"""COCO from its files: the same batches from any step on, every image once.

An epoch's order is a permutation by (seed, epoch), an example's randomness a function
of (seed, epoch, image): a run that starts at any step sees what one from the beginning
would have seen there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from mlperf_tpu.data import jpeg
from mlperf_tpu.data.batches import (
    ONE_HOST,
    Batch,
    Host,
    HostBatches,
    refuse_large_batch,
    shuffled_epochs,
)
from mlperf_tpu.data.coco_files import WHOLE_FILE, Split
from mlperf_tpu.data.tfrecord import reader
from mlperf_tpu.detection.coco import PADDED
from mlperf_tpu.errors import RunFailed

# (pixels uint8 [h, w, 3], boxes [n, 4], classes [n], seed int64 [2]) -> an example
Prepare = Callable[..., Mapping[str, tf.Tensor]]


@dataclass(frozen=True)
class Coco:
    """One host's share of a split; of one for training, the images with a box.

    `prepare` makes an image and its boxes the fields of a batch, for training by chance
    of the seed, for the evaluation without one (None); "id" is added to them.
    """

    split: Split
    prepare: Prepare
    training: bool
    host: Host = ONE_HOST

    @functools.cached_property
    def kept(self) -> np.ndarray:
        """The places of the images in the split's document."""
        n = len(self.split.places)
        if not self.training:
            return np.arange(n)
        return np.flatnonzero([len(boxes) > 0 for boxes, _ in self.split.objects])

    @property
    def n_examples(self) -> int:
        return len(self.kept)

    def fingerprint(self) -> str:
        """Of the annotations: another file of them is another data set."""
        text = json.dumps(self.split.document, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def train_batches(self, batch: int, seed: int, first_step: int) -> Iterator[Batch]:
        refuse_large_batch(batch, self.n_examples)
        return self._batches(lambda host: host._train_rows(batch, seed, first_step))

    def eval_batches(self, batch: int) -> Iterator[Batch]:
        return self._batches(lambda host: host._eval_rows(batch))

    def _batches(self, rows: Callable[[Coco], tf.data.Dataset]) -> HostBatches:
        return HostBatches(
            _numpy(rows(self)), lambda host: rows(replace(self, host=host))
        )

    def _share(self) -> np.ndarray:
        """This host's images: every so many-th."""
        return self.kept[self.host.number :: self.host.n_hosts]

    def _train_rows(self, batch: int, seed: int, first_step: int) -> tf.data.Dataset:
        rows = self.host.rows(batch)
        examples = shuffled_epochs(self._share(), seed, first_step * rows)

        def example(epoch, image):
            first = tf.cast(seed, tf.int64) + epoch * 2**32
            return self._fields(image, tf.stack([first, image]))

        return self._mapped(examples, example).batch(rows, drop_remainder=True)

    def _eval_rows(self, batch: int) -> tf.data.Dataset:
        """Each host the same number of batches, so that none waits in vain."""
        rows = self.host.rows(batch)
        largest = math.ceil(self.n_examples / self.host.n_hosts)
        padded = math.ceil(largest / rows) * rows
        images = tf.data.Dataset.from_tensor_slices(self._share().astype(np.int64))
        examples = self._mapped(images, lambda image: self._fields(image, None))

        def padding():
            fields = {
                name: tf.zeros(spec.shape, spec.dtype)
                for name, spec in examples.element_spec.items()
            }
            return {**fields, "id": tf.constant(PADDED)}

        missing = padded - len(self._share())
        filled = tf.data.Dataset.from_tensors(padding()).repeat(missing)
        return examples.concatenate(filled).batch(rows, drop_remainder=True)

    def _fields(self, image, seed):
        path, offset, number = (tf.gather(column, image) for column in self._columns)
        boxes, classes = (values[image] for values in self._objects)
        pixels = jpeg.decoded(_bytes(path, offset))
        fields = self.prepare(pixels, boxes, classes, seed)
        return {**fields, "id": number}

    @functools.cached_property
    def _columns(self):
        with tf.init_scope():
            paths, offsets = zip(*self.split.places, strict=True)
            ids = [image["id"] for image in self.split.document["images"]]
            return (
                tf.constant([str(path) for path in paths]),
                tf.constant(offsets, tf.int64),
                tf.constant(ids, tf.int32),
            )

    @functools.cached_property
    def _objects(self):
        boxes, classes = zip(*self.split.objects, strict=True)
        lengths = [len(of_image) for of_image in boxes]
        with tf.init_scope():
            return tuple(
                tf.RaggedTensor.from_row_lengths(np.concatenate(values), lengths)
                for values in (boxes, classes)
            )

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


def _numpy(batches: tf.data.Dataset) -> Iterator[Batch]:
    try:
        yield from batches.prefetch(1).as_numpy_iterator()
    except tf.errors.OpError as error:
        raise RunFailed(
            f"an image is missing or none: {error.message.splitlines()[0]}; "
            "`mlperf-tpu data check --level decode` says which"
        ) from error


def _bytes(path, offset):
    """The encoded image: a file, or the "image" of a record of TFDS's."""

    def record():
        one = reader(path, offset).take(1)
        feature = {"image": tf.io.FixedLenFeature([], tf.string)}
        return tf.io.parse_single_example(one.get_single_element(), feature)["image"]

    return tf.cond(offset == WHOLE_FILE, lambda: tf.io.read_file(path), record)
