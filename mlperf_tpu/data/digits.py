"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships, as images.

Cut once into 1,437 for training and 360 held out, at random by a fixed seed: the same
cut on every machine.
"""

from __future__ import annotations

import functools

import numpy as np

from mlperf_tpu.data.batches import InMemory
from mlperf_tpu.errors import BadInput

HELD_OUT = 360
# Over all pixels of the training set in 0..255, each channel the same.
MEAN = (77.8, 77.8, 77.8)
STDDEV = (95.8, 95.8, 95.8)


def load(image_size: int) -> tuple[InMemory, InMemory]:
    """(training, held out): image uint8 [n, size, size, 3] in 0..255, label int32 [n].

    `image_size` is a multiple of 8: each pixel becomes a square.
    """
    if image_size % 8:
        raise BadInput(
            f"data.image_size: {image_size} is no multiple of 8, the digits' own size; "
            "choose 32 or 64"
        )
    pixels, labels = _digits()
    images = np.kron(pixels, np.ones((image_size // 8, image_size // 8), np.uint8))
    images = np.repeat(images[..., np.newaxis], 3, -1)
    held_out = np.zeros(len(labels), bool)
    held_out[np.random.default_rng(0).permutation(len(labels))[:HELD_OUT]] = True

    def split(rows: np.ndarray) -> InMemory:
        return InMemory({"image": images[rows], "label": labels[rows]}, {"label": -1})

    return split(~held_out), split(held_out)


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [1797, 8, 8] in 0..255 and labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.round(data.images * (255 / 16)).astype(np.uint8)
    return pixels, data.target.astype(np.int32)
