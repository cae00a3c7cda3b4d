"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships, as images.

Cut once into 1,437 for training and 360 held out, at random by a fixed seed: the same
cut on every machine.
"""

from __future__ import annotations

import functools

import numpy as np

from mlperf_tpu.data.batches import Dataset
from mlperf_tpu.errors import BadInput

HELD_OUT = 360
# Over all pixels of the training set in 0..255, each channel the same.
MEAN = (77.8, 77.8, 77.8)
STDDEV = (95.8, 95.8, 95.8)


def load(image_size: int) -> tuple[Dataset, Dataset]:
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
    return (
        {"image": images[~held_out], "label": labels[~held_out]},
        {"image": images[held_out], "label": labels[held_out]},
    )


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [1797, 8, 8] in 0..255 and labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.round(data.images * (255 / 16)).astype(np.uint8)
    return pixels, data.target.astype(np.int32)
