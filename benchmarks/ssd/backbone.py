"""ResNet-34's weights from a file, as an SSD's trunk starts from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mlperf_tpu.errors import BadInput

_STATISTICS = ("moving_mean", "moving_mean_square")


def load(model: Any, path: str) -> None:
    """Sets the trunk's variables from the .npz file at `path`.

    It holds an array a variable, float32, named by the variable's path within the model
    (`stem/conv/kernel`, `stage2_block1/first/batch_norm/gamma`), a convolution's kernel
    as [height, width, in, out]; of a batch norm also `moving_variance` in the place of
    `moving_mean_square`. Other arrays are left alone (a classifier's). Raises BadInput
    naming the first layer that is missing or of another shape.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise BadInput(
            f"data.backbone: cannot read {Path(path)}: {error}; give a .npz file "
            "(benchmarks/ssd/README.md)"
        ) from error
    for layer in [model.stem, *model.blocks]:
        for variable in layer.weights:
            # Keras puts the model's own name first.
            name = variable.path.removeprefix(f"{model.name}/")
            found = _array(arrays, name)
            if found is None:
                raise BadInput(
                    f"data.backbone: {path} has no {name}; the README of "
                    "benchmarks/ssd says what it must hold"
                )
            if found.shape != tuple(variable.shape):
                raise BadInput(
                    f"data.backbone: {name} has the shape {list(found.shape)} in "
                    f"{path}, the network's is {list(variable.shape)}; give weights "
                    "of the network that `model` describes"
                )
            variable.assign(found)


def _array(arrays: dict[str, np.ndarray], name: str) -> np.ndarray | None:
    if name in arrays or not name.endswith("moving_mean_square"):
        return arrays.get(name)
    layer = name.removesuffix("moving_mean_square")
    mean, variance = (arrays.get(layer + n) for n in ("moving_mean", "moving_variance"))
    if mean is None or variance is None:
        return None
    return variance + mean**2
