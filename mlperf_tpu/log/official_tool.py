"""The real mlperf_logging checker, asked in a guarded child process.

Its rules are Python that it executes, and a value of the log chooses which file they
come from; it may also crash, hang or fill the memory (mlperf_rules.md, section 2.5). So
it runs in a child that may open nothing but Python's own files and the log, for a
limited time, with limited memory, and only when the log names a known benchmark.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import nearest
from mlperf_tpu.log.findings import OFFICIAL, Findings, shown
from mlperf_tpu.log.rulesets import OWN, rounds, ruleset
from mlperf_tpu.log.run import Run

# The official checker holds a whole log as objects: 1.8 GB for 1,000,000 records.
MEMORY_MB = 160
DIVISIONS = ("closed", "open")


def consult(
    path: Path, name: str, run: Run, findings: Findings, seconds: float
) -> dict[str, Any]:
    """Runs the checker of ruleset `name` on a log; what it says goes into `findings`.

    Its findings count where `name` is a round that this package has no rules of.
    Returns {verdict, reason}: pass, fail, crash, timeout, refused or missing.
    """
    refusal = _refusal(name, run, findings, counts=name not in OWN)
    if refusal:
        return {"verdict": "refused", "reason": refusal}
    answer = _ask(path, name, seconds)
    if name not in OWN:
        _report(name, answer, findings)
    return {"verdict": answer["verdict"], "reason": _reason(answer)}


def _refusal(name: str, run: Run, findings: Findings, *, counts: bool) -> str:
    """Why a log is not shown to the checker, which would open a file of such a name."""
    known = ruleset(name).benchmarks if name in OWN else rounds()[name].benchmarks
    named = [("submission_benchmark", known), ("submission_division", DIVISIONS)]
    if run.benchmark == "resnet":
        named.append(("opt_name", ("sgd", "lars")))
    for key, choices in named:
        values = run.values.get(key)
        for kept in values.kept if values else ():
            if kept.value in choices:
                continue
            text = str(kept.value)[:64]
            if counts:
                findings.add(
                    f"{key}.choice",
                    "error",
                    ("official", "rules"),
                    expected=f"one of {', '.join(choices)}",
                    actual=shown(kept.value),
                    line=kept.line,
                    column=kept.column,
                    hint=nearest(text.lower(), choices).split(" Known")[0],
                )
            return (
                f"{key} {shown(kept.value)}: the checker would open a file named by it"
            )
    return ""


def _ask(path: Path, name: str, seconds: float) -> dict[str, Any]:
    found = importlib.util.find_spec("mlperf_logging")
    if found is None or not found.submodule_search_locations:
        return {"verdict": "missing", "error": "mlperf_logging is not installed"}
    command = [
        sys.executable,
        "-I",
        str(Path(__file__).with_name("official_child.py")),
        name,
        str(path.absolute()),
        str(MEMORY_MB),
        str(int(seconds) + 1),
        str(Path(next(iter(found.submodule_search_locations))).parent),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"verdict": "timeout", "error": f"no answer within {seconds:g} s"}
    try:
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
    except (ValueError, AssertionError):
        how = f"exit {done.returncode}"
        return {"verdict": "crash", "error": f"the checker ended early ({how})"}
    return answer


def _reason(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"])[:300]
    messages = answer.get("messages", [])
    return str(messages[0]["actual"])[:300] if messages else ""


def _report(name: str, answer: dict[str, Any], findings: Findings) -> None:
    if answer["verdict"] in ("pass", "fail"):
        for message in answer["messages"]:
            findings.add(
                f"{message['key'] or 'log'}.{message['kind']}",
                "warning" if message["warning"] else "error",
                OFFICIAL,
                expected=message["expected"],
                actual=message["actual"],
                line=message["line"],
                hint=f"from the official checker of {name}",
            )
        return
    hints = {
        "missing": "install mlperf-logging",
        "timeout": "raise --time-limit",
    }
    findings.add(
        f"official.{answer['verdict']}",
        "error",
        OFFICIAL,
        expected=f"a verdict of the official checker of {name}",
        actual=str(answer.get("error", ""))[:300],
        hint=hints.get(answer["verdict"], "see the other findings for the cause"),
    )
