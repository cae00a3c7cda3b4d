"""What ops without an estimate move through memory."""

from __future__ import annotations

import pytest

from mlperf_tpu.pod.hlo import read
from mlperf_tpu.pod.traffic import padded_bytes

TILE = 8 * 128 * 4
MODULE = """HloModule step, is_scheduled=true

%rows (t: f32[1000,128], i: s32[16]) -> f32[16,128] {
  %t = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %i = s32[16]{0:T(1024)} parameter(1)
  ROOT %g = f32[16,128]{1,0:T(8,128)} gather(%t, %i)
}

%add-rows (t.1: f32[1000,128], i.1: s32[16], r.1: f32[16,128]) -> f32[1000,128] {
  %t.1 = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %i.1 = s32[16]{0:T(1024)} parameter(1)
  %r.1 = f32[16,128]{1,0:T(8,128)} parameter(2)
  ROOT %s = f32[1000,128]{1,0:T(8,128)} scatter(%t.1, %i.1, %r.1), to_apply=%sum
}

ENTRY %main (t0: f32[1000,128], i0: s32[16], x: f32[8,64]) -> f32[1000,128] {
  %t0 = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %i0 = s32[16]{0:T(1024)} parameter(1)
  %x = f32[8,64]{1,0:T(8,128)} parameter(2)
  %flat = f32[512]{0:T(1024)} reshape(%x)
  %free = f32[4,128]{1,0:T(4,128)} bitcast(%flat)
  %near = f32[8,64]{1,0:T(8,128)S(1)} copy(%x)
  %known = f32[8,64]{1,0:T(8,128)} copy(%x), backend_config={"estimated_cycles":"9"}
  %at = f32[1000,128]{1,0:T(8,128)} dynamic-update-slice(%t0, %x, %z, %z)
  %taken = f32[16,128]{1,0:T(8,128)} fusion(%t0, %i0), kind=kCustom, calls=%rows
  ROOT %put = f32[1000,128]{1,0:T(8,128)} fusion(%t0, %i0, %taken), kind=kCustom, \
calls=%add-rows
}
"""


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("flat", TILE + TILE),  # 64 lanes of 128, and 512 elements of a tile
        ("near", TILE),  # its result stays beside the core
        ("at", 2 * TILE),  # in place: the slice alone
        ("taken", 2 * 2 * TILE),  # 16 of 1000 rows
        ("put", 3 * (2 * TILE + TILE)),  # rows and indices into what is there
    ],
)
def test_an_op_without_an_estimate_moves(name: str, n_bytes: int) -> None:
    found = {op.name: op for op in read(MODULE).ops}
    assert (found[name].cycles, found[name].n_bytes) == (0, n_bytes)


def test_an_estimated_op_and_a_bitcast_move_nothing() -> None:
    found = {op.name: op for op in read(MODULE).ops}
    assert (found["known"].cycles, found["known"].n_bytes) == (9, 0)
    assert "free" not in found


def test_memory_holds_whole_tiles_of_the_minor_dimensions() -> None:
    assert padded_bytes("bf16[8,3,64]{2,0,1:T(8,128)(2,1)}") == 3 * 8 * 128 * 2
    assert padded_bytes("(f32[3]{0:T(1024)}, f32[3]{0})") == TILE + 12
