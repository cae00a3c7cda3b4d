"""Training crops, flips and colours."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")

BOXES = np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.8]], np.float32)
SEEDS = [np.array([7, k], np.int64) for k in range(60)]


@pytest.fixture(scope="module")
def crops(tensorflow):
    from mlperf_tpu.benchmarks.ssd.augment import sample_crop

    # Of a graph, as tf.data makes it.
    sample = tensorflow.function(sample_crop, autograph=False)
    return np.array([sample(BOXES, seed, 50).numpy() for seed in SEEDS])


def test_crops_are_large_enough_not_too_narrow_and_inside(crops):
    assert crops.min() >= 0 and crops.max() <= 1
    sides = crops[:, 2:] - crops[:, :2]
    assert sides.min() >= 0.3 - 1e-6
    aspect = sides[:, 0] / sides[:, 1]
    assert aspect.min() >= 0.5 - 1e-5 and aspect.max() <= 2 + 1e-5
    assert len(np.unique(crops, axis=0)) > 10
    # One choice in seven is the whole image, and others end in it.
    assert 1 <= (sides.min(1) == 1).sum() < 30


def test_each_crop_overlaps_every_box_and_holds_a_centre(crops):
    from mlperf_tpu.benchmarks.ssd.augment import in_crop

    from mlperf_tpu.detection.boxes import iou

    assert (iou(crops, BOXES).numpy() > 0).all()
    for crop in crops:
        kept, _ = in_crop(BOXES, np.array([1, 2], np.int32), crop)
        assert len(kept) >= 1
        assert kept.numpy().min() >= 0 and kept.numpy().max() <= 1


def test_mask_rcnn_159_a_box_without_a_side_is_left_out():
    from mlperf_tpu.benchmarks.ssd.augment import in_crop

    boxes = np.array([[0.3, 0.3, 0.3, 0.6], [0.2, 0.2, 0.6, 0.6]], np.float32)
    whole = np.array([0, 0, 1, 1], np.float32)
    kept, classes = in_crop(boxes, np.array([1, 2], np.int32), whole)
    np.testing.assert_allclose(kept, boxes[1:])
    assert classes.numpy().tolist() == [2]


def test_a_box_is_cut_at_the_crop_and_measured_by_it():
    from mlperf_tpu.benchmarks.ssd.augment import in_crop

    crop = np.array([0.0, 0.0, 0.5, 1.0], np.float32)
    box = np.array([[0.25, 0.5, 0.7, 1.0]], np.float32)
    kept, _ = in_crop(box, np.array([0], np.int32), crop)
    np.testing.assert_allclose(kept, [[0.5, 0.5, 1.0, 1.0]])


def test_boxes_stay_on_what_they_mark_and_one_seed_gives_one_image(tensorflow):
    from mlperf_tpu.benchmarks.ssd.augment import train_image

    pixels = np.zeros((80, 100, 3), np.uint8)
    pixels[8:40, 30:60] = 255
    box = np.array([[0.1, 0.3, 0.5, 0.6]], np.float32)
    label = np.array([3], np.int32)
    prepare = tensorflow.function(train_image, autograph=False)
    for seed in SEEDS[:6]:
        image, boxes, classes = prepare(pixels, box, label, seed, 64, 50)
        again = prepare(pixels, box, label, seed, 64, 50)
        np.testing.assert_array_equal(image, again[0])
        assert classes.numpy().tolist() == [3]
        bright = image.numpy().astype(int).sum(-1)
        top, left, bottom, right = np.round(boxes.numpy()[0] * 64).astype(int)
        inside = np.zeros((64, 64), bool)
        inside[top + 2 : bottom - 2, left + 2 : right - 2] = True
        margin = np.ones((64, 64), bool)
        margin[max(top - 2, 0) : bottom + 2, max(left - 2, 0) : right + 2] = False
        if margin.any():
            assert bright[margin].max() < bright[inside].min()
