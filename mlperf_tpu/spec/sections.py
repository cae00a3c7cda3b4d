"""The sections of a spec, their units and limits, and what follows from them."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PositiveInt,
    model_validator,
)

from mlperf_tpu.errors import BadInput


@dataclass(frozen=True)
class Duration:
    """A length of training with its unit, as a spec writes it: "25 epochs"."""

    value: float
    unit: Literal["epochs", "steps", "examples"]

    def steps(self, global_batch: int, steps_per_epoch: float) -> float:
        """The number of steps, a fraction where an epoch is no whole number of them.

        >>> Duration(4, "epochs").steps(32768, steps_per_epoch=1281167 / 32768)
        156.39...
        """
        if self.unit == "steps":
            return self.value
        if self.unit == "epochs":
            return self.value * steps_per_epoch
        return self.value / global_batch

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


def parse_duration(text: object) -> Duration:
    """ "25 epochs", "550 steps" or "128 examples"; ValueError otherwise.

    >>> parse_duration("25 epochs")
    Duration(value=25.0, unit='epochs')
    """
    if isinstance(text, Duration):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(epoch|step|example)s?\s*", str(text))
    if not match:
        raise ValueError(
            f"{text!r} is no duration; write a number and its unit, such as "
            "'25 epochs', '550 steps' or '128 examples'"
        )
    return Duration(float(match[1]), match[2] + "s")  # type: ignore[arg-type]


DurationField = Annotated[
    Duration,
    BeforeValidator(parse_duration),
    PlainSerializer(str, return_type=str),
]


class Section(BaseModel):
    """A part of a spec: unknown keys are refused, values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )


class Target(Section):
    metric: str
    value: float


class Rules(Section):
    """What the round's rules fix. `round` picks the log's format and rule set."""

    round: Literal["0.6.0", "0.7.0"]
    benchmark: str
    target: Target
    runs: PositiveInt


class TrainingSection(Section):
    """How long, and how much at once.

    `steps_per_epoch` is what schedules count an epoch as, where a published run did
    not count train_examples / global_batch.
    """

    global_batch: PositiveInt
    length: DurationField
    steps_per_epoch: float | None = Field(default=None, gt=0)
    partitions: Literal[1, 2, 4, 8] = 1
    precision: Literal["float32", "bfloat16"]


class LarsSection(Section):
    name: Literal["lars"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)
    trust: float = Field(gt=0)
    epsilon: float = Field(ge=0)
    momentum_form: Literal["scaled", "unscaled"]
    decay_in_loss: bool = False


class MomentumSection(Section):
    name: Literal["sgd"]
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)


class AdamSection(Section):
    name: Literal["adam"]
    beta_1: float = Field(ge=0, lt=1)
    beta_2: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0)
    clip_norm: float | None = Field(default=None, gt=0)


OptimizerSection = Annotated[
    LarsSection | MomentumSection | AdamSection, Field(discriminator="name")
]


class PolynomialSection(Section):
    name: Literal["polynomial"]
    base_rate: float = Field(gt=0)
    end_rate: float = Field(ge=0)
    power: float = Field(gt=0)
    warmup: DurationField


class StepwiseSection(Section):
    name: Literal["stepwise"]
    base_rate: float = Field(gt=0)
    factor: float = Field(gt=0, lt=1)
    boundaries: tuple[DurationField, ...] = Field(min_length=1)
    warmup: DurationField


class RsqrtSection(Section):
    """`base_rate` is the constant of optim.schedules.rsqrt, `model.width` its width."""

    name: Literal["rsqrt"]
    base_rate: float = Field(gt=0)
    warmup: DurationField


class IntervalsSection(Section):
    """`drops` drops by `factor`, at `start` and every `interval` after it
    (optim.schedules.intervals)."""

    name: Literal["intervals"]
    base_rate: float = Field(gt=0)
    factor: float = Field(gt=0, lt=1)
    start: DurationField
    interval: DurationField
    drops: PositiveInt
    warmup: DurationField


