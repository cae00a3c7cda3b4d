"""The command line. Each command is a module of this package, imported when called.

A command reads its arguments, calls one function and prints what it returns; nothing
heavy is imported at the top of these modules, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from typing import Any, NoReturn

import click

from mlperf_tpu import __version__
from mlperf_tpu.errors import MlperfTpuError, nearest

# Command -> the module that holds it as `<command>_command`, and its one line of help:
# `--help` lists commands without importing their modules.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train", "Train a benchmark to its target and write the MLPerf log."),
    "list": ("show", "List the benchmarks, and what each lacks here to run."),
    "show": ("show", "Show a resolved spec, each value with where it comes from."),
    "validate": ("validate", "Judge MLPerf logs and submissions."),
    "score": ("score", "Time to train and the olympic mean of each entry."),
    "compare": ("compare", "Compare two sets of runs, for a CI."),
    "report": ("report", "Make one HTML page of runs."),
    "verify": ("verify", "Prove each technique equal to one device, place by place."),
    "data": ("data", "Check a data set's files before the clock starts."),
    "plan": ("plan", "Compile for a TPU pod that is not there; forecast the run."),
    "topology": ("topology", "Draw a TPU slice and forecast a gradient sum on it."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"mlperf_tpu.cli.{COMMANDS[name][0]}")
        command = getattr(module, f"{name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}; {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error meant for the user becomes one message."""
        try:
            return super().invoke(ctx)
        except MlperfTpuError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlperf-tpu")
def main() -> None:
    """Reproduce Google's MLPerf Training runs on TPU pods: train, check, compare."""
    # A scheduler's end is a user's: child processes and half-written folders go too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def print_json(document: dict[str, Any]) -> None:
    """Prints one document on stdout, with the version of its schema first."""
    json.dump({"schema": 1, **document}, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def fail(message: str, exit_code: int) -> NoReturn:
    """Says what failed on stderr and leaves with the code."""
    click.echo(message, err=True)
    raise SystemExit(exit_code)
