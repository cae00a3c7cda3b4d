"""Optimizer, schedule and update from the sections of a spec."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from mlperf_tpu.nn.batch_norm import BatchNorm
from mlperf_tpu.optim.optimizers import (
    Adam,
    Lars,
    Momentum,
    Optimizer,
    Parameter,
)
from mlperf_tpu.optim.schedules import (
    Schedule,
    intervals,
    polynomial,
    rsqrt,
    stepwise,
)
from mlperf_tpu.optim.update import WeightUpdate
from mlperf_tpu.spec import Spec

_NORMS = (BatchNorm, keras.layers.BatchNormalization, keras.layers.LayerNormalization)


def parameters_of(model: keras.Model) -> tuple[Parameter, ...]:
    """The model's trainable variables in its order; what each is, by its layer."""
    kinds: dict[str, str] = {}
    for layer in model._flatten_layers():
        for variable in layer._trainable_variables:
            bias = variable is getattr(layer, "bias", None)
            kind = "norm" if isinstance(layer, _NORMS) else "bias" if bias else "kernel"
            kinds[variable.path] = kind
    return tuple(
        Parameter(v.path, tuple(v.shape), kinds[v.path])
        for v in model.trainable_variables
    )


def build_optimizer(section: Any) -> Optimizer:
    if section.name == "sgd":
        return Momentum(section.momentum, section.weight_decay)
    if section.name == "adam":
        return Adam(section.beta_1, section.beta_2, section.epsilon, section.clip_norm)
    return Lars(
        section.momentum,
        section.weight_decay,
        section.trust,
        section.epsilon,
        section.momentum_form == "scaled",
        section.decay_in_loss,
    )


def build_update(spec: Spec, parameters: tuple[Parameter, ...]) -> WeightUpdate:
    section = spec.update
    return WeightUpdate(
        build_optimizer(spec.optimizer),
        parameters,
        section.sharded,
        tf.as_dtype(section.gradient_dtype),
        tf.as_dtype(section.gather_dtype),
        section.fuse_mib << 20,
        section.gradient_sum,
        section.pack_gather,
    )


def build_schedule(spec: Spec) -> Schedule:
    section = spec.schedule
    if section.name == "stepwise":
        boundaries = [round(spec.steps(b)) for b in section.boundaries]
        return stepwise(
            section.base_rate, boundaries, section.factor, spec.warmup_steps
        )
    if section.name == "rsqrt":
        return rsqrt(section.base_rate, spec.warmup_steps, spec.model.width)
    if section.name == "intervals":
        return intervals(
            section.base_rate,
            round(spec.steps(section.start)),
            round(spec.steps(section.interval)),
            section.factor,
            section.drops,
            round(spec.warmup_steps),
        )
    return polynomial(
        section.base_rate,
        section.end_rate,
        section.power,
        spec.warmup_steps,
        spec.decay_steps,
    )
