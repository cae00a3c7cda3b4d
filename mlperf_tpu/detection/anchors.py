"""SSD's anchors: on each cell of each feature map, boxes of a few sizes and ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def ssd_anchors(
    image_size: int,
    maps: Sequence[int],
    steps: Sequence[int],
    sizes: Sequence[float],
    ratios: Sequence[Sequence[float]],
) -> list[np.ndarray]:
    """Per level float32 [map, map, anchors a cell, 4], as the MLPerf reference.

    `maps` are the feature maps' sides in cells, `steps` the pixels between cells,
    `sizes` one more than levels, in pixels of an image of `image_size`. A cell has a
    square of the level's size, one of the geometric mean of it and the next, and for
    each ratio a wide and a tall box. Centres and sides are clipped to 0..1.

    >>> levels = ssd_anchors(300, [38, 19], [8, 16], [21, 45, 99], [[2], [2, 3]])
    >>> [level.shape for level in levels]
    [(38, 38, 4, 4), (19, 19, 6, 4)]
    """
    levels = []
    for level, (side, step, of_level) in enumerate(
        zip(maps, steps, ratios, strict=True)
    ):
        size, larger = sizes[level] / image_size, sizes[level + 1] / image_size
        mean = math.sqrt(size * larger)
        shapes = [(size, size), (mean, mean)]  # height, width
        for ratio in of_level:
            long, short = size * math.sqrt(ratio), size / math.sqrt(ratio)
            shapes += [(short, long), (long, short)]
        centres = (np.arange(side) + 0.5) * step / image_size
        boxes = np.empty((side, side, len(shapes), 4))
        boxes[..., 0] = centres[:, None, None]
        boxes[..., 1] = centres[None, :, None]
        boxes[..., 2:] = shapes
        boxes = np.clip(boxes, 0, 1)
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        corners = np.concatenate([centre - half, centre + half], -1)
        levels.append(corners.astype(np.float32))
    return levels
