"""LARS in both forms, momentum SGD and Adam, on whole tensors or on a replica's shards.

An optimizer is one pure function over lists of tensors, one element a parameter. What
it needs beyond element-wise arithmetic are norms; `sum_squares` gives them, so that the
same code updates whole tensors and shards (optim.update).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

Tensors = Sequence[tf.Tensor]
# Values of one element a parameter -> their sums of squares, float32 [n].
SumSquares = Callable[[Tensors], tf.Tensor]


@dataclass(frozen=True)
class Parameter:
    """What an optimizer may know of a weight: its name, shape and what it is.

    `kind` comes from the layer's type, never from a name: "kernel", "bias" or "norm"
    (scale and offset of a normalisation).
    """

    path: str
    shape: tuple[int, ...]
    kind: str


class Optimizer(Protocol):
    """`slots` names the tensors kept for each parameter, each of its shape, float32."""

    slots: tuple[str, ...]

    def step_size(self, rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """What `update` takes as its rate at `step` (from 0), for a learning rate."""
        return rate

    def update(
        self,
        parameters: Sequence[Parameter],
        weights: Tensors,
        gradients: Tensors,
        slots: dict[str, Tensors],
        rate: tf.Tensor,
        sum_squares: SumSquares,
    ) -> tuple[list[tf.Tensor], dict[str, list[tf.Tensor]]]:
        """The new weights and slots for gradients of the mean loss at `rate`."""


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with momentum: v <- m v + (g + wd w); w <- w - rate v."""

    momentum: float
    weight_decay: float
    slots: tuple[str, ...] = ("momentum",)

    def update(self, parameters, weights, gradients, slots, rate, sum_squares):
        new = [
            self.momentum * v + (g + self.weight_decay * w)
            for w, g, v in zip(weights, gradients, slots["momentum"], strict=True)
        ]
        return [w - rate * v for w, v in zip(weights, new, strict=True)], {
            "momentum": new
        }


@dataclass(frozen=True)
class Lars(Optimizer):
    """Layer-wise adaptive rate scaling (arXiv 1708.03888) in both forms of 1909.09756.

    With the trust ratio r = trust |w| / (|g| + wd |w| + epsilon), 1 where either norm
    is zero, and |g| the norm of the raw summed gradient:
      unscaled (`scaled_momentum` False):  v <- m v + rate r (g + wd w);  w <- w - v
      scaled   (True, the v0.6 reference): v <- m v + (g + wd w);  w <- w - rate r v
    Norm parameters and biases take the plain rate (r = 1) and no decay.

    `decay_in_loss` adds wd w to the gradient of every parameter that is not of a norm
    *before* the norms are taken, as the L2 term in the loss of Google's v0.6 did; the
    kernels then decay twice (google_submissions.md, 3.3).
    """

    momentum: float
    weight_decay: float
    trust: float = 0.001
    epsilon: float = 0.0
    scaled_momentum: bool = False
    decay_in_loss: bool = False
    slots: tuple[str, ...] = ("momentum",)

    def update(self, parameters, weights, gradients, slots, rate, sum_squares):
        wd = self.weight_decay
        if self.decay_in_loss:
            gradients = [
                g if p.kind == "norm" else g + wd * w
                for p, w, g in zip(parameters, weights, gradients, strict=True)
            ]
        adapted = [i for i, p in enumerate(parameters) if p.kind == "kernel"]
        norms = tf.sqrt(
            sum_squares([weights[i] for i in adapted] + [gradients[i] for i in adapted])
        )
        ratios = self.trust_ratios(norms[: len(adapted)], norms[len(adapted) :])
        ratio_of = dict(zip(adapted, tf.unstack(ratios, len(adapted)), strict=True))

        new_weights, new_slots = [], []
        for i, (w, g, v) in enumerate(
            zip(weights, gradients, slots["momentum"], strict=True)
        ):
            step, decayed = rate, g
            if i in ratio_of:
                step, decayed = rate * ratio_of[i], g + wd * w
            if self.scaled_momentum:
                v = self.momentum * v + decayed
                w = w - step * v
            else:
                v = self.momentum * v + step * decayed
                w = w - v
            new_weights.append(w)
            new_slots.append(v)
        return new_weights, {"momentum": new_slots}

    def trust_ratios(self, weight_norms, gradient_norms):
        """Element-wise r of the class's formula, float32 [n] each."""
        usable = (weight_norms > 0) & (gradient_norms > 0)
        # The unselected branch of a `where` must be finite too.
        below = tf.where(
            usable,
            gradient_norms + self.weight_decay * weight_norms + self.epsilon,
            1.0,
        )
        return tf.where(usable, self.trust * weight_norms / below, 1.0)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (arXiv 1412.6980), its bias correction folded into the rate, as in TF1:

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    w <- w - rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon), t from 1.

    With `clip_norm` the summed gradients of all parameters are first scaled down to
    that norm, where theirs is larger.
    """

    beta_1: float
    beta_2: float
    epsilon: float
    clip_norm: float | None = None
    slots: tuple[str, ...] = ("first_moment", "second_moment")

    def step_size(self, rate, step):
        t = tf.cast(step, tf.float32) + 1.0
        return rate * tf.sqrt(1.0 - self.beta_2**t) / (1.0 - self.beta_1**t)

    def update(self, parameters, weights, gradients, slots, rate, sum_squares):
        if self.clip_norm is not None:
            # After the sum over replicas: a clip before it would differ from that of
            # one device (tensorflow#25806).
            norm = tf.sqrt(tf.reduce_sum(sum_squares(gradients)))
            scale = self.clip_norm / tf.maximum(norm, self.clip_norm)
            gradients = [g * scale for g in gradients]
        first, second, new = [], [], []
        for w, g, m, v in zip(
            weights,
            gradients,
            slots["first_moment"],
            slots["second_moment"],
            strict=True,
        ):
            m = self.beta_1 * m + (1.0 - self.beta_1) * g
            v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(g)
            first.append(m)
            second.append(v)
            new.append(w - rate * m / (tf.sqrt(v) + self.epsilon))
        return new, {"first_moment": first, "second_moment": second}
