"""Logs to test with: the published ones where they are at hand, and synthetic ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_data

Records = list[dict[str, Any]]


@pytest.fixture(scope="session")
def data() -> Path:
    found = shared_data()
    if found is None:
        pytest.skip("the published logs (../shared/data) are not at hand")
    return found


START_MS = 1_593_000_000_000
HYPERPARAMETERS: dict[str, Any] = {
    "global_batch_size": 4096,
    "opt_name": "lars",
    "lars_opt_base_learning_rate": 13.0,
    "lars_opt_end_learning_rate": 0.0001,
    "lars_opt_learning_rate_decay_poly_power": 2,
    "lars_opt_learning_rate_decay_steps": 12169,
    "lars_epsilon": 0.0,
    "lars_opt_learning_rate_warmup_epochs": 2,
    "lars_opt_momentum": 0.9,
    "lars_opt_weight_decay": 0.0002,
    "seed": 1234,
    "train_samples": 1281167,
    "eval_samples": 50000,
}


def record(
    key: str, value: Any = None, at_s: float = 0.0, **metadata: Any
) -> dict[str, Any]:
    return {
        "namespace": "",
        "time_ms": START_MS + round(at_s * 1000),
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }


@pytest.fixture
def new() -> Callable[..., dict[str, Any]]:
    """Makes a record: key, value, seconds after the log's start, metadata."""
    return record


@pytest.fixture
def records() -> Records:
    """A v0.7 ResNet-50 log that breaks no rule: 40 epochs, an evaluation every 4."""
    log = [
        record("submission_benchmark", "resnet"),
        record("submission_org", "ACME"),
        record("submission_division", "closed"),
        record("submission_status", "onprem"),
        record("submission_platform", "tpu-v3-32"),
        record("cache_clear", True),
        record("init_start", None, 1),
        *(record(key, value, 2) for key, value in HYPERPARAMETERS.items()),
        record("init_stop", None, 90),
        record("run_start", None, 91),
    ]
    for block in range(10):
        first, begin = 4 * block + 1, 91 + 40.0 * block
        accuracy = 0.76 if block == 9 else 0.4 + 0.035 * block
        log += [
            record("block_start", None, begin, first_epoch_num=first, epoch_count=4),
            record("eval_start", None, begin + 35, epoch_num=first + 3),
            record("eval_accuracy", accuracy, begin + 38, epoch_num=first + 3),
            record("eval_stop", None, begin + 38, epoch_num=first + 3),
            record("block_stop", None, begin + 39, first_epoch_num=first),
        ]
    log.append(record("run_stop", None, 490.5, status="success"))
    return copy.deepcopy(log)


def lines_of(records: Records) -> str:
    return "".join(f":::MLLOG {json.dumps(one)}\n" for one in records)


@pytest.fixture
def text() -> Callable[[Records], str]:
    return lines_of


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes records, text or bytes to a file and gives its path."""

    def write_log(content: Records | str | bytes, name: str = "result_0.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = lines_of(content)
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        return path

    return write_log


@pytest.fixture
def of(records: Records) -> Callable[[str], dict[str, Any]]:
    """The first record of a key in `records`, to change."""
    return lambda key: next(one for one in records if one["key"] == key)
