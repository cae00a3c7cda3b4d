"""What a log says of its run: who, with what values, when, and how far it got.

Gathered in one pass and bounded: of a log of a million records no more is kept than of
one of a thousand, except what a page or a score can use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlperf_tpu.log import dialect
from mlperf_tpu.log.records import Format, Record

# Bounds on what is kept of one log.
EVALUATIONS = 200_000
SPANS = 20_000
KEYS = 1_000
DISTINCT = 32
LONG = 4_000

SPAN_KEYS = frozenset(
    f"{what}_{edge}"
    for what in ("block", "epoch", "eval")
    for edge in ("start", "stop")
)


EVENT_KEYS = SPAN_KEYS | {
    "init_start", "init_stop", "run_start", "cache_clear", "run_stop", "eval_accuracy",
    "eval_result", "seed",
}  # fmt: skip


class Logged(NamedTuple):
    """A value with its place; `metadata` keeps `method` alone."""

    line: int
    column: int
    value: Any
    metadata: Any


class Evaluation(NamedTuple):
    line: int
    time_ms: float
    epoch: Any
    value: Any


class Span(NamedTuple):
    """A start or stop of a block, epoch or evaluation; `count` epochs in a block."""

    key: str
    time_ms: float
    number: Any
    count: Any
    line: int


class Moment(NamedTuple):
    time_ms: float
    line: int


class Stop(NamedTuple):
    time_ms: float
    line: int
    status: Any


@dataclass(slots=True)
class Values:
    """All that a log says under one key: the first DISTINCT different values."""

    count: int = 0
    same: bool = True
    kept: list[Logged] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.count += 1
        if len(self.kept) >= DISTINCT:
            return
        value, metadata = record.value, record.metadata
        if isinstance(metadata, dict):
            metadata = {"method": metadata["method"]} if "method" in metadata else {}
        elif metadata is not None:
            metadata = None
        if isinstance(value, str | list | dict) and len(str(value)) > LONG:
            value = f"{str(value)[:LONG]}..."
        if self.kept:
            first = self.kept[0].value
            same = value is first or value == first
            self.same = self.same and same
            if any(k.value == value and k.metadata == metadata for k in self.kept):
                return
        self.kept.append(Logged(record.line, record.column, value, metadata))

    @property
    def first(self) -> Any:
        return self.kept[0].value


class Run:
    """The facts of one log. `feed` takes its records in the order of the file."""

    def __init__(self) -> None:
        self.format: Format = "0.7"
        self.n_records = 0
        self.values: dict[str, Values] = {}
        self.evaluations: list[Evaluation] = []
        self.evaluations_dropped = 0
        self.spans: list[Span] = []
        self.stops: list[Stop] = []
        self.first: dict[str, Moment] = {}  # earliest init_start, run_start, ...
        self.last: dict[str, Moment] = {}
        self.first_in_file: dict[str, int] = {}
        self.seeds: list[Logged] = []
        self.backwards: list[tuple[Record, float]] = []  # record, ms it goes back
        self.results: list[Logged] = []  # v0.6 minigo's eval_result
        self.samples_in_evals = False
        self._clock = 0.0
        self._handlers = {
            "init_start": self._moment,
            "init_stop": self._moment,
            "run_start": self._moment,
            "cache_clear": self._cleared,
            "run_stop": self._stop,
            "eval_accuracy": self._evaluation,
            "eval_result": self._result,
            "seed": self._seed,
            **dict.fromkeys(SPAN_KEYS, self._span),
        }

    def feed(self, record: Record) -> None:
        self.n_records += 1
        handler = self._handlers.get(record.key)
        if handler is not None:
            handler(record)
            return
        values = self.values.get(record.key)
        if values is None:
            if len(self.values) >= KEYS:
                return
            values = self.values[record.key] = Values()
        values.add(record)

    def _moment(self, record: Record) -> None:
        moment = Moment(record.time_ms, record.line)
        key = record.key
        self.first_in_file.setdefault(key, record.line)
        if key not in self.first or moment.time_ms < self.first[key].time_ms:
            self.first[key] = moment
        if key not in self.last or moment.time_ms > self.last[key].time_ms:
            self.last[key] = moment

    def _cleared(self, record: Record) -> None:
        self._moment(record)
        self.values.setdefault(record.key, Values()).add(record)

    def _tick(self, record: Record) -> None:
        """Notes where the clock of the run goes backwards in the file."""
        back = self._clock - record.time_ms
        if back > 0:
            if len(self.backwards) < DISTINCT:
                self.backwards.append((record, back))
        else:
            self._clock = record.time_ms

    def _stop(self, record: Record) -> None:
        if len(self.stops) < DISTINCT:
            status = None
            if isinstance(record.metadata, dict):
                status = record.metadata.get("status")
            self.stops.append(Stop(record.time_ms, record.line, status))
        self._tick(record)

    def _span(self, record: Record) -> None:
        self._tick(record)
        self.last["span"] = max(
            self.last.get("span", Moment(0.0, 0)), Moment(record.time_ms, record.line)
        )
        if len(self.spans) < SPANS:
            metadata = record.metadata if isinstance(record.metadata, dict) else {}
            number = metadata.get("epoch_num", metadata.get("first_epoch_num"))
            count = metadata.get("epoch_count")
            self.spans.append(
                Span(record.key, record.time_ms, number, count, record.line)
            )

    def _evaluation(self, record: Record) -> None:
        if len(self.evaluations) >= EVALUATIONS:
            self.evaluations_dropped += 1
            return
        metadata = record.metadata if isinstance(record.metadata, dict) else {}
        epoch = metadata.get("epoch_num", metadata.get("epoch_count"))
        if "samples_count" in metadata:
            self.samples_in_evals = True
            epoch = metadata["samples_count"]
        value = record.value
        if isinstance(value, str | list | dict) and (
            len(value) > 64 or len(str(value)) > 256
        ):
            value = f"{str(value)[:64]}..."
        self.evaluations.append(Evaluation(record.line, record.time_ms, epoch, value))
        self._tick(record)

    def _seed(self, record: Record) -> None:
        if len(self.seeds) < KEYS:
            self.seeds.append(Logged(record.line, record.column, record.value, None))

    def _result(self, record: Record) -> None:
        if len(self.results) < DISTINCT:
            metadata = record.metadata if isinstance(record.metadata, dict) else {}
            keep = {k: metadata.get(k) for k in ("timestamp", "iteration")}
            self.results.append(Logged(record.line, record.column, record.value, keep))

    # What the facts amount to.

    def value(self, key: str) -> Any:
        """The first value logged under a key, None where there is none."""
        values = self.values.get(key)
        return values.first if values else None

    @property
    def benchmark(self) -> str | None:
        """The benchmark's name in round 0.7's spelling, None if it is no text."""
        name = self.value("submission_benchmark")
        if not isinstance(name, str):
            return None
        return dialect.BENCHMARK_NAMES.get(name, name)

    @property
    def stop(self) -> Stop | None:
        """The run_stop that ends the clock: the earliest that says success, if any."""
        if not self.stops:
            return None
        good = [stop for stop in self.stops if stop.status == "success"]
        return min(good or self.stops, key=lambda stop: stop.time_ms)

    @property
    def seconds(self) -> float | None:
        """Time to train: earliest run_start (rules: any part) to run_stop, in seconds.

        Without a run_stop, what v0.6 minigo's eval_result says (it is off the clock).
        """
        start, stop = self.first.get("run_start"), self.stop
        if stop is None and self.results:
            stated = self.results[0].metadata["timestamp"]
            return float(stated) if dialect.is_number(stated) else None
        if start is None or stop is None:
            return None
        return (stop.time_ms - start.time_ms) / 1e3

    def quality(self, one: Evaluation) -> Any:
        """An evaluation's value in round 0.7's form, whatever the log's dialect."""
        percent = self.format == "0.6"
        return dialect.accuracy(self.benchmark, one.value, percent=percent)

    @property
    def status(self) -> Any:
        """What the run says of its end: "success", another word, None for nothing."""
        if self.stop is not None:
            return self.stop.status
        return "success" if self.results else None

    def number(self, key: str) -> float | None:
        """The first value of a key as a number, from a string too; None if none."""
        value = dialect.number(self.value(key))
        return value if dialect.is_number(value) else None
