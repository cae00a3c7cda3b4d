"""One log, judged: which ruleset, which findings, which verdict in each profile."""

from __future__ import annotations

import datetime
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_tpu.log import clock, judge, source
from mlperf_tpu.log.findings import PROFILES, Finding, Findings, Profile, Verdict, shown
from mlperf_tpu.log.read import LogReader
from mlperf_tpu.log.records import TOKENS, Format
from mlperf_tpu.log.rulesets import (
    OWN,
    check_name,
    later_keys,
    rounds,
    ruleset,
)
from mlperf_tpu.log.run import EVENT_KEYS, Run
from mlperf_tpu.log.verifier import Verifier

# Files of more bytes than this, together, are worth a second process.
PARALLEL_BYTES = 4 << 20


@dataclass
class FileReport:
    """What is known of one log. `run` holds its facts, None for an unreadable one."""

    path: str
    ruleset: str
    inferred: str  # why this ruleset, empty where it was asked for
    benchmark: str | None
    verdicts: dict[Profile, Verdict]
    findings: list[Finding]
    run: Run | None = None
    official_tool: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """The report as design.md lays down for `--json`."""
        document: dict[str, Any] = {
            "path": self.path,
            "ruleset": self.ruleset,
            "ruleset_inferred": self.inferred,
            "benchmark": self.benchmark,
            "verdicts": self.verdicts,
            "findings": [finding.document() for finding in self.findings],
        }
        if self.official_tool is not None:
            document["official_tool"] = self.official_tool
        return document


@dataclass(frozen=True)
class Options:
    """What the caller asks for; `seconds` bounds one run of the official checker."""

    ruleset: str | None = None
    official_tool: bool = False
    seconds: float = 60.0
    keep_run: bool = False


def validate(path: Path | str, options: Options | None = None) -> FileReport:
    """Judges one log ("-" is stdin). Never raises for what a log holds.

    Raises BadInput for a ruleset that does not exist.
    """
    options = options or Options()
    if options.ruleset is not None:
        check_name(options.ruleset)
    path = Path(path)
    findings = Findings()
    try:
        stream = source.open_log(path)
        try:
            report = _judge(path, stream, findings, options)
        finally:
            if stream is not sys.stdin.buffer:
                stream.close()
    except source.Unreadable as problem:
        findings.add(
            problem.rule,
            "error",
            PROFILES,
            expected="a readable MLPerf log",
            actual=problem.actual,
            hint=problem.hint,
        )
        report = FileReport(
            str(path),
            options.ruleset or "unknown",
            "",
            None,
            dict.fromkeys(PROFILES, "unreadable"),
            findings.sorted(),
        )
    return report


