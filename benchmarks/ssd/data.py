"""SSD's data sets by the name in the spec, and the check of those on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlperf_tpu.data.batches import Dataset, InMemory
from mlperf_tpu.detection.coco import PADDED
from mlperf_tpu.spec import Spec

# Mean and standard deviation of the channels over images in 0..255: ImageNet's, as the
# MLPerf reference normalises, and the scenes' own.
NORMALIZATION = {
    "coco": ((123.68, 116.78, 103.94), (58.395, 57.12, 57.375)),
    "scenes": ((40.0, 40.0, 40.0), (45.0, 45.0, 45.0)),
}


def datasets(
    spec: Spec, anchors: Any, data_dir: Path | None
) -> tuple[Dataset, Dataset, Mapping[str, Any]]:
    """(training, evaluation, the evaluation's boxes in COCO's form)."""
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


def evaluation_set(images: np.ndarray, anchors: Any) -> InMemory:
    """Images and their ids; the targets that a batch holds are zero, in no memory."""
    n = len(images)
    zeros = {
        name: np.broadcast_to(np.zeros((), s.dtype.as_numpy_dtype), s.shape)
        for name, s in anchors.spec(n).items()
    }
    ids = np.arange(n, dtype=np.int32)
    return InMemory({"image": images, "id": ids, **zeros}, {"id": PADDED})
