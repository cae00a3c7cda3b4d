"""Spatial partitioning computes what one device computes, of odd and tiny maps too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("partitions_worker.py")


def test_tensorflow_58161_loss_and_gradients_are_one_devices(run_python, tmp_path):
    # Four cores a replica: maps of 3 and 1 rows are whole on each. Four replicas: batch
    # norm spans pairs of them, whose sums go by messages.
    pytest.importorskip("jax")
    out = tmp_path / "errors.json"
    run_python(WORKER, 4, 4, out)
    # Sums of some thousand float32 terms in another order; rows split wrongly are 2.
    assert json.loads(out.read_text())["error"] < 2e-4
