"""COCO's images and annotations as they lie in a folder.

Two forms are read: COCO's own (annotations/instances_train2017.json and val2017, the
images in train2017/ and val2017/), and what TensorFlow Datasets prepares (coco/2017).
Of both a split is a document of COCO's form, and where each image's bytes are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mlperf_tpu.data.tfrecord import Damage, read_framing, records
from mlperf_tpu.errors import BadInput

SPLITS = {"train": "train2017", "validation": "val2017"}
WHOLE_FILE = -1  # the offset of an image that is a file of its own
_READ_RECORDS = 256


@dataclass(frozen=True)
class Form:
    name: str


JSON = Form("COCO annotations and images")
TFDS = Form("TensorFlow Datasets")


@dataclass(frozen=True)
class Split:
    """`document` is of COCO's form: "images", "annotations", "categories". `places` has
    each image's file and the byte its record begins at, in the order of "images"."""

    name: str
    form: Form
    document: Mapping[str, Any]
    places: tuple[tuple[Path, int], ...]
    damages: tuple[Damage, ...] = ()

    @cached_property
    def category_ids(self) -> list[int]:
        """The category of each class, counted from 0: COCO's ids, which have gaps, in
        rising order."""
        return sorted(c["id"] for c in self.document["categories"])

    @cached_property
    def objects(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each image what a detector trains on: boxes float32 [n, 4] as [ymin, xmin,
        ymax, xmax] in fractions, cut at the image's edge, and classes int32 [n].

        Crowds are left out (they are for the evaluation to ignore), and so are boxes
        with no area on the image: their code would hold the logarithm of zero.
        """
        class_of = {category: k for k, category in enumerate(self.category_ids)}
        size_of = {i["id"]: (i["height"], i["width"]) for i in self.document["images"]}
        found: dict[int, list[tuple[list[float], int]]] = {k: [] for k in size_of}
        for row in self.document["annotations"]:
            if row["iscrowd"]:
                continue
            height, width = size_of[row["image_id"]]
            x, y, wide, high = row["bbox"]
            top, bottom = (min(max(v / height, 0.0), 1.0) for v in (y, y + high))
            left, right = (min(max(v / width, 0.0), 1.0) for v in (x, x + wide))
            if bottom > top and right > left:
                box = [top, left, bottom, right]
                found[row["image_id"]].append((box, class_of[row["category_id"]]))
        return [
            (
                np.array([box for box, _ in found[i["id"]]], np.float32).reshape(-1, 4),
                np.array([label for _, label in found[i["id"]]], np.int32),
            )
            for i in self.document["images"]
        ]


def find(data_dir: Path) -> dict[str, Split]:
    """The two splits, by "train" and "validation".

    Raises BadInput where the folder holds neither form, or an annotation file is not
    readable as one.
    """
    annotations = data_dir / "annotations"
    if annotations.is_dir():
        return {
            split: _of_json(split, annotations / f"instances_{name}.json", data_dir)
            for split, name in SPLITS.items()
        }
    prepared = sorted(
        description.parent
        for below in ("", "*/", "coco/*/")
        for description in data_dir.glob(f"{below}dataset_info.json")
    )
    if prepared:
        return {split: _of_tfds(split, prepared[-1]) for split in SPLITS}
    raise BadInput(
        f"--data-dir: {data_dir} holds no COCO; give the folder of annotations/, "
        "train2017/ and val2017/, or the data_dir of TensorFlow Datasets (with "
        "coco/2017 in it)"
    )


def _of_json(split: str, file: Path, data_dir: Path) -> Split:
    try:
        document = json.loads(file.read_bytes())
        _look_over(document)
    except OSError as error:
        raise BadInput(
            f"--data-dir: cannot read {file}: {error.strerror}; COCO 2017's "
            "annotations_trainval2017.zip holds it"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"--data-dir: {file} is no annotation file of COCO's form: {error!r}; "
            "take it from annotations_trainval2017.zip again"
        ) from error
    folder = data_dir / SPLITS[split]
    places = tuple(
        (folder / image["file_name"], WHOLE_FILE) for image in document["images"]
    )
    return Split(split, JSON, document, places)


def _look_over(document: Any) -> None:
    """Raises KeyError, TypeError or ValueError where a field that is read is missing or
    of another kind; what the fields say is data.coco_check's affair."""
    for image in document["images"]:
        _ = image["id"], image["file_name"], image["height"] + image["width"] + 0
    for category in document["categories"]:
        _ = category["id"] + 0
    for row in document["annotations"]:
        _ = row["id"], row["image_id"], row["category_id"] + 0, row["iscrowd"] + 0
        x, y, width, height = row["bbox"]
        _ = x + y + width + height + row["area"]


def _of_tfds(split: str, folder: Path) -> Split:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    try:
        info = tfds.builder_from_directory(str(folder)).info
    except Exception as error:
        # TFDS raises what its JSON and protobuf parsers raise.
        raise BadInput(
            f"--data-dir: TensorFlow Datasets cannot read {folder}: {error}"
        ) from error
    features = info.features or {}
    kind = info.file_format.value if info.file_format else "unknown"
    if (
        not {"image", "image/id", "objects"} <= set(features)
        or split not in info.splits
    ):
        raise BadInput(
            f"--data-dir: {folder} is {info.full_name}, no COCO with a {split} split; "
            "give the folder of coco/2017"
        )
    if kind != "tfrecord":
        raise BadInput(
            f"--data-dir: the files in {folder} are of the format {kind}; prepare "
            "coco/2017 again with file_format=tfrecord"
        )
    skip = {"image": tfds.decode.SkipDecoding()}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    places, damages = [], []
    for path in info.splits[split].filepaths:
        framing = read_framing(folder / Path(path).name)
        if framing.damage is not None:
            damages.append(framing.damage)
        for first, batch in records(framing, _READ_RECORDS):
            for number, record in enumerate(batch, first):
                row = features.deserialize_example(record, decoders=skip)
                height, width, _ = tf.image.extract_jpeg_shape(row["image"]).numpy()
                image = int(row["image/id"])
                images.append({"id": image, "height": int(height), "width": int(width)})
                places.append((framing.path, int(framing.offsets[number])))
                _add(annotations, images[-1], row["objects"])
    labels = features["objects"].feature["label"]
    document = {
        "images": images,
        "annotations": annotations,
        # TFDS keeps the classes alone, in the order of COCO's ids.
        "categories": [
            {"id": k + 1, "name": name} for k, name in enumerate(labels.names)
        ],
    }
    return Split(split, TFDS, document, tuple(places), tuple(damages))


def _add(annotations: list, image: dict[str, Any], objects: Mapping[str, Any]) -> None:
    sides = np.array([image["height"], image["width"]] * 2)
    rows = zip(
        objects["bbox"].numpy() * sides,
        objects["label"].numpy(),
        objects["is_crowd"].numpy(),
        objects["area"].numpy(),
        strict=True,
    )
    for (top, left, bottom, right), label, crowd, area in rows:
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": image["id"],
                "category_id": int(label) + 1,
                "bbox": [left, top, right - left, bottom - top],
                "area": float(area),
                "iscrowd": int(crowd),
            }
        )
