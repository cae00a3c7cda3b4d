"""Training on ImageNet's files through the command line, and what it refuses."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.data.tfrecord import read_framing
from tests.data.imagenet_on_disk import N_EVAL, SPEC, write_shards

# Two steps and an evaluation, of which no quality is enough.
TWO_STEPS = {
    **SPEC,
    "model.stages": "[[1, 16], [1, 32]]",
    "training.global_batch": 4,
    "training.length": "2 steps",
    "training.precision": "float32",
    "evaluation.every": "2 steps",
    "schedule.base_rate": 0.01,
    "schedule.warmup": "1 steps",
    "batch_norm.span": "2 examples",
    "rules.target.value": 1.1,
}


def train(folder, out, *arguments):
    settings = [
        word for key, value in TWO_STEPS.items() for word in ("--set", f"{key}={value}")
    ]
    call = ["train", "resnet50", "--task", "full", "--data-dir", folder, *settings]
    call += ["--devices", "2", "--seed", "3", "--out", out, *arguments]
    return CliRunner().invoke(main, [str(word) for word in call])


@pytest.mark.parametrize("folder", ["mlperf_shards", "tfds_folder"])
def test_a_run_trains_and_counts_every_evaluated_image(request, folder, tmp_path):
    done = train(request.getfixturevalue(folder), tmp_path, "--json")
    assert done.exit_code == 1, done.output
    [run] = json.loads(done.stdout)["runs"]
    assert (run["steps"], run["status"]) == (2, "aborted")
    assert "below the target of 1.1" in run["reason"]
    [log] = tmp_path.rglob("result_0.txt")
    lines = [json.loads(line.split(" ", 1)[1]) for line in log.read_text().splitlines()]
    counted = [r for r in lines if r["key"] == "eval_accuracy"]
    assert [r["metadata"]["eval_samples"] for r in counted] == [N_EVAL]


@pytest.fixture
def shards(tensorflow, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_shards(folder)
    return folder


def flip(path, offset):
    """Flips a bit, and hides that the file was changed."""
    status = path.stat()
    broken = bytearray(path.read_bytes())
    broken[offset] ^= 1
    path.write_bytes(broken)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def refused(shards, tmp_path, message):
    out = tmp_path / "out"
    done = train(shards, out)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert not out.exists()


@pytest.mark.parametrize("where", ["length", "data", "checksum"])
def test_tf_13463_a_damaged_byte_ends_a_run_before_its_clock(shards, tmp_path, where):
    path = shards / "train-00001-of-00003"
    start, end = read_framing(path).offsets[4:6]
    flip(path, {"length": start, "data": start + 300, "checksum": end - 1}[where])
    refused(shards, tmp_path, f"{path}, byte {start}: corrupt")


def test_tf_571_a_cut_between_records_ends_a_run_before_its_clock(shards, tmp_path):
    path = shards / "train-00001-of-00003"
    end = int(read_framing(path).offsets[7])
    path.write_bytes(path.read_bytes()[:end])
    refused(shards, tmp_path, "31 records; the spec (data.train_examples) says 36")


def test_tf_models_2383_labels_off_by_one_end_a_run_before_its_clock(
    tensorflow, tmp_path
):
    folder = tmp_path / "data"
    folder.mkdir()
    write_shards(folder, first_label=0)
    refused(folder, tmp_path, "off by one")


def test_files_that_a_manifest_vouches_for_are_not_read_again(shards):
    """The quick check, by design, trusts a manifest of files that have not changed
    since; a changed file is read again."""
    from mlperf_tpu.data.check import check

    counts = {"train": 36, "validation": 10}
    assert check(shards, counts, 1000, write_manifest=True).level == "bytes"
    assert check(shards, counts, 1000).level == "quick"
    os.utime(shards / "train-00001-of-00003", ns=(1, 1))
    assert check(shards, counts, 1000).level == "bytes"
