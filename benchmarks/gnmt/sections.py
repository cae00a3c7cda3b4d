"""The sections of a GNMT spec that are this benchmark's own."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from mlperf_tpu.spec import Section


class Data(Section):
    """`name` picks the loader; the counts are checked against what it finds.

    Lengths are in sub-words, the end of the line counted: pairs with a longer side are
    dropped from training, lines for evaluation are cut at `eval_length`. `buckets` of
    equal width over max_length: every training batch is of one (1: no bucketing).
    `bucket_shares`, a share of the training pairs each, is for the forecast alone.
    `infeed_hosts`: 0, each host reads its rows of a batch; 1 or 2, so many hosts build
    whole batches in turn, which an all-reduce spreads (papers.md 1.6).
    """

    name: Literal["wmt_ende", "number_words"]
    train_examples: PositiveInt
    eval_examples: PositiveInt
    vocabulary: int = Field(ge=8)
    max_length: int = Field(ge=4)
    eval_length: int = Field(ge=4)
    buckets: PositiveInt
    bucket_shares: tuple[float, ...] | None = None
    infeed_hosts: Literal[0, 1, 2] = 0

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.buckets > self.max_length:
            raise ValueError(
                f"data.buckets: {self.buckets} over data.max_length {self.max_length} "
                "leave some empty; choose fewer"
            )
        shares = self.bucket_shares
        if shares is not None and (
            len(shares) != self.buckets
            or min(shares) < 0
            or abs(sum(shares) - 1) > 1e-3
        ):
            raise ValueError(
                f"data.bucket_shares: {list(shares)} are no shares of "
                f"{self.buckets} buckets (data.buckets); give as many, adding up to 1"
            )
        return self


class Model(Section):
    """`layers` on each side. `hoisted` chooses how the loops are computed (nn.lstm).
    Matrices, and the LSTMs' biases, start uniform in +-`init_range`.

    The beam search's scores: log probability / length penalty^length_penalty, plus
    coverage_penalty times the coverage's logarithm (arXiv 1609.08144, section 7);
    `decode_length` is the longest translation.
    """

    width: int = Field(ge=8)
    layers: int = Field(ge=2)
    init_range: float = Field(gt=0)
    dropout: float = Field(ge=0, lt=1)
    label_smoothing: float = Field(ge=0, lt=1)
    hoisted: bool = True
    beam: PositiveInt
    length_penalty: float = Field(ge=0)
    coverage_penalty: float = Field(ge=0)
    decode_length: PositiveInt
