"""The sections of a ResNet-50 spec that are this benchmark's own."""

from typing import Literal

from pydantic import Field, PositiveInt

from mlperf_tpu.spec import Section


class Data(Section):
    """`name` picks the loader; the counts are checked against what it finds."""

    name: Literal["imagenet", "digits"]
    train_examples: PositiveInt
    eval_examples: PositiveInt
    classes: PositiveInt
    image_size: int = Field(ge=32, multiple_of=2)


class Model(Section):
    label_smoothing: float = Field(ge=0, lt=1)
    space_to_depth: bool
