"""The sections of a ResNet-50 spec that are this benchmark's own."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from mlperf_tpu.spec import Section


class Data(Section):
    """`name` picks the loader; the counts are checked against what it finds.

    `resize` is how an image of ImageNet becomes `image_size` pixels wide;
    `cache_decoded` keeps the decoded images in the hosts' memory after the first epoch.
    """

    name: Literal["imagenet", "digits"]
    train_examples: PositiveInt
    eval_examples: PositiveInt
    classes: PositiveInt
    image_size: int = Field(ge=32, multiple_of=2)
    resize: Literal["bicubic", "bilinear"] | None = None
    cache_decoded: bool = False

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.name == "imagenet" and self.resize is None:
            raise ValueError(
                "data.resize: none, but ImageNet's images need one; choose bicubic "
                "(Google's v0.6 and v0.7) or bilinear (the reference)"
            )
        if self.name == "digits" and (self.resize or self.cache_decoded):
            raise ValueError(
                "data: the digits are decoded already; leave resize and cache_decoded "
                "out"
            )
        return self


class Model(Section):
    """`stages` are (bottlenecks, width of their 3x3 convolution) each."""

    stages: tuple[tuple[PositiveInt, PositiveInt], ...] = Field(min_length=1)
    label_smoothing: float = Field(ge=0, lt=1)
    space_to_depth: bool
