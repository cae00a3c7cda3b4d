"""The small language in which rulesets say what a record must be. Data, never code.

A condition is a list [operand, operator, operand], or {any: [[condition, ...], ...]},
which holds when all conditions of one of its lists hold. An operand is a number, a
truth value, a list, or one of these strings:

    value, value.0, value.BBOX     what the record logs, or a part of it
    meta, meta.epoch_num           its metadata, or an entry of it
    time                           its time in milliseconds
    since.x                        milliseconds since the time that the state x holds
    state.x                        what earlier records left in the state x
    =text                          the text itself

A condition that cannot be evaluated (a missing entry, a string compared with a number)
does not hold; `failing` says why.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from mlperf_tpu.log.records import Record

State = dict[str, Any]
Operand = Callable[[Record, State], Any]
Condition = Callable[[Record, State], bool]

# What a condition may fail on besides being false: wrong types, missing entries,
# numbers without a logarithm or past the range of a float.
CANNOT = (TypeError, KeyError, IndexError, ValueError, ArithmeticError, AttributeError)

# The official checker calls a number whole within this distance.
WHOLE = 1e-5
# Logged through float32, a number is off by up to 6e-8 of itself.
FLOAT32 = 1e-6


def is_whole(number: float) -> bool:
    return abs(round(number) - number) < WHOLE


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda a, b: a in b,
    "has": lambda a, b: b in a,
    "near": lambda a, b: math.isclose(a, b, rel_tol=FLOAT32, abs_tol=1e-12),
    "is_bool": lambda a, b: (type(a) is bool) == b,
    "longer_than": lambda a, b: len(a) > b,
    "has_length": lambda a, b: len(a) == b,
    "follows": lambda a, b: a == b + 1,
    "multiple_of": lambda a, b: is_whole(a / b),
    "power_of_two_times": lambda a, b: is_whole(math.log2(a / b)),
    # [40, 50] epochs stretched by 1 + k/10 (v0.7 rules, SSD).
    "tenths_above": lambda a, b: is_whole(10 * (a / b - 1)),
}


def operand(spec: Any) -> Operand:
    """The function that reads an operand from a record and the state."""
    if not isinstance(spec, str):
        return lambda record, state: spec
    if spec.startswith("="):
        return lambda record, state: spec[1:]
    base, _, name = spec.partition(".")
    if base == "value":
        return _part(lambda record, state: record.value, name)
    if base == "meta":
        return _part(lambda record, state: record.metadata, name)
    if spec == "time":
        return lambda record, state: record.time_ms
    if base == "state" and name:
        return lambda record, state: state[name]
    if base == "since" and name:
        return lambda record, state: record.time_ms - state[name]
    raise ValueError(f"no operand {spec!r} in the language of rulesets")


def _part(whole: Operand, name: str) -> Operand:
    if not name:
        return whole
    index: Any = int(name) if name.isdecimal() else name
    return lambda record, state: whole(record, state)[index]


def condition(spec: Any) -> Condition:
    """The function that tells whether a condition holds; it may raise one of CANNOT."""
    if isinstance(spec, dict):
        (choices,) = spec.values()
        ways = [[condition(one) for one in way] for way in choices]
        return lambda record, state: any(
            all(one(record, state) for one in way) for way in ways
        )
    left, name, right = spec
    compare, a, b = OPERATORS[name], operand(left), operand(right)
    return lambda record, state: bool(compare(a(record, state), b(record, state)))


def holds(test: Condition, record: Record, state: State) -> bool:
    try:
        return test(record, state)
    except CANNOT:
        return False
