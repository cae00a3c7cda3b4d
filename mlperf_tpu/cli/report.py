"""`mlperf-tpu report`: one self-contained HTML page on runs."""

from __future__ import annotations

from pathlib import Path

import click

from mlperf_tpu.log.outputs import write


@click.command("report")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), required=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The page to write."
)
@click.option("--ruleset", metavar="VERSION", help="Inferred where not given.")
def report_command(paths: tuple[Path, ...], out: Path, ruleset: str | None) -> None:
    """Make one HTML page of the runs in folders: curves, scores, findings."""
    from mlperf_tpu.log.score import entries
    from mlperf_tpu.report import page

    found = entries(paths, ruleset)
    write(out, page(found))
    runs = sum(len(entry.runs) for entry in found)
    click.echo(f"{out}: {len(found)} entries, {runs} runs")
