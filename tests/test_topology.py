"""The grid, the replicas on it and their groups."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlperf_tpu.errors import BadInput
from mlperf_tpu.topology import GRIDS, Topology, parse_hole


@pytest.mark.parametrize("chips", GRIDS)
def test_grid_holds_its_chips(chips: int) -> None:
    assert Topology.for_chips(chips).n_chips == chips


@pytest.mark.parametrize(
    ("chips", "wraps"),
    [
        (256, (False, False)),
        (512, (True, False)),
        (1024, (True, True)),
        (2048, (False, True)),
        (4096, (False, True)),
    ],
)
def test_wraps_only_where_a_dimension_spans_one_pod(
    chips: int, wraps: tuple[bool, bool]
) -> None:
    grid = Topology.for_chips(chips)
    assert (grid.wrap_x, grid.wrap_y) == wraps


def test_names_and_chip_counts_give_the_same_grid() -> None:
    assert Topology.parse("v3:128x32x1") == Topology.for_chips(4096)
    assert Topology.parse("8x8") == Topology.for_chips(64)


def test_torus_and_mesh_overrule_the_wrap() -> None:
    torus = Topology.parse("6x4:torus")
    assert torus.wrap_x and torus.wrap_y
    mesh = Topology.parse("32x32:mesh")
    assert not (mesh.wrap_x or mesh.wrap_y)


def test_multipod_links_cross_pods_along_x_only() -> None:
    grid = Topology.for_chips(4096)
    assert grid.crosses_pods((31, 5), (32, 5))
    assert not grid.crosses_pods((32, 5), (33, 5))
    assert not Topology.for_chips(1024).crosses_pods((31, 0), (0, 0))


def test_neighbours_wrap_and_avoid_failed_chips() -> None:
    grid = Topology.parse("4x4:torus").with_holes(["1,0"])
    assert grid.neighbours((0, 0)) == [(3, 0), (0, 1), (0, 3)]
    assert Topology.parse("4x4").neighbours((0, 0)) == [(1, 0), (0, 1)]


def test_holes_cut_a_grid_in_two() -> None:
    assert Topology.parse("6x6").with_holes(["2,0:2x4"]).connected
    assert not Topology.parse("6x6").with_holes(["2,0:2x6"]).connected


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("32", "not a name"),
        ("v9:4x4", "known: v2, v3, v5e"),
        ("v3:4x4x4", "4 chips deep"),
        ("v3:48x32", "no slice of 48x32"),
        ("v3:16x64", "no slice of 16x64"),
        ("0x4", "no chips"),
        ("2x8:torus", "the least is 3"),
    ],
)
def test_a_wrong_name_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Topology.parse(name)


@pytest.mark.parametrize(
    ("hole", "says"),
    [("12", "not a place"), ("12,4:4", "not a place"), ("7,7:4x2", "outside")],
)
def test_a_wrong_hole_is_refused_with_the_reason(hole: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Topology.parse("8x8").with_holes([hole])


def test_a_grid_with_no_survivor_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 1 must be left"):
        Topology.parse("4x2").with_holes(["0,0:4x2"])


def test_an_unknown_number_of_chips_is_refused() -> None:
    with pytest.raises(BadInput, match="no TPU v3 grid of 48 chips"):
        Topology.for_chips(48)


def test_hole_is_a_corner_and_a_size() -> None:
    assert parse_hole("12,4:2x2") == {(12, 4), (13, 4), (12, 5), (13, 5)}


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    st.sampled_from([16, 64, 256]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_every_core_holds_one_partition_unless_its_replica_lost_a_chip(
    chips: int, partitions: int, x: int, y: int
) -> None:
    whole = Topology.for_chips(chips)
    grid = whole.with_holes([f"{x},{y}"])
    placed = grid.replicas(partitions)
    held = [core for cores in placed.cores for core in cores]
    assert len(set(held)) == len(held) == placed.n_replicas * partitions
    # one failed chip takes with it every replica that has a core on it
    lost = max(1, 2 // partitions)
    assert placed.n_replicas == whole.replicas(partitions).n_replicas - lost
    assert not {(cx, cy) for cx, cy, _ in held} & grid.failed
    for replica, cores in enumerate(placed.cores):
        for partition, core in enumerate(cores):
            assert placed.replica_of[core] == (replica, partition)


@pytest.mark.parametrize("partitions", [2, 4, 8, 16])
def test_partitions_of_a_replica_are_a_path_of_neighbours(partitions: int) -> None:
    grid = Topology.for_chips(64)
    for cores in grid.replicas(partitions).cores:
        chips = [(x, y) for x, y, _ in cores]
        steps = itertools.pairwise(chips)
        assert all(a == b or b in grid.neighbours(a) for a, b in steps)


def test_device_ids_count_cores_along_x() -> None:
    placed = Topology.for_chips(64).replicas(4)
    assert placed.device_ids()[:2] == [[0, 1, 16, 17], [2, 3, 18, 19]]
    along_x = Topology.for_chips(64).replicas(4, footprint=(2, 1))
    assert along_x.device_ids()[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_groups_of_replicas_are_groups_of_devices_for_each_partition() -> None:
    placed = Topology.parse("4x2").with_holes(["0,0"]).replicas(2)
    assert placed.devices(placed.rows()) == [
        [2, 4, 6],
        [3, 5, 7],
        [8, 10, 12, 14],
        [9, 11, 13, 15],
    ]


@pytest.mark.parametrize("partitions", [3, 64])
def test_partitions_without_a_computation_shape_are_refused(partitions: int) -> None:
    with pytest.raises(BadInput, match=r"choose|give a footprint"):
        Topology.for_chips(64).replicas(partitions)


def test_a_replica_that_does_not_tile_the_grid_is_refused() -> None:
    with pytest.raises(BadInput, match="does not tile"):
        Topology.parse("5x5").replicas(8)


# google_submissions: 8 cores on 2x2 chips, 16 on 2x4, 32 on 4x4, 64 on 4x8 (rows x
# columns); SSD v0.6 with 4 cores a replica: 2x8 and 2x4 replicas.
@pytest.mark.parametrize(
    ("partitions", "size", "shape"),
    [
        (1, 8, (2, 2)),
        (1, 16, (4, 2)),
        (1, 32, (4, 4)),
        (1, 64, (8, 4)),
        (4, 16, (8, 2)),
        (4, 8, (4, 2)),
    ],
)
def test_batch_norm_tiles_have_googles_shapes(
    partitions: int, size: int, shape: tuple[int, int]
) -> None:
    placed = Topology.for_chips(1024).replicas(partitions)
    assert placed.tile_shape(size) == shape


def test_tiles_go_in_snake_order() -> None:
    tile = Topology.for_chips(64).replicas().tiles(8)[0]
    assert tile == (0, 1, 2, 3, 19, 18, 17, 16)


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64])
def test_tiles_part_the_replicas_into_equal_groups(size: int) -> None:
    placed = Topology.for_chips(256).replicas()
    groups = placed.tiles(size)
    assert {len(group) for group in groups} == {size}
    assert sorted(r for group in groups for r in group) == list(range(512))


def test_a_tile_with_failed_chips_is_a_smaller_group() -> None:
    placed = Topology.for_chips(64).with_holes(["2,2:4x2"]).replicas()
    groups = placed.tiles(16)
    assert sorted(r for group in groups for r in group) == list(range(112))
    assert sorted({len(group) for group in groups}) == [8, 16]


@pytest.mark.parametrize("size", [3, 128])
def test_an_impossible_tile_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match="choose a"):
        Topology.parse("6x5").replicas().tiles(size)


def test_rows_columns_and_chips_of_replicas() -> None:
    placed = Topology.parse("4x2").replicas()
    assert placed.rows() == (tuple(range(8)), tuple(range(8, 16)))
    assert placed.columns()[1] == (2, 3, 10, 11)
    assert placed.chips()[:2] == ((0, 1), (2, 3))
    assert placed.everyone() == (tuple(range(16)),)


def test_consecutive_groups_divide_the_replicas() -> None:
    placed = Topology.parse("4x2").replicas()
    assert placed.consecutive(8)[1] == tuple(range(8, 16))
    with pytest.raises(BadInput, match="do not divide the 16 replicas"):
        placed.consecutive(5)
