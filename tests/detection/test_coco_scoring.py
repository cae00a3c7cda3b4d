"""COCO's mAP: the library's figures, ids with gaps, crowds, padded batches."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from mlperf_tpu.detection.coco import PADDED, in_pixels, mean_average_precision


def document(annotations, images=3, categories=(1, 2, 90)):
    """`annotations`: (image, category, [x, y, width, height], crowd)."""
    return {
        "images": [{"id": 10 + i, "height": 50, "width": 100} for i in range(images)],
        "categories": [{"id": c, "name": str(c)} for c in categories],
        "annotations": [
            {
                "id": k,
                "image_id": image,
                "category_id": category,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": int(crowd),
            }
            for k, (image, category, box, crowd) in enumerate(annotations, 1)
        ],
    }


def detection(box, score, label):
    """A row of a box [x, y, width, height] in pixels of an image of 100x50."""
    x, y, width, height = box
    edges = [y / 50, x / 100, (y + height) / 50, (x + width) / 100]
    return [*edges, score, label]


BOX, OTHER = [10.0, 10.0, 20.0, 20.0], [60.0, 5.0, 30.0, 40.0]


def rows(*found, n=3):
    out = np.zeros((1, n, 6), np.float32)
    out[0, : len(found)] = np.reshape(found, (-1, 6))
    return out


def test_retinanet_pr_30_a_category_of_90_is_the_third_class_and_90_again():
    truth = document([(10, 90, BOX, False)])
    found = rows(detection(BOX, 0.9, 2))
    pixels = in_pixels(truth, np.array([10]), found)
    np.testing.assert_allclose(pixels, [[10, *BOX, 0.9, 90]], rtol=1e-6)
    assert mean_average_precision(truth, np.array([10]), found) == pytest.approx(1.0)


def test_mask_rcnn_649_what_lies_in_a_crowd_counts_for_nothing():
    truth = document([(10, 1, BOX, False), (10, 1, OTHER, True)], 1, (1,))
    inside = [65.0, 10.0, 5.0, 5.0]
    both = rows(detection(inside, 0.95, 0), detection(BOX, 0.9, 0))
    assert mean_average_precision(truth, np.array([10]), both) == pytest.approx(1.0)
    # The same outside of the crowd is a false positive, ranked first.
    outside = rows(detection([40, 40, 5, 5], 0.95, 0), detection(BOX, 0.9, 0))
    assert mean_average_precision(truth, np.array([10]), outside) < 0.6


def test_dawn_bench_48_padding_and_second_copies_change_nothing():
    truth = document([(10, 1, BOX, False), (11, 2, OTHER, False)])
    one, two = rows(detection(BOX, 0.9, 0)), rows(detection(OTHER, 0.6, 1))
    wrong = rows(detection([0, 0, 5, 5], 0.99, 0))
    ids = np.array([10, 11, 12, PADDED, 10])
    padded = np.concatenate([one, two, rows(), wrong, wrong])
    alone = mean_average_precision(truth, ids[:3], padded[:3])
    assert mean_average_precision(truth, ids, padded) == alone == pytest.approx(1.0)


def test_an_image_that_was_left_out_costs():
    truth = document([(10, 1, BOX, False), (11, 1, BOX, False)])
    half = mean_average_precision(truth, np.array([10]), rows(detection(BOX, 0.9, 0)))
    assert half == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("found", [rows(), rows(detection(BOX, 0.9, 0))])
def test_nothing_found_and_nothing_to_find_is_zero(found):
    assert mean_average_precision(document([]), np.array([10]), found) == 0.0


def test_the_figure_is_that_of_pycocotools():
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    random = np.random.default_rng(0)
    annotations, ids, found = [], np.arange(10, 30), np.zeros((20, 12, 6), np.float32)
    for k, image in enumerate(ids):
        for row in range(12):
            label = int(random.integers(3))
            corner, sides = random.uniform(0, 30, 2), random.uniform(4, 20, 2)
            box = [*corner.tolist(), *sides.tolist()]
            if row < 6:
                crowd = random.random() < 0.1
                annotations.append((int(image), (1, 2, 90)[label], box, crowd))
                box = (np.array(box) + random.normal(0, 1, 4)).tolist()
            found[k, row] = detection(box, random.random(), label)
    truth = document(annotations, 20)
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO()
        known.dataset = truth
        known.createIndex()
        detected = known.loadRes(in_pixels(truth, ids, found))
        run = evaluation.COCOeval(known, detected, "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    ours = mean_average_precision(truth, ids, found)
    assert 0.1 < ours < 0.9
    assert ours == pytest.approx(run.stats[0], abs=1e-9)
