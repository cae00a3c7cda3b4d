"""Times `validate` against mlperf_logging's checker; gives `compare`'s rates of error.

    python scripts/bench_log_tools.py --data ../shared/data --out results/log_tools.md

Every time is of a whole process, start-up included, the tools in turn on the same
files; the least of the rounds counts. The official checker takes one file a call, so
the 311 logs cost it 311 calls, as they do its users; that cost is also given without
start-up, all files in one process. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROUNDS = 3
OFFICIAL = """
import logging, sys
from mlperf_logging.compliance_checker import mlp_compliance
logging.disable(logging.CRITICAL)
for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", name, False, False)
    try:
        mlp_compliance.main(path, f"training_{name}/common.yaml", checker)
    except Exception:
        pass
"""


def call(command: Sequence[str]) -> tuple[float, float]:
    """(seconds, peak memory in MB) of one process and its children's largest."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,  # With it, a vfork: the child's peak is its own.
    )
    _, _, usage = os.wait4(process.pid, 0)
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def ours(*paths: Path) -> list[str]:
    return [sys.executable, "-m", "mlperf_tpu", "validate", *map(str, paths)]


def official(name: str, path: Path) -> list[str]:
    module = "mlperf_logging.compliance_checker"
    options = ["--ruleset", name, "--log_output", os.devnull]
    return [sys.executable, "-m", module, *options, str(path)]


def least(
    measure: Callable[[], tuple[float, float]], rounds: int
) -> tuple[float, float]:
    return min(measure() for _ in range(rounds))


