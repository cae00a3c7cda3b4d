"""Checkpoints are whole or not there, few, and checked when read."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from mlperf_tpu import checkpoint
from mlperf_tpu.errors import BadInput

STATE = {
    "step": np.int64(7),
    "weights": [np.arange(3.0), np.ones((2, 2), np.float32), np.ones(2, bfloat16)],
    "slots": {"momentum": [np.zeros(3), np.zeros((2, 2))]},
}


def save(folder, step):
    return checkpoint.save(folder, step, {**STATE, "step": np.int64(step)}, {"s": step})


def test_a_state_comes_back_as_it_was(tmp_path):
    save(tmp_path, 7)
    found = checkpoint.newest(tmp_path)
    assert found.meta == {"s": 7}
    assert isinstance(found.state["weights"], list)
    for (path, was), (same_path, now) in zip(
        checkpoint.flatten(STATE), checkpoint.flatten(found.state), strict=True
    ):
        assert path == same_path
        np.testing.assert_array_equal(was, now)
        assert was.dtype == now.dtype


def test_only_the_newest_two_are_kept(tmp_path):
    for step in (1, 2, 10):
        save(tmp_path, step)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["step_00000002.npz", "step_00000010.npz"]


@pytest.mark.parametrize("cut", [0, 10, 500, -1])
def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path, cut):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[:cut])
    found = checkpoint.newest(tmp_path)
    assert found.meta == {"s": 1}
    assert found.skipped == (newest,)


def test_a_flipped_byte_is_seen(tmp_path):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    content = bytearray(newest.read_bytes())
    content[content.index(np.arange(3.0).tobytes()) + 9] ^= 1
    newest.write_bytes(content)
    assert checkpoint.newest(tmp_path).skipped == (newest,)


def test_checkpoints_none_of_which_can_be_read_are_refused(tmp_path):
    save(tmp_path, 1).write_bytes(b"")
    with pytest.raises(BadInput, match="none of the 1 checkpoints"):
        checkpoint.newest(tmp_path)


def test_slots_in_another_order_are_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as another_version:
        another_version.setattr(checkpoint, "SLOT_ORDER", checkpoint.SLOT_ORDER + 1)
        save(tmp_path, 1)
    with pytest.raises(BadInput, match="slots in order 3, this version in order 2"):
        checkpoint.newest(tmp_path)


def test_slots_from_before_orders_were_noted_are_refused(tmp_path):
    path = save(tmp_path, 1)
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files if name != "slot_order"}
    np.savez(path, **kept)
    with pytest.raises(BadInput, match="slots in order 1, this version in order 2"):
        checkpoint.newest(tmp_path)


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.newest(tmp_path) is None


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    save(tmp_path, 1)
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001.npz"]
