"""What a person sees of a run: one live line, or plain lines without a terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

# Without a terminal, a line no more often than this.
_PLAIN_EVERY_S = 10.0


class Progress:
    """Prints the course of a run to `console`. One run at a time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._steps = 0
        self._began = self._spoke = 0.0
        self._at_start = 0

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def begin(self, total_steps: int, first_step: int, global_batch: int) -> None:
        """The clock of a run starts at `first_step` (0, unless it was resumed)."""
        self._steps, self._batch = total_steps, global_batch
        self._at_start = first_step
        self._began = self._spoke = time.monotonic()
        self._evaluating = 0.0
        if self._console.is_terminal:
            self._live = Live("", console=self._console, auto_refresh=False)
            self._live.start()

    def step(self, step: int, epoch: float, loss: float, rate: float) -> None:
        """After each step; `epoch` counts those done, fractions included."""
        now = time.monotonic()
        training = max(now - self._began - self._evaluating, 1e-9)
        done = step - self._at_start
        left = (now - self._began) / done * (self._steps - step)
        line = (
            f"step {step}/{self._steps}  epoch {epoch:.2f}  loss {loss:.4f}  "
            f"LR {rate:.4g}  {done * self._batch / training:.0f} examples/s  "
            f"at most {left:.0f} s left"
        )
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif now - self._spoke >= _PLAIN_EVERY_S:
            self._spoke = now
            self.say(line)

    def evaluating(self, seconds: float) -> None:
        """Seconds that the mesh did not train."""
        self._evaluating += seconds

    def evaluated(self, epoch: int, quality: float, target: float, metric: str) -> None:
        sign = "≥" if quality >= target else "<"
        self.say(f"epoch {epoch}: {metric} {quality:.4f} {sign} {target:g} target")

    def end(self) -> None:
        if self._live is not None:
            self._live.update("", refresh=True)
            self._live.stop()
            self._live = None

    def table(self, summary: dict[str, Any]) -> None:
        """One row a run: target, reached, epochs, time to accuracy, log."""
        target = summary["target"]
        title = f"{summary['benchmark']} ({summary['task']}, {summary['place']} place)"
        table = Table(title=title, title_justify="left")
        for column, justify in (
            ("run", "right"),
            ("target", "right"),
            ("reached", "right"),
            ("status", "left"),
            ("epochs", "right"),
            ("time to accuracy", "right"),
            ("examples/s", "right"),
        ):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for i, run in enumerate(summary["runs"]):
            quality = run["quality"]
            table.add_row(
                str(i),
                f"{target['metric']} {target['value']:g}",
                "-" if quality is None else f"{quality:.4f}",
                run["status"],
                f"{run['epochs']}",
                f"{run['seconds']:.1f} s" if run["reached"] else "-",
                f"{run['examples_per_s']:.0f}",
            )
        self._console.print(table)
        for run in summary["runs"]:
            if run["reason"]:
                self.say(f"aborted: {run['reason']}")
            self.say(f"log: {run['log']}")
