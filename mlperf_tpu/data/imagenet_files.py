"""Where ImageNet lies in a folder, and how its records are written.

Two forms are read: what TensorFlow Datasets prepares (imagenet2012/<version>), and the
shards that the MLPerf reference's scripts make (train-00000-of-01024 and
validation-00000-of-00128, side by side or in train/ and validation/).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_tpu.errors import BadInput

SPLITS = ("train", "validation")
_SHARD = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Form:
    """How a record is written. `first_label` is what the first class is called: the
    reference's scripts keep 0 for a background class that no image has."""

    name: str
    image: str
    label: str
    first_label: int


TFDS = Form("TensorFlow Datasets", "image", "label", 0)
MLPERF = Form("MLPerf reference", "image/encoded", "image/class/label", 1)


@dataclass(frozen=True)
class Files:
    """The files of one split; `records` of each where the form itself says so."""

    split: str
    form: Form
    folder: Path
    paths: tuple[Path, ...]
    missing: tuple[Path, ...]
    records: tuple[int, ...] | None


def find(data_dir: Path, classes: int) -> dict[str, Files]:
    """The files of each split, by its name.

    Raises BadInput where the folder holds neither form, or TFDS's own description
    contradicts the spec's number of classes.
    """
    prepared = _tfds_folder(data_dir)
    if prepared is not None:
        return _tfds_files(prepared, classes)
    found = {split: _shards(data_dir, split) for split in SPLITS}
    if not all(found.values()):
        lacking = " and ".join(split for split in SPLITS if not found[split])
        raise BadInput(
            f"--data-dir: {data_dir} holds no {lacking} files of ImageNet; give the "
            "data_dir of TensorFlow Datasets (with imagenet2012/<version> in it), or "
            "the folder of train-00000-of-01024 and validation-00000-of-00128"
        )
    return {split: _mlperf_files(data_dir, split, found[split]) for split in SPLITS}


def _tfds_folder(data_dir: Path) -> Path | None:
    """The newest version prepared in or below `data_dir`."""
    found = [
        description.parent
        for below in ("", "*/", "imagenet2012/*/")
        for description in data_dir.glob(f"{below}dataset_info.json")
    ]
    return max(found, key=_version, default=None)


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name)]


def _tfds_files(folder: Path, classes: int) -> dict[str, Files]:
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(str(folder))
    except Exception as error:
        # TFDS raises what its JSON and protobuf parsers raise.
        raise BadInput(
            f"--data-dir: TensorFlow Datasets cannot read {folder}: {error}"
        ) from error
    info = builder.info
    lacking = {"image", "label"} - set(info.features or ())
    lacking |= set(SPLITS) - set(info.splits)
    if lacking:
        raise BadInput(
            f"--data-dir: {folder} is {info.full_name}, without {sorted(lacking)}; "
            "give the folder of imagenet2012"
        )
    kind = info.file_format.value if info.file_format else "unknown"
    if kind != "tfrecord":
        raise BadInput(
            f"--data-dir: the files in {folder} are of the format {kind}; prepare "
            "imagenet2012 again with file_format=tfrecord"
        )
    named = info.features["label"].num_classes
    if named not in (None, classes):
        raise BadInput(
            f"data.classes: the spec says {classes}, {folder} has {named}; correct the "
            "spec, or give the data set that it means"
        )
    out = {}
    for split in SPLITS:
        written = info.splits[split]
        # Where the files are now, wherever they were when TFDS described them.
        paths = [folder / Path(path).name for path in written.filepaths]
        out[split] = _existing(split, TFDS, folder, paths, written.shard_lengths)
    return out


def _shards(data_dir: Path, split: str) -> list[Path]:
    return sorted(
        path
        for folder in (data_dir, data_dir / split)
        if folder.is_dir()
        for path in folder.iterdir()
        if (match := _SHARD.fullmatch(path.name)) and match[1] == split
    )


def _mlperf_files(data_dir: Path, split: str, found: Sequence[Path]) -> Files:
    totals = {path.name[-5:] for path in found}
    if len(totals) > 1:
        raise BadInput(
            f"--data-dir: {data_dir} mixes {split} shards of {len(totals)} sets "
            f"(-of-{', -of-'.join(sorted(totals))}); keep those of one"
        )
    [total] = totals
    paths = [
        found[0].parent / f"{split}-{number:05d}-of-{total}"
        for number in range(int(total))
    ]
    return _existing(split, MLPERF, data_dir, paths, None)


def _existing(
    split: str,
    form: Form,
    folder: Path,
    paths: Sequence[Path],
    records: Sequence[int] | None,
) -> Files:
    there = [path.is_file() for path in paths]
    return Files(
        split,
        form,
        folder,
        tuple(p for p, exists in zip(paths, there, strict=True) if exists),
        tuple(p for p, exists in zip(paths, there, strict=True) if not exists),
        None
        if records is None
        else tuple(n for n, exists in zip(records, there, strict=True) if exists),
    )
