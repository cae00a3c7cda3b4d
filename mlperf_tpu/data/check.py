"""What is wrong with ImageNet's files, found before the clock starts.

Three levels, each with what the one before finds: `quick` walks the records' headers
and counts; `bytes` verifies every byte against its checksum and reads each label and
image header; `decode` decodes every image, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from mlperf_tpu.data import imagenet_files, jpeg, manifest
from mlperf_tpu.data.imagenet import parsed
from mlperf_tpu.data.imagenet_files import Files, Form
from mlperf_tpu.data.tfrecord import (
    Damage,
    DamagedRecord,
    Framing,
    read_framing,
    records,
)
from mlperf_tpu.errors import BadInput

Level = Literal["quick", "bytes", "decode"]
# Records read at a time: enough that calls cost nothing, and 7 MB of images.
READ_RECORDS = 64


@dataclass(frozen=True)
class Finding:
    """One thing said about the data; an error means that a run would be wrong."""

    severity: Literal["error", "warning", "note"]
    kind: str
    message: str
    file: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = "" if self.file is None else self.file
        if self.offset is not None:
            where += f", byte {self.offset}"
        return f"{where}: {self.message}" if where else self.message


@dataclass
class Report:
    """`framings` of each split are those of its files, in order; `manifest` is the one
    they were compared with, or that was written."""

    form: Form
    folder: Path
    level: Level
    framings: dict[str, list[Framing]]
    manifest: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    images: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]

    def sizes(self) -> list[dict[str, str | int]]:
        return sizes_of(self.framings)

    def all_framings(self) -> list[Framing]:
        return [f for split in self.framings.values() for f in split]


def refuse(errors: Sequence[Finding]) -> None:
    """Raises BadInput where a check found errors: the first, and how many more."""
    if errors:
        rest = len(errors) - 1
        more = f" (and {rest} more: `mlperf-tpu data check`)" if rest else ""
        raise BadInput(f"--data-dir: {errors[0]}{more}")


def sizes_of(framings: Mapping[str, Sequence[Any]]) -> list[dict[str, str | int]]:
    """Files, records and bytes of each split (`data check --json`)."""
    return [
        {
            "name": split,
            "files": len(files),
            "records": sum(f.n_records for f in files),
            "bytes": sum(f.n_bytes for f in files),
        }
        for split, files in framings.items()
    ]


def check(
    data_dir: Path,
    counts: dict[str, int],
    classes: int,
    level: Level | None = None,
    n_hosts: int = 1,
    manifest_path: Path | None = None,
    write_manifest: bool = False,
) -> Report:
    """Checks the files of `counts` (examples wanted, by split).

    Without a level: `quick` where a manifest vouches for the very files, else `bytes`.
    A manifest is compared, or written if nothing is wrong.
    """
    found = imagenet_files.find(data_dir, classes)
    some = next(iter(found.values()))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        framings = {
            split: list(threads.map(read_framing, files.paths))
            for split, files in found.items()
        }
        report = Report(some.form, some.folder, "quick", framings)
        manifest_path = manifest_path or some.folder / manifest.FILE_NAME
        known = None if write_manifest else manifest.read(manifest_path)
        for split, files in found.items():
            _check_files(report, files, counts[split], n_hosts)
        if known is not None:
            report.manifest = manifest_path
            for damage in known.differences(some.folder, report.all_framings()):
                _damaged(report, "manifest", damage)
        vouched = known is not None and known.vouches(
            some.folder, report.all_framings()
        )
        report.level = level or ("quick" if vouched else "bytes")
        if report.level != "quick":
            decode = report.level == "decode"
            work = [
                (framing, files.form, classes, decode)
                for split, files in found.items()
                for framing in framings[split]
            ]
            contents = threads.map(lambda arguments: _read(*arguments), work)
            _check_contents(report, list(contents), classes)
    if write_manifest and not report.errors:
        manifest.write(manifest_path, some.folder, report.all_framings())
        report.manifest = manifest_path
    return report


def _damaged(report: Report, kind: str, damage: Damage) -> None:
    report.findings.append(
        Finding("error", kind, damage.what, str(damage.path), damage.offset)
    )


def _check_files(report: Report, files: Files, wanted: int, n_hosts: int) -> None:
    """Counts, framing, and the files against the hosts that share them."""
    split, framings = files.split, report.framings[files.split]

    def say(severity, kind, message, file=None, offset=None):
        report.findings.append(Finding(severity, kind, message, file, offset))

    for path in files.missing:
        say("error", "missing", "the file is missing", str(path))
    for framing in framings:
        if framing.damage is not None:
            _damaged(report, "damaged", framing.damage)
    for framing, count in zip(framings, files.records or (), strict=False):
        if framing.damage is None and framing.n_records != count:
            say(
                "error",
                "count",
                f"{framing.n_records} records, but dataset_info.json says {count}; it "
                "was cut between two records, or is of another preparation",
                str(framing.path),
                framing.n_bytes,
            )
    held = sum(f.n_records for f in framings)
    if held != wanted:
        name = "train" if split == "train" else "eval"
        say(
            "error",
            "count",
            f"{split}: {held:,} records; the spec (data.{name}_examples) says "
            f"{wanted:,}; correct the one that is wrong",
        )
    if n_hosts > held:
        say(
            "error",
            "hosts",
            f"{split}: {n_hosts} hosts for {held} records; use fewer hosts",
        )
    elif len(framings) % n_hosts:
        say(
            "warning",
            "hosts",
            f"{split}: {len(framings)} files do not divide over {n_hosts} hosts; hosts "
            "read parts of files, so that each example is still seen once",
        )


@dataclass
class _Contents:
    """What reading a file found; places are (byte offset, what)."""

    framing: Framing
    labels: Counter[int] = field(default_factory=Counter)
    label_at: dict[int, int] = field(default_factory=dict)
    images: Counter[str] = field(default_factory=Counter)
    odd: list[tuple[int, str]] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


def _read(framing: Framing, form: Form, classes: int, decode: bool) -> _Contents:
    found = _Contents(framing)
    first = 0
    while first < framing.n_records:
        try:
            for number, batch in records(framing, READ_RECORDS, first):
                for index, (encoded, label) in _examples(found, number, batch, form):
                    offset = int(framing.offsets[index])
                    if not 0 <= label < classes:
                        found.labels[label] += 1
                        found.label_at.setdefault(label, offset)
                    _look_at(found, offset, encoded, decode)
            break
        except DamagedRecord as error:
            found.damage.append(error.damage)
            first = error.number + 1
    return found


def _examples(found: _Contents, first: int, batch, form: Form):
    """(record, (encoded, label)) of those that are examples."""
    try:
        images, labels = (field.numpy() for field in parsed(batch, form))
        yield from enumerate(zip(images, labels.tolist(), strict=True), first)
    except tf.errors.InvalidArgumentError as error:
        if len(batch) > 1:
            for number in range(len(batch)):
                one = batch[number : number + 1]
                yield from _examples(found, first + number, one, form)
            return
        what = f"no example of an image: {error.message.splitlines()[0]}"
        found.bad.append((int(found.framing.offsets[first]), what))


def _look_at(found: _Contents, offset: int, encoded: bytes, decode: bool) -> None:
    kind = jpeg.kind(encoded)
    if decode or kind != "jpeg":
        try:
            # As training does, so that what decodes here decodes there.
            jpeg.cropped(encoded, lambda shape: tf.stack([0, 0, shape[0], shape[1]]))
        except tf.errors.InvalidArgumentError as error:
            found.images["undecodable"] += 1
            what = f"the image does not decode: {error.message.splitlines()[0]}"
            found.bad.append((offset, what))
            return
        kind = "jpeg" if kind in ("cut", "unknown") else kind
    found.images[kind] += 1
    if kind not in ("jpeg", "grey"):  # thousands are grey: counted, not listed
        found.odd.append((offset, kind))


def _check_contents(
    report: Report, contents: Sequence[_Contents], classes: int
) -> None:
    for found in contents:
        path = str(found.framing.path)
        report.images += found.images
        for damage in found.damage:
            _damaged(report, "damaged", damage)
        for offset, what in found.bad:
            report.findings.append(Finding("error", "image", what, path, offset))
        for offset, kind in found.odd:
            message = f"a {kind.upper()} image; it is read as RGB"
            report.findings.append(Finding("note", "odd", message, path, offset))
    base = report.form.first_label
    wrong: Counter[int] = Counter()
    for found in contents:
        wrong += found.labels
    for label, count in sorted(wrong.items()):
        first = next(found for found in contents if label in found.labels)
        report.findings.append(
            Finding(
                "error",
                "label",
                f"label {label + base} in {count} record{'s' if count > 1 else ''}, "
                f"outside of {base}..{classes - 1 + base}{_off_by_one(label, classes)}",
                str(first.framing.path),
                first.label_at[label],
            )
        )


def _off_by_one(label: int, classes: int) -> str:
    """Of a label counted from 0 that lies just outside."""
    if label == -1:
        return (
            ": off by one; the reference's shards count classes from 1 and keep 0 for "
            "the background, so these labels were written from 0"
        )
    if label == classes:
        return (
            ": off by one; these labels count from one more than this form does, or "
            f"data.classes ({classes}) should be {classes + 1}"
        )
    return ""
