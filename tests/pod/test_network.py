"""What one collective costs, and what failed chips cost a run."""

from __future__ import annotations

import pytest

from mlperf_tpu.collectives.schedules_choice import every_gradient_sum, gradient_sum
from mlperf_tpu.collectives.simulate import simulate
from mlperf_tpu.errors import BadInput
from mlperf_tpu.pod.failures import forecast_failure
from mlperf_tpu.pod.network import collective_cost
from mlperf_tpu.topology import Topology
from mlperf_tpu.topology.links import CORE_US, MESSAGE_US, Links

V = 102.4e6
POD = Topology.for_chips(1024)


@pytest.mark.parametrize("chips", [16, 64, 128, 256, 512, 1024, 2048, 4096])
def test_the_formula_for_all_chips_is_near_the_simulation(chips: int) -> None:
    grid = Topology.for_chips(chips)
    one_core = [range(0, 2 * chips, 2)]
    links = Links(message_us=1.0)
    formula = collective_cost("all-reduce", V, one_core, grid, links).total_ms
    # Meshes: formulas add latencies that the simulation hides behind other messages.
    tolerance = 1e-9 if grid.wrap_x and grid.wrap_y else 0.06
    simulated = simulate(gradient_sum(grid), V, links).total_ms
    assert formula == pytest.approx(simulated, rel=tolerance)


def test_reduce_scatter_and_all_gather_are_an_all_reduce() -> None:
    parts = [
        collective_cost(kind, V, [range(2048)], POD).total_ms
        for kind in ("reduce-scatter", "all-gather")
    ]
    whole = collective_cost("all-reduce", V, [range(2048)], POD).total_ms
    assert sum(parts) == pytest.approx(whole)


def test_one_ring_takes_two_of_the_four_links() -> None:
    links = Links(message_us=0.0, core_us=0.0, core_gb_s=1e12)
    group = [range(2048)]
    ring = collective_cost("all-gather", V, group, POD, links, one_ring=True)
    best = collective_cost("all-gather", V, group, POD, links)
    assert ring.total_ms == pytest.approx(2 * best.total_ms, rel=1e-4)  # cores: 1e-6


def test_a_row_is_a_ring_and_a_column_of_a_mesh_a_line() -> None:
    links = Links(message_us=1.0, core_us=0.0, core_gb_s=1e12)
    placed = POD.replicas()
    row = placed.devices(placed.rows())
    cost = collective_cost("all-reduce", V, row, POD, links)
    ring = 2 * 31 * 1e-3 + 2 * V * 31 / 32 / 2 / 82e6
    assert cost.total_ms == pytest.approx(ring, rel=1e-4)  # the cores' part: 1e-6
    mesh = Topology.for_chips(256)
    placed = mesh.replicas()
    column = placed.devices(placed.columns())
    cost = collective_cost("all-reduce", V, column, mesh, links)
    line = 2 * 15 * 1e-3 + 2 * V * 15 / 16 / 82e6
    assert cost.total_ms == pytest.approx(line, rel=1e-4)


def test_a_batch_norm_tile_costs_latency_alone() -> None:
    placed = POD.replicas()
    tiles = placed.devices(placed.tiles(8))
    cost = collective_cost("all-reduce", 2048, tiles, POD)
    # swap the cores' halves, one step along x, one along y, and back
    assert cost.latency_ms == pytest.approx(2 * (CORE_US + 2 * MESSAGE_US) * 1e-3)
    assert cost.payload_ms < 1e-3


def test_tiles_cost_less_than_scattered_groups() -> None:
    placed = POD.replicas()
    groups = placed.devices(placed.tiles(16))
    tiles = collective_cost("all-reduce", 1e6, groups, POD)
    scattered = [[i * 2 + 254 * k % 2048 for k in range(8)] for i in range(4)]
    far = collective_cost("all-reduce", 1e6, scattered, POD)
    assert far.total_ms > tiles.total_ms


def test_groups_that_share_chips_share_their_links() -> None:
    one = collective_cost("all-reduce", V, [range(0, 2048, 2)], POD)
    both = collective_cost("all-reduce", V, [range(0, 2048, 2), range(1, 2048, 2)], POD)
    assert both.payload_ms == pytest.approx(2 * one.payload_ms)
    assert both.latency_ms == one.latency_ms


