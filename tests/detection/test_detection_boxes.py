"""Boxes, anchors, matching and suppression, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


def random_boxes(n, seed=0):
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 0.6, (n, 2))
    sides = random.uniform(0.05, 0.4, (n, 2))
    return np.concatenate([corners, corners + sides], -1, dtype=np.float32)


def test_iou_by_hand():
    from mlperf_tpu.detection.boxes import iou

    first = np.array([[0, 0, 2, 2], [0, 0, 0, 0]], np.float32)
    second = np.array([[1, 1, 3, 3], [0, 0, 2, 1], [5, 5, 6, 6]], np.float32)
    np.testing.assert_allclose(iou(first, second), [[1 / 7, 0.5, 0], [0, 0, 0]])


def test_a_decoded_code_is_the_box():
    from mlperf_tpu.detection.boxes import decode, encode

    boxes, anchors = random_boxes(20), random_boxes(20, 1)
    code = encode(boxes, anchors).numpy()
    np.testing.assert_allclose(decode(code, anchors), boxes, atol=1e-6)
    # Twice as wide as its anchor, the centre half an anchor's side to the right.
    code = encode(*np.array([[[0, 0, 1, 2]], [[0, 0, 1, 1]]], np.float32))
    np.testing.assert_allclose(code, [[0, 5, 0, 5 * np.log(2)]], atol=1e-6)


def test_the_published_anchors():
    from mlperf_tpu.detection.anchors import ssd_anchors
    from mlperf_tpu.spec import load, resolve

    spec = resolve(load("ssd"), 1024).spec
    model, maps = spec.model, spec.model.maps(300)
    assert maps == [38, 19, 10, 5, 3, 1]
    levels = ssd_anchors(300, maps, model.steps, model.sizes, model.ratios)
    assert [level.shape[2] for level in levels] == [4, 6, 6, 6, 4, 4]
    assert sum(level[..., 0].size for level in levels) == 8732
    # The first cell's square of 21 pixels around (4, 4): sides are never cut, centres
    # are (the reference clips both, and a side below 1 is not changed by that).
    centre, half = 4 / 300, 10.5 / 300
    corners = [centre - half] * 2 + [centre + half] * 2
    np.testing.assert_allclose(levels[0][0, 0, 0], corners, atol=1e-7)
    # The last map's larger square: sqrt(261 x 315) of 300 pixels, around the centre.
    half = np.sqrt(261 * 315) / 600
    np.testing.assert_allclose(levels[5][0, 0, 1], [0.5 - half] * 2 + [0.5 + half] * 2)


def test_each_box_is_given_an_anchor_however_little_they_overlap():
    from mlperf_tpu.detection.matching import match

    anchors = np.array([[0, 0, 1, 1], [0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]], np.float32)
    tiny = np.array([[0.6, 0.6, 0.7, 0.7]], np.float32)
    np.testing.assert_array_equal(match(tiny, anchors, 0.5), [-1, -1, 0])
    most = np.array([[0, 0, 0.9, 0.9], [0.45, 0.45, 1, 1]], np.float32)
    np.testing.assert_array_equal(match(most, anchors, 0.5), [0, -1, 1])


def test_no_box_matches_no_anchor():
    from mlperf_tpu.detection.matching import match

    found = match(np.zeros((0, 4), np.float32), random_boxes(5), 0.5)
    np.testing.assert_array_equal(found, [-1] * 5)


def test_a_box_suppressed_suppresses_none():
    from mlperf_tpu.detection.nms import suppress

    # Each overlaps the next by 0.6; the first and the third by 0.33.
    boxes = np.array([[0, k, 1, k + 4] for k in (0, 1, 2, 3)], np.float32)
    stay = suppress(boxes, np.ones(4, bool), 0.5).numpy()
    np.testing.assert_array_equal(stay, [True, False, True, False])
    real = np.array([False, True, True, True])
    np.testing.assert_array_equal(
        suppress(boxes, real, 0.5), [False, True, False, True]
    )


def test_detections_are_the_best_of_all_classes_and_no_more():
    from mlperf_tpu.detection.nms import detections

    boxes = np.array([[[0, 0, 0.2, 0.2], [0.5, 0.5, 1, 1]]], np.float32)
    scores = np.array([[[0.9, 0.04], [0.3, 0.8]]], np.float32)
    found = detections(scores, boxes, 0.05, 0.5, 200, 4).numpy()[0]
    np.testing.assert_allclose(found[:, 4], [0.9, 0.8, 0.3, 0.0])
    np.testing.assert_array_equal(found[:3, 5], [0, 1, 0])
    np.testing.assert_allclose(found[1, :4], boxes[0, 1])


@pytest.mark.parametrize("counts", [[0, 1], [3, 7], [40, 90]])
def test_the_hardest_are_exactly_so_many_ties_by_their_order(counts):
    from mlperf_tpu.benchmarks.ssd.loss import largest

    random = np.random.default_rng(1)
    values = np.round(random.random((2, 40), np.float32), 1)
    found = largest(values, np.array(counts, np.int32)).numpy()
    for row, count, mask in zip(values, counts, found, strict=True):
        expected = np.zeros(40, bool)
        expected[np.argsort(-row, kind="stable")[:count]] = True
        np.testing.assert_array_equal(mask, expected)
