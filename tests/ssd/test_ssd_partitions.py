"""Spatial partitioning computes what one device computes, of odd and tiny maps too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("partitions_worker.py")


@pytest.mark.parametrize(("replicas", "partitions"), [(2, 4), (4, 2)])
def test_tensorflow_58161_loss_and_gradients_are_one_devices(
    run_python, tmp_path, replicas, partitions
):
    # Four cores: maps of 3 and 1 rows are whole on each. Four replicas of two: batch
    # norm spans pairs of replicas, whose sums go by messages.
    pytest.importorskip("jax")
    out = tmp_path / "errors.json"
    run_python(WORKER, replicas, partitions, out)
    # Sums of some thousand float32 terms in another order; rows split wrongly are 2.
    assert json.loads(out.read_text())["error"] < 2e-4