def test_a_permute_to_the_neighbour_takes_one_message() -> None:
    pairs = [(2 * chip, 2 * ((chip + 1) % 32)) for chip in range(32)]
    cost = collective_cost("collective-permute", 82e6, pairs, POD)
    assert cost.total_ms == pytest.approx(MESSAGE_US * 1e-3 + 1.0)


def test_permutes_over_one_link_share_it() -> None:
    row = Topology.parse("8x1")
    cost = collective_cost("collective-permute", 82e6, [(0, 8), (2, 10)], row)
    # both cross between chips 2 and 3; four hops: one message and three further hops
    assert cost.total_ms == pytest.approx(MESSAGE_US * 1e-3 + 3e-4 + 2.0)


def test_an_all_to_all_loads_the_middle_of_a_row_most() -> None:
    row = Topology.parse("4x1")
    cost = collective_cost("all-to-all", 4 * 82e6, [[0, 2, 4, 6]], row)
    # 2 x 2 of the pairs cross the middle each way, a quarter of the operand each
    assert cost.payload_ms == pytest.approx(4.0)


def test_a_group_of_one_costs_nothing() -> None:
    assert collective_cost("all-reduce", V, [[3], [5]], POD).total_ms == 0


def test_survivors_cost_the_simulated_schedule() -> None:
    grid = Topology.parse("8x8").with_holes(["2,2:4x2"])
    ids = [2 * grid.chip_id(chip) for chip in grid.chips]
    cost = collective_cost("all-reduce", V, [ids], grid)
    ring, flat = (simulate(s, V).total_ms for s in every_gradient_sum(grid))
    assert cost.total_ms == pytest.approx(min(ring, flat))
    assert "around failed chips" in cost.algorithm


def test_scattered_groups_share_the_links_they_meet_on() -> None:
    row = Topology.parse("16x1")
    first, second = [0, 2, 10, 24], [4, 6, 14, 28]
    alone = collective_cost("all-reduce", V, [first], row)
    both = collective_cost("all-reduce", V, [first, second], row)
    assert alone.algorithm == "ring of 4 as listed"
    assert both.payload_ms == pytest.approx(2 * alone.payload_ms)


@pytest.mark.parametrize(
    ("kind", "groups", "says"),
    [
        ("allreduce", [[0, 1]], "did you mean all-reduce"),
        ("all-reduce", [[0, 2048]], "device 2048 is not one of the working"),
    ],
)
def test_wrong_calls_are_refused(kind: str, groups: list[list[int]], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        collective_cost(kind, V, groups, POD)


def test_a_failed_device_is_refused() -> None:
    grid = Topology.parse("4x4").with_holes(["0,0:2x2"])
    with pytest.raises(BadInput, match="device 0 is not one of the working"):
        collective_cost("all-reduce", V, [[0, 8]], grid)


# compute: published step (25.1 ms at 1024 chips, 44.0 at 512) less the forecast sum
@pytest.mark.parametrize(("chips", "compute_ms"), [(512, 42.5), (1024, 24.2)])
def test_a_hole_slows_a_resnet_step_by_less_than_a_tenth(
    chips: int, compute_ms: float
) -> None:
    grid = Topology.for_chips(chips).with_holes(["12,4:4x2"])
    failure = forecast_failure(grid, 32768, compute_ms, V)
    assert failure.left.replicas == 2 * (chips - 8)
    assert failure.left.global_batch == 32768 - 16 * failure.whole.batch_per_replica
    assert 0 < failure.step_growth < 0.1
    assert 0.9 < failure.throughput_per_chip < 1


def test_a_kept_batch_is_divided_anew_and_computation_grows() -> None:
    grid = Topology.for_chips(64).with_holes(["2,2:4x2"])
    failure = forecast_failure(grid, 1024, 80.0, V, keep_batch=True)
    assert (failure.whole.batch_per_replica, failure.left.batch_per_replica) == (8, 10)
    assert failure.left.global_batch == 1024
    computing = failure.left.step_ms - failure.left.gradient_sum_ms
    assert computing == pytest.approx(100.0)


def test_a_run_without_a_hole_or_with_a_batch_that_does_not_divide_is_refused() -> None:
    grid = Topology.for_chips(16)
    with pytest.raises(BadInput, match="no chip has failed"):
        forecast_failure(grid, 32, 1.0, V)
    with pytest.raises(BadInput, match="does not divide over 32 replicas"):
        forecast_failure(grid.with_holes(["0,0:2x2"]), 33, 1.0, V)
