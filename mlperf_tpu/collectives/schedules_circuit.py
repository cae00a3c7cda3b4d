"""One ring through every surviving chip: the 1-D all-reduce (2011.03605).

A circuit that goes from neighbour to neighbour and visits each chip once is built by
covering the grid with small circuits and merging them. It needs as many chips of one
colour of the chessboard as of the other, so a grid of odd size has none; nor has one
with a dead end. A ring in the order of a depth-first walk serves all other grids that
are connected: some of its messages then take several hops, and it turns one way only.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from mlperf_tpu.collectives.schedules import Schedule, check_connected, ring_schedule
from mlperf_tpu.topology import Chip, Topology

Cover = dict[Chip, set[Chip]]  # each chip's partners, at most two
MERGE_TRIES = 300  # random flips before a circuit is given up


def circuit(topology: Topology) -> Schedule:
    """The 1-D all-reduce: 2(N - 1) steps; a circuit is used both ways round."""
    check_connected(topology)
    order = neighbour_circuit(topology)
    if order is not None:
        ids = [topology.chip_id(chip) for chip in order]
        return ring_schedule("1-D circuit", topology, [ids])
    ids = [topology.chip_id(chip) for chip in depth_first(topology)]
    schedule = ring_schedule("1-D walk", topology, [ids], both_ways=False)
    note = "no circuit of neighbours visits every surviving chip: a walk serves instead"
    return replace(schedule, notes=(note,))


def neighbour_circuit(topology: Topology) -> list[Chip] | None:
    """A Hamiltonian circuit over the links within the grid, or None if none is found.

    Where a cover by circuits exists but 300 random flips do not merge it into one, None
    is returned too, although a circuit may exist.
    """
    if topology.n_chips < 4:
        return None
    if topology.rows == 1 or topology.columns == 1:
        wraps = topology.wrap_x or topology.wrap_y
        return list(topology.chips) if wraps and not topology.failed else None
    flat = replace(topology, wrap_x=False, wrap_y=False, pod_columns=None)
    cover = _blocks(flat)
    if not _complete(flat, cover):
        return None
    rng = random.Random(0)
    squares = [(x, y) for x in range(flat.columns - 1) for y in range(flat.rows - 1)]
    circuits = _merge(cover, squares)
    for _ in range(MERGE_TRIES):
        if circuits == 1:
            break
        # Any flip keeps the cover whole; it opens other places to merge at.
        for square in rng.sample(squares, len(squares)):
            if _flip(cover, square):
                break
        circuits = _merge(cover, squares)
    return _walk(cover, flat.chips[0]) if circuits == 1 else None


def depth_first(topology: Topology) -> list[Chip]:
    """The survivors in the order a depth-first walk from the first one meets them."""
    seen: set[Chip] = set()
    order = []
    stack = [topology.chips[0]]
    while stack:
        chip = stack.pop()
        if chip in seen:
            continue
        seen.add(chip)
        order.append(chip)
        stack += [n for n in reversed(topology.neighbours(chip)) if n not in seen]
    return order


def _link(cover: Cover, a: Chip, b: Chip) -> None:
    cover[a].add(b)
    cover[b].add(a)


def _unlink(cover: Cover, a: Chip, b: Chip) -> None:
    cover[a].remove(b)
    cover[b].remove(a)


def _blocks(topology: Topology) -> Cover:
    """Every 2x2 block at even places that is whole, as a circuit of four."""
    cover: Cover = {chip: set() for chip in topology.chips}
    for x in range(0, topology.columns - 1, 2):
        for y in range(0, topology.rows - 1, 2):
            block = [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]
            if all(chip in cover for chip in block):
                for a, b in zip(block, block[1:] + block[:1], strict=True):
                    _link(cover, a, b)
    return cover


def _complete(topology: Topology, cover: Cover) -> bool:
    """Gives every chip two partners, by paths that alternate links out of and in use.

    This is the augmenting-path method for a 2-matching of a bipartite graph; where it
    fails, no cover by circuits exists.
    """
    for chip in topology.chips:
        while (chip[0] + chip[1]) % 2 == 0 and len(cover[chip]) < 2:
            if not _augment(topology, cover, chip):
                return False
    return all(len(partners) == 2 for partners in cover.values())


def _augment(topology: Topology, cover: Cover, start: Chip) -> bool:
    came: dict[Chip, Chip] = {start: start}
    queue = deque([start])
    while queue:
        chip = queue.popleft()
        if sum(chip) % 2 == 0:
            ahead = [n for n in topology.neighbours(chip) if n not in cover[chip]]
        elif len(cover[chip]) < 2:
            _switch(cover, came, chip)
            return True
        else:
            ahead = list(cover[chip])
        for neighbour in ahead:
            if neighbour not in came:
                came[neighbour] = chip
                queue.append(neighbour)
    return False


def _switch(cover: Cover, came: dict[Chip, Chip], chip: Chip) -> None:
    """Along the found path, puts links in use that were not, and the others out."""
    while came[chip] != chip:
        before = came[chip]
        if before in cover[chip]:
            _unlink(cover, before, chip)
        else:
            _link(cover, before, chip)
        chip = before


def _flip(cover: Cover, square: Chip) -> bool:
    """Exchanges the two links in use of a unit square for the two that are not."""
    x, y = square
    a, b, c, d = (x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)
    if not all(chip in cover for chip in (a, b, c, d)):
        return False
    for p, q, r, s in ((a, b, d, c), (a, d, b, c)):
        unused = r not in cover[p] and s not in cover[q]
        if q in cover[p] and s in cover[r] and unused:
            _unlink(cover, p, q)
            _unlink(cover, r, s)
            _link(cover, p, r)
            _link(cover, q, s)
            return True
    return False


def _merge(cover: Cover, squares: list[Chip]) -> int:
    """Flips squares whose links belong to two circuits; returns how many are left.

    Such a flip always joins the two, as each loses one link and gains both new ones.
    """
    number: dict[Chip, int] = {}
    circuits: list[list[Chip]] = []
    for chip in cover:
        if chip not in number:
            circuits.append(_walk(cover, chip))
            number.update(dict.fromkeys(circuits[-1], len(circuits) - 1))
    left = len(circuits)
    for x, y in squares:
        corner, opposite = number.get((x, y)), number.get((x + 1, y + 1))
        if corner is None or opposite is None or corner == opposite:
            continue
        if _flip(cover, (x, y)):
            left -= 1
            small, large = sorted((corner, opposite), key=lambda n: len(circuits[n]))
            number.update(dict.fromkeys(circuits[small], large))
            circuits[large] += circuits[small]
    return left


def _walk(cover: Cover, start: Chip) -> list[Chip]:
    order = [start]
    before, chip = start, min(cover[start])
    while chip != start:
        order.append(chip)
        (ahead,) = cover[chip] - {before}
        before, chip = chip, ahead
    return order
