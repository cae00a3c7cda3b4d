"""What is wrong with COCO's files, found before the clock starts.

Three levels, each with what the one before finds: `quick` reads the annotations and
looks for the images' files; `bytes` compares each image's header with the size that its
annotations say; `decode` decodes every image, too.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlperf_tpu.data import jpeg
from mlperf_tpu.data.check import Finding, Level
from mlperf_tpu.data.coco_files import WHOLE_FILE, Form, Split, find
from mlperf_tpu.errors import BadInput

# A box may end so many pixels behind its image: COCO's are rounded.
_ROUNDED_PIXELS = 1.0
_HEADER_BYTES = 1 << 16

Say = Callable[..., None]


@dataclass
class Report:
    """`splits` are those that were found, to be read again by no one."""

    form: Form
    level: Level
    splits: dict[str, Split]
    findings: list[Finding] = field(default_factory=list)
    images: Counter[str] = field(default_factory=Counter)
    manifest: Path | None = None

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]

    def sizes(self) -> list[dict[str, Any]]:
        """Files, images and bytes of each split (`data check --json`)."""
        found = []
        for name, split in self.splits.items():
            files = {path for path, _ in split.places if path.is_file()}
            n_bytes = sum(path.stat().st_size for path in files)
            row = {"name": name, "files": len(files), "records": len(split.places)}
            found.append({**row, "bytes": n_bytes})
        return found


def check(
    data_dir: Path,
    counts: dict[str, int],
    classes: int,
    level: Level | None = None,
    manifest_path: Path | None = None,
    write_manifest: bool = False,
) -> Report:
    """Checks both splits; `counts` are the examples wanted: of "train" the images with
    a box to learn, of "validation" all."""
    if manifest_path is not None or write_manifest:
        raise BadInput(
            "--manifest: COCO's annotations themselves say what must be there; leave "
            "it out"
        )
    splits = find(data_dir)
    report = Report(splits["train"].form, level or "quick", splits)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for name, split in splits.items():
            _check_split(report, name, split, counts[name], classes, threads)
    return report


def _check_split(
    report: Report,
    name: str,
    split: Split,
    wanted: int,
    classes: int,
    threads: ThreadPoolExecutor,
) -> None:
    def say(
        severity: Literal["error", "warning", "note"],
        kind: str,
        message: str,
        file: str | None = None,
    ) -> None:
        report.findings.append(Finding(severity, kind, f"{name}: {message}", file))

    for damage in split.damages:
        report.findings.append(
            Finding("error", "damaged", damage.what, str(damage.path), damage.offset)
        )
    before = len(report.errors)
    _check_categories(split, classes, say)
    _check_annotations(split, say)
    if len(report.errors) == before:  # else what is left to train on means nothing
        _check_counts(split, wanted, say)
    level, images = report.level, split.document["images"]
    looks = threads.map(lambda p, i: _look_at(p, i, level), split.places, images)
    for kind, findings in looks:
        report.images[kind] += 1
        for sort, message in findings:
            say("error", sort, message)
    if level == "quick":
        report.images.clear()


def _check_categories(split: Split, classes: int, say: Say) -> None:
    ids = split.category_ids
    doubled = [c for c, n in Counter(ids).items() if n > 1]
    if doubled:
        say("error", "category", f"category {doubled[0]} is described twice")
    if len(ids) != classes:
        say(
            "error",
            "category",
            f"{len(ids)} categories; the spec (data.classes) says {classes}; correct "
            "the one that is wrong",
        )
    elif ids[-1] - ids[0] + 1 > len(ids):
        say(
            "note",
            "category",
            f"category ids {ids[0]} to {ids[-1]} leave out "
            f"{ids[-1] - ids[0] + 1 - len(ids)}; classes are numbered without gaps",
        )


def _check_annotations(split: Split, say: Say) -> None:
    document = split.document
    for what in ("images", "annotations"):
        seen = Counter(row["id"] for row in document[what])
        for number in (k for k, n in seen.items() if n > 1):
            say("error", "id", f"{what[:-1]} id {number} is there {seen[number]} times")
    size_of = {i["id"]: (i["height"], i["width"]) for i in document["images"]}
    for image, size in size_of.items():
        if min(size) < 1:
            say("error", "size", f"image {image} has the size {size[1]}x{size[0]}")
    categories = set(split.category_ids)
    crowds = 0
    for row in document["annotations"]:
        where = f"image {row['image_id']}, annotation {row['id']}"
        if row["image_id"] not in size_of:
            say("error", "image", f"{where}: no image of this id is described")
            continue
        if row["category_id"] not in categories:
            say("error", "category", f"{where}: no category {row['category_id']}")
        if row["iscrowd"] not in (0, 1):
            say("error", "crowd", f"{where}: iscrowd {row['iscrowd']}, not 0 or 1")
        crowds += bool(row["iscrowd"])
        found = box_fault(row["bbox"], *size_of[row["image_id"]])
        if found is not None:
            say(found[0], "box", f"{where}: {found[1]}")
    if crowds:
        say(
            "note",
            "crowd",
            f"{crowds:,} crowds: no boxes to learn, regions that the evaluation "
            "ignores",
        )


def box_fault(box: Any, height: int, width: int) -> tuple[str, str] | None:
    """(severity, what is wrong) with a box [x, y, width, height] in pixels.

    >>> box_fault([10, 10, -4, 5], 100, 100)
    ('error', 'the box [10, 10, -4, 5] is inverted: its sides are -4 x 5 pixels')
    """
    x, y, wide, high = box
    text = f"the box {list(box)}"
    if not all(math.isfinite(v) for v in box):
        return "error", f"{text} is not finite"
    if wide < 0 or high < 0:
        return "error", f"{text} is inverted: its sides are {wide} x {high} pixels"
    image = f"the image of {width}x{height} pixels"
    if x >= width or y >= height or x + wide <= 0 or y + high <= 0:
        return "error", f"{text} lies outside of {image}"
    if wide == 0 or high == 0:  # COCO itself has two
        return "warning", f"{text} is empty; it is not trained on"
    over = max(-x, -y, x + wide - width, y + high - height)
    if over > _ROUNDED_PIXELS:
        return "warning", f"{text} ends {over:g} pixels outside of {image}; it is cut"
    return None


def _check_counts(split: Split, wanted: int, say: Say) -> None:
    training = split.name == "train"
    with_boxes = sum(len(boxes) > 0 for boxes, _ in split.objects)
    without = len(split.places) - with_boxes
    if without:
        rest = "training leaves them out" if training else "the evaluation has them"
        say("note", "empty", f"{without:,} images without a box to learn; {rest}")
    held = with_boxes if training else len(split.places)
    if held != wanted:
        key, what = ("train", "images with a box") if training else ("eval", "images")
        say(
            "error",
            "count",
            f"{held:,} {what}; the spec (data.{key}_examples) says {wanted:,}; correct "
            "the one that is wrong",
        )


def _look_at(
    place: tuple[Path, int], image: dict[str, Any], level: Level
) -> tuple[str, list[tuple[str, str]]]:
    """(kind of image, what is wrong with it)."""
    path, offset = place
    where = f"image {image['id']} ({path})"
    if offset != WHOLE_FILE:  # a record: its size was read from it
        return "jpeg", []
    if not path.is_file():
        return "missing", [("missing", f"{where}: the file is missing")]
    if level == "quick":
        return "unread", []
    with path.open("rb") as file:
        data = file.read() if level == "decode" else file.read(_HEADER_BYTES)
    size = jpeg.size(data)
    if size is None and level != "decode":
        data = path.read_bytes()  # its header is long
        size = jpeg.size(data)
    if size is None:
        return "unknown", [("image", f"{where}: neither a JPEG nor a PNG")]
    findings = []
    if size != (image["height"], image["width"]):
        findings.append(
            (
                "size",
                f"{where}: {size[1]}x{size[0]} pixels, but its annotations say "
                f"{image['width']}x{image['height']}; its boxes are another image's",
            )
        )
    if level == "decode":
        import tensorflow as tf

        try:
            jpeg.decoded(tf.constant(data))
        except tf.errors.InvalidArgumentError as error:
            what = error.message.splitlines()[0]
            findings.append(("image", f"{where}: does not decode: {what}"))
    return "png" if data.startswith(b"\x89PNG") else "jpeg", findings