def make_log(path: Path, n_records: int) -> None:
    """A log that passes v0.7: ResNet-50, with records of a kind that runs do log."""
    start_ms = 1_593_000_000_000

    def line(key: str, value: object, at_ms: int, **metadata: object) -> str:
        record = {
            "namespace": "",
            "time_ms": start_ms + at_ms,
            "event_type": "POINT_IN_TIME",
            "key": key,
            "value": value,
            "metadata": {"file": "train.py", "lineno": 213, **metadata},
        }
        return f":::MLLOG {json.dumps(record)}\n"

    values = {
        "submission_benchmark": "resnet", "submission_org": "ACME",
        "submission_division": "closed", "submission_status": "onprem",
        "submission_platform": "x", "cache_clear": True, "init_start": None,
        "global_batch_size": 4096, "opt_name": "lars",
        "lars_opt_base_learning_rate": 13.0, "lars_opt_end_learning_rate": 0.0001,
        "lars_opt_learning_rate_decay_poly_power": 2, "lars_epsilon": 0.0,
        "lars_opt_learning_rate_decay_steps": 12169, "lars_opt_momentum": 0.9,
        "lars_opt_learning_rate_warmup_epochs": 2, "lars_opt_weight_decay": 0.0002,
        "train_samples": 1281167, "eval_samples": 50000, "init_stop": None,
        "run_start": None,
    }  # fmt: skip
    kinds = ("throughput", "loss", "learning_rate", "tracked_stats")
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line(key, value, 1) for key, value in values.items())
        body = n_records - len(values) - 1 - 3 * 10
        for block in range(10):
            epoch = {"first_epoch_num": 4 * block + 1, "epoch_count": 4}
            at = 1000 * (block + 1)
            file.write(line("block_start", None, at, **epoch))
            for i in range(body // 10 + (block < body % 10)):
                file.write(line(kinds[i % 4], 0.5 + i, at, step=i))
            accuracy = 0.76 if block == 9 else 0.4
            file.write(line("eval_accuracy", accuracy, at, epoch_num=4 * block + 4))
            file.write(line("block_stop", None, at, **epoch))
        file.write(line("run_stop", None, 20_000, status="success"))


def one_log(folder: Path, n_records: int, rounds: int) -> list[str]:
    path = folder / f"{n_records}.txt"
    make_log(path, n_records)
    mine, mine_mb = least(lambda: call(ours(path)), rounds)
    theirs, theirs_mb = least(lambda: call(official("0.7.0", path)), rounds)
    path.unlink()
    return [
        f"one log of {n_records:,} records",
        f"{mine:.2f} s, {mine_mb:.0f} MB",
        f"{theirs:.2f} s, {theirs_mb:.0f} MB",
        f"{theirs / mine:.1f} x",
    ]


def published_logs(data: Path, rounds: int) -> list[list[str]]:
    """All logs: ours in one call; theirs in a call each, and in one process."""
    folder = data / "logs"
    logs = sorted(folder.rglob("result_*.txt"))
    named = [("0.6.0" if "v0.6" in path.parts else "0.7.0", path) for path in logs]
    mine, mine_mb = least(lambda: call(ours(folder)), rounds)
    each = [call(official(name, path)) for name, path in named]
    theirs, theirs_mb = sum(s for s, _ in each), max(mb for _, mb in each)
    flat = [word for name, path in named for word in (name, str(path))]
    inside, inside_mb = least(
        lambda: call([sys.executable, "-c", OFFICIAL, *flat]), rounds
    )
    what = f"the {len(logs)} published logs at once"
    cell = f"{mine:.2f} s, {mine_mb:.0f} MB"
    return [
        [what, cell, f"{theirs:.2f} s, {theirs_mb:.0f} MB", f"{theirs / mine:.1f} x"],
        [
            f"{what}, the checker in one process",
            cell,
            f"{inside:.2f} s, {inside_mb:.0f} MB",
            f"{inside / mine:.1f} x",
        ],
    ]


def start_up(rounds: int) -> list[str]:
    mine, mb = least(
        lambda: call([sys.executable, "-m", "mlperf_tpu", "validate", "--help"]), rounds
    )
    return ["start-up: validate --help", f"{mine:.2f} s, {mb:.0f} MB", "-", "-"]


def alarm_rate(n: int, cv: float, slowdown: float, draws: int, seed: int = 0) -> float:
    """Share of draws that `compare` calls a regression: log-normal runs, n a side.

    Time and time per epoch vary apart, so that two metrics can raise an alarm.
    """
    from mlperf_tpu.compare import GATING
    from mlperf_tpu.compare.stats import Limits, judge_metrics

    rng, sigma, alarms = random.Random(seed), math.sqrt(math.log1p(cv * cv)), 0
    for _ in range(draws):
        pairs = {
            name: (
                [math.exp(rng.gauss(0, sigma)) for _ in range(n)],
                [slowdown * math.exp(rng.gauss(0, sigma)) for _ in range(n)],
            )
            for name in ("time_to_train_s", "s_per_epoch")
        }
        pairs["epochs"] = ([40.0] * n, [40.0] * n)
        found = judge_metrics(pairs, GATING, Limits())
        alarms += any(metric.decision == "regression" for metric in found)
    return alarms / draws


def alarm_rates(draws: int) -> list[list[str]]:
    """False alarms and power of `compare`."""
    rows = []
    for n in (3, 5, 10):
        for cv in (0.005, 0.10):
            power = [alarm_rate(n, cv, s, draws // 10) for s in (1.02, 1.05, 1.10)]
            rates = (alarm_rate(n, cv, 1.0, draws), *power)
            rows.append([f"{n}", f"{cv:.1%}", *(f"{rate:.2%}" for rate in rates)])
    return rows


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder that holds logs/")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--draws", type=int, default=10_000)
    options = parser.parse_args()
    rows = [start_up(options.rounds)]
    with tempfile.TemporaryDirectory() as folder:
        for n_records, rounds in (
            (10_000, options.rounds),
            (100_000, options.rounds),
            (1_000_000, 1),
        ):
            rows.append(one_log(Path(folder), n_records, rounds))
    if options.data is not None:
        rows += published_logs(options.data, options.rounds)
    text = "\n".join(
        [
            "# Log tools: speed, memory, and how often compare errs",
            "",
            f"Made by scripts/bench_log_tools.py on {os.cpu_count()} cores of "
            f"{platform.machine()}, Python {platform.python_version()}; whole "
            "processes, start-up included, the least of the rounds. Only the ratios "
            "carry over.",
            "",
            table(("what", "validate", "official checker", "ratio"), rows),
            "",
            f"`compare`, {options.draws:,} draws of log-normal runs; share of draws "
            "that it calls a regression (margin 1 %, alpha 0.05):",
            "",
            table(
                ("runs a side", "CV", "no change", "+2 %", "+5 %", "+10 %"),
                alarm_rates(options.draws),
            ),
            "",
        ]
    )
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
