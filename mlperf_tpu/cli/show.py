"""`mlperf-tpu list` and `mlperf-tpu show`."""

from __future__ import annotations

import importlib.util
from typing import Any

import click

from mlperf_tpu.cli import print_json
from mlperf_tpu.spec import Resolved, Spec, leaves, load, names, resolve


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the benchmarks, and what each lacks here to run."""
    rows: list[dict[str, Any]] = []
    for name in names():
        document = load(name)
        proxy = resolve(document, task="proxy").spec
        full = resolve(document, scale_name=document.scales[0].name).spec
        rows.append(
            {
                "name": name,
                "target": full.rules.target.model_dump(),
                "proxy": {"data": proxy.data.name, **proxy.rules.target.model_dump()},
                "scales": [
                    {"name": s.name, "chips": s.chips, "source": s.source}
                    for s in document.scales
                ],
                "lacks": _lacks(full),
            }
        )
    if as_json:
        print_json({"benchmarks": rows})
        return
    for row in rows:
        target, proxy = row["target"], row["proxy"]
        click.echo(f"{row['name']}")
        click.echo(f"  target  {target['metric']} {target['value']:g}")
        click.echo(
            f"  proxy   {proxy['data']}, {proxy['metric']} {proxy['value']:g}: "
            "runs here"
        )
        for lack in row["lacks"]:
            click.echo(f"  lacks   {lack}")
        chips = ", ".join(f"{s['chips']} ({s['name']})" for s in row["scales"])
        click.echo(f"  chips   {chips}")


def _lacks(spec: Spec) -> list[str]:
    """What the published task needs and this machine has not."""
    lacks = [f"{spec.data.name}: for the published task, give its folder as --data-dir"]
    if importlib.util.find_spec("libtpu") is None:
        lacks.append("a TPU: none is found")
    return lacks


@click.command("show")
@click.argument("benchmark", metavar="BENCHMARK|SPEC.yaml")
@click.option("--chips", type=int, help="The published scale of so many chips.")
@click.option("--scale", "scale_name", help="A published scale by its name.")
@click.option(
    "--task",
    type=click.Choice(["proxy", "full"]),
    default="full",
    show_default=True,
    help="The proxy or the published task.",
)
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(
    benchmark: str,
    chips: int | None,
    scale_name: str | None,
    task: Any,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show a resolved spec, each value with where it comes from."""
    document = load(benchmark)
    if task == "full" and chips is None and scale_name is None and not settings:
        # The common values alone make no spec: the smallest published scale does.
        scale_name = document.scales[0].name if document.scales else None
    resolved = resolve(document, chips, scale_name, task, settings)
    facts = _facts(resolved)
    if as_json:
        print_json({**resolved.record(), "facts": facts})
        return
    others = [
        s.name
        for s in document.scales
        if s.chips == resolved.chips and s.name != resolved.scale
    ]
    click.echo(f"# {resolved.name}, {resolved.task} task")
    if resolved.scale:
        click.echo(f"# scale {resolved.scale}: {resolved.source}")
    if others:
        click.echo(f"# other scales of {resolved.chips} chips: {', '.join(others)}")
    rows = [(path, _text(value)) for path, value in leaves(resolved.values())]
    wide = max(len(path) + len(value) for path, value in rows) + 3
    for path, value in rows:
        click.echo(f"{f'{path}: {value}':<{wide}}# {resolved.origins[path]}")
    click.echo("# what follows from them")
    for name, value in facts.items():
        click.echo(f"{name}: {_text(value)}")


def _facts(resolved: Resolved) -> dict[str, Any]:
    """Topology and what the schedule works out to, in steps."""
    spec = resolved.spec
    facts: dict[str, Any] = {}
    if resolved.chips is not None and resolved.task == "full":
        from mlperf_tpu.topology import Topology

        topology = Topology.for_chips(resolved.chips)
        replicas = topology.replicas(spec.training.partitions).n_replicas
        spec.check_replicas(replicas)
        facts |= {
            "topology": topology.name,
            "replicas": replicas,
            "examples_per_replica": spec.training.global_batch // replicas,
        }
    blocks = spec.blocks()
    return facts | {
        "steps": spec.total_steps,
        "warmup_steps": round(spec.warmup_steps, 3),
        "decay_steps": spec.decay_steps,
        "evaluations": len(blocks),
        "steps_to_first_evaluation": blocks[0].last_step,
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
