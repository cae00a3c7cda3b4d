"""The sections of a Transformer spec that are this benchmark's own."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from mlperf_tpu.spec import Section


class Data(Section):
    """`name` picks the loader. An example of the training set is a packed row of
    `row_length` ids, one of the evaluation a sentence of at most `eval_length`.

    Pairs with more than `longest` ids on a side are left out. `lines` is how many pairs
    of numbers in words are made.
    """

    name: Literal["wmt_ende", "number_words"]
    train_examples: PositiveInt
    eval_examples: PositiveInt
    vocabulary: PositiveInt
    row_length: PositiveInt
    longest: PositiveInt
    eval_length: PositiveInt
    lines: PositiveInt | None = None

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.longest > self.row_length:
            raise ValueError(
                f"data.longest: pairs of {self.longest} ids do not fit into rows of "
                f"{self.row_length} (data.row_length); choose at most {self.row_length}"
            )
        if (self.lines is None) == (self.name == "number_words"):
            raise ValueError(
                "data.lines: how many pairs of numbers in words to make; number_words "
                "needs it, other data sets have their own"
            )
        return self


class Model(Section):
    """`extra` is how many ids a translation may be longer than its source."""

    width: PositiveInt
    inner: PositiveInt
    heads: PositiveInt
    layers: PositiveInt
    dropout: float = Field(ge=0, lt=1)
    label_smoothing: float = Field(ge=0, lt=1)
    beam: PositiveInt
    alpha: float = Field(ge=0)
    extra: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"model.width: {self.width} is no even multiple of model.heads "
                f"({self.heads}); choose one"
            )
        return self
