"""The clock of a run: how long it was, what it had to include, how it ended.

The verifiers of v0.6 and v0.7 are blind to time; where a log is plainly wrong by the
clock, the `official` profile is mended to say so.
"""

from __future__ import annotations

from mlperf_tpu.log.findings import (
    PROFILES,
    PUBLISHED,
    RULES,
    Findings,
    shown,
)
from mlperf_tpu.log.run import SPANS, Run

# Logs of many ranks and hand-written times are compared with this tolerance: published
# logs have block and evaluation lines in any order within some hundred milliseconds.
TOLERANCE_MS = 1000.0
STATUSES = ("success", "aborted", "abort")  # `abort` is Google's word
# Epoch numbers of these are placeholders, steps or fractions (logging issue 79).
UNNUMBERED = ("bert", "dlrm", "minigo")


def judge_clock(run: Run, caps_ms: dict[str, float], findings: Findings) -> None:
    """Duration, the cap on initialization, status words, order in time."""
    _judge_duration(run, findings)
    _judge_initialization(run, caps_ms, findings)
    for stop in run.stops:
        if stop.status not in STATUSES and isinstance(stop.status, str):
            findings.add(
                "run_stop.status_word",
                "error",
                RULES,
                expected=f"status {', '.join(STATUSES)}",
                actual=shown(stop.status),
                line=stop.line,
            )
    if run.evaluations_dropped:
        findings.add(
            "log.too_many_evaluations",
            "error",
            PROFILES,
            expected=f"at most {len(run.evaluations):,} evaluations",
            actual=f"{run.evaluations_dropped:,} more",
        )
    _judge_cache(run, findings)
    _judge_order(run, findings)


def _judge_duration(run: Run, findings: Findings) -> None:
    seconds, stop = run.seconds, run.stop
    if seconds is not None and not 0 < seconds < float("inf"):
        findings.add(
            "clock.duration",
            "error",
            PROFILES,
            expected="run_stop later than run_start",
            actual=f"{seconds:,.3f} s from run_start to run_stop",
            line=stop.line if stop else 0,
            hint="the official checker does not compare the two; was a clock set "
            "during the run, or did two hosts log?",
        )
    starts = run.first.get("run_start"), run.last.get("run_start")
    if starts[0] and starts[1] and starts[0] != starts[1]:
        apart = (starts[1].time_ms - starts[0].time_ms) / 1e3
        if apart > 0:
            findings.add(
                "run_start.earliest_counts",
                "warning",
                RULES,
                expected="one run_start",
                actual=f"several, {apart:,.3f} s apart; the earliest starts the clock",
                line=starts[1].line,
            )


def _judge_initialization(
    run: Run, caps_ms: dict[str, float], findings: Findings
) -> None:
    start, run_start = run.first.get("init_start"), run.first.get("run_start")
    cap = caps_ms.get(str(run.value("submission_division")), caps_ms["closed"])
    if start is None or run_start is None:
        return
    excess = run_start.time_ms - start.time_ms - cap
    if excess > TOLERANCE_MS:
        findings.add(
            "clock.initialization_cap",
            "error",
            ("rules", *PUBLISHED),
            expected=f"run_start within {cap / 60e3:g} minutes of the first init_start",
            actual=f"{excess / 1e3:,.1f} s later than that",
            line=run_start.line,
            hint="time past the cap belongs on the clock: start the run at the cap",
        )


def _judge_cache(run: Run, findings: Findings) -> None:
    cleared, start = run.first.get("cache_clear"), run.first.get("init_start")
    begun = run.first.get("run_start")
    if cleared is None or cleared.time_ms == 0:
        return
    for limit, name in ((begun, "run_start"), (start, "init_start")):
        if limit is not None and cleared.time_ms > limit.time_ms:
            findings.add(
                "cache_clear.order",
                "error",
                RULES,
                expected=f"cache_clear before {name}",
                actual=f"{(cleared.time_ms - limit.time_ms) / 1e3:,.1f} s after it",
                line=cleared.line,
            )
            return


def _judge_order(run: Run, findings: Findings) -> None:
    strict = run.benchmark not in UNNUMBERED
    for record, back_ms in run.backwards:
        far = back_ms > TOLERANCE_MS
        findings.add(
            "clock.backwards",
            "error" if far and strict else "note",
            RULES,
            expected="times that do not go back between run_start and run_stop"
            + (", by more than 1 s" if far else ""),
            actual=f"{record.key} {back_ms / 1e3:,.3f} s before the record above it",
            line=record.line,
            column=record.column,
        )
    for what in ("block", "epoch", "eval"):
        edges = [
            sum(span.key == f"{what}_{edge}" for span in run.spans)
            for edge in ("start", "stop")
        ]
        if edges[0] != edges[1] and len(run.spans) < SPANS:
            findings.add(
                f"{what}_stop.pairs",
                "warning",
                RULES,
                expected=f"a {what}_stop for each {what}_start",
                actual=f"{edges[0]} starts, {edges[1]} stops",
            )
    stop, last = run.stop, run.last.get("span")
    if stop and last and last.time_ms > stop.time_ms + TOLERANCE_MS:
        findings.add(
            "run_stop.work_after",
            "warning",
            RULES,
            expected="no training or evaluation after run_stop",
            actual=f"some up to {(last.time_ms - stop.time_ms) / 1e3:,.1f} s after it",
            line=last.line,
        )


def judge_status(run: Run, findings: Findings) -> None:
    """Says why a run that ended without success counts as not converged."""
    if run.stop is not None and run.status != "success":
        findings.add(
            "run_stop.not_success",
            "warning",
            PROFILES,
            expected="status success",
            actual=f"status {shown(run.status)}: the run counts as not converged",
            line=run.stop.line,
        )
