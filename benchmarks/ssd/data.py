"""SSD's data sets by the name in the spec, and the check of those on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlperf_tpu.data.batches import Dataset, InMemory
from mlperf_tpu.detection.coco import PADDED
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Spec

if TYPE_CHECKING:
    from mlperf_tpu.data.check import Level
    from mlperf_tpu.data.coco_check import Report

# Mean and standard deviation of the channels over images in 0..255: ImageNet's, as the
# MLPerf reference normalises, and the scenes' own.
NORMALIZATION = {
    "coco": ((123.68, 116.78, 103.94), (58.395, 57.12, 57.375)),
    "scenes": ((40.0, 40.0, 40.0), (45.0, 45.0, 45.0)),
}


def datasets(
    spec: Spec, anchors: Any, data_dir: Path | None
) -> tuple[Dataset, Dataset, Mapping[str, Any]]:
    """(training, evaluation, the evaluation's boxes in COCO's form).

    Raises BadInput for files that the check finds wrong.
    """
    if spec.data.name == "coco":
        return _coco(spec, anchors, data_dir)
    from mlperf_tpu.data import scenes

    data = spec.data
    # Images without boxes teach nothing: training leaves them out, as Google's did.
    train, held_out = scenes.load(
        data.image_size, data.train_examples, data.eval_examples, empty_in_training=0.0
    )
    fields = anchors.of_images(train.boxes, train.classes)
    ids = np.arange(len(train.images), dtype=np.int32)
    training = InMemory({"image": train.images, "id": ids, **fields}, {})
    return training, evaluation_set(held_out.images, anchors), held_out.document()


def _coco(
    spec: Spec, anchors: Any, data_dir: Path | None
) -> tuple[Dataset, Dataset, Mapping[str, Any]]:
    import tensorflow as tf
    from mlperf_tpu.benchmarks.ssd.augment import eval_image, train_image

    from mlperf_tpu.data.check import refuse
    from mlperf_tpu.data.coco import Coco

    if data_dir is None:
        raise BadInput("data.name: coco is read from a folder; give --data-dir")
    report = check(spec, data_dir, "quick")
    refuse(report.errors)
    size, tries = spec.data.image_size, spec.data.crop_tries

    def train(pixels, boxes, classes, seed):
        image, boxes, classes = train_image(pixels, boxes, classes, seed, size, tries)
        return {"image": image, **anchors.targets(boxes, classes)}

    def evaluate(pixels, boxes, classes, seed):
        no_targets = {
            name: tf.zeros(s.shape[1:], s.dtype) for name, s in anchors.spec(1).items()
        }
        return {"image": eval_image(pixels, size), **no_targets}

    held_out = report.splits["validation"]
    return (
        Coco(report.splits["train"], train, training=True),
        Coco(held_out, evaluate, training=False),
        held_out.document,
    )


def check(
    spec: Spec,
    data_dir: Path,
    level: Level | None = None,
    n_hosts: int = 1,
    manifest_path: Path | None = None,
    write_manifest: bool = False,
) -> Report:
    """What is wrong with the files in `data_dir` (mlperf_tpu.data.coco_check)."""
    if spec.data.name != "coco":
        raise BadInput(f"data.name: {spec.data.name} is embedded; nothing to check")
    from mlperf_tpu.data import coco_check

    data = spec.data
    counts = {"train": data.train_examples, "validation": data.eval_examples}
    return coco_check.check(
        data_dir, counts, data.classes, level, manifest_path, write_manifest
    )


def evaluation_set(images: np.ndarray, anchors: Any) -> InMemory:
    """Images and their ids; the targets that a batch holds are zero, in no memory."""
    n = len(images)
    zeros = {
        name: np.broadcast_to(np.zeros((), s.dtype.as_numpy_dtype), s.shape)
        for name, s in anchors.spec(n).items()
    }
    ids = np.arange(n, dtype=np.int32)
    return InMemory({"image": images, "id": ids, **zeros}, {"id": PADDED})
