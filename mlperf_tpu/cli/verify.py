"""`mlperf-tpu verify`."""

from __future__ import annotations

import click

from mlperf_tpu.cli import print_json


@click.command("verify")
@click.argument("benchmark")
@click.option(
    "--technique",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this (repeatable).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify_command(benchmark: str, names: tuple[str, ...], as_json: bool) -> None:
    """Prove that each technique computes the same distributed as on one device.

    Runs BENCHMARK's techniques on one device, on the virtual mesh and on XLA's virtual
    devices (extra [pod]), and compares. Exit 1 where one differs by more than rounding.
    """
    from mlperf_tpu.verify import verify

    rows = verify(benchmark, names, lambda text: click.echo(text, err=True))
    if as_json:
        print_json({"rows": rows})
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("technique", "places", "error", "tolerance", "from", "ok")
        for row in rows:
            error = row["max_relative_error"]
            table.add_row(
                row["technique"],
                ", ".join(row["places"]),
                "infinite" if error is None else f"{error:.1e}",
                f"{row['tolerance']:.1e}",
                row["origin"],
                "yes" if row["ok"] else "NO",
            )
        console = Console()
        if not console.is_terminal:  # wide enough for a log
            console.width = 120
        console.print(table)
    if not all(row["ok"] for row in rows):
        raise SystemExit(1)
