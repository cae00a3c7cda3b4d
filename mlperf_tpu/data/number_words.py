"""Numbers in words, English and German: a translation task that is made, not stored.

A line is a row of numbers from 0 to 999 in words ("forty-two one hundred and seven" ->
"zweiundvierzig einhundertsieben", by the num2words library). German writes each number
as one word and says the units before the tens: a model must find the words that belong
together, and turn them round. Lines are drawn by a fixed seed, no two alike, and cut
into training and held-out lines once.
"""

from __future__ import annotations

import functools

import numpy as np

from mlperf_tpu.errors import BadInput

LARGEST = 999
NUMBERS = (3, 6)  # a line's, least and most
MOST_LINES = 1_000_000

Pairs = list[tuple[str, str]]  # (English, German)


def load(n_train: int, n_held_out: int) -> tuple[Pairs, Pairs]:
    """(training, held-out) pairs of lines; no line of one stands in the other.

    More training lines keep the held-out ones, and those there were.

    >>> load(1, 1)[1][0][1].count(" ") in range(2, 6)
    True
    """
    n = n_held_out + n_train
    if n > MOST_LINES:
        raise BadInput(
            f"data.lines: {n:,} lines with the held-out ones; at most "
            f"{MOST_LINES:,} are made; ask for fewer"
        )
    english, german = _words("en"), _words("de")
    random = np.random.default_rng(0)
    lines: dict[tuple[int, ...], None] = {}
    while len(lines) < n:
        size = random.integers(NUMBERS[0], NUMBERS[1] + 1)
        lines[tuple(random.integers(0, LARGEST + 1, size).tolist())] = None
    pairs = [
        (" ".join(english[k] for k in line), " ".join(german[k] for k in line))
        for line in lines
    ]
    return pairs[n_held_out:], pairs[:n_held_out]


@functools.cache
def _words(language: str) -> tuple[str, ...]:
    from num2words import num2words

    return tuple(num2words(k, lang=language) for k in range(LARGEST + 1))
