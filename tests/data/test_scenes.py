"""Scenes of digits: exact boxes, and what a detector must cope with."""

from __future__ import annotations

import numpy as np
import pytest

from mlperf_tpu.data import scenes
from mlperf_tpu.errors import BadInput


@pytest.fixture(scope="module")
def held_out(tensorflow):
    return scenes.load(64, 40, 120)[1]


def in_pixels(boxes):
    return np.round(boxes * 64).astype(int)


def test_a_box_is_tight_around_ink_brighter_than_any_noise(held_out):
    checked = 0
    for image, boxes in zip(held_out.images, held_out.boxes, strict=True):
        if len(boxes) != 1:
            continue
        bright = image[..., 0] >= 60
        top, left, bottom, right = in_pixels(boxes)[0]
        outside = bright.copy()
        outside[top:bottom, left:right] = False
        assert not outside.any()
        inside = bright[top:bottom, left:right]
        # Its faintest edge may be as dark as noise, one step of the digit's pixels.
        assert inside[:5].any() and inside[-5:].any()
        assert inside[:, :5].any() and inside[:, -5:].any()
        checked += 1
    assert checked > 5


def test_some_are_crowded_some_empty_some_digits_are_cut(held_out):
    counts = np.array([len(boxes) for boxes in held_out.boxes])
    assert (counts == 0).any() and counts.max() >= 5
    every = in_pixels(np.concatenate(held_out.boxes))
    assert ((every == 0) | (every == 64)).any(1).sum() > 10
    assert every.min() >= 0 and every.max() <= 64
    assert (every[:, 2:] > every[:, :2]).all()
    assert set(np.concatenate(held_out.classes)) == set(range(10))


def test_scenes_are_the_same_each_time_and_more_do_not_change_the_first(held_out):
    again = scenes.load(64, 1, 60)[1]
    np.testing.assert_array_equal(again.images, held_out.images[:60])


def test_training_may_leave_the_empty_out(tensorflow):
    train, _ = scenes.load(64, 200, 1, empty_in_training=0.0)
    assert min(len(boxes) for boxes in train.boxes) >= 1


def test_the_document_is_of_cocos_form_and_scores_itself_perfectly(held_out):
    from mlperf_tpu.detection.coco import mean_average_precision

    document = held_out.document()
    assert [c["id"] for c in document["categories"]] == list(range(1, 11))
    found = np.zeros((120, 6, 6), np.float32)
    for k, (boxes, classes) in enumerate(
        zip(held_out.boxes, held_out.classes, strict=True)
    ):
        found[k, : len(boxes), :4] = boxes
        found[k, : len(boxes), 4] = 0.9
        found[k, : len(boxes), 5] = classes
    ids = np.arange(120)
    assert mean_average_precision(document, ids, found) == pytest.approx(1.0)
    # A detector that finds every digit and cannot read is far from the proxy's target.
    found[..., 5] = 3
    assert mean_average_precision(document, ids, found) < 0.15


def test_a_canvas_too_small_for_a_digit_is_refused():
    with pytest.raises(
        BadInput, match=r"data.image_size: 24 pixels hold no digit of 32"
    ):
        scenes.load(24, 1, 1)
