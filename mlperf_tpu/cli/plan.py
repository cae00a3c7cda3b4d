"""`mlperf-tpu plan`: compile for a pod that is not there, and forecast the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlperf_tpu.cli import print_json
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Document, Resolved, load, resolve

if TYPE_CHECKING:
    from mlperf_tpu.pod.plan import Plan

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("plan")
@click.argument("benchmark", metavar="BENCHMARK|SPEC.yaml")
@click.option("--chips", help="How many chips; several as 64,256,1024.")
@click.option("--scale", "scale_name", help="A published scale by its name (`show`).")
@click.option("--sweep", is_flag=True, help="All scales of the spec.")
@click.option("--topology", help="The slice, as v3:32x32x1, v4:8x8x16 or v5e:16x16.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="A value of the spec, such as update.sharded=false (repeatable).",
)
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="PATH=VALUE",
    help="A change to stand beside the plan in a second column (repeatable).",
)
@click.option(
    "--failed", multiple=True, metavar="X,Y:WxH", help="Failed chips (repeatable)."
)
@click.option("--profile", is_flag=True, help="Ops and layers by estimated time.")
@click.option("--html", "html_file", type=FILE, help="The profile as a page.")
@click.option("--hlo", "hlo_file", type=FILE, help="Keep the compiled step's module.")
@click.option("--svg", "svg_file", type=FILE, help="A chart of a sweep.")
@click.option("--save", "save_file", type=FILE, help="Keep the plan, for --against.")
@click.option("--against", "against_file", type=FILE, help="Exit 1 where it has grown.")
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    help="Per cent that may be grown against a saved plan.",
)
@click.option("--markdown", is_flag=True, help="A Markdown table.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan_command(benchmark: str, as_json: bool, **options: Any) -> None:
    """Compile BENCHMARK for a TPU slice that is not there, and forecast its run.

    The step and the evaluation that train are compiled by the TPU compiler for the
    whole slice. Every time printed is a forecast; what Google measured stands beside
    it, named as published.
    """
    _check(options)
    document = load(benchmark)
    wanted = _wanted(document, options)
    from mlperf_tpu.pod import outputs, profile, saved
    from mlperf_tpu.pod.compile import module_text
    from mlperf_tpu.pod.plan import plan

    def say(text: str) -> None:
        click.echo(text, err=True)

    plans = [plan(resolved, options["topology"], say) for resolved in wanted]
    first = plans[0]
    report: dict[str, Any] = {"rows": [each.document() for each in plans]}
    if options["failed"]:
        report["failed"] = outputs.failed(first, options["failed"])
    rows = report["rows"]
    _write(options["hlo_file"], lambda: module_text(first.compiled))
    _write(options["html_file"], lambda: profile.page(first, outputs.one(rows[0])))
    _write(options["svg_file"], lambda: outputs.chart(plans))
    if options["against_file"]:
        report["grown"] = saved.grown(rows, options["against_file"], options["margin"])
    _write(options["save_file"], lambda: saved.text(rows))
    if as_json:
        print_json(report)
    else:
        _print(plans, report, options)
    if report.get("grown"):
        raise SystemExit(1)


def _print(plans: list[Plan], report: dict[str, Any], options: dict[str, Any]) -> None:
    from mlperf_tpu.pod import outputs, profile

    style = outputs.markdown if options["markdown"] else outputs.text
    if options["changes"]:
        click.echo(outputs.two_columns(report["rows"], options["changes"], style))
    elif len(plans) > 1:
        click.echo(outputs.table(report["rows"], style))
    else:
        click.echo(outputs.one(report["rows"][0], style))
    if options["profile"]:
        click.echo(profile.text(plans[0], style))
    if options["failed"]:
        click.echo(outputs.failed_text(report["failed"]))
    for line in report.get("grown", ()):
        click.echo(f"grown: {line}")


def _check(options: dict[str, Any]) -> None:
    several = options["sweep"] or "," in (options["chips"] or "")
    if options["sweep"] and (options["chips"] or options["scale_name"]):
        raise BadInput("--sweep takes every scale; leave --chips and --scale out")
    if not (several or options["chips"] or options["scale_name"]):
        raise BadInput(
            "say for how many chips: --chips 1024, a --scale by name, or --sweep"
        )
    if options["svg_file"] and not several:
        raise BadInput("--svg draws several scales; add --sweep or --chips 64,256")
    for name in ("changes", "topology", "profile", "html_file", "hlo_file", "failed"):
        if options[name] and several:
            flag = {"changes": "what-if"}.get(name, name.removesuffix("_file"))
            raise BadInput(f"--{flag} is of one scale; give one number of --chips")


def _wanted(document: Document, options: dict[str, Any]) -> list[Resolved]:
    settings, name = options["settings"], options["scale_name"]
    if options["sweep"]:
        names = [scale.name for scale in document.scales]
        return [resolve(document, scale_name=n, settings=settings) for n in names]
    try:
        chips = [int(part) for part in (options["chips"] or "").split(",") if part]
    except ValueError:
        raise BadInput(
            f"--chips {options['chips']!r} is no number of chips; as 1024, or 64,256"
        ) from None
    counts: list[int | None] = [*chips] or [None]
    found = [resolve(document, n, name, "full", settings) for n in counts]
    if options["changes"]:
        both = (*settings, *options["changes"])
        found.append(resolve(document, found[0].chips, found[0].scale, "full", both))
    return found


def _write(file: Path | None, make: Any) -> None:
    if file is None:
        return
    try:
        file.write_text(make(), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error.strerror}") from error
