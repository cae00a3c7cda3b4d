"""The story of a run, top to bottom: spec, mesh, data, loop, evaluation, log.

A call trains `runs` times, each from a fresh seed, into one folder (run_folder). Each
run initialises off the clock, trains block by block, evaluates after each block, and
stops at the target; its log ends with run_stop in every ending the process survives.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_tpu import checkpoint
from mlperf_tpu.data.batches import Dataset, HostFed, Repeated, prefetched
from mlperf_tpu.errors import BadInput, PlaceLost
from mlperf_tpu.evaluation import Evaluations
from mlperf_tpu.log.write import RunLog
from mlperf_tpu.mesh import Mesh
from mlperf_tpu.mesh.virtual import VirtualMesh
from mlperf_tpu.progress import Progress
from mlperf_tpu.run_folder import RunFolder, read_json, write_json
from mlperf_tpu.spec import Resolved, Spec, benchmark_module, from_record, leaves

# mlperf_rules.md 1.3: more initialisation than this counts as training time.
INIT_LIMIT_S = 20 * 60


@dataclass(frozen=True)
class Request:
    """What `mlperf-tpu train` was asked for; `devices` are cores on a TPU."""

    resolved: Resolved
    devices: int
    out: Path
    org: str
    runs: int
    seed: int | None
    data_dir: Path | None = None
    fake_data: bool = False
    max_steps: int | None = None
    tpu: str | None = None  # its name, where there is one

    @property
    def place(self) -> str:
        return "virtual" if self.tpu is None else "tpu"

    @property
    def system(self) -> str:
        """The system's name in a submission; Google's count cores."""
        kind = "cpu-virtual" if self.tpu is None else "tpu-v3"
        return f"{kind}-{self.devices}"

    def record(self, data: str) -> dict[str, Any]:
        """As run.json keeps it; `data` is the data sets' fingerprint."""
        base = self.seed
        if base is None:
            base = int.from_bytes(os.urandom(4), "little") & 0x7FFFFFFF
        return {
            "resolved": self.resolved.record(),
            "place": self.place,
            "tpu": self.tpu,
            "devices": self.devices,
            "seeds": [base + run for run in range(self.runs)],
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "fake_data": self.fake_data,
            "max_steps": self.max_steps,
            "data": data,
        }


class _Ending(Exception):
    """Ends a run early. A resumable one was stopped from outside: it may go on."""

    def __init__(self, reason: str, resumable: bool = False) -> None:
        super().__init__(reason)
        self.resumable = resumable


def train(request: Request, progress: Progress) -> dict[str, Any]:
    """Starts a new run; returns its summary (design.md, `train`)."""
    spec = request.resolved.spec
    mesh = _open_mesh(request.resolved, request.devices, request.tpu)
    program = benchmark_module(spec.benchmark, "program").Program(spec)
    datasets = _datasets(program, spec, request.data_dir, request.fake_data, progress)
    path = request.out / request.org / "results" / request.system / spec.rules.benchmark
    _check_room(request.out, program)
    folder = RunFolder.create(path, request.record(_fingerprint(datasets)))
    with contextlib.closing(folder):
        return _train_all(folder, mesh, program, datasets, progress)


def resume(
    path: Path,
    expected: dict[str, Any],
    seed: int | None,
    runs: int | None,
    progress: Progress,
    tpu: str | None = None,
) -> dict[str, Any]:
    """Goes on with the unfinished run in `path`.

    `expected` holds what the call said again (fields of run.json), as do `seed` and
    `runs` where given: each must be what the run began with. `tpu` names another slice
    of the same size.
    """
    with contextlib.closing(RunFolder.reopen(path)) as folder:
        record = folder.record()
        if seed is not None or runs is not None:
            first = record["seeds"][0] if seed is None else seed
            count = len(record["seeds"]) if runs is None else runs
            expected = {**expected, "seeds": [first + run for run in range(count)]}
        _refuse_changes(record, expected)
        resolved = from_record(record["resolved"], str(path / "run.json"))
        where = f"{record['devices']} virtual devices"
        if record["place"] == "tpu":
            tpu = tpu or record["tpu"]
            where = f"the {resolved.chips} chips of the TPU {tpu}"
        elif tpu is not None:
            raise BadInput(
                f"--tpu: the run in {path} began on virtual devices; leave --tpu out, "
                "or start another run"
            )
        progress.say(f"Resuming {resolved.name} ({resolved.task}) in {path} on {where}")
        spec = resolved.spec
        mesh = _open_mesh(resolved, record["devices"], tpu)
        program = benchmark_module(spec.benchmark, "program").Program(spec)
        data_dir = None if record["data_dir"] is None else Path(record["data_dir"])
        datasets = _datasets(program, spec, data_dir, record["fake_data"], progress)
        _refuse_changes(record, {"data": _fingerprint(datasets)})
        return _train_all(folder, mesh, program, datasets, progress)


