"""Runs, their endings and their resumption, on the proxy with the real code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main

# A run of 24 steps with an evaluation and a checkpoint every 4, of a network of
# ResNet-50's layers.
SHORT = [
    "model.stages=[[1, 64], [1, 128]]",
    "training.global_batch=24",
    "training.precision=float32",
    "training.length=24 steps",
    "evaluation.every=4 steps",
    "schedule.warmup=2 steps",
    "batch_norm.span=12 examples",
]
SET = [word for setting in SHORT for word in ("--set", setting)]
TRAIN = ["train", "resnet50", "--devices", "2", "--seed", "5", *SET]


@pytest.fixture
def mlperf_tpu(tensorflow):
    """Calls the command line in this process, on its mesh of 2 devices."""

    def call(*arguments):
        return CliRunner().invoke(main, [str(a) for a in arguments])

    return call


def folder_of(out):
    [folder] = out.glob("*/results/*/*")
    return folder


def records(log):
    return [
        json.loads(line.removeprefix(":::MLLOG "))
        for line in log.read_text().splitlines()
    ]


def values(log, key):
    return [r["value"] for r in records(log) if r["key"] == key]


@pytest.fixture(scope="module")
def uninterrupted(tensorflow, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted")
    done = CliRunner().invoke(main, [*TRAIN, "--out", str(out), "--json"])
    return done, folder_of(out)


def test_a_missed_target_ends_as_aborted_with_exit_1(uninterrupted):
    done, folder = uninterrupted
    assert done.exit_code == 1, done.output
    [run] = json.loads((folder / "summary.json").read_text())["runs"]
    assert (run["status"], run["reached"], run["steps"]) == ("aborted", False, 24)
    assert "below the target of 0.97" in run["reason"]
    assert records(folder / "result_0.txt")[-1]["metadata"]["status"] == "aborted"


def test_json_is_one_document_on_stdout(uninterrupted):
    done, folder = uninterrupted
    assert json.loads(done.stdout) == json.loads((folder / "summary.json").read_text())
    assert "training the proxy" in done.stderr.splitlines()[0]


def test_the_clock_starts_after_init_and_each_key_stands_once(uninterrupted):
    _, folder = uninterrupted
    log = folder / "result_0.txt"
    keys = [r["key"] for r in records(log)]
    order = ["cache_clear", "init_start", "init_stop", "run_start", "run_stop"]
    assert [keys.count(key) for key in order] == [1] * 5
    assert sorted(order, key=keys.index) == order
    assert values(log, "seed") == [5]


@pytest.fixture
def killed(tmp_path):
    """killed(signal, after): a run that got the signal once `after` checkpoints were
    written; (exit code, folder, stderr)."""

    def run(sent, after):
        process = subprocess.Popen(
            [sys.executable, "-m", "mlperf_tpu", *TRAIN, "--out", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob("step_*.npz"))) < after:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=120)
        return process.returncode, folder_of(tmp_path), output

    return run


def same_run(folder, whole):
    log, expected = folder / "result_0.txt", whole / "result_0.txt"
    assert values(log, "eval_accuracy") == values(expected, "eval_accuracy")
    keys = [r["key"] for r in records(log)]
    assert (keys.count("run_start"), keys.count("run_stop")) == (1, 1)
    [mine] = json.loads((folder / "summary.json").read_text())["runs"]
    [theirs] = json.loads((whole / "summary.json").read_text())["runs"]
    for field in ("quality", "steps", "epochs", "status"):
        assert mine[field] == theirs[field]


def test_a_killed_run_resumes_to_the_same_metrics(killed, uninterrupted, mlperf_tpu):
    code, folder, _ = killed(signal.SIGKILL, after=1)
    assert code == -signal.SIGKILL
    done = mlperf_tpu("train", "resnet50", "--resume", folder)
    assert done.exit_code == 1, done.output  # it misses the target, as the other does
    same_run(folder, uninterrupted[1])
    [resumed] = values(folder / "result_0.txt", "resumed")
    assert resumed in range(4, 24, 4)


def test_sigterm_ends_the_log_as_aborted_and_the_run_can_go_on(
    killed, uninterrupted, mlperf_tpu
):
    code, folder, output = killed(signal.SIGTERM, after=2)
    assert code == 1, output
    assert records(folder / "result_0.txt")[-1]["metadata"]["status"] == "aborted"
    assert "SIGTERM" in output
    # The newest checkpoint is damaged besides: the one before it serves.
    newest = max((folder / "checkpoints" / "result_0").glob("step_*.npz"))
    newest.write_bytes(newest.read_bytes()[:1000])
    done = mlperf_tpu("train", "resnet50", "--resume", folder)
    assert f"{newest.name} is truncated or damaged" in done.output
    same_run(folder, uninterrupted[1])


@pytest.fixture
def scored_late(monkeypatch):
    """scored_late(scores, step, then): the k-th evaluation's score comes in once the
    step `step[k]` is done, at which `then` is called."""
    from mlperf_tpu.benchmarks.resnet50.program import Program

    from mlperf_tpu.progress import Progress

    shown = Progress.step

    def arrange(scores, steps, then=lambda: None):
        came = {at: threading.Event() for at in steps}
        waiting = iter(zip(scores, steps, strict=True))

        def quality(self, found):
            score, at = next(waiting)
            assert came[at].wait(60)
            return score

        def step(self, number, *rest):
            shown(self, number, *rest)
            if number in came:
                came[number].set()
                then()

        monkeypatch.setattr(Program, "scored_by_host", True, raising=False)
        monkeypatch.setattr(Program, "quality", quality)
        monkeypatch.setattr(Progress, "step", step)

    return arrange


def test_a_score_that_comes_in_late_ends_the_block_at_hand(
    scored_late, mlperf_tpu, tmp_path
):
    scored_late([0.5, 0.99], [6, 10])
    done = mlperf_tpu(*TRAIN, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    log = folder_of(tmp_path) / "result_0.txt"
    keys = [r["key"] for r in records(log)]
    assert values(log, "eval_accuracy") == [0.5, 0.99]
    assert keys.count("block_start") == keys.count("block_stop") == 3
    [run] = json.loads((folder_of(tmp_path) / "summary.json").read_text())["runs"]
    assert run["quality"] == 0.99 and 10 <= run["steps"] <= 12


def test_a_score_that_was_lost_with_its_process_is_made_again(
    scored_late, mlperf_tpu, tmp_path
):
    stopping = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    scored_late([0.5], [6], stopping)
    done = mlperf_tpu(*TRAIN, "--out", tmp_path)
    assert done.exit_code == 1 and "SIGTERM" in done.output
    scored_late([0.99], [7])
    done = mlperf_tpu("train", "resnet50", "--resume", folder_of(tmp_path))
    assert done.exit_code == 0, done.output
    # Of the evaluation after step 4; block 2 is trained anew from there.
    log = folder_of(tmp_path) / "result_0.txt"
    last = [r for r in records(log) if r["key"] == "eval_accuracy"][-1]
    assert (last["value"], last["metadata"]["epoch_num"]) == (0.99, 1)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A folder as a run leaves it that was killed before its first checkpoint."""
    from mlperf_tpu.run_folder import RunFolder
    from mlperf_tpu.spec import load, resolve

    path = tmp_path_factory.mktemp("unfinished")
    resolved = resolve(load("resnet50"), task="proxy", settings=SHORT)
    record = {
        "resolved": resolved.record(),
        "place": "virtual",
        "devices": 2,
        "seeds": [5],
        "data_dir": None,
        "fake_data": False,
        "max_steps": None,
        "data": "another set's fingerprint",
    }
    RunFolder.create(path, record).close()
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "6"], "seeds is [6], but the run began with [5]"),
        (["--devices", "4"], "devices is 4, but the run began with 2"),
        (["--runs", "2"], "seeds is [5, 6]"),
        ([*SET, "--set", "optimizer.momentum=0.8"], "resolved.spec.optimizer.momentum"),
        ([], "data is "),
    ],
)
def test_a_change_is_refused_with_the_field_named(
    unfinished, mlperf_tpu, arguments, message
):
    done = mlperf_tpu("train", "resnet50", "--resume", unfinished, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (unfinished / "result_0.txt").exists()


def test_a_loss_that_is_no_number_ends_the_run_as_aborted(mlperf_tpu, tmp_path):
    done = mlperf_tpu(*TRAIN, "--out", tmp_path, "--set", "schedule.base_rate=1.0e30")
    assert done.exit_code == 1
    log = folder_of(tmp_path) / "result_0.txt"
    assert records(log)[-1]["metadata"]["status"] == "aborted"
    assert "the loss became" in done.output


def test_runs_have_seeds_of_their_own_and_a_finished_folder_is_kept(
    mlperf_tpu, tmp_path
):
    easy = ["--set", "rules.target.value=0.0"]
    done = mlperf_tpu(*TRAIN, "--out", tmp_path, "--runs", "2", *easy)
    assert done.exit_code == 0, done.output
    folder = folder_of(tmp_path)
    seeds = [values(folder / f"result_{i}.txt", "seed") for i in range(2)]
    assert seeds == [[5], [6]]
    before = {p: p.read_bytes() for p in folder.iterdir()}
    again = mlperf_tpu(*TRAIN, "--out", tmp_path)
    assert again.exit_code == 2
    assert "already holds a finished run; give another --out" in again.stderr
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


def test_the_full_task_runs_on_fake_data_and_its_log_ends_as_aborted(
    mlperf_tpu, tmp_path
):
    done = mlperf_tpu(
        *("train", "resnet50", "--task", "full", "--fake-data", "--max-steps", "1"),
        *("--devices", "2", "--out", tmp_path, "--set", "rules.round=0.6.0"),
        *("--set", "model.stages=[[1, 64], [1, 128]]"),
    )
    assert done.exit_code == 1, done.output
    lines = (folder_of(tmp_path) / "result_0.txt").read_text().splitlines()
    assert all(line.startswith(":::MLL ") for line in lines)
    assert '"aborted"' in lines[-1]
    assert "--max-steps 1 done" in done.output
    # Eight images a device, as on each core of the 4,096-chip run.
    [batch] = [line for line in lines if "global_batch_size" in line]
    assert '"value": 16,' in batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chips", "100"], "no published run of resnet50 on 100 chips"),
        (["--devices", "3"], "64 examples do not divide over 3 virtual devices"),
        (["--data-dir", "missing"], "--data-dir is for the published task"),
        (["--task", "full"], "--task full needs --data-dir DIR"),
        (["--task", "full", "--data-dir", "missing"], "missing is no folder"),
        (["--resume", "."], "is no run's folder"),
        (["--scale", "v0.6-1000"], "did you mean v0.6-1024"),
        (["--out", f"{__file__}/x"], "--out: cannot make"),
    ],
)
def test_a_wrong_call_is_refused_with_exit_2_and_nothing_written(
    mlperf_tpu, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    done = mlperf_tpu("train", "resnet50", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(unfinished, mlperf_tpu):
    from mlperf_tpu.run_folder import RunFolder

    holder = RunFolder.reopen(unfinished)
    done = mlperf_tpu("train", "resnet50", "--resume", unfinished)
    holder.close()
    assert done.exit_code == 2
    assert f"in use by another process (pid {os.getpid()})" in done.stderr


def test_no_room_for_checkpoints_ends_before_the_clock_starts(
    mlperf_tpu, tmp_path, monkeypatch
):
    import shutil

    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1 << 20)
    )
    done = mlperf_tpu(*TRAIN, "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert "checkpoints need 10 MiB, 1 MiB are free" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_proxy_reaches_its_target_and_the_official_checker_passes_its_log(
    run_python, tmp_path
):
    train = ["-m", "mlperf_tpu", "train", "resnet50", "--seed", 1, "--out", tmp_path]
    run_python(*train, timeout=1500)  # a CPU without AVX-512 needs 160 s for itself
    folder = folder_of(tmp_path)
    [run] = json.loads((folder / "summary.json").read_text())["runs"]
    assert run["quality"] >= 0.97
    assert run["epochs"] <= 14
    checker = ["-m", "mlperf_logging.compliance_checker", "--usage", "training"]
    rules = ["--ruleset", "0.7.0", "--werror", folder / "result_0.txt"]
    assert "SUCCESS" in run_python(*checker, *rules, cwd=tmp_path).stderr


def test_a_round_0_6_log_passes_the_official_checker_of_that_round(
    mlperf_tpu, run_python, tmp_path
):
    settings = (
        "rules.round=0.6.0",
        "rules.target.value=0.0",
        "evaluation.every=1 epochs",
    )
    extra = [w for s in (*settings, "training.global_batch=64") for w in ("--set", s)]
    extra += [
        "--set",
        "training.length=2 epochs",
        "--set",
        "batch_norm.span=32 examples",
    ]
    done = mlperf_tpu(*TRAIN, "--out", tmp_path, *extra)
    assert done.exit_code == 0, done.output
    checker = ["-m", "mlperf_logging.compliance_checker", "--usage", "training"]
    rules = ["--ruleset", "0.6.0", "--werror", folder_of(tmp_path) / "result_0.txt"]
    assert "SUCCESS" in run_python(*checker, *rules, cwd=tmp_path).stderr
