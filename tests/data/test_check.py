"""`mlperf-tpu data check`: what is wrong is said with file and byte, before a run."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.data.tfrecord import read_framing
from tests.data.imagenet_on_disk import (
    N_EVAL,
    N_TRAIN,
    SPEC,
    example,
    images,
    write_records,
    write_shards,
)

SET = [word for key, value in SPEC.items() for word in ("--set", f"{key}={value}")]


def check(folder, *arguments):
    call = ["data", "check", "resnet50", "--data-dir", folder, *SET, *arguments]
    return CliRunner().invoke(main, [str(word) for word in call])


def findings(folder, *arguments, severity="error"):
    """(exit code, the findings of a severity)."""
    done = check(folder, "--json", *arguments)
    found = json.loads(done.stdout)["findings"]
    return done.exit_code, [f for f in found if f["severity"] == severity]


@pytest.fixture
def shards(tensorflow, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_shards(folder)
    return folder


def cut_between_records(path, records):
    """Leaves so many records; returns the bytes left."""
    left = int(read_framing(path).offsets[records])
    path.write_bytes(path.read_bytes()[:left])
    return left


def rewrite(path, number, record):
    """Another record in the place of one, its checksums right."""
    import tensorflow as tf

    kept = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    write_records(path, [*kept[:number], record, *kept[number + 1 :]])
    return int(read_framing(path).offsets[number])


@pytest.mark.parametrize("folder", ["mlperf_shards", "tfds_folder"])
def test_a_whole_set_passes_and_its_odd_images_are_named(request, folder):
    done = check(request.getfixturevalue(folder), "--level", "decode", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert (report["schema"], report["ok"], report["level"]) == (1, True, "decode")
    assert [split["records"] for split in report["splits"]] == [N_TRAIN, N_EVAL]
    assert report["images"] == {"jpeg": 40, "png": 2, "cmyk": 2, "grey": 2}
    assert len(report["findings"]) == 4  # the PNGs and CMYK files
    assert all(f["file"] and f["offset"] is not None for f in report["findings"])


def test_a_reader_sees_a_summary(mlperf_shards):
    output = check(mlperf_shards).stdout
    assert "36 records in 3 files" in output
    assert "a PNG image" in output
    assert "ok: checked every byte, label and image header" in output


def test_tf_13463_a_flipped_bit_is_named_with_file_and_record(shards):
    path = shards / "validation-00001-of-00002"
    offset = int(read_framing(path).offsets[2])
    broken = bytearray(path.read_bytes())
    broken[offset + 500] ^= 16
    path.write_bytes(broken)
    code, [found] = findings(shards)
    assert code == 1
    assert (found["file"], found["offset"]) == (str(path), offset)
    assert "record 2 fails its checksum" in found["message"]
    # Headers and counts alone do not show it.
    assert findings(shards, "--level", "quick") == (0, [])


def test_tf_25700_what_follows_a_damaged_record_is_still_read(shards):
    """Two damaged records of a file are both named, and none of the others lost."""
    path = shards / "train-00001-of-00003"
    offsets = read_framing(path).offsets
    broken = bytearray(path.read_bytes())
    for number in (3, 11):
        broken[int(offsets[number]) + 100] ^= 1
    path.write_bytes(broken)
    done = check(shards, "--json")
    report = json.loads(done.stdout)
    found = [f["offset"] for f in report["findings"] if f["severity"] == "error"]
    assert (done.exit_code, found) == (1, [offsets[3], offsets[11]])
    assert sum(report["images"].values()) == N_TRAIN + N_EVAL - 2


def test_tf_13463_a_file_cut_inside_a_record_is_named(shards):
    path = shards / "train-00002-of-00003"
    offset = int(read_framing(path).offsets[-1])
    path.write_bytes(path.read_bytes()[:-9])
    code, found = findings(shards, "--level", "quick")
    assert code == 1
    [damage] = [f for f in found if f["kind"] == "damaged"]
    assert (damage["file"], damage["offset"]) == (str(path), offset)
    assert "truncated" in damage["message"]


def test_tf_571_a_cut_between_records_is_seen_by_the_manifest(shards):
    """The spec is made to agree with what is left, so that only the manifest tells."""
    assert check(shards, "--write-manifest").exit_code == 0
    path = shards / "train-00001-of-00003"
    left = cut_between_records(path, 7)
    agreeing = ["--set", f"data.train_examples={N_TRAIN - 5}"]
    code, [found] = findings(shards, "--level", "quick", *agreeing)
    assert code == 1
    assert (found["file"], found["offset"]) == (str(path), left)
    assert "7 records, 12 when" in found["message"]
    (shards / "mlperf-tpu-manifest.json").unlink()
    assert findings(shards, *agreeing) == (0, [])


def test_tf_571_a_cut_between_records_is_seen_by_tfds_own_counts(tfds_folder, tmp_path):
    folder = shutil.copytree(tfds_folder, tmp_path / "copy")
    path = next(folder.rglob("imagenet2012-train.tfrecord-00001-of-00003"))
    before = read_framing(path).n_records
    left = cut_between_records(path, before - 2)
    agreeing = ["--set", f"data.train_examples={N_TRAIN - 2}"]
    code, [found] = findings(folder, "--level", "quick", *agreeing)
    assert code == 1
    assert (found["file"], found["offset"]) == (str(path), left)
    assert f"dataset_info.json says {before}" in found["message"]


def test_tf_571_a_cut_between_records_is_seen_by_the_specs_counts(shards):
    cut_between_records(shards / "validation-00000-of-00002", 4)
    code, [found] = findings(shards, "--level", "quick")
    assert code == 1
    assert "9 records; the spec (data.eval_examples) says 10" in found["message"]


def test_a_manifest_names_a_file_that_was_replaced_added_or_removed(shards):
    assert check(shards, "--write-manifest").exit_code == 0
    first = shards / "train-00000-of-00003"
    kept = first.read_bytes()
    rewrite(first, 3, b"another")
    code, found = findings(shards, "--level", "quick")
    assert (code, found[0]["file"]) == (1, str(first))
    assert "are not the 12 of" in found[0]["message"]
    first.write_bytes(kept)
    assert findings(shards, "--level", "quick") == (0, [])
    first.unlink()
    code, found = findings(shards, "--level", "quick")
    assert code == 1
    assert {f["file"] for f in found if f["file"]} == {str(first)}


def test_a_manifest_elsewhere_is_written_and_read(shards, tmp_path):
    path = tmp_path / "manifest.json"
    assert check(shards, "--write-manifest", "--manifest", path).exit_code == 0
    assert not (shards / "mlperf-tpu-manifest.json").exists()
    cut_between_records(shards / "train-00001-of-00003", 7)
    _, found = findings(shards, "--manifest", path)
    assert "manifest" in {f["kind"] for f in found}


def test_no_manifest_is_written_of_damaged_files(shards):
    (shards / "train-00001-of-00003").write_bytes(b"")
    assert check(shards, "--write-manifest").exit_code == 1
    assert not (shards / "mlperf-tpu-manifest.json").exists()


@pytest.mark.parametrize(
    ("label", "message"),
    [(0, "count classes from 1"), (1001, "off by one"), (-7, "outside of 1..1000")],
)
def test_tf_models_2383_a_label_out_of_range_is_named(shards, label, message):
    path = shards / "train-00001-of-00003"
    record = example(images(4, 5)[3], label, "image/encoded", "image/class/label")
    offset = rewrite(path, 5, record)
    code, [found] = findings(shards)
    assert code == 1
    assert (found["file"], found["offset"]) == (str(path), offset)
    assert f"label {label} in 1 record" in found["message"]
    assert message in found["message"]


def test_tf_models_2383_shards_labelled_from_0_are_off_by_one(tensorflow, tmp_path):
    write_shards(tmp_path, first_label=0)
    code, [found] = findings(tmp_path)
    assert code == 1
    assert "label 0 in 3 records, outside of 1..1000: off by one" in found["message"]


@pytest.mark.parametrize(
    ("record", "level", "message"),
    [
        (b"no example", "bytes", "no example of an image"),
        ("cut", "bytes", "does not decode"),
        ("text", "bytes", "does not decode"),
        ("tables", "decode", "does not decode"),
    ],
)
def test_an_image_that_does_not_decode_is_named(shards, record, level, message):
    whole = images(4, 5)[3]
    broken = {
        "cut": whole[: len(whole) // 2],
        "text": b"<html>not found</html>",
        # Its header and its end are there; the quantization tables are comments.
        "tables": whole.replace(b"\xff\xdb", b"\xff\xfe"),
    }
    if isinstance(record, str):
        record = example(broken[record], 1, "image/encoded", "image/class/label")
    path = shards / "train-00000-of-00003"
    offset = rewrite(path, 5, record)
    code, [found] = findings(shards, "--level", level)
    assert code == 1
    assert (found["file"], found["offset"]) == (str(path), offset)
    assert message in found["message"]


def test_missing_files_are_named(shards):
    (shards / "train-00001-of-00003").unlink()
    code, found = findings(shards)
    assert code == 1
    assert found[0]["file"] == str(shards / "train-00001-of-00003")
    assert found[0]["message"] == "the file is missing"


@pytest.mark.parametrize(
    ("hosts", "severity", "message"),
    [
        (2, "warning", "train: 3 files do not divide over 2 hosts"),
        (11, "error", "validation: 11 hosts for 10 records; use fewer hosts"),
    ],
)
def test_files_are_set_against_the_hosts(mlperf_shards, hosts, severity, message):
    _, found = findings(mlperf_shards, "--hosts", hosts, severity=severity)
    assert found[0]["message"].startswith(message)


def test_the_hosts_are_those_of_the_published_run(mlperf_shards):
    done = check(mlperf_shards, "--chips", "16", "--json")
    assert json.loads(done.stdout)["hosts"] == 4


def test_many_findings_are_counted_and_json_has_all(tensorflow, tmp_path):
    write_shards(tmp_path)
    path = tmp_path / "train-00000-of-00003"
    write_records(path, [b"no example"] * 12)
    output = check(tmp_path).output
    assert output.count("no example of an image") == 5
    assert "error: 7 more of this kind (image)" in output
    assert len(findings(tmp_path)[1]) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data-dir", "missing"], "missing is no folder"),
        (["--data-dir", "."], "holds no train and validation files of ImageNet"),
        (["--level", "quick", "--write-manifest"], "leave --level out"),
        (["--set", "data.resize=null"], "data.resize: none, but ImageNet's images"),
        (["--set", "data.resize=nearest"], "data.resize"),
        (["--set", "data.classes=0"], "data.classes"),
    ],
)
def test_a_wrong_call_is_refused_with_exit_2(
    mlperf_shards, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    done = check(mlperf_shards, *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_file_that_is_no_manifest_is_refused(shards):
    (shards / "mlperf-tpu-manifest.json").write_text('{"schema": 2, "files": {}}')
    done = check(shards)
    assert done.exit_code == 2
    assert "is no manifest (schema 2, not 1)" in done.stderr


def test_tfds_classes_are_set_against_the_spec(tfds_folder):
    done = check(tfds_folder, "--set", "data.classes=1001")
    assert done.exit_code == 2
    assert "data.classes: the spec says 1001" in done.stderr
