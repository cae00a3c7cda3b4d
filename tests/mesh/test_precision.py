"""What a CPU trains in, by what it says of itself."""

import pytest

from mlperf_tpu.mesh import cpu_is_faster_in_bf16


@pytest.mark.parametrize(
    ("vendor", "flags", "faster"),
    [
        ("GenuineIntel", "avx2 avx512f avx512_bf16 amx_bf16", True),
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", True),
        # A matmul of 4096 x 4096 there: 119 GFLOP/s in bf16, 242 in float32.
        ("GenuineIntel", "avx2 avx512f avx512_bf16", False),
        ("AuthenticAMD", "avx2", False),
    ],
)
def test_bf16_is_taken_only_where_it_is_faster(tmp_path, vendor, flags, faster):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse\n")
    assert cpu_is_faster_in_bf16(cpuinfo) is faster


def test_a_machine_that_says_nothing_trains_in_float32(tmp_path):
    assert not cpu_is_faster_in_bf16(tmp_path / "missing")
