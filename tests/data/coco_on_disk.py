"""A few images in COCO's form, and the settings of a spec that means them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

SETTINGS = (
    "data.train_examples=4",
    "data.eval_examples=5",
    "data.classes=3",
    "data.image_size=32",
    "training.global_batch=2",
    "training.length=40 steps",
    "schedule.base_rate=0.01",
    "schedule.warmup=1 steps",
    "schedule.boundaries=[20 steps]",
    "evaluation={at: [], every: 20 steps}",
    "model.extra=[{narrow: 8, wide: 16, strides: 2}]",
    "model.steps=[8, 16]",
    "model.sizes=[8, 16, 24]",
    "model.ratios=[[2], [2]]",
    "model.space_to_depth=false",
    "model.width=8",
    "model.blocks=[1, 1, 1]",
)


def document(first: int, n: int) -> dict:
    """`n` images of 40x30 from id `first` on, a box in each but the last, which has a
    crowd alone; categories 1, 2 and 90."""
    images = [
        {
            "id": first + k,
            "file_name": f"{first + k:012}.jpg",
            "height": 30,
            "width": 40,
        }
        for k in range(n)
    ]
    annotations = [
        {
            "id": first + k,
            "image_id": first + k,
            "category_id": (1, 2, 90)[k % 3],
            "bbox": [4.0, 5.0, 20.0, 15.0],
            "area": 300.0,
            "iscrowd": int(k == n - 1),
        }
        for k in range(n)
    ]
    categories = [{"id": c, "name": f"thing {c}"} for c in (1, 2, 90)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write(folder: Path, change=lambda split, document: None) -> Path:
    """Five training and five validation images; `change` spoils a document first."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    (folder / "annotations").mkdir(parents=True)
    for split, first in (("train2017", 100), ("val2017", 900)):
        (folder / split).mkdir()
        found = document(first, 5)
        for image in found["images"]:
            pixels = random.integers(0, 256, (30, 40, 3), np.uint8)
            encoded = tf.io.encode_jpeg(pixels).numpy()
            (folder / split / image["file_name"]).write_bytes(encoded)
        change(split, found)
        file = folder / "annotations" / f"instances_{split}.json"
        file.write_text(json.dumps(found))
    return folder


def prepare_tfds(folder: Path, plain: Path) -> None:
    """The images and annotations in `plain` as TFDS's coco/2017 has them."""
    import importlib.resources.abc
    import sys

    import tensorflow_datasets as tfds

    # TFDS 4.9.10 imports it to prepare data, and does not ask for it to be installed.
    sys.modules.setdefault("importlib_resources", importlib.resources)
    feature = tfds.features
    objects = {
        "area": np.int64,
        "bbox": feature.BBoxFeature(),
        "id": np.int64,
        "is_crowd": np.bool_,
        "label": feature.ClassLabel(names=["thing 1", "thing 2", "thing 90"]),
    }

    with tfds.core.registered.skip_registration():

        class Coco(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.1.0")

            def _info(self):
                fields = {
                    "image": feature.Image(encoding_format="jpeg"),
                    "image/filename": feature.Text(),
                    "image/id": np.int64,
                    "objects": feature.Sequence(objects),
                }
                return self.dataset_info_from_configs(
                    features=feature.FeaturesDict(fields)
                )

            def _split_generators(self, downloads):
                return {
                    "train": self._generate_examples("train2017"),
                    "validation": self._generate_examples("val2017"),
                }

            def _generate_examples(self, split):
                file = plain / "annotations" / f"instances_{split}.json"
                found = json.loads(file.read_text())
                for image in found["images"]:
                    rows = [
                        row
                        for row in found["annotations"]
                        if row["image_id"] == image["id"]
                    ]
                    yield (
                        image["id"],
                        {
                            "image": str(plain / split / image["file_name"]),
                            "image/filename": image["file_name"],
                            "image/id": image["id"],
                            "objects": [self._object(row, image) for row in rows],
                        },
                    )

            @staticmethod
            def _object(row, image):
                x, y, width, height = row["bbox"]
                return {
                    "area": int(row["area"]),
                    "bbox": tfds.features.BBox(
                        ymin=y / image["height"],
                        xmin=x / image["width"],
                        ymax=(y + height) / image["height"],
                        xmax=(x + width) / image["width"],
                    ),
                    "id": row["id"],
                    "is_crowd": bool(row["iscrowd"]),
                    "label": (1, 2, 90).index(row["category_id"]),
                }

        Coco(data_dir=folder, file_format="tfrecord").download_and_prepare()
