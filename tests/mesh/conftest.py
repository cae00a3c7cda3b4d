"""Training on meshes of other sizes than the tests' own process has."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

WORKER = Path(__file__).with_name("worker.py")

# A network of ResNet-50's layers, for what its depth proves nothing of.
SHORT = "model.stages=[[1, 16], [1, 32]]"

# Every technique on: LARS, sharded update, label smoothing, and batch norm groups of 8
# examples: two groups inside one device, one over four devices of eight.
# Random images and a small rate: rounding differs between meshes in the last bit of a
# float32, and training multiplies it (by about 5 a step at the proxy's full rate on
# the digits, whose flat backgrounds give channels of hardly any variance to norm).
ALL_ON = (
    "training.precision=float32",
    "training.global_batch=16",
    "batch_norm.span=8 examples",
    "schedule.warmup=10 epochs",
    "schedule.base_rate=0.5",
)


@pytest.fixture(scope="module")
def trained(run_python, tmp_path_factory):
    """trained(devices, steps, *settings): the worker's output, kept for the module."""
    done = {}
    folder = tmp_path_factory.mktemp("mesh")

    def train(devices, steps, *settings):
        key = (devices, steps, *settings)
        if key not in done:
            name = hashlib.sha1(repr(key).encode()).hexdigest()
            out = folder / f"{name}.npz"
            run_python(WORKER, devices, steps, out, *settings)
            with np.load(out) as file:
                done[key] = dict(file)
        return done[key]

    return train
