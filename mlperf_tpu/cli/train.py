"""`mlperf-tpu train`."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from mlperf_tpu.cli import print_json
from mlperf_tpu.errors import BadInput
from mlperf_tpu.mesh import cpu_is_faster_in_bf16
from mlperf_tpu.spec import Document, Resolved, load, resolve

_IN_FLOAT32 = "float32, as this CPU is no faster in bf16"


@click.command("train")
@click.argument("benchmark", metavar="BENCHMARK|SPEC.yaml")
@click.option("--chips", type=int, help="The published scale of so many chips.")
@click.option("--scale", "scale_name", help="A published scale by its name (`show`).")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Virtual devices; the machine's cores if not given.",
)
@click.option(
    "--tpu",
    metavar="NAME",
    help="Train on this TPU slice; a TPU VM's own is found by itself.",
)
@click.option(
    "--task",
    type=click.Choice(["proxy", "full"]),
    help="The proxy (the default where there is no TPU) or the published task.",
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="The real data set.")
@click.option("--fake-data", is_flag=True, help="Random data; the log ends as aborted.")
@click.option(
    "--max-steps", type=click.IntRange(min=1), help="Stop after so many steps."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the run's folder goes; runs/<date-time> if not given.",
)
@click.option("--org", default="mlperf-tpu", show_default=True, help="The submitter.")
@click.option("--runs", type=click.IntRange(min=1), help="How many; 1 if not given.")
@click.option("--seed", type=click.IntRange(min=0), help="The first run's seed.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="A value of the spec, such as training.global_batch=32 (repeatable).",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Go on with the unfinished run in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def train_command(benchmark: str, as_json: bool, **options: Any) -> None:
    """Train BENCHMARK to its target and write the MLPerf log.

    Where there is no TPU this trains the spec's proxy: the same network, optimizer and
    code on a small embedded data set with a target of its own.
    """
    options["tpu"] = _tpu(options)
    _check(options)
    resolved = _resolve(load(benchmark), options)
    if options["tpu"] is None and not cpu_is_faster_in_bf16():
        resolved = resolved.in_float32(_IN_FLOAT32)
    console = _console(as_json)
    from mlperf_tpu.progress import Progress

    progress = Progress(console)
    if options["resume"] is None:
        progress.say(_first_line(resolved, options))
        summary = _start(resolved, options, progress)
    else:
        summary = _resume(resolved, options, progress)
    progress.table(summary)
    progress.say(f"trained: {summary['trained']}")
    if as_json:
        print_json(summary)
    if not all(run["reached"] for run in summary["runs"]):
        raise SystemExit(1)


def _resolve(document: Document, options: dict[str, Any]) -> Resolved:
    chips, name, task = options["chips"], options["scale_name"], _task(options)
    settings = options["settings"]
    if task == "proxy" or not options["fake_data"] or options["tpu"] is not None:
        return resolve(document, chips, name, task, settings)
    # For debugging: each device gets what a core of the pod would, of the published run
    # with the fewest examples a core unless one is asked for; an epoch stays as many
    # steps as it was there.
    if chips is None and name is None:
        name = min(
            document.scales,
            key=lambda s: s.values["training"]["global_batch"] / s.chips,
        ).name
    published = resolve(document, chips, name, task, settings)
    spec, devices = published.spec, _devices(options)
    assert published.chips is not None
    cores = 2 * published.chips // spec.training.partitions
    batch = max(1, spec.training.global_batch // cores) * devices
    shrunk = [
        f"training.global_batch={batch}",
        f"training.steps_per_epoch={spec.steps_per_epoch}",
    ]
    if spec.batch_norm is not None and spec.batch_norm.span.value > batch:
        shrunk.append(f"batch_norm.span={batch} examples")
    return resolve(document, chips, name, task, [*shrunk, *settings])


def _start(
    resolved: Resolved, options: dict[str, Any], progress: Any
) -> dict[str, Any]:
    import_tensorflow()
    from mlperf_tpu.train import Request, train

    out = options["out"] or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    devices = _devices(options)
    if options["tpu"] is not None:
        assert resolved.chips is not None
        devices = 2 * resolved.chips  # a TPU v3 chip has two cores
    request = Request(
        resolved,
        devices,
        out,
        options["org"],
        options["runs"] or 1,
        options["seed"],
        options["data_dir"],
        options["fake_data"],
        options["max_steps"],
        options["tpu"],
    )
    return train(request, progress)


def _resume(
    resolved: Resolved, options: dict[str, Any], progress: Any
) -> dict[str, Any]:
    """Only what was said again is compared with what the run began with."""
    said: dict[str, Any] = {
        "resolved": {"spec": {"benchmark": resolved.spec.benchmark}}
    }
    given = ("chips", "scale_name", "settings", "task")
    if any(options[name] for name in given):
        said["resolved"] = resolved.record()
        del said["resolved"]["origins"]
    for name in ("devices", "max_steps"):
        if options[name] is not None:
            said[name] = options[name]
    if options["data_dir"] is not None:
        said["data_dir"] = str(options["data_dir"])
    if options["fake_data"]:
        said["fake_data"] = True
    import_tensorflow()
    from mlperf_tpu.train import resume

    return resume(
        options["resume"],
        said,
        options["seed"],
        options["runs"],
        progress,
        options["tpu"],
    )


def _check(options: dict[str, Any]) -> None:
    if options["resume"] is not None and options["out"] is not None:
        raise BadInput("--out with --resume: a resumed run stays in its own folder")
    if options["tpu"] is not None:
        if options["devices"] is not None:
            raise BadInput(
                "--devices with --tpu: the devices are the slice's cores; leave one out"
            )
        if not any(options[name] for name in ("chips", "scale_name", "resume")):
            raise BadInput("--tpu needs --chips N, the number of chips of the slice")
    if _task(options) == "proxy":
        for name in ("data_dir", "fake_data"):
            if options[name]:
                flag = "--" + name.replace("_", "-")
                raise BadInput(
                    f"{flag} is for the published task, but this trains the proxy on "
                    f"its embedded data; add --task full, or leave {flag} out"
                )
    elif options["resume"] is None and not (
        options["data_dir"] or options["fake_data"]
    ):
        raise BadInput(
            "--task full needs --data-dir DIR with the real data set, or --fake-data"
        )
    directory = options["data_dir"]
    if directory is not None and (
        not directory.is_dir() or not any(directory.iterdir())
    ):
        state = "is empty" if directory.is_dir() else "is no folder"
        raise BadInput(f"--data-dir: {directory} {state}; give the data set's folder")


def _task(options: dict[str, Any]) -> Literal["proxy", "full"]:
    return options["task"] or ("proxy" if options["tpu"] is None else "full")


def _tpu(options: dict[str, Any]) -> str | None:
    """The TPU's name; "local" on a TPU VM, unless virtual devices are asked for. What a
    resumed run began on, its folder says."""
    name: str | None = options["tpu"]
    if name or options["devices"] or options["resume"]:
        return name
    # A v2 or v3 VM shows a device for each of its chips.
    return "local" if any(Path("/dev").glob("accel[0-9]*")) else None


def _devices(options: dict[str, Any]) -> int:
    return int(options["devices"] or len(os.sched_getaffinity(0)))


def _first_line(resolved: Resolved, options: dict[str, Any]) -> str:
    spec, devices, tpu = resolved.spec, _devices(options), options["tpu"]
    where = f"{devices} virtual device{'s' if devices > 1 else ''}"
    if tpu is not None:
        where = f"the TPU {tpu}"
    if resolved.origins["training.precision"] == _IN_FLOAT32:
        where += f" in {_IN_FLOAT32}"
    target = f"{spec.rules.target.metric} {spec.rules.target.value:g}"
    asked = f" for {resolved.scale} ({resolved.chips} chips)" if resolved.scale else ""
    if resolved.task == "proxy":
        why = "No TPU here: training" if tpu is None else "Training"
        return (
            f"{why} the proxy of {resolved.name}{asked} "
            f"({spec.data.name}, target {target}) on {where}"
        )
    return f"Training {resolved.name}{asked} (target {target}) on {where}"


def _console(as_json: bool) -> Any:
    from rich.console import Console

    # Not a terminal: wide enough that no line of a log file is broken.
    stream = sys.stderr if as_json else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 100)


def import_tensorflow() -> None:
    """Imports TensorFlow without the lines its libraries print while they load.

    Should the import fail, what was printed is shown.
    """
    import tempfile

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        except BaseException:
            noise.seek(0)
            os.write(kept, noise.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
