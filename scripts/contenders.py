"""What the scripts that measure a training step share: contenders in turns, each in a
process of its own (`SCRIPT --contender NAME`)."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlperf_tpu.mesh import cpu_is_faster_in_bf16

# What `train` computes in on this CPU. (The package's import also asks TensorFlow for
# oneDNN's kernels, for Keras as for ours.)
PRECISION = "bfloat16" if cpu_is_faster_in_bf16() else "float32"

Rounds = dict[str, list[float]]


def options_of(contenders: Mapping[str, tuple[Any, ...]]) -> argparse.Namespace:
    """The call's options. The process of a contender, (function, its arguments but the
    seconds), prints what it does a second, and ends here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--contender", choices=contenders)
    options = parser.parse_args()
    if options.contender:
        function, *arguments = contenders[options.contender]
        print(json.dumps(function(*arguments, options.seconds)))
        sys.exit()
    return options


def measure(script: str, name: str, seconds: float) -> float:
    command = [sys.executable, script, "--contender", name, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def in_turns(script: str, contenders: Mapping[str, Any], options: Any) -> Rounds:
    """Each round's rate of all contenders; PyTorch's only where it is installed."""
    torch_there = importlib.util.find_spec("torch") is not None
    rounds: Rounds = {
        name: [] for name in contenders if torch_there or "PyTorch" not in name
    }
    for _ in range(options.rounds):
        for name, values in rounds.items():
            values.append(measure(script, name, options.seconds))
            print(f"{name}: {values[-1]:.4g}", file=sys.stderr)
    return rounds


def medians(rounds: Rounds) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in rounds.items()}


def table(rounds: Rounds, unit: str) -> list[str]:
    """Medians, with the lowest and highest round."""
    lines = [f"| | {unit} | lowest | highest |", "|---|---|---|---|"]
    for name, median in medians(rounds).items():
        low, high = min(rounds[name]), max(rounds[name])
        lines.append(f"| {name} | {median:.4g} | {low:.4g} | {high:.4g} |")
    return lines


def publish(lines: list[str], out: Path | None) -> None:
    """Prints the results; keeps them where they were asked for."""
    text = "\n".join(lines) + "\n"
    print(text)
    if out:
        out.write_text(text)
