"""Beam search on the device, for any decoder: one loop of fixed shapes.

The best translation is the one of the highest score among those that ended,

    score = log P(ids) / ((5 + length) / 6)^alpha + penalty

(arXiv 1609.08144, section 7): `length` is the hypothesis's own, its end counted. The
search keeps `beam` hypotheses that go on and the `beam` best that ended, and stops
where no row can find a better one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mlperf_tpu.nn import partitioning

# As good as minus infinity, without its 0 * inf.
NEVER = -1e9

Step = Callable[[tf.Tensor, Any, tf.Tensor], tuple[tf.Tensor, Any]]


def length_penalty(length, alpha: float):
    """((5 + length) / 6)^alpha.

    >>> float(length_penalty(tf.constant(7.0), alpha=1.0))
    2.0
    """
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def over_beam(nest: Any, beam: int) -> Any:
    """Tensors of [batch, ...] repeated to [batch, beam, ...]."""
    return tf.nest.map_structure(
        lambda t: tf.repeat(t[:, None], beam, 1, name="over_beam"), nest
    )


def beam_search(
    step: Step,
    state: Any,
    start,
    limits,
    *,
    beam: int,
    alpha: float,
    end: int,
    max_length: int,
    penalty: Callable[[Any], tf.Tensor] | None = None,
):
    """(ids int32 [batch, beam, max_length], scores float32 [batch, beam]), best first.

    step(ids, state, position) -> (log_probs, state): the decoder on the last id of each
        hypothesis, int32 [batch, beam]; `position` counts from 0, an int32 scalar;
        log_probs is float32 [batch, beam, vocabulary], normalised over the vocabulary.
        What does not change while decoding (the encoder's output) it may close over,
        without repeating it.
    state: a nest of tensors [batch, beam, ...] (`over_beam`); rows follow their
        hypotheses. May be empty.
    start: int32 [batch], the id that the first step takes.
    limits: int32 [batch], at most so many ids a row, the end counted; 0 for padding.
    penalty(state) -> float32 [batch, beam], at most 0: what is added to the scores of
        the hypotheses that go through this state (coverage).

    After its `end` a row is 0. Where nothing ended within a row's limit, its hypotheses
    are those that would go on, `end` missing.
    """
    batch = start.shape[0]
    limits = tf.minimum(tf.cast(limits, tf.int32), max_length)
    best_penalty = length_penalty(limits, alpha)
    log_probs = tf.tile([[0.0] + [NEVER] * (beam - 1)], [batch, 1])
    nothing = tf.zeros([batch, beam, max_length], tf.int32)
    never = tf.fill([batch, beam], NEVER)

    def unfinished(position, done, *_):
        return (position < max_length) & ~done

    def body(position, done, last, alive, log_probs, ended, scores, state):
        following, state = step(last, state, position)
        # Of a vocabulary that is split over partitions libtpu 0.0.52 makes a top-k with
        # an all-to-all that it refuses.
        following = partitioning.whole(tf.cast(following, tf.float32))
        total = log_probs[:, :, None] + following
        # Twice the beam: should half of them end, there are enough to go on.
        wide = min(2 * beam, total.shape[-1])
        best, ids = tf.math.top_k(total, wide)  # of each hypothesis: exact, and small
        rank = best / length_penalty(position + 1, alpha)
        if penalty is not None:
            rank += tf.cast(penalty(state), tf.float32)[:, :, None]
        wide_all = min(2 * beam, beam * wide)
        rank, picked = tf.math.top_k(tf.reshape(rank, [batch, -1]), wide_all)
        ids = _pick(tf.reshape(ids, [batch, -1]), picked)
        best = _pick(tf.reshape(best, [batch, -1]), picked)
        parents = picked // wide
        here = tf.range(max_length) == position
        written = tf.where(here, ids[:, :, None], _pick(alive, parents))
        may = (position < limits)[:, None]
        ends = may & (ids == end) & (best > NEVER / 2)

        scores, kept = tf.math.top_k(
            tf.concat([scores, tf.where(ends, rank, NEVER)], 1), beam
        )
        ended = _pick(tf.concat([ended, written], 1), kept)

        # Where fewer than a beam can go on, what ended fills up, never to be chosen.
        goes_on = tf.where(ids == end, NEVER * 2, rank)
        _, kept = tf.math.top_k(goes_on, beam)
        alive = tf.where(may[:, :, None], _pick(written, kept), alive)
        kept_ends = _pick(ids, kept) == end
        kept_probs = tf.where(kept_ends, NEVER, _pick(best, kept))
        log_probs = tf.where(may, kept_probs, log_probs)
        last = _pick(ids, kept)
        parents = _pick(parents, kept)
        state = tf.nest.map_structure(lambda t: _pick(t, parents), state)

        # No hypothesis that goes on can score better than this: a longer one divides
        # by more, but its probability can only fall.
        bound = tf.reduce_max(log_probs, 1) / best_penalty
        settled = (tf.reduce_min(scores, 1) >= bound) | (position + 1 >= limits)
        done = tf.reduce_all(settled)
        return position + 1, done, last, alive, log_probs, ended, scores, state

    first = tf.tile(tf.cast(start, tf.int32)[:, None], [1, beam])
    loop = tf.while_loop(
        unfinished,
        body,
        (
            tf.constant(0),
            tf.reduce_all(limits <= 0),
            first,
            nothing,
            log_probs,
            nothing,
            never,
            state,
        ),
        parallel_iterations=1,
    )
    _, _, _, alive, log_probs, ended, scores, state = loop
    any_ended = (scores[:, :1] > NEVER / 2)[:, :, None]
    going_on = log_probs / best_penalty[:, None]
    if penalty is not None:
        going_on += tf.cast(penalty(state), tf.float32)
    ids = tf.where(any_ended, ended, alive)
    return ids, tf.where(any_ended[:, :, 0], scores, going_on)


def _pick(values, index):
    """values [batch, n, ...] at index int32 [batch, m]: [batch, m, ...]."""
    return tf.gather(values, index, batch_dims=1)
