"""Measures how soon the commands that only read answer, against importing TensorFlow.

    python scripts/bench_startup.py [--rounds 9] [--out results/startup.md]

Each call is a process of its own, the calls take turns, and a figure is the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TENSORFLOW = ["-c", "import tensorflow"]
COMMANDS = {
    "import tensorflow": TENSORFLOW,
    "mlperf-tpu --help": ["-m", "mlperf_tpu", "--help"],
    "mlperf-tpu list": ["-m", "mlperf_tpu", "list"],
    "mlperf-tpu show resnet50 --chips 1024": [
        *("-m", "mlperf_tpu", "show", "resnet50", "--chips", "1024")
    ],
}
LIMIT_S, LIMIT_RATIO = 0.5, 0.15


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds = [
        {name: seconds(arguments) for name, arguments in COMMANDS.items()}
        for _ in range(options.rounds)
    ]
    medians = {name: statistics.median(r[name] for r in rounds) for name in COMMANDS}
    base = medians["import tensorflow"]
    lines = [
        "# Start-up, seconds",
        "",
        f"`python scripts/bench_startup.py --rounds {options.rounds}` on "
        f"{os.cpu_count()} CPU cores; medians. Aim: under {LIMIT_S} s, and at most "
        f"{LIMIT_RATIO} x the import of TensorFlow.",
        "",
        "| | seconds | x import tensorflow | |",
        "|---|---|---|---|",
    ]
    for name, median in medians.items():
        verdict = "reached" if median < min(LIMIT_S, LIMIT_RATIO * base) else "missed"
        if name == "import tensorflow":
            verdict = ""
        lines.append(f"| `{name}` | {median:.3f} | {median / base:.3f} | {verdict} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
