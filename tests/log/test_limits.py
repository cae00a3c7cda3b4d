"""No input makes a traceback, a hang, another file's opening or much memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlperf_tpu.log import outputs
from mlperf_tpu.log.findings import PROFILES
from mlperf_tpu.log.score import run_score
from mlperf_tpu.log.validate import Options, validate

Records = list[dict[str, Any]]
FUZZ = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def judge_whole(path: Path) -> None:
    """Everything that is done with a log, for whatever it holds."""
    report = validate(path, Options(keep_run=True))
    outputs.text([report], PROFILES, notes=True)
    outputs.markdown([report], PROFILES)
    outputs.junit([report], PROFILES)
    json.loads(outputs.sarif([report]))
    json.dumps(report.document(), allow_nan=False)
    json.dumps(run_score(report).document(), allow_nan=False)


@FUZZ
@given(content=st.binary(max_size=2_000))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(content)
    judge_whole(path)


@FUZZ
@given(seed=st.integers(0, 2**32), cuts=st.integers(1, 8))
def test_mutated_bytes_of_a_log(
    records: Records,
    text: Callable[[Records], str],
    tmp_path: Path,
    seed: int,
    cuts: int,
) -> None:
    """Bytes replaced, doubled, removed, in one of the encodings a log may have."""
    rng = random.Random(seed)
    encoding = rng.choice(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
    content = bytearray(text(records).encode(encoding))
    for _ in range(cuts):
        at, n = rng.randrange(len(content)), rng.randrange(1, 60)
        pieces = (b"", rng.randbytes(n), bytes(content[at : at + n]) * 2, b"\0" * n)
        content[at : at + n] = rng.choice(pieces)
    path = tmp_path / "log.txt"
    path.write_bytes(content)
    judge_whole(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [10**400, -(10**400), 1e308, "1e999", "../../x", "closed", "bert"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["BBOX", "accuracy", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@FUZZ
@given(
    at=st.integers(0, 10_000),
    field=st.sampled_from(["value", "metadata", "time_ms", "key", "number"]),
    value=JSON,
)
def test_any_json_in_any_place(
    records: Records,
    text: Callable[[Records], str],
    tmp_path: Path,
    at: int,
    field: str,
    value: Any,
) -> None:
    one = records[at % len(records)]
    if field == "number":
        one["metadata"] = dict.fromkeys(
            ("epoch_num", "first_epoch_num", "status"), value
        )
    else:
        one[field] = value
    path = tmp_path / "log.txt"
    path.write_text(text(records), encoding="utf-8")
    judge_whole(path)


def peak_mb(path: Path, *options: str) -> tuple[float, int]:
    """(seconds, peak memory in MB) of the command line on one log."""
    code = (
        "import sys\n"
        "from mlperf_tpu.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        # ru_maxrss would count what pytest held when it forked.
        "for line in open('/proc/self/status'):\n"
        "    if line.startswith('VmHWM'):\n"
        "        print(int(line.split()[1]) // 1024, file=sys.stderr)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "validate", str(path), *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return time.monotonic() - began, int(done.stderr.split()[-1])


@pytest.mark.parametrize("key", ["eval_accuracy", "epoch_start", "lars_epsilon", "new"])
def test_memory_of_a_log_of_many_records(
    write: Any, records: Records, text: Any, new: Any, key: str
) -> None:
    """100,000 records of one key: what is kept of them is bounded."""
    head = text(records[:-1])
    line = text([new(key, 12345, 100, epoch_num=67890)])
    many = (
        line.replace("12345", f"0.{i:06d}").replace("67890", str(i))
        for i in range(100_000)
    )
    path = write(head + "".join(many) + text(records[-1:]))
    _, memory = peak_mb(path)
    assert memory <= 100


@pytest.mark.parametrize(
    "blob",
    [
        b"y" * (40 << 20),
        b"\r" * (20 << 20),
        b":::MLLOG " * 500_000,
        b':::MLLOG {"a":' * 200_000,
        b":::MLLOG {" + b'"a":[],' * 2_000_000,
        b":::MLL 1.0 a: {" + b"'" * 900_000,
    ],
    ids=["one line", "cr", "tokens", "torn", "huge record", "quotes"],
)
def test_memory_and_time_of_hostile_shapes(
    write: Any, records: Records, text: Any, blob: bytes
) -> None:
    path = write(text(records).encode() + blob)
    seconds, memory = peak_mb(path)
    assert memory <= 200
    assert seconds < 20  # Some take 1 s; the bound is for a busy machine.


def test_large_values_are_not_kept(write: Any, records: Records, text: Any) -> None:
    """Lists within the limit of a record, under many keys: 20 MB each as objects."""
    value = "[" + "[]," * 100_000 + "0]"
    head = '{"namespace": "", "time_ms": 1, "metadata": {}, '
    body = "".join(
        f':::MLLOG {head}"key": "k{i}", "value": {value}}}\n' for i in range(20)
    )
    _, memory = peak_mb(write(text(records) + body))
    assert memory <= 150


def test_start_up_imports_nothing_heavy(write: Any, records: Records) -> None:
    code = (
        "import sys\n"
        "from mlperf_tpu.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'tensorflow', 'numpy', 'scipy', 'pandas', 'matplotlib', 'pydantic',"
        " 'mlperf_logging', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    path = str(write(records))
    for command in (["validate", path], ["score", path], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]"