def _open_mesh(resolved: Resolved, devices: int, tpu: str | None) -> Mesh:
    """The place, its size checked against the spec's before anything is built."""
    spec = resolved.spec
    if tpu is None:
        spec.check_replicas(devices, "virtual devices")
        return VirtualMesh(devices)
    from mlperf_tpu.mesh.tpu import connect

    assert resolved.chips is not None
    spec.check_replicas(devices // spec.training.partitions)
    return connect(tpu, resolved.chips, spec.training.partitions)


def _check_room(out: Path, program: Any) -> None:
    """The checkpoints kept and the one being written must fit."""
    update = program.step.update
    weights = sum(4 * math.prod(p.shape) for p in update.parameters)
    need = (checkpoint.KEEP + 1) * weights * (1 + len(update.slot_names))
    existing = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < need:
        raise BadInput(
            f"--out: no room in {existing}: checkpoints need {need >> 20} MiB, "
            f"{free >> 20} MiB are free; free some, or give a folder elsewhere"
        )


def _refuse_changes(record: dict[str, Any], expected: dict[str, Any]) -> None:
    began = dict(leaves(record))
    for field, value in leaves(expected):
        if began.get(field) != value:
            raise BadInput(
                f"--resume: {field} is {value!r}, but the run began with "
                f"{began.get(field)!r}; leave it as it was, or start another run"
            )


def _datasets(
    program: Any, spec: Spec, data_dir: Path | None, fake: bool, progress: Progress
) -> Any:
    """(training, evaluation) sets, counted against the spec; None for fake data."""
    if fake:
        return None
    if data_dir is not None:
        progress.say(f"Checking the files in {data_dir}")
    datasets = program.datasets(data_dir)
    for note in getattr(program, "notes", ()):  # what was left out of them
        progress.say(note)
    for name, dataset in zip(("train", "eval"), datasets, strict=True):
        wanted = getattr(spec.data, f"{name}_examples")
        if dataset.n_examples != wanted:
            raise BadInput(
                f"data.{name}_examples: the spec says {wanted}, the data set holds "
                f"{dataset.n_examples}; correct the one that is wrong"
            )
    return datasets


def _fingerprint(datasets: tuple[Dataset, Dataset] | None) -> str:
    return "fake" if datasets is None else " ".join(d.fingerprint() for d in datasets)


def _train_all(
    folder: RunFolder, mesh: Mesh, program: Any, datasets: Any, progress: Progress
) -> dict[str, Any]:
    record = folder.record()
    resolved = from_record(record["resolved"], str(folder.path / "run.json"))
    summary = {
        "schema": 1,
        "benchmark": resolved.spec.benchmark,
        "task": resolved.task,
        "scale": resolved.scale,
        "place": record["place"],
        "chips": resolved.chips,
        "devices": record["devices"],
        "target": resolved.spec.rules.target.model_dump(),
        "trained": _what_was_trained(resolved),
        "runs": [],
    }
    with _stop_signals() as stop:
        for run, seed in enumerate(record["seeds"]):
            done = folder.result(run)
            if not done.exists():
                story = _Run(
                    folder,
                    run,
                    seed,
                    record,
                    resolved,
                    mesh,
                    program,
                    datasets,
                    progress,
                    stop,
                )
                entry = story.tell()
                if story.resumable:
                    progress.say(f"go on with it by --resume {folder.path}")
                    return {**summary, "runs": [*summary["runs"], entry]}
                write_json(done, entry)
            summary["runs"].append(read_json(done))
        write_json(folder.path / "summary.json", summary)
        shutil.rmtree(folder.path / "checkpoints")
    return summary


def _what_was_trained(resolved: Resolved) -> str:
    data = resolved.spec.data
    if resolved.task == "full":
        return f"the full task ({data.name}, {data.train_examples:,} examples)"
    return (
        f"the proxy ({data.name}, {data.train_examples:,} examples), not the published "
        "task: its quality and time say nothing of a pod's"
    )


class _StopFlag:
    signal: str | None = None


@contextlib.contextmanager
def _stop_signals() -> Iterator[_StopFlag]:
    """Ctrl-C and SIGTERM end the run after the step at hand; a second one at once."""
    flag = _StopFlag()

    def handler(number: int, frame: Any) -> None:
        if flag.signal is not None:
            raise KeyboardInterrupt
        flag.signal = signal.Signals(number).name

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@dataclass
class _Run:
    """One run of a folder, from init_start to run_stop."""

    folder: RunFolder
    run: int
    seed: int
    record: dict[str, Any]
    resolved: Resolved
    mesh: Mesh
    program: Any
    datasets: tuple[Dataset, Dataset] | None
    progress: Progress
    stop: _StopFlag

    def tell(self) -> dict[str, Any]:
        """Trains to the target or to an early end; returns the summary's entry."""
        self.spec = self.resolved.spec
        saved = checkpoint.newest(self.folder.checkpoints(self.run))
        self._open_log(saved)
        self.evaluations = Evaluations(
            self.spec, self.mesh, self.program, self.log, self.progress
        )
        self.unjudged: int | None = None
        self.first_step = self.step = self.epochs = 0
        self.training_s = 0.0
        self.began = time.time()
        self.resumable = False
        reason: str | None = None
        try:
            self._initialise(saved)
            self._train_blocks()
        except _Ending as ending:
            reason, self.resumable = str(ending), ending.resumable
        except PlaceLost as error:
            reason, self.resumable = str(error), True
        except KeyboardInterrupt:
            reason, self.resumable = "interrupted twice", True
        except OSError as error:
            reason = f"{error.strerror or error}: {error.filename or self.folder.path}"
            self.resumable = True
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.progress.end()
            self.evaluations.close()
            stopped = time.time()
            self.log.end("run_stop", status="aborted" if reason else "success")
            self.log.close()
        return self._entry(reason, stopped)

    def _entry(self, reason: str | None, stopped: float) -> dict[str, Any]:
        done = self.step - self.first_step
        return {
            "seed": self.seed,
            "quality": self.evaluations.quality,
            "reached": reason is None,
            "status": "aborted" if reason else "success",
            "reason": reason,
            "epochs": self.epochs,
            "steps": self.step,
            "seconds": round(stopped - self.began, 3),
            "examples_per_s": round(
                done * self.spec.training.global_batch / max(self.training_s, 1e-9), 1
            ),
            "log": str(self.folder.log(self.run)),
        }

    def _open_log(self, saved: checkpoint.Checkpoint | None) -> None:
        path = self.folder.log(self.run)
        if saved is None:
            path.unlink(missing_ok=True)  # of a run killed before its first checkpoint
            self.log = RunLog(path, self.spec.rules.round)
            return
        self.log = RunLog(path, self.spec.rules.round, saved.meta["log_offset"])
        for skipped in saved.skipped:
            self.progress.say(
                f"checkpoint {skipped.name} is truncated or damaged; going on from "
                f"{saved.path.name}"
            )
        self.log.event("resumed", int(saved.state["step"]))

    def _initialise(self, saved: checkpoint.Checkpoint | None) -> None:
        """Everything before run_start: the model, its compilation, a step on fake data.
        A resumed run's clock has been running since its first process's run_start."""
        if saved is None:
            self._log_submission()
            self.log.start("init_start")
        init_began = time.monotonic()
        n = self.mesh.n_replicas
        state = saved.state if saved else self.program.initial_state(self.seed, n)
        self.mesh.start(
            self.program,
            state,
            self.program.fake_batch(self.spec.training.global_batch),
            self._fake_eval_batch(),
        )
        if saved is None:
            for key, value in self.program.hyperparameters().items():
                value, metadata = value if isinstance(value, tuple) else (value, {})
                self.log.event(key, value, **metadata)
            if time.monotonic() - init_began > INIT_LIMIT_S:
                self.progress.say("initialisation took more than 20 minutes: not legal")
            self.log.end("init_stop")
            self.began = time.time()
            self.log.start("run_start")
        else:
            self.first_step = self.step = int(saved.state["step"])
            self.began = saved.meta["began"]
            self.epochs, self.unjudged = saved.meta["epochs"], saved.meta["unjudged"]
            self.evaluations.quality = saved.meta["quality"]
        self.progress.begin(
            self.spec.total_steps, self.first_step, self.spec.training.global_batch
        )

    def _log_submission(self) -> None:
        rules, proxy = self.spec.rules, self.resolved.task == "proxy"
        self.log.event("cache_clear", True)
        self.log.event("submission_benchmark", rules.benchmark)
        # A proxy trains on other data than the closed division asks for.
        self.log.event("submission_division", "open" if proxy else "closed")
        self.log.event("submission_org", self.folder.path.parents[2].name)
        self.log.event("submission_platform", self.folder.path.parent.name)
        self.log.event("submission_status", "research")
        if rules.round == "0.6.0":
            self.log.event("submission_poc_name", self.folder.path.parents[2].name)
            self.log.event("submission_entry", self.folder.path.parent.name)
        self.log.event("mlperf_tpu_task", self.resolved.task)
        self.log.event("seed", self.seed)

    def _train_blocks(self) -> None:
        """Block by block, until an evaluation reaches the target; the score of one may
        come in while the next block is trained, and ends it."""
        batches = self._batches()
        if self.unjudged is not None:  # its score was lost with the process before
            self._predict(self.unjudged)
        for block in self.spec.blocks():
            if block.last_step <= self.step:
                continue
            numbers = {
                "first_epoch_num": block.first_epoch,
                "epoch_count": block.epochs,
            }
            self.log.start("block_start", **numbers)
            reached = self._train_block(block, batches) or self._reached(wait=True)
            if not reached:
                self._predict(block.first_epoch + block.epochs - 1)
                reached = self._reached()
            self.log.end("block_stop", first_epoch_num=block.first_epoch)
            if reached:
                return
            if self.step < self.spec.total_steps:
                self._save()
        if self._reached(wait=True):
            return
        target, quality = self.spec.rules.target, self.evaluations.quality
        raise _Ending(
            f"{target.metric} {quality:.4f} after the last of {self.epochs} epochs is "
            f"below the target of {target.value:g}"
        )

    def _train_block(self, block: Any, batches: Iterator[Any]) -> bool:
        """Whether the evaluation before turned out to reach the target meanwhile."""
        first_step = self.step
        reached = False
        ends = epoch_ends(first_step, block.last_step, block.epochs)
        epoch = block.first_epoch
        self.log.start("epoch_start", epoch_num=epoch)
        clock = time.monotonic()
        try:
            for metrics in self.mesh.train(batches, block.last_step - first_step):
                self.step += 1
                self._watch(metrics, block, first_step)
                reached = self._reached()
                if reached:
                    break
                if self.step in ends and self.step < block.last_step:
                    self.log.end("epoch_stop", epoch_num=epoch)
                    epoch += 1
                    self.log.start("epoch_start", epoch_num=epoch)
        finally:
            self.training_s += time.monotonic() - clock
        self.log.end("epoch_stop", epoch_num=epoch)
        if not reached:
            self.epochs = block.first_epoch + block.epochs
        return reached

    def _watch(self, metrics: dict[str, float], block: Any, first_step: int) -> None:
        """Shows a step, and ends the run where there is a reason to."""
        loss = metrics["loss"] / metrics["count"]
        part = (self.step - first_step) / (block.last_step - first_step)
        epoch = block.first_epoch + part * block.epochs
        self.progress.step(self.step, epoch, loss, metrics["learning_rate"])
        if not math.isfinite(loss):
            raise _Ending(f"the loss became {loss} at step {self.step}")
        if self.stop.signal is not None:
            raise _Ending(f"{self.stop.signal} after step {self.step}", resumable=True)
        if (
            self.record["max_steps"] is not None
            and self.step >= self.record["max_steps"]
        ):
            raise _Ending(f"--max-steps {self.record['max_steps']} done")

    def _predict(self, last_epoch: int) -> None:
        """Evaluates on the mesh; `_reached` says what came of it."""
        count = self.evaluations.predict(last_epoch, self._eval_batches())
        expected = self.spec.data.eval_examples
        if count != expected and self.datasets is not None:
            raise _Ending(f"the evaluation counted {count} examples, not {expected}")

    def _reached(self, wait: bool = False) -> bool:
        return self.evaluations.judge(wait) and self.datasets is not None

    def _batches(self) -> Iterator[Any]:
        batch = self.spec.training.global_batch
        if self.datasets is None:
            return Repeated(self.program.fake_batch(batch))
        return self._ahead(self.datasets[0].train_batches(batch, self.seed, self.step))

    def _eval_batches(self) -> Iterator[Any]:
        if self.datasets is None:
            return iter([self._fake_eval_batch()])
        return self._ahead(self.datasets[1].eval_batches(self.spec.eval_batch))

    def _fake_eval_batch(self) -> Any:
        """As a training batch, unless the program says how its evaluation's differ."""
        fake = getattr(self.program, "fake_eval_batch", self.program.fake_batch)
        return fake(self.spec.eval_batch)

    def _ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Read ahead here, unless the hosts of a slice do so themselves."""
        on_hosts = self.record["place"] == "tpu" and isinstance(batches, HostFed)
        return batches if on_hosts else prefetched(batches)

    def _save(self) -> None:
        checkpoint.save(
            self.folder.checkpoints(self.run),
            self.step,
            self.mesh.fetch(),
            {
                "log_offset": self.log.offset(),
                "began": self.began,
                "epochs": self.epochs,
                "quality": self.evaluations.quality,
                "unjudged": self.evaluations.unjudged,
            },
        )


def epoch_ends(first_step: int, last_step: int, epochs: int) -> set[int]:
    """The steps at which a block's epochs end, as even as whole steps allow.

    >>> sorted(epoch_ends(0, 157, 4))
    [40, 79, 118, 157]
    """
    span = last_step - first_step
    return {first_step + math.ceil(span * k / epochs) for k in range(1, epochs + 1)}
