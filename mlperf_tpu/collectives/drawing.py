"""A topology and a schedule's rings drawn as text and as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from mlperf_tpu.collectives.schedules import Messages, Phase, Schedule
from mlperf_tpu.topology import Chip, Topology

CELL = 22  # SVG units from chip to chip
MARGIN = 34
COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e", "#9c36b5", "#0b7285", "#a61e4d")


@dataclass(frozen=True)
class Drawing:
    """What to draw: the links of one phase, and batch-norm tiles if any.

    `tile` maps a chip to the number of its tile.
    """

    schedule: Schedule
    phase: Phase
    tile: dict[Chip, int]

    @property
    def topology(self) -> Topology:
        return self.schedule.topology

    def links(self) -> list[tuple[Chip, Chip]]:
        """The ends of the phase's messages, each pair once, between chips."""
        grid, cores = self.topology, self.schedule.cores
        m = self.phase.messages
        ends = np.stack([m.source // cores, m.target // cores], axis=1)
        ends = np.unique(np.sort(ends, axis=1), axis=0)
        return [(grid.chip_at(a), grid.chip_at(b)) for a, b in ends.tolist() if a != b]


def first_phase(schedule: Schedule, axis: str) -> Phase:
    """The phase that sums first along an axis ("x", "y"), with that of broken rows.

    Where no colour does, the schedule's first phase between chips.
    """
    for stream in schedule.streams:
        sums = [p for p in stream.phases if p.name.startswith("reduce-scatter")]
        for place, phase in enumerate(sums):
            first = all(p.name.endswith("segments") for p in sums[:place])
            if first and phase.name == f"reduce-scatter {axis}":
                both = Messages.joined([p.messages for p in sums[: place + 1]])
                return replace(phase, messages=both)
    phases = [p for p in schedule.streams[0].phases if p.name != "reduce cores"]
    return phases[0]


def text(drawing: Drawing) -> str:
    """Chips as o (failed: x), the phase's links as lines, tiles by a letter a chip.

    >>> from mlperf_tpu.collectives.schedules_2d import two_d
    >>> schedule = two_d(Topology.parse("4x2"))
    >>> print(text(Drawing(schedule, first_phase(schedule, "x"), {})))
       0   1   2   3
    0  o---o---o---o
       |           |
    1  o---o---o---o
    """
    grid = drawing.topology
    across, down, long = set(), set(), []
    for a, b in drawing.links():
        (ax, ay), (bx, by) = a, b
        if ay == by and bx == ax + 1:
            across.add(a)
        elif ax == bx and by == ay + 1:
            down.add(a)
        else:
            long.append((a, b))
    lines = ["   " + "".join(f"{x:<4}" for x in range(grid.columns))]
    for y in range(grid.rows):
        line = f"{y:<3}"
        for x in range(grid.columns):
            line += _mark(drawing, (x, y)) + ("---" if (x, y) in across else "   ")
        lines.append(line)
        if y + 1 < grid.rows:
            marks = "".join(
                "|   " if (x, y) in down else "    " for x in range(grid.columns)
            )
            lines.append("   " + marks)
    lines += _long_links(grid, long)
    return "\n".join(line.rstrip() for line in lines)


def _mark(drawing: Drawing, chip: Chip) -> str:
    if chip in drawing.topology.failed:
        return "x"
    number = drawing.tile.get(chip)
    if number is None:
        return "o"
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return letters[number % len(letters)]


def _long_links(grid: Topology, links: list[tuple[Chip, Chip]]) -> Iterable[str]:
    """A line for the wrap-around links, and one for each of the few that jump."""
    wraps = [(a, b) for a, b in links if b in grid.neighbours(a)]
    jumps = [link for link in links if link not in wraps]
    for axis, name in ((1, "rows"), (0, "columns")):
        closed = sorted({a[axis] for a, b in wraps if a[axis] == b[axis]})
        if closed:
            yield f"closed by wrap-around: {name} {_ranges(closed)}"
    if jumps:
        shown = ", ".join(f"{a[0]},{a[1]} to {b[0]},{b[1]}" for a, b in jumps[:6])
        yield f"over several hops: {shown}" + (
            f" and {len(jumps) - 6} more" if len(jumps) > 6 else ""
        )


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def svg(drawings: list[Drawing], caption: str) -> str:
    """A panel for each drawing: rings in colours, holes dark, tiles shaded."""
    grid = drawings[0].topology
    width = grid.columns * CELL + 2 * MARGIN
    height = grid.rows * CELL + 2 * MARGIN + 20
    panels = []
    for place, drawing in enumerate(drawings):
        panels.append(f'<g transform="translate({place * width},0)">')
        panels += _panel(drawing)
        panels.append("</g>")
    total = width * len(drawings)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" '
            f'height="{height}" viewBox="0 0 {total} {height}" '
            'font-family="sans-serif" font-size="11">',
            f"<title>{escape(caption)}</title>",
            f'<rect width="{total}" height="{height}" fill="white"/>',
            f'<text x="{MARGIN}" y="{height - 8}">{escape(caption)}</text>',
            *panels,
            "</svg>",
            "",
        ]
    )


def _panel(drawing: Drawing) -> list[str]:
    grid = drawing.topology
    axis = drawing.phase.name.rpartition(" ")[2]
    parts = [f'<text x="{MARGIN}" y="16">{escape(drawing.phase.name)}</text>']
    for (x, y), number in sorted(drawing.tile.items()):
        # Tiles in a row are a power of two, so those above differ too.
        shade = ("#f8f9fa", "#dee2e6", "#ced4da")[number % 3]
        parts.append(
            f'<rect x="{_at(x) - CELL / 2:g}" y="{_at(y) - CELL / 2:g}" '
            f'width="{CELL}" height="{CELL}" fill="{shade}"/>'
        )
    for a, b in drawing.links():
        ring = a[0] if axis == "y" else a[1]
        colour = COLOURS[ring // (1 if _wraps(grid, axis) else 2) % len(COLOURS)]
        parts.append(f'<path d="{_path(grid, a, b)}" stroke="{colour}" fill="none"/>')
    for y in range(grid.rows):
        for x in range(grid.columns):
            failed = (x, y) in grid.failed
            fill = "#212529" if failed else "white"
            parts.append(
                f'<circle cx="{_at(x)}" cy="{_at(y)}" r="4" fill="{fill}" '
                f'stroke="#495057"><title>{x},{y}{" failed" if failed else ""}'
                "</title></circle>"
            )
    return parts


def _wraps(grid: Topology, axis: str) -> bool:
    return grid.wrap_y if axis == "y" else grid.wrap_x


def _at(place: int) -> int:
    return MARGIN + place * CELL


def _path(grid: Topology, a: Chip, b: Chip) -> str:
    """A straight line to a neighbour; stubs at both edges over a wrap; else an arc."""
    (ax, ay), (bx, by) = (tuple(map(_at, chip)) for chip in (a, b))
    if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1:
        return f"M{ax},{ay} L{bx},{by}"
    if b in grid.neighbours(a):
        stub = CELL * 2 // 3
        dx, dy = (stub, 0) if a[1] == b[1] else (0, stub)
        return f"M{ax},{ay} l{-dx},{-dy} M{bx},{by} l{dx},{dy}"
    middle_x, middle_y = (ax + bx) / 2 + CELL / 2, (ay + by) / 2 + CELL / 2
    return f"M{ax},{ay} Q{middle_x:g},{middle_y:g} {bx},{by}"
