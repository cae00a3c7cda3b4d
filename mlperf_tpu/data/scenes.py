"""Scenes for detectors, composed of the embedded digits, with exact boxes.

Each scene is a canvas of dim noise with up to six digits, two to four times their own
size; some are crowded, some empty, some digits are cut by the edge. Training scenes
are made of the training digits, held-out scenes of the held-out ones (data.digits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlperf_tpu.data import digits
from mlperf_tpu.errors import BadInput

CLASSES = 10
MOST_DIGITS = 6
_SCALES = (2, 3, 4)  # a pixel of a digit becomes a square of so many
_EMPTY_SHARE = 0.05
_LEAST_VISIBLE = 0.6  # of a digit's box, on the canvas
_MOST_OVERLAP = 0.3  # of the smaller of two boxes
_TRIES = 10
_BRIGHTEST_NOISE = 60


Box = tuple[int, int, int, int]  # ymin, xmin, ymax, xmax in pixels


@dataclass(frozen=True)
class Scenes:
    """Images and, of each, its boxes and classes."""

    images: np.ndarray  # uint8 [n, size, size, 3] in 0..255
    boxes: list[np.ndarray]  # float32 [k, 4], [ymin, xmin, ymax, xmax] in fractions
    classes: list[np.ndarray]  # int32 [k], the digits

    def document(self) -> dict[str, Any]:
        """The same in COCO's form; an image's id is its place, a category's the digit
        plus one."""
        size = self.images.shape[1]
        annotations: list[dict[str, Any]] = []
        for image, (boxes, classes) in enumerate(
            zip(self.boxes, self.classes, strict=True)
        ):
            for box, digit in zip(boxes * size, classes, strict=True):
                top, left, bottom, right = (float(edge) for edge in box)
                width, height = right - left, bottom - top
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": image,
                        "category_id": int(digit) + 1,
                        "bbox": [left, top, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                    }
                )
        return {
            "images": [
                {"id": i, "height": size, "width": size, "file_name": f"{i:06}.png"}
                for i in range(len(self.images))
            ],
            "categories": [{"id": d + 1, "name": str(d)} for d in range(CLASSES)],
            "annotations": annotations,
        }


def load(
    size: int, n_train: int, n_held_out: int, empty_in_training: float = _EMPTY_SHARE
) -> tuple[Scenes, Scenes]:
    """(training, held out), the same on every machine; `size` in pixels,
    `empty_in_training` the share of training scenes without a digit."""
    least = 8 * _SCALES[-1]
    if size < least:
        raise BadInput(
            f"data.image_size: {size} pixels hold no digit of {least}; choose {least} "
            "or more"
        )
    train, held_out = digits.load(8)
    return (
        _compose(train.arrays, size, n_train, empty_in_training, seed=1),
        _compose(held_out.arrays, size, n_held_out, _EMPTY_SHARE, seed=2),
    )


def _compose(glyphs: Any, size: int, n: int, empty: float, seed: int) -> Scenes:
    random = np.random.default_rng(seed)
    made = [_scene(glyphs, size, empty, random) for _ in range(n)]
    images, boxes, classes = zip(*made, strict=True)
    return Scenes(np.stack(images), list(boxes), list(classes))


def _scene(
    glyphs: Any, size: int, empty: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    canvas = random.integers(0, _BRIGHTEST_NOISE, (size, size), np.uint8)
    wanted = 0
    if random.random() >= empty:
        wanted = int(random.integers(1, MOST_DIGITS + 1))
    boxes: list[Box] = []
    classes: list[int] = []
    for _ in range(wanted):
        pick = int(random.integers(len(glyphs["label"])))
        scale = int(random.choice(_SCALES))
        glyph = glyphs["image"][pick, :, :, 0].repeat(scale, 0).repeat(scale, 1)
        box = _place(canvas, glyph, boxes, random)
        if box is not None:
            boxes.append(box)
            classes.append(int(glyphs["label"][pick]))
    found = np.array(boxes, np.float32).reshape(-1, 4) / size
    image = np.repeat(canvas[..., None], 3, -1)
    return image, found, np.array(classes, np.int32)


def _place(
    canvas: np.ndarray,
    glyph: np.ndarray,
    taken: list[Box],
    random: np.random.Generator,
) -> Box | None:
    """Draws the glyph where enough of it shows and it hides none: the box of its ink
    that shows. None where it finds no room."""
    size, extent = len(canvas), len(glyph)
    ink = _ink(glyph, 0, 0)
    # Up to a third of its side may stick out.
    low, high = -extent // 3, size - 2 * extent // 3
    for y, x in random.integers(low, high, (_TRIES, 2)).tolist():
        whole = ink[0] + y, ink[1] + x, ink[2] + y, ink[3] + x
        box = _common(whole, (0, 0, size, size))
        if _area(box) < _LEAST_VISIBLE * _area(whole):
            continue
        if any(
            _area(_common(box, other)) > _MOST_OVERLAP * min(_area(box), _area(other))
            for other in taken
        ):
            continue
        top, left = max(y, 0), max(x, 0)
        bottom, right = min(y + extent, size), min(x + extent, size)
        shown = glyph[top - y : bottom - y, left - x : right - x]
        here = canvas[top:bottom, left:right]
        np.maximum(here, shown, out=here)
        # Cut by the edge, the rest of the ink may have a smaller box than was cut.
        return _ink(shown, top, left)
    return None


def _ink(glyph: np.ndarray, top: int, left: int) -> Box:
    """The box of what is drawn, by a corner at (top, left)."""
    rows, columns = glyph.any(1).nonzero()[0], glyph.any(0).nonzero()[0]
    return (
        top + int(rows[0]),
        left + int(columns[0]),
        top + int(rows[-1]) + 1,
        left + int(columns[-1]) + 1,
    )


def _common(a: Box, b: Box) -> Box:
    return max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])


def _area(box: Box) -> int:
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)
