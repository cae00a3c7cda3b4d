"""What training does to an image: crops, flips and colours of the MLPerf reference.

google_submissions.md 3.11: either the whole image or a crop that overlaps every box by
at least some IoU, resized, flipped half of the time, its colours shifted.
"""

from __future__ import annotations

import tensorflow as tf

from mlperf_tpu.detection.boxes import iou

# A crop of the image must overlap each box by more than one of these, each as likely as
# the whole image is.
LEAST_IOU = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
LEAST_SIDE = 0.3  # of the image's
MOST_ASPECT = 2.0
# Passes without a crop that fits; each ends in the whole image once in seven.
_PASSES = 100
BRIGHTNESS = 0.125
CONTRAST = SATURATION = (0.5, 1.5)
HUE = 0.05


def train_image(pixels, boxes, classes, seed, size: int, tries: int):
    """(image uint8 [size, size, 3], boxes [m, 4], classes [m]) of uint8 pixels and
    their boxes in fractions; `seed` int64 [2] decides everything."""
    crop = sample_crop(boxes, _part(seed, 0), tries)
    boxes, classes = in_crop(boxes, classes, crop)
    image = resized_crop(pixels, crop, size)
    flip = tf.random.stateless_uniform([], _part(seed, 1)) < 0.5
    image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
    top, left, bottom, right = tf.unstack(boxes, 4, -1)
    flipped = tf.stack([top, 1 - right, bottom, 1 - left], -1)
    boxes = tf.where(flip, flipped, boxes)
    return _as_pixels(jittered(image, _part(seed, 2))), boxes, classes


def eval_image(pixels, size: int):
    """The whole image, uint8 [size, size, 3]."""
    return _as_pixels(resized_crop(pixels, tf.constant([0.0, 0.0, 1.0, 1.0]), size))


def sample_crop(boxes, seed, tries: int):
    """A crop [ymin, xmin, ymax, xmax] in fractions: of `tries` drawn for a least IoU
    the first that holds a box's centre and overlaps each box by more; if none does,
    another least IoU, or the whole image, is drawn."""
    whole = tf.constant([0.0, 0.0, 1.0, 1.0])

    def search(number, crop, found):
        here = _part(seed, number)
        choice = tf.random.stateless_uniform(
            [], _part(here, 0), maxval=len(LEAST_IOU) + 1, dtype=tf.int32
        )
        sides = tf.random.stateless_uniform([tries, 2], _part(here, 1), LEAST_SIDE, 1.0)
        corners = tf.random.stateless_uniform([tries, 2], _part(here, 2)) * (1 - sides)
        crops = tf.concat([corners, corners + sides], -1)
        aspect = sides[:, 0] / sides[:, 1]
        least = tf.gather(tf.constant((*LEAST_IOU, 0.0)), choice)
        fits = (aspect < MOST_ASPECT) & (aspect > 1 / MOST_ASPECT)
        fits &= tf.reduce_all(iou(crops, boxes) > least, -1)
        fits &= tf.reduce_any(_holds_centre(crops[:, tf.newaxis], boxes), -1)
        take_whole = choice == len(LEAST_IOU)
        first = tf.gather(crops, tf.argmax(fits))
        crop = tf.where(take_whole | ~tf.reduce_any(fits), whole, first)
        return number + 1, crop, take_whole | tf.reduce_any(fits)

    _, crop, _ = tf.while_loop(
        lambda number, crop, found: ~found & (number < _PASSES),
        search,
        (0, whole, tf.constant(False)),
    )
    return crop


def in_crop(boxes, classes, crop):
    """The boxes whose centre lies in the crop, cut at its edge, in fractions of it;
    those of which nothing is left are left out."""
    origin, sides = tf.tile(crop[:2], [2]), tf.tile(crop[2:] - crop[:2], [2])
    cut = tf.clip_by_value((boxes - origin) / sides, 0.0, 1.0)
    kept = _holds_centre(crop, boxes) & tf.reduce_all(cut[:, 2:] > cut[:, :2], -1)
    return tf.boolean_mask(cut, kept), tf.boolean_mask(classes, kept)


def _holds_centre(crop, boxes):
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    inside = (centre > crop[..., :2]) & (centre < crop[..., 2:])
    return tf.reduce_all(inside, -1)


def resized_crop(pixels, crop, size: int):
    """float32 [size, size, 3] in 0..255, bilinear."""
    image = tf.cast(pixels, tf.float32)[tf.newaxis]
    return tf.image.crop_and_resize(image, crop[tf.newaxis], [0], [size, size])[0]


def jittered(image, seed):
    """Brightness, contrast, saturation and hue by chance; in and out 0..255."""
    image = image / 255
    image = tf.image.stateless_random_brightness(image, BRIGHTNESS, _part(seed, 0))
    image = tf.image.stateless_random_contrast(image, *CONTRAST, _part(seed, 1))
    image = tf.clip_by_value(image, 0.0, 1.0)  # what has a hue and a saturation
    image = tf.image.stateless_random_saturation(image, *SATURATION, _part(seed, 2))
    return tf.image.stateless_random_hue(image, HUE, _part(seed, 3)) * 255


def _as_pixels(image):
    return tf.cast(tf.clip_by_value(tf.round(image), 0.0, 255.0), tf.uint8)


def _part(seed, number):
    """One of the draws of a seed."""
    return tf.random.experimental.stateless_fold_in(seed, number)
