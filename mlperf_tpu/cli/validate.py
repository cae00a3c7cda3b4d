"""`mlperf-tpu validate`: judges MLPerf logs and submissions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from mlperf_tpu.cli import print_json
from mlperf_tpu.log import find, outputs, submission
from mlperf_tpu.log.findings import PROFILES, Profile
from mlperf_tpu.log.validate import FileReport, Options, validate_many


@click.command("validate")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), required=True)
@click.option(
    "--ruleset", metavar="VERSION", help="0.6.0 to 6.1.0; inferred where not given."
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Choice(PROFILES),
    help="Which verdicts count; repeatable. Default: official and rules.",
)
@click.option(
    "--official-tool",
    is_flag=True,
    help="Also run mlperf_logging's own checker, guarded, and say where it disagrees.",
)
@click.option(
    "--time-limit",
    default=60.0,
    show_default=True,
    help="Seconds for one run of mlperf_logging's checker.",
)
@click.option(
    "--notes", is_flag=True, help="Show notes too, not only errors and warnings."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write Markdown.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write SARIF 2.1.0.")
def validate_command(
    paths: tuple[Path, ...],
    ruleset: str | None,
    profiles: tuple[Profile, ...],
    official_tool: bool,
    time_limit: float,
    notes: bool,
    as_json: bool,
    junit: Path | None,
    markdown: Path | None,
    sarif: Path | None,
) -> None:
    """Judge MLPerf logs: files, folders, a whole submission, or - for stdin.

    Exit 0: every log passes; 1: one does not; 2: one cannot be read.
    """
    profiles = profiles or ("official", "rules")
    organizations = [o for path in paths for o in submission.organizations(path)]
    options = Options(ruleset, official_tool, time_limit, keep_run=bool(organizations))
    if ruleset is not None:
        from mlperf_tpu.log.rulesets import check_name

        check_name(ruleset)
    reports = validate_many(find.logs(paths), options)
    submissions = [submission.check(o, reports) for o in organizations]
    if junit is not None:
        outputs.write(junit, outputs.junit(reports, profiles))
    if markdown is not None:
        outputs.write(markdown, outputs.markdown(reports, profiles))
    if sarif is not None:
        outputs.write(sarif, outputs.sarif(reports))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        annotations = outputs.github(reports, profiles)
        if annotations:
            click.echo(annotations, err=as_json)
    if as_json:
        document: dict[str, Any] = {"files": [r.document() for r in reports]}
        if submissions:
            document["submissions"] = [s.document() for s in submissions]
        print_json(document)
    else:
        click.echo(outputs.text(reports, profiles, notes=notes))
        for one in submissions:
            click.echo(outputs.submission_text(one))
    sys.exit(_exit_code(reports, submissions, profiles))


def _exit_code(
    reports: list[FileReport],
    submissions: list[submission.SubmissionReport],
    profiles: tuple[Profile, ...],
) -> int:
    words = {report.verdicts[profile] for report in reports for profile in profiles}
    if "unreadable" in words:
        return 2
    failed = words != {"pass"} or any(s.verdict != "pass" for s in submissions)
    return int(failed)
