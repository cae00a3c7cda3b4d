"""The official profile against the real checker: on mutated logs, and in its child."""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlperf_logging.compliance_checker import mlp_compliance

from mlperf_tpu.log.validate import Options, validate

Records = list[dict[str, Any]]

# Where a verdict is mended: the real checker passes logs that are wrong by the clock.
MENDED = {"clock.duration", "target.after_run_stop", "record.glued"}
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, "", "x", "0.0001", 0.0001, 2, 1e9, float("nan"), [],
    [1, 2], [40, 50], {}, {"BBOX": 0.4, "SEGM": 0.4}, {"BBOX": 0.4}, 0.76, 0.3,
    "closed", "open", "resnet", "bert", 10**30, "lars", "sgd", "adam", 8192, 50000,
)  # fmt: skip
KEYS = (
    "eval_accuracy", "opt_name", "run_start", "run_stop", "init_start", "train_samples",
    "lars_epsilon", "submission_benchmark", "submission_division", "unknown", 3, None,
)  # fmt: skip
NAMES = ("epoch_num", "status", "first_epoch_num", "epoch_count", "method")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def real_verdict(path: Path, name: str) -> tuple[str, list[str]]:
    """pass, fail or crash, and the checker's messages."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", name, False, False)
    try:
        good = mlp_compliance.main(str(path), f"training_{name}/common.yaml", checker)[
            0
        ]
    except Exception as error:
        return "crash", [repr(error)]
    messages = [*checker.overwritable.values(), *checker.not_overwritable]
    return ("pass" if good else "fail"), messages


def agrees(real: str, messages: list[str], report: Any) -> bool:
    mine = report.verdicts["official"]
    mended = any(f.rule in MENDED and "official" in f.profiles for f in report.findings)
    if real == "crash":
        # It wants bert's batch before the first evaluation; anywhere will do.
        return mine == "fail" or messages == ["KeyError('global_batch_size')"]
    if mine == "not_converged":
        # A run that says it was aborted is excused the target, nothing else.
        return all("Failed checks for eval_accuracy" in m for m in messages)
    return real == mine or (real == "pass" and mended)


def mutate(lines: list[str], rng: random.Random, load: Any, dump: Any) -> list[str]:
    lines = list(lines)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(lines))
        one = load(lines[at])
        if one is None:
            continue
        lines[at : at + 1] = _mutations(one, lines, at, rng, dump)
    return lines


def _mutations(
    one: dict[str, Any], lines: list[str], at: int, rng: random.Random, dump: Any
) -> list[str]:
    line, kind = lines[at], rng.randrange(11)
    metadata = one["metadata"]
    if kind == 0:
        return []
    if kind == 1:
        return [line, line]
    if kind == 2:
        other = rng.randrange(len(lines))
        lines[other], line = line, lines[other]
        return [line]
    if kind == 3:
        return [line + rng.choice([" ", "x", "\t", " text", "}"])]
    if kind == 4:
        return [rng.choice(["0: ", "[1,0]<stdout>:", "\xe9"]) + line]
    if kind == 5:
        return [line[: rng.randrange(len(line))]]
    if kind == 6:
        one["value"] = rng.choice(VALUES)
    elif kind == 7 and isinstance(metadata, dict):
        metadata[rng.choice(NAMES)] = rng.choice([*VALUES, "success", "aborted"])
    elif kind == 8 and isinstance(metadata, dict) and metadata:
        metadata.pop(rng.choice(list(metadata)))
    elif kind == 9:
        one["key"] = rng.choice(KEYS)
    else:
        one["metadata"] = rng.choice([None, [], "epoch_num", {}, 3])
        return [line, dump(one)]
    return [dump(one)]


def load_07(line: str) -> dict[str, Any] | None:
    _, token, body = line.partition(":::MLLOG ")
    try:
        return json.loads(body) if token else None
    except ValueError:
        return None


def dump_07(one: dict[str, Any]) -> str:
    return f":::MLLOG {json.dumps(one)}"


def load_06(line: str) -> dict[str, Any] | None:
    head, _, body = line.partition(": ")
    try:
        _, time, key = head.split(" ")
        return {"time": time, "key": key, **json.loads(body)}
    except ValueError:
        return None


def dump_06(one: dict[str, Any]) -> str:
    body = {"value": one.get("value"), "metadata": one.get("metadata")}
    return f":::MLL {one['time']} {one['key']}: {json.dumps(body)}"


def check_against(
    lines: list[str], seed: int, path: Path, name: str, load: Any, dump: Any
) -> None:
    content = "\n".join(mutate(lines, random.Random(seed), load, dump)) + "\n"
    path.write_text(content, encoding="latin-1")
    real, messages = real_verdict(path, name)
    report = validate(path, Options(ruleset=name))
    assert agrees(real, messages, report), (
        real, messages[:2], report.verdicts, [f.rule for f in report.findings],
    )  # fmt: skip


FUZZ = settings(
    max_examples=120,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_mutated_v07_logs(
    records: Records, text: Callable[[Records], str], tmp_path: Path, seed: int
) -> None:
    lines = text(records).splitlines()
    check_against(lines, seed, tmp_path / "log.txt", "0.7.0", load_07, dump_07)


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_mutated_published_v07_logs(data: Path, tmp_path: Path, seed: int) -> None:
    logs = sorted((data / "logs" / "v0.7").glob("*/*/*/result_1.txt"))
    logs = [path for path in logs if path.stat().st_size < 60_000]
    path = logs[seed % len(logs)]
    lines = path.read_text(encoding="latin-1").splitlines()
    check_against(lines, seed, tmp_path / "log.txt", "0.7.0", load_07, dump_07)


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_mutated_v06_logs(data: Path, tmp_path: Path, seed: int) -> None:
    path = data / "odd_logs" / "f01_v06_ok.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    check_against(lines, seed, tmp_path / "log.txt", "0.6.0", load_06, dump_06)


# The child process.


def test_the_tool_is_asked_and_agrees(write: Any, records: Records) -> None:
    report = validate(write(records), Options(official_tool=True))
    assert report.official_tool == {"verdict": "pass", "reason": "", "agrees": True}


def test_a_disagreement_is_said(write: Any, records: Records, new: Any) -> None:
    records[-1] = new("run_stop", None, -5, status="success")
    report = validate(write(records), Options(official_tool=True))
    assert report.official_tool is not None
    assert report.official_tool["verdict"] == "pass"
    assert not report.official_tool["agrees"]


def test_a_crash_of_the_tool_is_said(write: Any, records: Records, of: Any) -> None:
    of("eval_accuracy")["value"] = None
    report = validate(write(records), Options(official_tool=True))
    assert report.official_tool is not None
    assert report.official_tool["verdict"] == "crash"
    assert "TypeError" in report.official_tool["reason"]


def test_later_rounds_give_the_tools_findings_in_our_form(
    write: Any, records: Records, of: Any
) -> None:
    of("init_stop")["time_ms"] += 40 * 60_000
    report = validate(write(records), Options(ruleset="2.0.0"))
    assert report.verdicts["official"] == "fail"
    late = next(f for f in report.findings if f.rule == "init_stop.check")
    line = [r["key"] for r in records].index("init_stop") + 1
    assert late.places[0].line == line
    missing = next(f for f in report.findings if "gradient" in f.rule)
    assert missing.expected == "exactly one gradient_accumulation_steps"


def test_later_rounds_are_judged_by_the_clock_too(
    write: Any, records: Records, new: Any
) -> None:
    records[-1] = new("run_stop", None, 5, status="success")
    records.append(new("gradient_accumulation_steps", 1, 2))
    report = validate(write(records), Options(ruleset="1.0.0"))
    assert report.official_tool is not None
    assert report.official_tool["verdict"] == "pass"
    assert report.verdicts["official"] == "fail"


@pytest.mark.parametrize("name", ["3.0.0", "6.1.0"])
def test_later_rounds_refuse_a_benchmark_they_have_no_rules_of(
    write: Any, records: Records, of: Any, name: str
) -> None:
    of("submission_benchmark")["value"] = "../" * 30 + "tmp/x"
    report = validate(write(records), Options(ruleset=name))
    assert report.verdicts["official"] == "fail"
    assert report.official_tool is not None
    assert report.official_tool["verdict"] == "refused"


def test_the_round_of_a_later_benchmark_is_inferred(
    write: Any, records: Records, of: Any
) -> None:
    of("submission_benchmark")["value"] = "flux1"
    report = validate(write(records))
    assert report.ruleset == "5.1.0"
    assert "flux1" in report.inferred


def test_a_later_round_of_an_old_benchmark_is_inferred_by_its_keys(
    write: Any, records: Records, new: Any
) -> None:
    records.append(new("gradient_accumulation_steps", 1, 2))
    assert validate(write(records)).ruleset == "0.7.0"
    for one in records:
        one["time_ms"] += 330 * 24 * 3_600_000  # May 2021
    assert validate(write(records)).ruleset == "1.0.0"
    assert validate(write(records[:-1])).ruleset == "0.7.0"


def test_the_child_may_not_open_other_files(tmp_path: Path) -> None:
    """Its guard, tried alone: reading, writing and starting programs are refused."""
    import subprocess

    from mlperf_tpu.log import official_child

    secret = tmp_path / "secret"
    secret.write_text("x")
    log = tmp_path / "log"
    log.write_text("the log")
    code = (
        "import os, runpy, sys\n"
        f"child = runpy.run_path({official_child.__file__!r})\n"
        f"child['guard']({str(log)!r}, [os.path.dirname(os.__file__)])\n"
        f"print(open({str(log)!r}).read())\n"
        "for act in (lambda: open(sys.argv[1]), lambda: open(sys.argv[2], 'w'),\n"
        "            lambda: os.system('true'),\n"
        "            lambda: os.execv('/bin/true', ('x',))):\n"
        "    try:\n"
        "        act()\n"
        "        print('allowed')\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
    )
    command = [sys.executable, "-I", "-c", code, str(secret), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:5] == ["the log", *["refused"] * 4]


def test_the_tool_has_a_time_limit(write: Any, records: Records) -> None:
    """Slowed down by size: this log takes the real checker seconds."""
    many = [{**records[0], "key": "tracked_stats"}] * 30_000
    report = validate(
        write([*records, *many]), Options(official_tool=True, seconds=0.3)
    )
    assert report.official_tool is not None
    assert report.official_tool["verdict"] == "timeout"
    assert report.verdicts["official"] == "pass"
