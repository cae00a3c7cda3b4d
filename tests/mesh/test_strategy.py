"""The mesh of a TPU slice, with MirroredStrategy over CPU devices in the strategy's
place, computes what the virtual mesh computes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.mesh import Feed
from tests.conftest import ROOT

WORKER = Path(__file__).with_name("strategy_worker.py")

# Both places sum two float32 terms, which has one result; the rest of a step is the
# same ops, fused otherwise: a few ulp (6e-8 each), which ten steps let grow.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module")
def trained(run_python, tmp_path_factory):
    """trained(place, update): what the worker wrote, kept for the module."""
    folder = tmp_path_factory.mktemp("strategy")
    done = {}

    def train(place, update="sharded"):
        if (place, update) not in done:
            run_python(WORKER, place, update, folder, cwd=ROOT, env=_env())
            with np.load(folder / f"{place}_{update}.npz") as file:
                done[place, update] = dict(file)
        return done[place, update]

    return train


def _env():
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_an_error_of_the_data_set_reaches_the_run_as_itself(trained):
    expected = ["damaged record after 2", "damaged record after 1"]
    assert trained("mirrored")["data_errors"].tolist() == expected


@pytest.fixture
def slice_of_8(tensorflow):
    """A mesh of 8 replicas, for what it does before a strategy runs."""
    from mlperf_tpu.mesh.strategy import StrategyMesh

    return StrategyMesh(SimpleNamespace(num_replicas_in_sync=8), place=None)


def test_a_data_set_of_one_host_is_refused_on_a_slice_of_several(slice_of_8):
    context = SimpleNamespace(num_input_pipelines=4, input_pipeline_id=0)
    with pytest.raises(BadInput, match="the slice has 4 hosts"):
        slice_of_8._of_host(iter([]), context, Feed(8))


def test_a_host_hands_each_of_its_replicas_its_part(slice_of_8):
    from mlperf_tpu.data.batches import Repeated

    batch = Repeated({"label": np.arange(32)})
    context = SimpleNamespace(num_input_pipelines=4, input_pipeline_id=2)
    parts = slice_of_8._of_host(batch, context, Feed(8)).as_numpy_iterator()
    # Two replicas of four rows a host; then the next batch.
    for first in (16, 20, 16, 20):
        np.testing.assert_array_equal(next(parts)["label"], range(first, first + 4))


@pytest.mark.parametrize("update", ["sharded", "replicated"])
def test_state_losses_and_evaluation_agree_with_the_virtual_mesh(trained, update):
    expected, found = trained("virtual", update), trained("mirrored", update)
    compared = [name for name in expected if name.startswith("whole.")]
    assert {"whole.losses", "whole.eval_scores", "whole.step"} <= set(compared)
    assert any("slots" in name for name in compared)
    for name in compared:
        np.testing.assert_allclose(found[name], expected[name], **TOLERANCE)


def test_padded_examples_count_for_nothing(trained):
    assert trained("mirrored")["whole.eval_count"] == 3 * 8 - 3


def test_a_run_resumed_from_fetched_state_is_the_same_run(trained):
    run = trained("mirrored")
    np.testing.assert_array_equal(run["resumed.losses"], run["whole.losses"][4:])
    names = [n.removeprefix("resumed.") for n in run if n.startswith("resumed.")]
    for name in names:
        if name != "losses":
            np.testing.assert_array_equal(run[f"resumed.{name}"], run[f"whole.{name}"])


def test_each_replica_holds_its_own_half_of_sharded_slots(trained):
    sizes = trained("mirrored")["slot_elements"].tolist()
    # Kernel 3x5, bias 5, gamma and beta 3: halves rounded up, on each of two replicas.
    assert sizes == [[8, 8], [3, 3], [2, 2], [2, 2]]
    assert trained("mirrored", "replicated")["slot_elements"].tolist()[0] == [15, 15]


def test_replicated_state_is_equal_on_all_replicas(trained):
    assert trained("mirrored")["replicas_differ"] == 0.0


def test_the_loop_of_steps_is_traced_once_for_calls_of_any_length(trained):
    # Once for each replica, as MirroredStrategy does.
    assert trained("mirrored")["traces"] == 2
