"""Every schedule keeps its promises, on whole grids and on grids with failed chips."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlperf_tpu.collectives.proof import ScheduleWrong, execute, prove
from mlperf_tpu.collectives.schedules import Phase, Schedule, Unroutable, on_cores
from mlperf_tpu.collectives.schedules_2d import multipod, two_d
from mlperf_tpu.collectives.schedules_choice import gradient_sum
from mlperf_tpu.collectives.schedules_circuit import circuit, neighbour_circuit
from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import Topology

SIZES = range(2, 17)


def holes(grid: Topology, step: int = 2) -> Iterator[str]:
    """Every 4x2 and 2x2 hole at even places (step 1: anywhere) that leaves chips."""
    for width, height in ((4, 2), (2, 2)):
        for x in range(0, grid.columns - width + 1, step):
            for y in range(0, grid.rows - height + 1, step):
                if grid.columns * grid.rows > width * height:
                    yield f"{x},{y}:{width}x{height}"


@pytest.mark.parametrize("wrap", ["mesh", "torus"])
def test_two_d_sums_on_shapes_up_to_16x16(wrap: str) -> None:
    for columns, rows in itertools.product(SIZES, (2, 3, 4, 5, 8, 9, 16)):
        if wrap == "mesh" or min(columns, rows) > 2:
            prove(gradient_sum(Topology(columns, rows, *[wrap == "torus"] * 2)))


def test_the_ring_sums_on_shapes_up_to_16x16() -> None:
    for columns, rows in itertools.product(range(2, 17, 3), (2, 3, 4, 5, 8, 9, 16)):
        prove(circuit(Topology(columns, rows)))


# All shapes and holes up to 16x16: scripts/gradient_summation.py --proofs.
@pytest.mark.parametrize("algorithm", ["torus2d", "ring"])
@pytest.mark.parametrize("name", ["6x6:mesh", "8x8:mesh", "8x6:torus", "7x8:mesh"])
def test_survivors_sum_around_a_hole_anywhere(name: str, algorithm: str) -> None:
    grid = Topology.parse(name)
    for hole in holes(grid, step=1):
        left = grid.with_holes([hole])
        if left.connected:
            prove(gradient_sum(left, algorithm))


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    st.integers(4, 24),
    st.integers(4, 16),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 23), st.integers(0, 15)), max_size=3),
    st.sampled_from(["torus2d", "ring"]),
    st.booleans(),
)
def test_survivors_sum_around_several_holes_or_are_refused(
    columns: int,
    rows: int,
    wrap_x: bool,
    wrap_y: bool,
    corners: list[tuple[int, int]],
    algorithm: str,
    cores: bool,
) -> None:
    grid = Topology(columns, rows, wrap_x, wrap_y)
    holes = [f"{x % (columns - 1)},{y % (rows - 1)}:2x2" for x, y in corners]
    left = grid.with_holes(holes)
    if left.connected:
        prove(gradient_sum(left, algorithm, cores=cores))
    else:
        with pytest.raises(Unroutable, match="cut the grid"):
            gradient_sum(left, algorithm)


def test_single_failed_chips_are_routed_around() -> None:
    prove(gradient_sum(Topology.parse("9x7").with_holes(["3,3", "8,0"])))


def test_the_multipod_sums() -> None:
    proof = prove(multipod(Topology(12, 6, wrap_y=True, pod_columns=4)))
    # 2011.03641: rings of 6 along y, then lines of 12 along x
    assert proof.n_steps == 2 * (5 + 11)


@pytest.mark.parametrize("peers", [2, 4])
def test_model_parallel_peers_are_skipped(peers: int) -> None:
    grid = Topology(16, 4, wrap_y=True, pod_columns=8)
    schedule = multipod(grid, peers)
    prove(schedule)
    values = np.ones((64, 1024))
    values *= np.arange(64)[:, None] % 16 % peers + 1
    summed = execute(schedule, values)
    # each chip ends with 64 / peers equal values: those of the chips of its own shard
    assert (summed == values * 64 / peers).all()


@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_steps_and_bytes_of_a_square_torus_match_the_formulas(n: int) -> None:
    grid = Topology(n, n, wrap_x=True, wrap_y=True)
    proof = prove(two_d(grid))
    # 1811.06992: 4(N - 1) steps; every stream's chips send 2 (N^2 - 1) of N^2 chunks
    assert proof.n_steps == 4 * (n - 1)
    assert proof.chunks_sent == (2 * (n * n - 1),) * 4
    assert proof.longest_path == 1


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_steps_and_bytes_of_the_ring_match_the_formulas(n: int) -> None:
    proof = prove(circuit(Topology(n, n)))
    assert proof.n_steps == 2 * (n * n - 1)
    assert proof.chunks_sent == (2 * (n * n - 1),) * 2
    assert proof.longest_path == 1


def test_steps_of_a_mesh_by_row_pairs() -> None:
    # rings of two rows (2 x 8 chips), then lines across the 3 pairs
    assert two_d(Topology(8, 6), "x").n_steps == 2 * (2 * 8 - 1 + 2)


def test_a_hole_aligned_with_blocks_has_a_circuit_of_neighbours() -> None:
    for columns, rows in itertools.product(range(4, 17, 2), range(4, 17, 2)):
        grid = Topology(columns, rows)
        for hole in holes(grid):
            left = grid.with_holes([hole])
            if left.connected:
                order = neighbour_circuit(left)
                assert order is not None
                assert sorted(order) == sorted(left.chips)
                around = itertools.pairwise([*order, order[0]])
                assert all(b in left.neighbours(a) for a, b in around)


@pytest.mark.parametrize("name", ["5x5", "7x3"])
def test_an_odd_mesh_has_no_circuit_and_says_so(name: str) -> None:
    schedule = circuit(Topology.parse(name))
    assert schedule.name == "1-D walk"
    assert "no circuit of neighbours" in schedule.notes[0]


def test_failures_that_break_one_colour_leave_the_other() -> None:
    # both pairs of rows are hit, no column pair is needed: 0-1 is whole
    grid = Topology.parse("10x4").with_holes(["4,1:2x2"])
    schedule = gradient_sum(grid)
    prove(schedule)
    assert schedule.name == "2-D y-first"
    assert "no whole ring along x" in schedule.notes[0]


def test_failures_that_break_both_colours_fall_back_on_the_circuit() -> None:
    grid = Topology.parse("4x4").with_holes(["1,1:2x2"])
    schedule = gradient_sum(grid)
    prove(schedule)
    assert schedule.name == "1-D circuit"
    assert "no whole ring along" in schedule.notes[0]


@pytest.mark.parametrize("algorithm", ["torus2d", "ring"])
def test_a_grid_cut_in_two_is_refused(algorithm: str) -> None:
    grid = Topology.parse("6x4").with_holes(["2,0:2x4"])
    with pytest.raises(Unroutable, match="cut the grid of 6x4 in two"):
        gradient_sum(grid, algorithm)


def test_peers_on_a_grid_with_failed_chips_are_refused() -> None:
    with pytest.raises(Unroutable, match="8 chips have failed"):
        gradient_sum(Topology.parse("8x8").with_holes(["0,0:4x2"]), peers=2)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(BadInput, match="did you mean torus2d"):
        gradient_sum(Topology.parse("4x4"), "torus")


@pytest.mark.parametrize("name", ["8x8", "8x8:torus", "5x5"])
def test_cores_of_a_chip_sum_first(name: str) -> None:
    grid = Topology.parse(name)
    whole = two_d(grid)
    proof = prove(on_cores(whole))
    assert proof.n_steps == whole.n_steps + 2


def test_every_core_owns_as_much_as_the_others() -> None:
    schedule = on_cores(two_d(Topology.parse("8x8:torus")))
    owned = np.bincount(np.concatenate([s.owner[0] for s in schedule.streams]))
    assert (owned == owned[0]).all() and len(owned) == 128


def test_reduce_scatter_then_all_gather_is_the_whole() -> None:
    schedule = gradient_sum(Topology.parse("8x8").with_holes(["2,2:4x2"]))
    values = np.random.default_rng(0).integers(0, 100, (64, 1000)).astype(float)
    for chip in schedule.topology.failed:
        values[schedule.topology.chip_id(chip)] = 0
    prove(schedule.reduce_scatter())
    halves = execute(schedule.all_gather(), execute(schedule.reduce_scatter(), values))
    # whole numbers below 2^53: float sums are exact in any order
    survivors = schedule.group == 0
    assert (halves[survivors] == values.sum(axis=0)).all()


@pytest.mark.parametrize("elements", [1, 7, 1000])
def test_any_number_of_elements_is_summed(elements: int) -> None:
    values = np.arange(16 * elements, dtype=float).reshape(16, elements)
    summed = execute(two_d(Topology.parse("4x4")), values)
    assert (summed == values.sum(axis=0)).all()


def test_chunks_of_a_padded_payload_are_equal() -> None:
    schedule = gradient_sum(Topology.parse("8x6").with_holes(["2,2:2x2"]))
    n = schedule.padded(1000)
    assert n >= 1000
    for bounds in schedule.elements(n):
        assert len(set(np.diff(bounds).tolist())) == 1


def test_permutes_hold_every_message_of_a_step_once() -> None:
    schedule = gradient_sum(Topology.parse("7x6").with_holes(["2,2:2x2"]))
    for stream in schedule.streams:
        for phase in stream.phases:
            for t in range(phase.n_steps):
                step = phase.step(t)
                permutes = list(step.permutes())
                pairs = [pair for permute in permutes for pair in permute.pairs]
                sent = step.count > 0
                ends = zip(step.source[sent], step.target[sent], strict=True)
                assert sorted(pairs) == sorted((int(a), int(b)) for a, b in ends)
                for permute in permutes:
                    sources, targets = zip(*permute.pairs, strict=True)
                    assert len(set(sources)) == len(sources)
                    assert len(set(targets)) == len(targets)


def test_nodes_are_numbered_as_the_replicas_of_one_core() -> None:
    grid = Topology.parse("6x4").with_holes(["2,2:2x2"])
    schedule = gradient_sum(grid, cores=True)
    for device, replica in enumerate(schedule.replica.tolist()):
        x, y = grid.chip_at(device // 2)
        held = grid.replicas().replica_of.get((x, y, device % 2), (-1, 0))
        assert held[0] == replica


def damaged(change: Callable[[Phase], Phase]) -> Schedule:
    """A 4x4 mesh's schedule with a change in its first phase."""
    schedule = two_d(Topology.parse("4x4"))
    stream = schedule.streams[0]
    phases = (change(stream.phases[0]), *stream.phases[1:])
    return replace(
        schedule, streams=(replace(stream, phases=phases), *schedule.streams[1:])
    )