ScheduleSection = Annotated[
    PolynomialSection | StepwiseSection | RsqrtSection | IntervalsSection,
    Field(discriminator="name"),
]


class BatchNormSection(Section):
    """`groups` says which replicas share a span that is larger than their batch:
    those with consecutive ids, or those of a 2-D tile of the grid."""

    span: DurationField
    momentum: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0)
    groups: Literal["consecutive", "tiles"] = "consecutive"


class UpdateSection(Section):
    """The gradient sum (optim.gradient_sum) and the weight update (optim.update)."""

    sharded: bool
    gradient_dtype: Literal["float32", "bfloat16"]
    gather_dtype: Literal["float32", "bfloat16"]
    fuse_mib: int = Field(gt=0)
    gradient_sum: Literal["xla", "ring", "torus2d"] = "xla"
    pack_gather: bool = False


class EvaluationSection(Section):
    """Every so often, the first time after `first` (every `every` where not given), or
    `at` given moments of the run, in rising order, and every `every` after the last;
    `batch` examples at once, as many as in training where not given. `scoring_s`: what
    the host takes to score one (scripts/measure_scoring.py), for the forecast alone."""

    every: DurationField
    first: DurationField | None = None
    at: tuple[DurationField, ...] = ()
    batch: PositiveInt | None = None
    scoring_s: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> EvaluationSection:
        if self.at and self.first:
            raise ValueError(
                f"evaluation.first: {self.first}, but evaluation.at gives the first "
                "evaluations; leave one out"
            )
        return self


@dataclass(frozen=True)
class Block:
    """Training between two evaluations: epochs counted from 0, the step it ends at.

    Where evaluations are spaced by steps, each block counts as one epoch.
    """

    first_epoch: int
    epochs: int
    last_step: int


