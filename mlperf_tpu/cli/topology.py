"""`mlperf-tpu topology`: a slice, its rings and holes, and a gradient sum's time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlperf_tpu.cli import print_json
from mlperf_tpu.errors import BadInput

if TYPE_CHECKING:
    from mlperf_tpu.collectives.schedules import Schedule
    from mlperf_tpu.topology import Chip, Topology

RESNET50_MB = 102.4  # 25.6 million float32 gradients


@click.command()
@click.argument("name", required=False)
@click.option("--chips", type=int, help="The v3 grid Google used for so many chips.")
@click.option(
    "--failed", multiple=True, metavar="X,Y:WxH", help="A hole; may be repeated."
)
@click.option("--sum", "algorithm", default="torus2d", help="torus2d or ring.")
@click.option(
    "--peers",
    type=click.IntRange(1),
    default=1,
    help="Model-parallel peers along x to skip.",
)
@click.option(
    "--tile",
    type=click.IntRange(1),
    help="Also show batch-norm tiles of so many replicas.",
)
@click.option(
    "--mb", default=RESNET50_MB, help="Payload in 10^6 bytes (ResNet-50: 102.4)."
)
@click.option("--svg", "svg_file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--no-draw", is_flag=True, help="Only the figures.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def topology_command(
    name: str | None,
    chips: int | None,
    failed: tuple[str, ...],
    algorithm: str,
    peers: int,
    tile: int | None,
    mb: float,
    svg_file: Path | None,
    no_draw: bool,
    as_json: bool,
) -> None:
    """Draw a TPU slice with its rings and holes, and forecast a gradient sum on it.

    NAME is a grid, as v3:32x32x1, 8x8 or 16x8:torus; or give --chips.
    """
    from mlperf_tpu.collectives import drawing
    from mlperf_tpu.collectives.schedules_choice import gradient_sum
    from mlperf_tpu.topology import Topology

    if (name is None) == (chips is None):
        raise BadInput("name a grid, as v3:32x32x1, or give --chips; one of the two")
    if mb <= 0:
        raise BadInput(f"a payload of {mb} MB; give more than 0")
    grid = Topology.parse(name) if name else Topology.for_chips(chips or 0)
    grid = grid.with_holes(failed)
    if grid.n_chips == 1:
        raise BadInput(f"1 chip of {grid.name} has nothing to sum; choose at least 2")
    schedule = gradient_sum(grid, algorithm, peers)
    tiles = _tiles(grid, tile)
    report = _report(grid, schedule, mb * 1e6)
    axes = "y" if grid.pod_columns else "xy"
    first = [drawing.first_phase(schedule, axis) for axis in axes]
    panels = {phase.name: drawing.Drawing(schedule, phase, tiles) for phase in first}
    if svg_file is not None:
        try:
            svg_file.write_text(drawing.svg(list(panels.values()), _headline(report)))
        except OSError as error:
            raise BadInput(f"cannot write {svg_file}: {error.strerror}") from error
    if as_json:
        print_json(report)
        return
    click.echo(_headline(report))
    for note in schedule.notes:
        click.echo(f"note: {note}")
    if not no_draw:
        for title, panel in panels.items():
            click.echo(f"\n{title}:\n{drawing.text(panel)}")
        click.echo()
    click.echo("phases, each as in the slowest stream; the streams run at once:")
    for phase in report["phases"]:
        click.echo(
            f"  {phase['name']:<26} {phase['steps']:>6} steps {phase['ms']:>9.3f} ms"
        )
    click.echo(
        f"forecast (not measured): {report['sum_ms']:.3f} ms for {mb:g} MB, of which "
        f"{report['latency_ms']:.3f} ms whatever the size; {report['steps']} steps; "
        f"the busiest link carries data for {report['busiest_link_ms']:.3f} ms"
    )


def _tiles(grid: Topology, size: int | None) -> dict[Chip, int]:
    """The number of each chip's batch-norm tile."""
    if size is None:
        return {}
    placed = grid.replicas()
    return {
        placed.cores[replica][0][:2]: number
        for number, group in enumerate(placed.tiles(size))
        for replica in group
    }


def _report(grid: Topology, schedule: Schedule, payload_bytes: float) -> dict[str, Any]:
    from mlperf_tpu.collectives.simulate import simulate

    forecast = simulate(schedule, payload_bytes)
    steps: dict[str, int] = {}
    for stream in schedule.streams:
        for phase in stream.phases:
            steps[phase.name] = max(steps.get(phase.name, 0), phase.n_steps)
    return {
        "topology": grid.name,
        "chips": grid.n_chips,
        "failed": [list(chip) for chip in sorted(grid.failed)],
        "wrap": [grid.wrap_x, grid.wrap_y],
        "schedule": schedule.name,
        "notes": list(schedule.notes),
        "payload_bytes": payload_bytes,
        "steps": schedule.n_steps,
        "phases": [
            {"name": name, "steps": n, "ms": forecast.phase_ms(name)}
            for name, n in steps.items()
        ],
        "sum_ms": forecast.total_ms,
        "latency_ms": simulate(schedule, 0.0).total_ms,
        "busiest_link_ms": forecast.busiest_link_ms,
    }


def _headline(report: dict[str, Any]) -> str:
    wrap = {
        (True, True): "torus",
        (True, False): "wraps along x",
        (False, True): "wraps along y",
        (False, False): "mesh",
    }[tuple(report["wrap"])]
    lost = f", {len(report['failed'])} failed" if report["failed"] else ""
    return (
        f"{report['topology']} ({wrap}): {report['chips']} chips{lost}; "
        f"gradient sum: {report['schedule']}"
    )
