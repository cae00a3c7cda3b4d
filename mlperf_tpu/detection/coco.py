"""COCO's mean average precision of detections, by faster-coco-eval.

Chosen over pycocotools for its matching and accumulation in C++ (the paper's runs
scored in C++ too); its figures are pycocotools' own, which a test holds it to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PADDED = -1  # the id of an image that only fills a batch


def category_ids(document: Mapping[str, Any]) -> list[int]:
    """The category of each class: COCO's ids, which have gaps, in rising order."""
    return sorted(int(category["id"]) for category in document["categories"])


def mean_average_precision(
    document: Mapping[str, Any], ids: np.ndarray, detections: np.ndarray
) -> float:
    """mAP@[.5:.95] over all areas, up to 100 detections an image.

    `document` is an annotation file of COCO's form, as read. ids int [images]: rows of
    PADDED, and an image's second row, count for nothing. detections float
    [images, n, 6]: [ymin, xmin, ymax, xmax] in fractions of the image, the score and
    the class counted from 0; a score of 0 is no detection. Crowds are ignore regions.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    rows = in_pixels(document, ids, detections)
    if not len(rows):
        return 0.0
    truth = COCO(dict(document))
    run = COCOeval_faster(truth, truth.loadRes(rows), "bbox")
    run.evaluate()
    run.accumulate()
    run.summarize()
    # -1: no box of the truth is one to find.
    return max(0.0, float(run.stats[0]))


def in_pixels(
    document: Mapping[str, Any], ids: np.ndarray, detections: np.ndarray
) -> np.ndarray:
    """float64 [detections, 7]: image id, x, y, width, height, score, category id."""
    categories = np.array(category_ids(document))
    sizes = {i["id"]: (i["height"], i["width"]) for i in document["images"]}
    ids = np.asarray(ids)
    _, first = np.unique(ids, return_index=True)
    found = []
    for row in sorted(first):
        if ids[row] == PADDED:
            continue
        of_image = np.asarray(detections[row], np.float64)
        of_image = of_image[of_image[:, 4] > 0]
        height, width = sizes[int(ids[row])]
        top, left, bottom, right = of_image[:, :4].T
        found.append(
            np.stack(
                [
                    np.full(len(of_image), ids[row], np.float64),
                    left * width,
                    top * height,
                    (right - left) * width,
                    (bottom - top) * height,
                    of_image[:, 4],
                    categories[of_image[:, 5].astype(int)],
                ],
                -1,
            )
        )
    return np.concatenate(found) if found else np.empty((0, 7))
