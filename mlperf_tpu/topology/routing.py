"""The path of a message between two chips: straight, or around failed chips."""

from __future__ import annotations

from collections import deque

from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology.grid import Topology
from mlperf_tpu.topology.placement import Chip


class Router:
    """Shortest paths over links that exist between chips that work.

    A message to a chip of its own row or column goes straight, the shorter way round;
    all others, and those with a failed chip in the way, follow a breadth-first search.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._paths: dict[tuple[Chip, Chip], tuple[Chip, ...]] = {}

    def path(self, start: Chip, end: Chip) -> tuple[Chip, ...]:
        """The chips from start to end, both included."""
        found = self._paths.get((start, end))
        if found is None:
            found = self._straight(start, end) or self._around(start, end)
            self._paths[start, end] = found
        return found

    def _straight(self, start: Chip, end: Chip) -> tuple[Chip, ...] | None:
        grid = self.topology
        axis = 0 if start[1] == end[1] else 1
        if start[1 - axis] != end[1 - axis]:
            return None
        size = (grid.columns, grid.rows)[axis]
        move = end[axis] - start[axis]
        if (grid.wrap_x, grid.wrap_y)[axis] and abs(move) * 2 > size:
            move -= size if move > 0 else -size
        way = 1 if move > 0 else -1
        chips = []
        for hop in range(abs(move) + 1):
            place = (start[axis] + way * hop) % size
            chip = (place, start[1]) if axis == 0 else (start[0], place)
            if chip in grid.failed:
                return None
            chips.append(chip)
        return tuple(chips)

    def _around(self, start: Chip, end: Chip) -> tuple[Chip, ...]:
        came: dict[Chip, Chip] = {start: start}
        queue = deque([start])
        while queue and end not in came:
            chip = queue.popleft()
            for neighbour in self.topology.neighbours(chip):
                if neighbour not in came:
                    came[neighbour] = chip
                    queue.append(neighbour)
        if end not in came:
            raise BadInput(
                f"chip {end[0]},{end[1]} cannot be reached from {start[0]},{start[1]}: "
                "the failed chips cut the grid in two; leave one side out"
            )
        path = [end]
        while path[-1] != start:
            path.append(came[path[-1]])
        return tuple(reversed(path))