def with_messages(phase: Phase, **changes: object) -> Phase:
    return replace(phase, messages=replace(phase.messages, **changes))  # type: ignore[arg-type]


def test_the_proof_finds_a_step_left_out() -> None:
    def shorter(phase: Phase) -> Phase:
        return with_messages(phase, end=phase.messages.end - 1)

    with pytest.raises(ScheduleWrong, match="lacks its chunk's sum"):
        prove(damaged(shorter))


def test_the_proof_finds_a_chunk_sent_twice() -> None:
    def longer(phase: Phase) -> Phase:
        return with_messages(phase, end=phase.messages.end + 2)

    with pytest.raises(ScheduleWrong, match="a second time"):
        prove(damaged(longer))


def test_the_proof_finds_messages_that_collide() -> None:
    def crossed(phase: Phase) -> Phase:
        target = phase.messages.target.copy()
        target[0] = target[1]
        return with_messages(phase, target=target)

    with pytest.raises(ScheduleWrong, match="share a node"):
        prove(damaged(crossed))


def test_the_proof_finds_a_chunk_read_while_it_is_written() -> None:
    def still(phase: Phase) -> Phase:
        return with_messages(phase, offset=phase.messages.offset * 0)

    with pytest.raises(ScheduleWrong, match="read while it is written"):
        prove(damaged(still))


def test_the_proof_finds_a_message_to_a_failed_chip() -> None:
    schedule = two_d(Topology.parse("4x4"))
    group = schedule.group.copy()
    group[5] = -1
    with pytest.raises(ScheduleWrong, match="meets a failed chip"):
        prove(replace(schedule, group=group))


def test_the_proof_finds_a_link_that_does_not_exist() -> None:
    torus = two_d(Topology.parse("4x4:torus"))

    class Straight:
        def path(self, a: object, b: object) -> tuple[object, object]:
            return a, b

    from mlperf_tpu.collectives import proof

    on_mesh = replace(torus, topology=Topology.parse("4x4"))
    with pytest.raises(ScheduleWrong, match="does not exist"):
        proof._check_paths(on_mesh, torus.streams[0].phases[0], Straight())  # type: ignore[arg-type]
