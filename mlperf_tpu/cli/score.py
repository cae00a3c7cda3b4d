"""`mlperf-tpu score`: time to train of runs, and the score of entries."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mlperf_tpu.cli import print_json
from mlperf_tpu.log import outputs
from mlperf_tpu.log import score as scoring


@click.command("score")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), required=True)
@click.option("--ruleset", metavar="VERSION", help="Inferred where not given.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, a row a run.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
@click.option(
    "--reference-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="The reference's time to train: shows the speed-up over it.",
)
def score_command(
    paths: tuple[Path, ...],
    ruleset: str | None,
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
    reference_minutes: float | None,
) -> None:
    """Score the runs of a folder: time to train, olympic mean, what was dropped.

    Exit 0: every entry has a score; 1: one has none.
    """
    if as_json + as_csv + as_markdown > 1:
        raise click.UsageError("give one of --json, --csv and --markdown")
    found = scoring.entries(paths, ruleset)
    table = scoring.rows(found, reference_minutes)
    if as_json:
        documents = [entry.document() for entry in found]
        for document, entry in zip(documents, found, strict=True):
            if reference_minutes and entry.score_minutes:
                document["speed_up"] = reference_minutes / entry.score_minutes
        print_json({"entries": documents})
    elif as_csv:
        click.echo(scoring.as_csv(table), nl=False)
    elif as_markdown:
        click.echo(outputs.score_markdown(table))
    else:
        for entry in found:
            click.echo(outputs.score_text(entry, reference_minutes))
    sys.exit(int(any(entry.score_minutes is None for entry in found)))
