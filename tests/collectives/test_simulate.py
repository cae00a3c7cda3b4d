"""The simulation agrees with the closed formulas, and knows contention."""

from __future__ import annotations

import time

import pytest

from mlperf_tpu.collectives.schedules import ring_schedule
from mlperf_tpu.collectives.schedules_2d import multipod, two_d
from mlperf_tpu.collectives.schedules_choice import gradient_sum
from mlperf_tpu.collectives.schedules_circuit import circuit
from mlperf_tpu.collectives.simulate import simulate
from mlperf_tpu.topology import Topology
from mlperf_tpu.topology.links import Links

V = 102.4e6  # ResNet-50's gradients in float32
LINKS = Links(message_us=1.5, hop_us=0.25, gb_s=80.0, cross_pod_us=2.0)
ALPHA, BYTE = 1.5e-3, 1 / 80e6  # in ms
# Times are sums of up to 10^4 doubles; nothing else separates them from the formulas.
EXACT = 1e-9


@pytest.mark.parametrize("n", [3, 8, 32])
def test_a_torus_takes_its_formula(n: int) -> None:
    grid = Topology(n, n, wrap_x=True, wrap_y=True)
    formula = 4 * (n - 1) * ALPHA + 2 * V * (1 - 1 / n**2) / 4 * BYTE
    assert simulate(two_d(grid), V, LINKS).total_ms == pytest.approx(formula, EXACT)


@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (8, 6), (16, 16)])
def test_a_circuit_takes_its_formula(columns: int, rows: int) -> None:
    n = columns * rows
    formula = 2 * (n - 1) * ALPHA + 2 * V * (1 - 1 / n) / 2 * BYTE
    schedule = circuit(Topology(columns, rows))
    assert simulate(schedule, V, LINKS).total_ms == pytest.approx(formula, EXACT)


def test_a_line_takes_its_formula() -> None:
    formula = 2 * 6 * (ALPHA + V / 7 * BYTE)
    schedule = two_d(Topology(7, 1), "x", both_ways=False)
    assert simulate(schedule, V, LINKS).total_ms == pytest.approx(formula, EXACT)


def test_the_multipod_takes_its_formula_and_crosses_pods_three_times() -> None:
    forecast = simulate(multipod(Topology.for_chips(4096)), V, LINKS)
    along_y = 31 * (ALPHA + V / 32 / 2 * BYTE)
    along_x = 127 * (ALPHA + V / 32 / 128 * BYTE) + 3 * 2e-3
    assert forecast.phase_ms("reduce-scatter y") == pytest.approx(along_y, EXACT)
    # two streams share the line: the second of two messages waits for the first
    assert forecast.phase_ms("reduce-scatter x") == pytest.approx(along_x, 1e-3)


def test_two_messages_on_one_link_share_it() -> None:
    grid = Topology(4, 1)
    alone = ring_schedule("one", grid, [[0, 2]], both_ways=False)
    shared = ring_schedule("two", grid, [[0, 2], [1, 3]], both_ways=False)
    # chips 0 to 2 and 1 to 3 meet between 1 and 2: what is sent once there takes
    # V / 2, and twice that when both are
    per_phase = V / 2 * BYTE
    one = simulate(alone, V, LINKS).total_ms
    two = simulate(shared, V, LINKS).total_ms
    assert one == pytest.approx(2 * (ALPHA + 0.25e-3 + per_phase), EXACT)
    # the second message waits at the shared link for the first to have passed it
    assert two >= one + 2 * per_phase * (1 - 1e-3)
    assert two <= 2 * one


def test_a_message_over_several_hops_pays_each_hop_once() -> None:
    schedule = ring_schedule("far", Topology(6, 1), [[0, 5]], both_ways=False)
    formula = 2 * (ALPHA + 4 * 0.25e-3 + V / 2 * BYTE)
    assert simulate(schedule, V, LINKS).total_ms == pytest.approx(formula, EXACT)


def test_no_schedule_beats_its_busiest_link() -> None:
    for name, hole in (("8x8", "2,2:4x2"), ("8x8:torus", "3,3:2x2"), ("7x7", "0,0")):
        forecast = simulate(gradient_sum(Topology.parse(name).with_holes([hole])), V)
        assert forecast.total_ms > forecast.busiest_link_ms > 0


def test_slow_links_between_pods_slow_the_sum_along_x() -> None:
    grid = Topology(12, 6, wrap_y=True, pod_columns=4)
    fast = simulate(multipod(grid), V, Links())
    slow = simulate(multipod(grid), V, Links(cross_pod_gb_s=8.2))
    along_x = "reduce-scatter x"
    assert slow.phase_ms(along_x) > 5 * fast.phase_ms(along_x)
    assert slow.phase_ms("reduce-scatter y") == fast.phase_ms("reduce-scatter y")


def test_two_dimensions_beat_the_ring_on_a_pod() -> None:
    grid = Topology.for_chips(1024)
    ring, torus = (simulate(gradient_sum(grid, a), V) for a in ("ring", "torus2d"))
    assert ring.total_ms >= 1.5 * torus.total_ms


def test_the_multipod_is_simulated_within_ten_seconds_of_one_core() -> None:
    schedule = multipod(Topology.for_chips(4096))
    began = time.process_time()
    simulate(schedule, V)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("chips", [512, 1024])
def test_a_hole_slows_the_sum_by_less_than_three(chips: int) -> None:
    grid = Topology.for_chips(chips)
    whole = simulate(gradient_sum(grid), V).total_ms
    left = simulate(gradient_sum(grid.with_holes(["12,4:4x2"])), V).total_ms
    assert whole < left < 3 * whole
