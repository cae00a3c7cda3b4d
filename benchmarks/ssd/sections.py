"""The sections of an SSD spec that are this benchmark's own."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Section


class Data(Section):
    """`name` picks the loader; the counts are checked against what it finds.

    `train_examples` are images with at least one box: the others are left out of
    training. `crop_tries` is how often a training crop is tried for each overlap
    (MLPerf's `max_samples`). `backbone` is a file of the trunk's weights (the README
    says its form), without which the trunk starts at random.
    """

    name: Literal["coco", "scenes"]
    train_examples: PositiveInt
    eval_examples: PositiveInt
    classes: PositiveInt
    image_size: int = Field(ge=32, multiple_of=2)
    crop_tries: PositiveInt = 50
    backbone: str | None = None


class Model(Section):
    """The trunk, the extra layers, the anchors and the detections.

    `blocks` are the trunk's residual blocks in each of its three stages, `width` the
    first one's channels. A layer of `extra` is a 1x1 convolution to `narrow` channels
    and a 3x3 one to `wide`, which halves the map or, with `strides` 1, takes its edge
    off. `steps` and `sizes` are pixels. Suppression sees the `candidates` best of each
    class.
    """

    class Extra(Section):
        narrow: PositiveInt
        wide: PositiveInt
        strides: Literal[1, 2]

    blocks: tuple[PositiveInt, PositiveInt, PositiveInt]
    width: PositiveInt
    extra: tuple[Extra, ...]
    steps: tuple[PositiveInt, ...]
    sizes: tuple[float, ...]
    ratios: tuple[tuple[float, ...], ...]
    space_to_depth: bool
    match_iou: float = Field(gt=0, lt=1)
    negatives: PositiveInt
    least_score: float = Field(ge=0, lt=1)
    nms_iou: float = Field(gt=0, lt=1)
    candidates: PositiveInt
    most_detections: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> "Model":
        levels = len(self.extra) + 1
        lengths = len(self.steps), len(self.sizes) - 1, len(self.ratios)
        if lengths != (levels, levels, levels):
            raise ValueError(
                f"model: {levels - 1} extra layers make {levels} feature maps; give as "
                f"many steps ({lengths[0]}) and ratios ({lengths[2]}), and one size "
                f"more ({lengths[1] + 1})"
            )
        return self

    def maps(self, image_size: int) -> list[int]:
        """The feature maps' sides in cells: 38, 19, 10, 5, 3, 1 of 300 pixels."""
        side = image_size
        for _ in range(3):  # the stem, the pool and the second stage
            side = -(-side // 2)
        sides = [side]
        for layer in self.extra:
            side = -(-side // 2) if layer.strides == 2 else side - 2
            if side < 1:
                raise BadInput(
                    f"data.image_size: {image_size} pixels leave nothing of the map "
                    f"of extra layer {len(sides)}; use larger images or fewer layers"
                )
            sides.append(side)
        return sides
