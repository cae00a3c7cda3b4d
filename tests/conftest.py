"""What all tests share: one mesh size a process, and workers for the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlperf_tpu  # noqa: F401  (TensorFlow's settings, before a test imports it)

ROOT = Path(__file__).resolve().parents[1]


def shared_data() -> Path | None:
    """The folder of published logs and results, where it is present."""
    for folder in (os.environ.get("MLPERF_TPU_SHARED"), ROOT.parent / "shared"):
        if folder and (Path(folder) / "data").is_dir():
            return Path(folder) / "data"
    return None


@pytest.fixture(scope="session")
def tensorflow():
    """TensorFlow on the mesh of 2 devices that in-process tests use."""
    from mlperf_tpu.cli.train import import_tensorflow
    from mlperf_tpu.mesh.virtual import VirtualMesh

    import_tensorflow()
    VirtualMesh(2)
    import tensorflow

    return tensorflow


@pytest.fixture(scope="session")
def run_python():
    """Runs `python ARGUMENTS` in a process of its own; returns the finished process."""

    def run(*arguments, check=True, timeout=300, **options):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done

    return run
