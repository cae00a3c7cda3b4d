"""Records as some published v0.6 and v0.7 submissions wrote them, brought to one form.

Intel's v0.6 minigo logs hold Python literals and bare words, Alibaba's v0.7 logs
seconds under `time_s`: read, so that the `published` profile can judge them.
"""

from __future__ import annotations

import json
import re
from typing import Any

_PIECE = re.compile(
    r"""\s*(?:
      (?P<double>"(?:[^"\\]|\\.)*")
    | '(?P<single>(?:[^'\\]|\\.)*)'
    | (?P<mark>[{}\[\]:,])
    | (?P<word>[^\s{}\[\]:,"']+)
    )""",
    re.X,
)
_WORDS = {"None": "null", "True": "true", "False": "false"}
_JSON_WORD = re.compile(r"null|true|false|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def loosely(text: str) -> Any:
    """A Python-like literal as a value; None where it is none either.

    >>> loosely("{'file': 'train.py', value: True}")
    {'file': 'train.py', 'value': True}
    """
    out: list[str] = []
    at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            return None
        out.append(_as_json(match))
        at = match.end()
    try:
        return json.loads("".join(out))
    except (ValueError, RecursionError):
        return None


def _as_json(match: re.Match[str]) -> str:
    if match["mark"]:
        return match["mark"]
    if match["double"]:
        return match["double"]
    if match["single"] is not None:
        return json.dumps(match["single"])
    word = _WORDS.get(match["word"], match["word"])
    return word if _JSON_WORD.fullmatch(word) else json.dumps(word)


def accuracy(benchmark: str | None, value: Any, *, percent: bool) -> Any:
    """An eval_accuracy in round 0.7's form: fractions, and BBOX and SEGM for masks.

    v0.6 logs BLEU as 0 to 100 (`percent`); masks as [box, mask] (Google) or in an
    object under "accuracy" (NVIDIA); accuracies as strings (NVIDIA's Transformer).

    >>> accuracy("gnmt", "24.19", percent=True)
    0.2419
    >>> accuracy("maskrcnn", [0.38, 0.34], percent=True)
    {'BBOX': 0.38, 'SEGM': 0.34}
    """
    if isinstance(value, dict) and isinstance(value.get("accuracy"), dict):
        value = value["accuracy"]
    if isinstance(value, list) and len(value) == 2:
        value = {"BBOX": value[0], "SEGM": value[1]}
    if isinstance(value, dict):
        return {name: number(part) for name, part in value.items()}
    value = number(value)
    if percent and benchmark in ("gnmt", "transformer") and is_number(value):
        return round(value / 100, 12)
    return value


def number(value: Any) -> Any:
    """A string that spells a number as that number; anything else unchanged."""
    if isinstance(value, str) and len(value) < 64:
        try:
            return float(value)
        except ValueError:
            return value
    return value


def as_ms(seconds: float) -> float:
    """Seconds since 1970 in milliseconds; milliseconds under a wrong name as they are.

    >>> as_ms(1593354412.9), as_ms(1593354412900)
    (1593354412900.0, 1593354412900)
    """
    return seconds if seconds > 1e11 else seconds * 1e3


def is_number(value: Any) -> bool:
    """True for an int or a float, no bool, that is finite as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -1e300 < value < 1e300


# v0.6 trees and Google's v0.6 logs say mask where the rules say maskrcnn.
BENCHMARK_NAMES = {"mask": "maskrcnn"}
