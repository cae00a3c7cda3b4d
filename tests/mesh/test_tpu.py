"""Runs on a TPU slice, as far as they go without one; placement; every error."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import GRIDS
from tests.conftest import ROOT

HERE = Path(__file__).parent
SETTINGS = [
    "training.global_batch=8",
    "training.length=12 steps",
    "evaluation.every=4 steps",
    "schedule.warmup=2 steps",
    "batch_norm.span=4 examples",
    "data.train_examples=32",
    "data.eval_examples=13",
    "rules.target.value=1.5",  # never reached: all twelve steps are taken
]
SET = [word for setting in SETTINGS for word in ("--set", setting)]
TRAIN = ["train", "resnet50", "--tpu", "pod", "--chips", "1", "--task", "proxy"]


@pytest.fixture(scope="module")
def on_slice(run_python):
    """on_slice(lost_at, *arguments): the finished `mlperf-tpu` on the stand-in."""

    def call(lost_at, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        worker = HERE / "tpu_run_worker.py"
        return run_python(
            worker, lost_at, *arguments, check=False, cwd=ROOT, env=environment
        )

    return call


@pytest.fixture(scope="module")
def whole(on_slice, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    done = on_slice(0, *TRAIN, *SET, "--seed", 5, "--out", out, "--json")
    assert done.returncode == 1, done.stderr[-3000:]  # the target is out of reach
    return json.loads(done.stdout), out / "mlperf-tpu/results/tpu-v3-2/resnet"


def test_summary_and_folder_name_the_slice(whole):
    summary, folder = whole
    assert (summary["place"], summary["chips"], summary["devices"]) == ("tpu", 1, 2)
    record = json.loads((folder / "run.json").read_text())
    assert (record["place"], record["tpu"]) == ("tpu", "pod")
    log = (folder / "result_0.txt").read_text()
    assert '"submission_platform", "value": "tpu-v3-2"' in log
    [run] = summary["runs"]
    assert run["steps"] == 12 and "below the target" in run["reason"]


def test_a_worker_that_goes_away_ends_the_run_as_aborted_and_it_resumes(
    on_slice, whole, tmp_path
):
    # Calls: one at the start, 3 and 1 steps in the first block, then the fourth.
    done = on_slice(4, *TRAIN, *SET, "--seed", 5, "--out", tmp_path, "--json")
    assert done.returncode == 1, done.stderr[-3000:]
    [run] = json.loads(done.stdout)["runs"]
    assert run["status"] == "aborted"
    assert run["reason"] == "a worker of the TPU went away: failed to connect"
    [folder] = tmp_path.glob("*/results/*/*")
    assert f"--resume {folder}" in done.stderr.replace("\n", "")
    again = on_slice(0, "train", "resnet50", "--resume", folder, "--json")
    assert again.returncode == 1, again.stderr[-3000:]
    [resumed] = json.loads(again.stdout)["runs"]
    [expected] = whole[0]["runs"]
    for field in ("quality", "steps", "epochs", "reason"):
        assert resumed[field] == expected[field]


def hand_made_slice(tensorflow, columns, rows):
    """A slice as TensorFlow describes it: a host has 2x2 chips of two cores."""
    wide, high = min(2, columns), min(2, rows)
    hosts = [
        [
            (x + dx, y + dy, 0, core)
            for dy in range(high)
            for dx in range(wide)
            for core in range(2)
        ]
        for y in range(0, rows, high)
        for x in range(0, columns, wide)
    ]
    return tensorflow.tpu.experimental.Topology(
        mesh_shape=[columns, rows, 1, 2], device_coordinates=np.array(hosts, np.int32)
    )


@pytest.mark.parametrize("partitions", [1, 2, 4, 8])
@pytest.mark.parametrize("chips", GRIDS)
def test_replicas_hold_neighbouring_cores_and_every_core_once(
    tensorflow, chips, partitions
):
    from mlperf_tpu.mesh.tpu import check_size, device_assignment

    slice_ = hand_made_slice(tensorflow, *GRIDS[chips])
    check_size(slice_, "pod", chips)
    if partitions // 2 > chips or (chips, partitions) == (2, 4):
        # Two chips stand side by side, but a replica of two stands upright.
        with pytest.raises(BadInput):
            device_assignment(slice_, partitions)
        return
    assignment = device_assignment(slice_, partitions)
    assert assignment.num_replicas == 2 * chips // partitions
    assert assignment.num_cores_per_replica == partitions
    cores = assignment.core_assignment
    assert len({tuple(core) for core in cores.reshape(-1, 4)}) == 2 * chips
    # From one partition to the next: the same chip, or the one beside it.
    hops = np.abs(np.diff(cores[:, :, :2], axis=1)).sum(2)
    assert hops.max(initial=0) <= 1
    for replica in {0, assignment.num_replicas - 1}:
        for partition in range(partitions):
            assert "TPU" in assignment.tpu_device(replica, partition)


def test_a_slice_of_another_size_is_refused(tensorflow):
    from mlperf_tpu.mesh.tpu import check_size

    slice_ = hand_made_slice(tensorflow, 32, 16)
    with pytest.raises(BadInput, match=r"1024, but .*'pod'.* 512 chips \(32x16\)"):
        check_size(slice_, "pod", 1024)


def test_a_slice_that_is_no_v3_is_refused(tensorflow):
    from mlperf_tpu.mesh.tpu import check_size

    cores = [[(x, 0, z, 0) for x in range(2) for z in range(2)]]
    slice_ = tensorflow.tpu.experimental.Topology(
        mesh_shape=[2, 1, 2, 1], device_coordinates=np.array(cores, np.int32)
    )
    with pytest.raises(BadInput, match="2x1x2 chips with 1 cores each is no TPU v3"):
        check_size(slice_, "pod", 4)


def test_no_tpu_here_and_a_worker_that_does_not_answer(run_python):
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{unused.getsockname()[1]}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        worker = HERE / "tpu_find_worker.py"
        done = run_python(worker, address, "local", cwd=ROOT, env=environment)
    silent, local = done.stdout.splitlines()
    assert f"no TPU '{address}' was reached" in silent
    assert "does not answer" in silent
    assert "this machine has no TPU" in local


def test_a_name_that_the_zone_does_not_know(tensorflow, monkeypatch):
    from mlperf_tpu.mesh import tpu

    def unknown(tpu):
        raise ValueError(f"TPU {tpu} not found (404)\nmore")

    monkeypatch.setattr(
        tensorflow.distribute.cluster_resolver, "TPUClusterResolver", unknown
    )
    with pytest.raises(BadInput, match=r"no TPU 'nope' was reached .* \(404\)\)"):
        tpu._find("nope")


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (["tensorflow"], "tensorflow-tpu is not installed"),
        (["tensorflow", "tensorflow-tpu"], "both installed"),
        (["tensorflow_tpu", "numpy"], None),
    ],
)
def test_the_wheel_must_be_the_tpus(tensorflow, monkeypatch, installed, message):
    from mlperf_tpu.mesh import tpu

    def found():
        return [type("Found", (), {"name": name})() for name in installed]

    monkeypatch.setattr(tpu.metadata, "distributions", found)
    if message is None:
        tpu.refuse_other_wheels()
        return
    with pytest.raises(BadInput, match=message):
        tpu.refuse_other_wheels()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "proxy", "--devices", "2"], "leave one out"),
        (["--task", "proxy"], "--tpu needs --chips"),
        # On a TPU the full task is what is meant, and that needs its data.
        (["--chips", "1024"], "--task full needs --data-dir"),
        (["--chips", "1024", "--fake-data"], "tensorflow-tpu is not installed"),
    ],
)
def test_calls_that_cannot_run(tensorflow, arguments, message):
    done = CliRunner().invoke(main, ["train", "resnet50", "--tpu", "pod", *arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
