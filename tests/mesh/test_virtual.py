"""The virtual mesh computes what one device computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.mesh.conftest import ALL_ON, SHORT


# The whole ResNet-50 on 8 devices; a short network of its layers, where tracing takes a
# fraction of the time, on meshes between.
@pytest.mark.parametrize(("devices", "short"), [(2, True), (4, True), (8, False)])
def test_losses_of_20_steps_agree_with_one_device(trained, devices, short):
    settings = (SHORT, *ALL_ON) if short else ALL_ON
    one, many = trained(1, 20, *settings), trained(devices, 20, *settings)
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-4)


@pytest.mark.parametrize("devices", [1, 8])
def test_the_step_is_traced_once_however_many_devices_run_it(trained, devices):
    assert trained(devices, 20, *ALL_ON)["traces"] == 1


def test_sharded_slots_take_an_eighth_of_the_whole_and_padding(trained):
    whole, eighth = trained(1, 20, *ALL_ON), trained(8, 20, *ALL_ON)
    padding = 4 * eighth["n_slots"]  # at most one float32 a tensor and device
    assert whole["slot_bytes"] == 4 * 23_528_522  # one momentum a weight
    assert eighth["slot_bytes"] <= whole["slot_bytes"] / 8 + padding


@pytest.mark.parametrize("devices", [1, 8])
def test_evaluation_counts_every_example_once(trained, devices):
    assert trained(devices, 20, *ALL_ON)["eval_count"] == 360


def test_collectives_of_the_mesh(run_python):
    run_python(Path(__file__).with_name("collectives_worker.py"))


def test_a_failing_device_ends_the_step_with_its_own_error(run_python):
    done = run_python(
        Path(__file__).with_name("collectives_worker.py"), "fail", timeout=60
    )
    assert "device 1 fails" in done.stdout


def test_pitfall_0_4_a_second_mesh_size_is_refused(tensorflow):
    from mlperf_tpu.errors import BadInput
    from mlperf_tpu.mesh.virtual import VirtualMesh

    with pytest.raises(BadInput, match=r"4 virtual devices .* already has 2"):
        VirtualMesh(4)
