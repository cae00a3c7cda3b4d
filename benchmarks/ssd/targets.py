"""Anchors of a spec, and the training targets of an image's boxes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from mlperf_tpu.detection.anchors import ssd_anchors
from mlperf_tpu.detection.boxes import encode
from mlperf_tpu.detection.matching import match


class Anchors:
    """The anchors of an SSD spec: `levels` as arrays [rows, columns, anchors, 4]."""

    def __init__(self, spec) -> None:
        model, size = spec.model, spec.data.image_size
        self.maps = model.maps(size)
        self.levels = ssd_anchors(
            size, self.maps, model.steps, model.sizes, model.ratios
        )
        self.per_cell = [level.shape[2] for level in self.levels]
        self.flat = np.concatenate([level.reshape(-1, 4) for level in self.levels])
        self._match_iou = model.match_iou

    def names(self) -> list[tuple[str, str]]:
        """A batch's fields for each level's classes and codes."""
        return [(f"classes{k}", f"codes{k}") for k in range(len(self.levels))]

    def spec(self, n: int) -> dict[str, tf.TensorSpec]:
        """The targets of `n` images as tensor specs."""
        specs = {}
        for (classes, codes), level in zip(self.names(), self.levels, strict=True):
            specs[classes] = tf.TensorSpec([n, *level.shape[:3]], tf.int32)
            specs[codes] = tf.TensorSpec([n, *level.shape], tf.float32)
        return specs

    def targets(self, boxes, classes):
        """An image's targets by field: boxes float32 [n, 4], classes int32 [n] counted
        from 0, n >= 0; in the targets 0 is the background."""
        matched = match(boxes, self.flat, self._match_iou)
        # A box at the end for those that have none.
        index = tf.where(matched < 0, tf.shape(boxes)[0], matched)
        boxes = tf.concat([boxes, [[0.0, 0.0, 1.0, 1.0]]], 0)
        classes = tf.concat([classes + 1, [0]], 0)
        of_anchor = tf.gather(classes, index)
        codes = encode(tf.gather(boxes, index), tf.constant(self.flat))
        codes = tf.where(of_anchor[:, None] > 0, codes, 0.0)
        fields, start = {}, 0
        for (name, code_name), level in zip(self.names(), self.levels, strict=True):
            stop = start + level[..., 0].size
            fields[name] = tf.reshape(of_anchor[start:stop], level.shape[:3])
            fields[code_name] = tf.reshape(codes[start:stop], level.shape)
            start = stop
        return fields

    def of_images(self, boxes, classes) -> dict[str, np.ndarray]:
        """The targets of a list of images, stacked."""
        counts = [len(of_image) for of_image in boxes]
        ragged = (
            tf.RaggedTensor.from_row_lengths(np.concatenate(values), counts)
            for values in (boxes, classes)
        )
        images = tf.data.Dataset.from_tensor_slices(tuple(ragged)).map(
            lambda b, c: self.targets(b, tf.cast(c, tf.int32)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        [stacked] = images.batch(len(counts)).as_numpy_iterator()
        return stacked
