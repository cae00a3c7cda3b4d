"""`mlperf-tpu data check`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from mlperf_tpu.cli import fail, print_json
from mlperf_tpu.cli.train import import_tensorflow
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import benchmark_module, load, resolve

CHIPS_PER_HOST = 4  # TPU v3: google_submissions.md 1
# More of a kind are counted, not listed; --json lists all.
SHOWN_PER_KIND = 5
# What each level reads; a report of other data says it itself.
CHECKED = {
    "quick": "headers and counts",
    "bytes": "every byte, label and image header",
    "decode": "every byte, label and image",
}


@click.group("data")
def data_command() -> None:
    """Check a data set's files before the clock starts."""


@data_command.command("check")
@click.argument("benchmark", metavar="BENCHMARK|SPEC.yaml")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True, help="Its folder."
)
@click.option(
    "--level",
    type=click.Choice(["quick", "bytes", "decode"]),
    default="bytes",
    show_default=True,
    help="Record headers and counts; every byte, label and image header, or every "
    "line; every image, or every line in sub-words.",
)
@click.option("--chips", type=int, help="The published scale of so many chips.")
@click.option("--scale", "scale_name", help="A published scale by its name.")
@click.option(
    "--hosts",
    type=click.IntRange(min=1),
    help="How many hosts read; one for each 4 of --chips if not given.",
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Compare with, or write, this one; beside the files if not given.",
)
@click.option(
    "--write-manifest",
    is_flag=True,
    help="Write what was found, for later checks and for `train`, if nothing is wrong.",
)
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    benchmark: str,
    data_dir: Path,
    level: str,
    chips: int | None,
    scale_name: str | None,
    hosts: int | None,
    manifest: Path | None,
    write_manifest: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the files of BENCHMARK's data set: counts against the spec, damaged records
    with file and byte, labels, odd images, files against hosts.

    Exits with 1 when a run on them would be wrong.
    """
    if write_manifest and level == "quick":
        raise BadInput(
            "--write-manifest with --level quick: a manifest says that every byte was "
            "verified; leave --level out"
        )
    if not data_dir.is_dir():
        raise BadInput(f"--data-dir: {data_dir} is no folder; give the data set's")
    document = load(benchmark)
    if chips is None and scale_name is None and document.scales:
        scale_name = document.scales[0].name
    elif hosts is None:
        scale = document.scale(chips, scale_name)
        hosts = -(-(scale.chips if scale else chips or 1) // CHIPS_PER_HOST)
    spec = resolve(document, chips, scale_name, settings=settings).spec
    n_hosts = hosts or 1
    import_tensorflow()
    began = time.monotonic()
    report = benchmark_module(spec.benchmark, "data").check(
        spec, data_dir, level, n_hosts, manifest, write_manifest
    )
    result = {
        "benchmark": spec.benchmark,
        "data_dir": str(data_dir),
        "ok": not report.errors,
        "level": report.level,
        "form": report.form.name,
        "hosts": n_hosts,
        "splits": [
            {
                "name": split,
                "files": len(framings),
                "records": sum(f.n_records for f in framings),
                "bytes": sum(f.n_bytes for f in framings),
            }
            for split, framings in report.framings.items()
        ],
        "images": dict(report.images),
        "seconds": round(time.monotonic() - began, 3),
        "manifest": None if report.manifest is None else str(report.manifest),
        "findings": [vars(finding) for finding in report.findings],
        "checked": getattr(report, "said", CHECKED[report.level]),
    }
    if as_json:
        print_json(result)
    else:
        _print(result, report.findings)
    if report.errors:
        fail(f"{data_dir}: {len(report.errors)} errors", 1)


def _print(result: dict[str, Any], findings: list[Any]) -> None:
    click.echo(f"{result['form']} files in {result['data_dir']}")
    for split in result["splits"]:
        click.echo(
            f"  {split['name']:<11}{split['records']:>10,} records in "
            f"{split['files']:,} files, {split['bytes'] / 1e6:,.1f} MB"
        )
    if result["images"]:
        kinds = sorted(result["images"].items(), key=lambda kind: -kind[1])
        click.echo("  images     " + ", ".join(f"{n:,} {kind}" for kind, n in kinds))
    shown: dict[tuple[str, str], int] = {}
    for finding in findings:
        sort = finding.severity, finding.kind
        shown[sort] = shown.get(sort, 0) + 1
        if shown[sort] <= SHOWN_PER_KIND:
            click.echo(f"{finding.severity}: {finding}")
    for (severity, kind), count in shown.items():
        if count > SHOWN_PER_KIND:
            more = count - SHOWN_PER_KIND
            click.echo(f"{severity}: {more} more of this kind ({kind}); --json has all")
    n_bytes = sum(split["bytes"] for split in result["splits"])
    verdict = "ok" if result["ok"] else "not ok"
    click.echo(
        f"{verdict}: checked {result['checked']} of {n_bytes / 1e6:,.1f} MB in "
        f"{result['seconds']:.1f} s"
    )
    if result["manifest"]:
        click.echo(f"manifest: {result['manifest']}")
