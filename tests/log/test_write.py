"""The log writer: both rounds' lines, whole records, room for the end."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from mlperf_tpu.log.write import RunLog


def lines(path):
    return path.read_text().splitlines()


def test_round_0_7_writes_mllog_lines_that_name_the_caller(tmp_path):
    log = RunLog(tmp_path / "result_0.txt", "0.7.0")
    log.event("global_batch_size", np.int64(64))
    log.close()
    [line] = lines(tmp_path / "result_0.txt")
    record = json.loads(line.removeprefix(":::MLLOG "))
    assert record["key"] == "global_batch_size"
    assert record["value"] == 64
    assert record["metadata"]["file"].endswith("test_write.py")


def test_round_0_6_writes_mll_lines_in_seconds(tmp_path):
    log = RunLog(tmp_path / "result_0.txt", "0.6.0")
    log.end("run_stop", status="success")
    log.close()
    [line] = lines(tmp_path / "result_0.txt")
    tag, seconds, key, content = line.split(" ", 3)
    assert (tag, key) == (":::MLL", "run_stop:")
    assert float(seconds) > 1e9
    assert json.loads(content)["metadata"]["status"] == "success"


def test_cosmoflow_39_epochs_are_counted_from_0_inside_and_from_1_in_the_file(tmp_path):
    log = RunLog(tmp_path / "r.txt", "0.7.0")
    log.start("block_start", first_epoch_num=0, epoch_count=4)
    log.event("eval_accuracy", 0.5, epoch_num=3)
    log.close()
    first, second = (
        json.loads(line.removeprefix(":::MLLOG "))["metadata"]
        for line in lines(tmp_path / "r.txt")
    )
    assert (first["first_epoch_num"], first["epoch_count"]) == (1, 4)
    assert second["epoch_num"] == 4


def test_float32_noise_is_cut_and_nan_is_no_bare_word(tmp_path):
    log = RunLog(tmp_path / "r.txt", "0.7.0")
    log.event("lars_opt_end_learning_rate", np.float32(1e-4))
    log.event("loss", float("nan"))
    log.close()
    first, second = lines(tmp_path / "r.txt")
    assert json.loads(first.removeprefix(":::MLLOG "))["value"] == 0.0001
    assert '"value": "nan"' in second


def test_a_value_that_is_no_json_is_an_error_not_a_missing_record(tmp_path):
    log = RunLog(tmp_path / "r.txt", "0.7.0")
    with pytest.raises(ValueError, match="Failed to encode"):
        log.event("key", object())
    log.close()


def test_an_existing_log_is_not_overwritten(tmp_path):
    (tmp_path / "r.txt").write_text("a log\n")
    with pytest.raises(FileExistsError):
        RunLog(tmp_path / "r.txt", "0.7.0")
    assert (tmp_path / "r.txt").read_text() == "a log\n"


def test_a_resumed_log_goes_on_after_the_last_record_of_the_checkpoint(tmp_path):
    log = RunLog(tmp_path / "r.txt", "0.7.0")
    log.event("kept")
    offset = log.offset()
    log.event("lost")
    log.write_line(b':::MLLOG {"torn')
    log.close()
    log = RunLog(tmp_path / "r.txt", "0.7.0", offset)
    log.event("resumed", 5)
    log.close()
    keys = [json.loads(line[9:])["key"] for line in lines(tmp_path / "r.txt")]
    assert keys == ["kept", "resumed"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_the_end_is_written_on_a_full_disk(tmp_path, run_python):
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    try:
        log = RunLog(disk / "r.txt", "0.7.0")
        log.start("run_start")
        try:
            with (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
        except OSError:
            pass
        for _ in range(50):  # past what is left of the log's last page
            log.event("eval_accuracy", 0.5, epoch_num=0)
        log.end("run_stop", status="aborted")
        log.close()
        assert '"run_stop"' in lines(disk / "r.txt")[-1]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
