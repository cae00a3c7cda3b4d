"""Checkpoints: one file each, atomic, at most two kept, checked when read.

A checkpoint holds the state of all replicas as host arrays (an .npz file, whose zip
directory stands at its end and whose members carry a CRC: a truncated or damaged file
is seen), and what a resumed run needs besides (`meta`, JSON).
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from mlperf_tpu.errors import BadInput

KEEP = 2
# Raised with each change of the order in which optim.rows lays a weight out: slots of
# another order have the same shapes.
SLOT_ORDER = 2


@dataclass(frozen=True)
class Checkpoint:
    state: dict[str, Any]
    meta: dict[str, Any]
    path: Path
    skipped: tuple[Path, ...]  # newer ones that could not be read


def save(folder: Path, step: int, state: dict[str, Any], meta: dict[str, Any]) -> Path:
    """Writes the checkpoint of `step` and removes all but the newest two.

    The file appears whole or not at all: it is written beside its place, flushed to
    the disk and renamed. Raises OSError when there is no room, leaving nothing behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.partial"):
        stale.unlink()
    path = folder / f"step_{step:08d}.npz"
    partial = path.with_suffix(".partial")
    arrays = dict(map(_stored, flatten(state)))
    arrays["slot_order"] = np.int64(SLOT_ORDER)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    for old in _newest_first(folder)[KEEP:]:
        old.unlink()
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; None where there is none at all.

    Raises BadInput where there are some and none can be read, and where the newest has
    its slots in another order than this version.
    """
    skipped: list[Path] = []
    for path in _newest_first(folder):
        try:
            # Opened here: np.load leaves a file that it cannot read open.
            with path.open("rb") as opened, np.load(opened) as file:
                arrays = dict(_restored(name, file[name]) for name in file.files)
            meta = json.loads(arrays.pop("meta").tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            skipped.append(path)
            continue
        order = int(arrays.pop("slot_order", 1))
        if order != SLOT_ORDER:
            raise BadInput(
                f"{path} keeps the optimizer's slots in order {order}, this version in "
                f"order {SLOT_ORDER}; resume the run with the version that began it, "
                f"or remove {folder} to start it again"
            )
        return Checkpoint(_unflatten(arrays), meta, path, tuple(skipped))
    if skipped:
        raise BadInput(
            f"none of the {len(skipped)} checkpoints in {folder} can be read "
            "(truncated or damaged); remove the folder to start this run again"
        )
    return None


# NumPy's files hold none but NumPy's own dtypes: bfloat16 goes as its bits.
_AS_BITS = ":bfloat16"


def _stored(item: tuple[str, np.ndarray]) -> tuple[str, np.ndarray]:
    name, array = item
    if array.dtype != bfloat16:
        return item
    return name + _AS_BITS, array.view(np.uint16)


def _restored(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    if not name.endswith(_AS_BITS):
        return name, array
    return name.removesuffix(_AS_BITS), array.view(bfloat16)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step_*.npz"), reverse=True)


def flatten(value: Any, prefix: str = "") -> list[tuple[str, np.ndarray]]:
    """Nested dicts and lists as (path, array); a list's places are numbers."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = [(f"{i:04d}", v) for i, v in enumerate(value)]
    else:
        return [(prefix, np.asarray(value))]
    return [
        leaf
        for key, child in items
        for leaf in flatten(child, f"{prefix}/{key}" if prefix else str(key))
    ]


def _unflatten(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    nest: dict[str, Any] = {}
    for path, array in arrays.items():
        *folders, name = path.split("/")
        here = nest
        for folder in folders:
            here = here.setdefault(folder, {})
        here[name] = array
    return _lists(nest)


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [_lists(value[key]) for key in sorted(value)]
    return {key: _lists(child) for key, child in value.items()}


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
