"""The script that asks the TPU wheel, but for the wheel itself."""

from __future__ import annotations

import runpy

import pytest

from mlperf_tpu.spec import load
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "lower_for_tpu.py"))


@pytest.mark.parametrize("n", [8, 2048])
def test_a_replica_keeps_its_share_and_batch_norm_spans_eight(script, n):
    resolved = script["at_replicas"](load("resnet50"), n)
    spec = resolved.spec
    assert spec.training.global_batch == 8 * n  # v0.7 on 4096 chips: 8 a core
    assert spec.batch_norm.span.value == 64
    assert spec.update.sharded


@pytest.mark.parametrize("broken", [None, "train", "evaluate"])
def test_exit_1_when_a_step_does_not_lower(
    tensorflow, script, monkeypatch, capsys, broken
):
    from mlperf_tpu.mesh import xla
    from mlperf_tpu.optim.training_step import TrainingStep

    def lower(function, place, state, batch, platform):
        assert platform == "TPU"
        what = "train" if isinstance(function, TrainingStep) else "evaluate"
        if what == broken:
            raise tensorflow.errors.UnimplementedError(None, None, "no such kernel")
        return "module", None

    monkeypatch.setattr(xla, "lower", lower)
    assert script["main"](["resnet50"]) == (0 if broken is None else 1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    failed = [line for line in lines if "FAILED" in line]
    assert len(failed) == (0 if broken is None else 1)
    assert all(f"resnet50 {broken}, " in line for line in failed)
