"""Seconds that a host takes to score an evaluation of the published size, once.

    python scripts/measure_scoring.py

On random answers of the right number and size, with this project's own scoring: COCO's
mAP of val2017 (5,000 images, 7.4 boxes each, 200 detections an image) and the BLEU of
newstest2014 (3,003 lines of 22 words). A run can stop no sooner than that after its
last evaluation: `evaluation.scoring_s` of the specs, which `plan` adds to a run.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mlperf_tpu.data.bleu import bleu
from mlperf_tpu.detection.coco import mean_average_precision

IMAGES, BOXES, DETECTIONS, CLASSES = 5000, 7.4, 200, 80
HEIGHT, WIDTH = 480, 640
LINES, WORDS = 3003, 22


def coco() -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """An annotation file, the images' ids, and detections about its boxes."""
    random = np.random.default_rng(0)
    annotations: list[dict[str, Any]] = []
    found = np.zeros((IMAGES, DETECTIONS, 6), np.float32)
    for image in range(IMAGES):
        n = max(1, random.poisson(BOXES))
        corners, sides = (
            random.uniform(0, 0.6, (n, 2)),
            random.uniform(0.05, 0.4, (n, 2)),
        )
        classes = random.integers(0, CLASSES, n)
        for (top, left), (height, width), k in zip(
            corners, sides, classes, strict=True
        ):
            box = [left * WIDTH, top * HEIGHT, width * WIDTH, height * HEIGHT]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(k) + 1,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
        about = random.integers(0, n, DETECTIONS)
        shifted = corners[about] + random.normal(0, 0.05, (DETECTIONS, 2))
        found[image] = np.concatenate(
            [
                shifted,
                shifted + sides[about],
                random.uniform(0.05, 1, (DETECTIONS, 1)),
                classes[about, None],
            ],
            1,
        )
    document = {
        "images": [{"id": i, "height": HEIGHT, "width": WIDTH} for i in range(IMAGES)],
        "categories": [{"id": k + 1, "name": str(k)} for k in range(CLASSES)],
        "annotations": annotations,
    }
    return document, np.arange(IMAGES), found


def lines() -> tuple[list[str], list[str]]:
    """Translations, and references that share most of their words."""
    random = np.random.default_rng(0)
    words = [f"word{k}" for k in range(5000)]
    said = random.integers(0, len(words), (LINES, WORDS))
    changed = np.where(random.uniform(size=said.shape) < 0.3, said[::-1], said)
    return tuple(
        [" ".join(words[k] for k in row) for row in rows] for rows in (said, changed)
    )


def seconds(score, *arguments) -> float:
    began = time.perf_counter()
    score(*arguments)
    return time.perf_counter() - began


def main() -> None:
    print(f"mAP: {seconds(mean_average_precision, *coco()):.1f} s")
    print(f"BLEU: {seconds(bleu, *lines()):.1f} s")


if __name__ == "__main__":
    main()
