"""The multibox loss, against NumPy on one image at a time."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


def levels_of(random, images=3):
    """Logits, codes and targets of two maps; the last image has no box."""
    levels, classes, codes = [], [], []
    for rows, anchors in ((4, 2), (1, 3)):
        shape = (images, rows, rows, anchors)
        target = random.integers(0, 3, shape) * (random.random(shape) < 0.2)
        target[-1] = 0
        levels.append(
            tuple(random.normal(size=(*shape, k)).astype(np.float32) for k in (3, 4))
        )
        classes.append(target.astype(np.int32))
        codes.append(random.normal(size=(*shape, 4)).astype(np.float32))
    return levels, classes, codes


def by_numpy(levels, classes, codes, negatives):
    def flat(arrays, image):
        return np.concatenate(
            [np.reshape(a[image], (-1, *np.shape(a)[4:])) for a in arrays]
        ).astype(np.float64)

    losses = []
    for image in range(len(classes[0])):
        logits = flat([level[0] for level in levels], image)
        found = flat([level[1] for level in levels], image)
        target, code = flat(classes, image).astype(int), flat(codes, image)
        entropy = np.log(np.exp(logits).sum(-1)) - logits[range(len(target)), target]
        positive = target > 0
        difference = np.abs(found - code)
        smooth = np.where(difference < 1, difference**2 / 2, difference - 0.5).sum(-1)
        hard = np.sort(entropy[~positive])[::-1][: negatives * positive.sum()]
        total = smooth[positive].sum() + entropy[positive].sum() + hard.sum()
        losses.append(total / positive.sum() if positive.any() else 0.0)
    return losses


def test_each_image_is_normed_by_its_own_boxes_and_mines_its_own_negatives():
    from mlperf_tpu.benchmarks.ssd.loss import multibox_loss

    arguments = levels_of(np.random.default_rng(0))
    expected = by_numpy(*arguments, negatives=3)
    assert expected[0] > 0 and expected[-1] == 0
    np.testing.assert_allclose(multibox_loss(*arguments, 3), expected, rtol=1e-5)


def test_torchcv_35_an_image_without_boxes_has_loss_0_and_finite_gradients(tensorflow):
    from mlperf_tpu.benchmarks.ssd.loss import multibox_loss

    tf = tensorflow
    levels, classes, codes = levels_of(np.random.default_rng(0), images=1)
    levels = [tuple(map(tf.constant, level)) for level in levels]
    with tf.GradientTape() as tape:
        tape.watch(levels)
        loss = multibox_loss(levels, classes, codes, 3)
    assert loss.numpy().tolist() == [0.0]
    for gradient in tf.nest.flatten(tape.gradient(loss, levels)):
        np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))


def test_targets_hold_the_class_and_the_code_of_the_matched_box():
    from mlperf_tpu.benchmarks.ssd.targets import Anchors

    from mlperf_tpu.detection.boxes import decode
    from mlperf_tpu.spec import load, resolve

    anchors = Anchors(resolve(load("ssd"), task="proxy").spec)
    box = np.array([[0.1, 0.2, 0.4, 0.5]], np.float32)
    none = np.zeros((0, 4), np.float32)
    fields = anchors.of_images(
        [box, none], [np.array([6], np.int32), np.zeros(0, np.int32)]
    )
    classes = np.concatenate([fields[c].reshape(2, -1) for c, _ in anchors.names()], 1)
    codes = np.concatenate([fields[c].reshape(2, -1, 4) for _, c in anchors.names()], 1)
    matched = np.flatnonzero(classes[0])
    assert len(matched) and set(classes[0, matched]) == {7}
    assert not classes[1].any() and not codes[1].any()
    decoded = decode(codes[0, matched], anchors.flat[matched]).numpy()
    np.testing.assert_allclose(decoded, np.repeat(box, len(matched), 0), atol=1e-6)
