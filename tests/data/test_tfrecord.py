"""TFRecord framing: each damaged byte is found, with the offset of its record."""

from __future__ import annotations

import pytest

from mlperf_tpu.data.tfrecord import DamagedRecord, read_framing, records
from tests.data.imagenet_on_disk import write_records

THREE = [b"first", b"the second record", b""]
STARTS = [0, 21, 54]


def damage_of(path):
    """What is found first, by the headers or by reading."""
    framing = read_framing(path)
    if framing.damage is not None:
        return framing.damage
    try:
        for _ in records(framing, 2):
            pass
    except DamagedRecord as error:
        return error.damage
    return None


@pytest.fixture
def shard(tensorflow, tmp_path):
    path = tmp_path / "shard"
    write_records(path, THREE)
    return path


def test_a_whole_file_has_its_records_and_no_damage(shard):
    framing = read_framing(shard)
    assert framing.offsets.tolist() == STARTS
    assert damage_of(shard) is None
    data = [d for _, batch in records(framing, 2) for d in batch.numpy()]
    assert data == THREE


def test_tf_13463_a_bit_flipped_in_any_byte_is_found_with_its_record(shard):
    whole = shard.read_bytes()
    for byte in range(len(whole)):
        broken = bytearray(whole)
        broken[byte] ^= 1 << byte % 8
        shard.write_bytes(broken)
        found = damage_of(shard)
        assert found is not None, byte
        assert found.offset == max(start for start in STARTS if start <= byte)
        assert found.path == shard


def test_tf_13463_a_file_cut_at_any_byte_is_found_but_between_records(shard):
    whole = shard.read_bytes()
    for length in range(1, len(whole)):
        shard.write_bytes(whole[:length])
        found = damage_of(shard)
        if length in STARTS:
            assert found is None
        else:
            assert "truncated" in found.what
            assert found.offset == max(start for start in STARTS if start < length)


def test_the_digest_tells_a_changed_record_and_not_a_copied_file(shard, tmp_path):
    copy, other = tmp_path / "copy", tmp_path / "other"
    write_records(copy, THREE)
    write_records(other, [b"First", *THREE[1:]])
    assert read_framing(copy).digest == read_framing(shard).digest
    assert read_framing(other).digest != read_framing(shard).digest