def validate_many(
    paths: list[Path], options: Options, processes: int | None = None
) -> list[FileReport]:
    """Judges logs in the order given, on both cores where there is enough to do."""
    size = 0
    for path in paths:
        try:
            size += path.stat().st_size
        except OSError:
            continue
    if processes is None:
        enough = size > PARALLEL_BYTES or options.official_tool
        processes = min(os.cpu_count() or 1, len(paths), 8) if enough else 1
    if processes <= 1:
        return [validate(path, options) for path in paths]
    from concurrent.futures import ProcessPoolExecutor

    # Large pieces cost a pool little, small ones keep both cores busy to the end.
    chunk = max(1, min(8, len(paths) // (processes * 4)))
    with ProcessPoolExecutor(processes) as pool:
        jobs = pool.map(validate, paths, [options] * len(paths), chunksize=chunk)
        return list(jobs)


def _judge(path: Path, stream: Any, findings: Findings, options: Options) -> FileReport:
    asked = options.ruleset
    wanted = ruleset("0.7.0").known_keys | EVENT_KEYS
    reader = LogReader(stream, findings, _format_asked(asked), wanted)
    run, verifier, seen = Run(), None, Findings()
    for record in reader:
        if verifier is None:
            assert reader.format is not None
            run.format = reader.format
            verifier = Verifier(ruleset(OWN[reader.format == "0.7"]), seen)
        run.feed(record)
        verifier.feed(record)
    name, inferred = (asked, "") if asked else infer(run, reader.format)
    if run.n_records == 0:
        _empty(reader, findings, asked)
    else:
        assert verifier is not None
        _judge_run(name, run, verifier, seen, findings)
    report = FileReport(
        str(path),
        name,
        inferred,
        run.benchmark,
        {},
        [],
        run if options.keep_run else None,
    )
    tool = None
    if str(path) != "-" and (name not in OWN or options.official_tool):
        from mlperf_tpu.log.official_tool import consult

        tool = consult(path, name, run, findings, options.seconds)
    elif name not in OWN:
        findings.add(
            "official.stdin",
            "error",
            ("official",),
            expected=f"a file, which the official checker of {name} can read",
            actual="stdin",
        )
    report.official_tool = tool
    report.verdicts = verdicts(run, findings)
    report.findings = findings.sorted()
    if tool is not None:
        tool["agrees"] = tool["verdict"] == report.verdicts["official"]
    return report


def _format_asked(asked: str | None) -> Format | None:
    if asked is None:
        return None
    return "0.6" if asked == "0.6.0" else "0.7"


def _judge_run(
    name: str, run: Run, verifier: Verifier, seen: Findings, findings: Findings
) -> None:
    division = run.value("submission_division")
    if name in OWN:
        rules = ruleset(name)
        verifier.finish(run)
        findings.extend(seen.sorted())
        clock.judge_clock(run, rules.caps_ms, findings)
        if division in ("closed", "open") or rules.format == "0.6":
            judge.judge_target(run, rules, findings)
        judge.judge_rules(run, rules, findings)
    else:
        clock.judge_clock(run, rounds()[name].caps_ms, findings)
        judge.judge_presence(run, ("rules",), findings)
    judge.judge_published(run, _benchmarks(name), findings)
    clock.judge_status(run, findings)


def _benchmarks(name: str) -> tuple[str, ...]:
    if name not in OWN:
        return rounds()[name].benchmarks
    rules = ruleset(name)
    return (*rules.benchmarks, *rules.structure_only)


def _empty(reader: LogReader, findings: Findings, asked: str | None) -> None:
    if reader.other_format and asked is not None:
        written = "v0.6 (:::MLL)" if asked != "0.6.0" else "v0.7 or later (:::MLLOG)"
        right = "0.6.0" if asked != "0.6.0" else "0.7.0"
        source.no_records(
            findings,
            f"a log of {written}, of another format than ruleset {asked} reads",
            f"give --ruleset {right}, or none: it is inferred",
        )
        return
    source.no_records(
        findings,
        "none",
        "is this the file that the run's log went to? Each record starts with :::MLLOG",
    )


def verdicts(run: Run, findings: Findings) -> dict[Profile, Verdict]:
    """The verdict of each profile: an error fails, else how the run says it ended."""
    converged = run.status == "success"
    result: dict[Profile, Verdict] = {}
    for profile in PROFILES:
        if findings.errors(profile):
            result[profile] = "fail"
        else:
            result[profile] = "pass" if converged else "not_converged"
    return result


def infer(run: Run, format: Format | None) -> tuple[str, str]:
    """The ruleset of a log, and why: by its token, benchmark, keys and date."""
    if format == "0.6":
        return "0.6.0", f"its token is {TOKENS['0.6'].decode().strip()}"
    if format is None:
        return "0.7.0", "the log holds no record that tells; this is the default"
    benchmark = run.value("submission_benchmark")
    named = [n for n, r in rounds().items() if benchmark in r.benchmarks]
    in_07 = benchmark in ruleset("0.7.0").benchmarks
    when = _month(run)
    later = run.samples_in_evals or any(key in run.values for key in later_keys())
    # Some v0.7 logs of bert hold such a key too; v0.7's were due in July 2020.
    later = later and not (when is not None and when <= "2020-12")
    if not named or (in_07 and not later):
        return "0.7.0", f"its token is :::MLLOG, its benchmark {shown(benchmark)}"
    for name in named:
        if when and when <= rounds()[name].deadline:
            return name, f"its benchmark is {benchmark}, its date {when}"
    return named[-1], f"the last round of its benchmark {benchmark}"


def _month(run: Run) -> str | None:
    moment = run.first.get("run_start")
    if moment is None:
        return None
    try:
        date = datetime.datetime.fromtimestamp(moment.time_ms / 1e3, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{date.year:04}-{date.month:02}"
