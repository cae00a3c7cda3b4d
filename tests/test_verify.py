"""`verify`: right techniques pass; each, broken on purpose, makes its row fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.verify import largest_relative_error, techniques
from tests.verify_worker import FAULTS

WORKER = Path(__file__).with_name("verify_worker.py")


@pytest.fixture(scope="module")
def rows(run_python, tmp_path_factory):
    """rows(mesh): {fault: {technique: ok}}, measured once a mesh."""
    folder = tmp_path_factory.mktemp("verify")
    done = {}

    def measure(mesh):
        if not done:
            run_python(WORKER, "reference", folder / "one.npz", folder / "none")
        if mesh not in done:
            out = folder / f"{mesh}.json"
            run_python(WORKER, mesh, folder / "one.npz", out)
            done[mesh] = json.loads(out.read_text())
        return done[mesh]

    return measure


@pytest.mark.parametrize("mesh", FAULTS)
def test_every_technique_passes(rows, mesh):
    if mesh == "xla":
        pytest.importorskip("jax")
    assert rows(mesh)["none"], "no technique runs there"
    assert all(rows(mesh)["none"].values()), rows(mesh)["none"]


@pytest.mark.parametrize(
    ("mesh", "fault"), [(mesh, fault) for mesh in FAULTS for fault in FAULTS[mesh]]
)
def test_a_technique_broken_on_purpose_fails_its_row(rows, mesh, fault):
    if mesh == "xla":
        pytest.importorskip("jax")
    broken = FAULTS[mesh][fault]
    assert rows(mesh)[fault] == dict.fromkeys(broken, False)


def test_the_error_is_relative_to_the_largest_element_of_its_array():
    want = {"a": np.array([100.0, 1.0]), "b": np.array([0.0])}
    got = {"a": np.array([100.0, 1.5]), "b": np.array([0.0])}
    assert largest_relative_error(want, got) == pytest.approx(0.005)


@pytest.mark.parametrize("got", [{}, {"a": np.ones(3)}, {"a": np.array([1, np.nan])}])
def test_what_is_missing_misshapen_or_not_finite_is_infinitely_wrong(got):
    assert largest_relative_error({"a": np.ones(2)}, got) == float("inf")


def test_an_unknown_technique_offers_the_nearest():
    with pytest.raises(BadInput, match="did you mean resume"):
        techniques("resnet50", ["resum"])