class Spec(Section):
    """A resolved spec. `data` and `model` are the benchmark's own sections."""

    benchmark: str
    rules: Rules
    data: Any
    model: Any
    training: TrainingSection
    optimizer: OptimizerSection
    schedule: ScheduleSection
    batch_norm: BatchNormSection | None = None
    update: UpdateSection
    evaluation: EvaluationSection

    @model_validator(mode="after")
    def _check(self) -> Spec:
        for check in (self._check_schedule, self._check_evaluation):
            check()
        return self

    @property
    def steps_per_epoch(self) -> float:
        batch = self.training.global_batch
        counted: float | None = self.training.steps_per_epoch
        return counted or float(self.data.train_examples / batch)

    def steps(self, duration: Duration) -> float:
        return duration.steps(self.training.global_batch, self.steps_per_epoch)

    @property
    def total_steps(self) -> int:
        return math.ceil(self.steps(self.training.length) - 1e-9)

    @property
    def warmup_steps(self) -> float:
        return self.steps(self.schedule.warmup)

    @property
    def decay_steps(self) -> float:
        """Of the polynomial: the run's steps less those of the warm-up, plus one. The
        warm-up's are whole ones (Google's v0.6 and v0.7 TensorFlow code), unless the
        spec counts an epoch in steps itself (v0.7 JAX: 1166.25)."""
        warmup = self.warmup_steps
        if self.training.steps_per_epoch is None:
            warmup = int(warmup)
        return self.total_steps - warmup + 1

    def blocks(self) -> list[Block]:
        """What is trained between evaluations, to the end of the run.

        A block is a whole number of steps, rounded up as Google's loops are (157 steps
        for 4 epochs at batch 32,768); the last may be shorter.
        """
        first = self.evaluation.first or self.evaluation.every
        blocks: list[Block] = []
        step = epoch = 0
        for moment in self.evaluation.at:
            step, after = self._block_steps(moment), self._epochs_until(moment)
            blocks.append(Block(epoch, after - epoch, step))
            epoch = after
        while step < self.total_steps:
            span = first if not blocks else self.evaluation.every
            step = min(step + self._block_steps(span), self.total_steps)
            epochs = int(span.value) if span.unit == "epochs" else 1
            blocks.append(Block(epoch, epochs, step))
            epoch += epochs
        return blocks

    def _epochs_until(self, moment: Duration) -> int:
        """The epochs that have begun when an evaluation at `moment` does."""
        if moment.unit == "epochs":
            return int(moment.value)
        return math.ceil(self._block_steps(moment) / self.steps_per_epoch - 1e-9)

    def _block_steps(self, duration: Duration) -> int:
        return max(1, math.ceil(self.steps(duration) - 1e-9))

    def _check_schedule(self) -> None:
        total = self.total_steps
        if self.warmup_steps >= self.steps(self.training.length):
            raise ValueError(
                f"schedule.warmup: {self.schedule.warmup} is {self.warmup_steps:g} "
                f"steps, but the run (training.length: {self.training.length}) has "
                f"{total}; shorten the warm-up or lengthen the run"
            )
        if self.schedule.name == "rsqrt" and not hasattr(self.model, "width"):
            raise ValueError(
                "schedule.name: rsqrt scales the rate by the model's width, and model "
                "has none; choose another schedule"
            )
        for boundary in getattr(self.schedule, "boundaries", ()):
            if not self.warmup_steps <= self.steps(boundary) < total:
                raise ValueError(
                    f"schedule.boundaries: {boundary} is step "
                    f"{self.steps(boundary):g}; it must lie between the warm-up's end "
                    f"({self.warmup_steps:g}) and the run's ({total})"
                )

    def _check_evaluation(self) -> None:
        given = self.evaluation.every, self.evaluation.first, *self.evaluation.at
        for duration in given:
            if duration and duration.unit == "epochs" and duration.value % 1:
                raise ValueError(
                    f"evaluation: {duration} is no whole number of epochs; give steps"
                )
        moments = [0, *map(self._block_steps, self.evaluation.at)]
        epochs = [0, *map(self._epochs_until, self.evaluation.at)]
        rising = all(a < b for a, b in itertools.pairwise(epochs))
        if not rising or moments[-1] > self.total_steps:
            text = ", ".join(map(str, self.evaluation.at))
            raise ValueError(
                f"evaluation.at: {text}: each must lie in a later epoch than the one "
                f"before, and none after the run's end (training.length: "
                f"{self.training.length})"
            )
        if self._block_steps(self.evaluation.every) > self.total_steps:
            raise ValueError(
                f"evaluation.every: {self.evaluation.every} is longer than the run "
                f"(training.length: {self.training.length}); evaluate more often"
            )

    @property
    def eval_batch(self) -> int:
        """Examples that an evaluation takes at once."""
        return int(self.evaluation.batch or self.training.global_batch)

    def check_replicas(self, n_replicas: int, what: str = "replicas") -> None:
        """Refuses a number of replicas that a batch or the span does not fit."""
        batch = self.training.global_batch
        for field, size in (
            ("training.global_batch", batch),
            ("evaluation.batch", self.eval_batch),
        ):
            if size % n_replicas:
                below = max(d for d in range(1, n_replicas) if size % d == 0)
                raise BadInput(
                    f"{field}: {size} examples do not divide over {n_replicas} {what}; "
                    f"choose {below} {what}, or a batch that is a multiple of "
                    f"{n_replicas}"
                )
        if self.batch_norm is None:
            return
        local, span = batch // n_replicas, self.batch_norm.span
        examples = int(span.value)
        fits = local % examples == 0 or (
            examples % local == 0 and n_replicas % (examples // local) == 0
        )
        if span.unit != "examples" or not fits:
            raise BadInput(
                f"batch_norm.span: {span} is neither a divisor nor a multiple of the "
                f"{local} examples a replica holds ({batch} over {n_replicas} {what}); "
                f"write it as examples, such as '{local} examples'"
            )
