"""`mlperf-tpu compare`: a candidate's runs against a baseline's, for a CI."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mlperf_tpu import compare as comparing
from mlperf_tpu.cli import print_json
from mlperf_tpu.compare import outputs, sides
from mlperf_tpu.compare.stats import Limits
from mlperf_tpu.log.outputs import write

EXIT = {"ok": 0, "regression": 1, "incomparable": 2, "undecided": 0}


@click.command("compare")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--ruleset", metavar="VERSION", help="Inferred where not given.")
@click.option(
    "--margin",
    default=0.01,
    show_default=True,
    type=click.FloatRange(min=0, max=1),
    help="Share by which a metric may be worse.",
)
@click.option(
    "--alpha",
    default=0.05,
    show_default=True,
    type=click.FloatRange(min=0, max=0.5, min_open=True),
    help="Level of the tests, two-sided, over all metrics that decide.",
)
@click.option("--fail-on-undecided", is_flag=True, help="Exit 3 when undecided.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write Markdown.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML.")
@click.option(
    "--benchmark-json",
    type=click.Path(path_type=Path),
    help="Write what github-action-benchmark reads (customSmallerIsBetter).",
)
def compare_command(
    baseline: Path,
    candidate: Path,
    ruleset: str | None,
    margin: float,
    alpha: float,
    fail_on_undecided: bool,
    as_json: bool,
    markdown: Path | None,
    junit: Path | None,
    benchmark_json: Path | None,
) -> None:
    """Compare CANDIDATE with BASELINE: folders of runs, or what `score --json` wrote.

    Exit 0: no regression; 1: regression; 2: not comparable; 3: undecided, where
    --fail-on-undecided is given.
    """
    result = comparing.compare(
        sides.load(baseline, ruleset),
        sides.load(candidate, ruleset),
        Limits(margin, alpha),
    )
    for path, render in (
        (markdown, outputs.markdown),
        (junit, outputs.junit),
        (benchmark_json, outputs.benchmark_json),
    ):
        if path is not None:
            write(path, render(result))
    if as_json:
        print_json(result.document())
    else:
        click.echo(outputs.text(result))
    if result.decision == "undecided" and fail_on_undecided:
        sys.exit(3)
    sys.exit(EXIT[result.decision])
