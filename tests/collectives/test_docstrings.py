"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "topology.grid",
        "collectives.schedules",
        "collectives.schedules_2d",
        "collectives.proof",
        "collectives.simulate",
        "collectives.drawing",
        "pod.network",
    ],
)
def test_examples_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"mlperf_tpu.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
