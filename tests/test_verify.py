"""`verify`: right techniques pass; each, broken on purpose, makes its row fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.verify import largest_relative_error, techniques

WORKER = Path(__file__).with_name("verify_worker.py")


@pytest.fixture(scope="module")
def rows(run_python, tmp_path_factory):
    """rows(fault): {technique: ok} on the mesh where the fault was put in."""
    folder = tmp_path_factory.mktemp("verify")
    done = {}

    def measure(fault):
        if fault not in done:
            out = folder / f"{fault}.json"
            run_python(WORKER, fault, folder / "one.npz", out)
            done[fault] = json.loads(out.read_text())
        return done[fault]

    run_python(WORKER, "reference", folder / "one.npz", folder / "one.json")
    return measure


def test_on_the_virtual_mesh_every_technique_passes(rows):
    assert all(rows("none").values()), rows("none")


@pytest.mark.parametrize(
    ("fault", "technique"),
    [
        ("trust ratio", "LARS, unscaled momentum"),
        ("trust ratio", "LARS, scaled momentum"),
        ("shard", "sharded weight update"),
        ("group sums", "batch norm over replicas"),
        ("buckets", "fused gradient sum"),
        ("bf16", "bf16 gradient sum"),
        ("fold", "space-to-depth stem"),
        ("padding", "padded evaluation"),
        ("resume", "resume"),
    ],
)
def test_a_technique_broken_on_purpose_fails_its_row(rows, fault, technique):
    assert rows(fault)[technique] is False


def test_spatial_partitioning_passes_and_fails_when_broken(rows):
    pytest.importorskip("jax")
    assert rows("xla none") == {"spatial partitioning, 2 cores": True}
    assert rows("xla split") == {"spatial partitioning, 2 cores": False}


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
