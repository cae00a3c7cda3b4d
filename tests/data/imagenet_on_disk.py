"""A small ImageNet on disk, as TensorFlow Datasets prepares it and as the MLPerf
reference's scripts shard it: the same 36 + 10 real images, the odd files among them."""

from __future__ import annotations

import base64
import io
import os
import tarfile

import numpy as np

CLASSES = 1000
N_TRAIN, N_EVAL = 36, 10
TRAIN_SHARDS, EVAL_SHARDS = 3, 2
# A spec for it, as --set has it.
SPEC = {
    "data.train_examples": N_TRAIN,
    "data.eval_examples": N_EVAL,
    "data.image_size": 32,
}
# Written by Pillow 12: 24 x 24 pixels, Adobe CMYK, two colours.
CMYK = base64.b64decode(
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwANCQoLCggNCwoLDg4NDxMgFRMSEhMnHB4XIC4pMTAuKS0sMzpK"
    "PjM2RjcsLUBXQUZMTlJTUjI+WmFaUGBKUVJP/8AAFAgAGAAYBEMRAE0RAFkRAEsRAP/EABcAAQEBAQAA"
    "AAAAAAAAAAAAAAAGBwX/xAAfEAEAAAUFAQAAAAAAAAAAAAAAFWWi4eIWF2Nko6T/2gAOBEMATQBZAEsA"
    "AD8Akl4qWhN1ZEpUoAMKa6mlWu9xZT9OKR0TMfDJ04twV2cmDdii5uLKfpxNEzHwyItwV2IN2KLoRXOY"
    "6wAAP//Z"
)


def images(n: int, seed: int) -> list[bytes]:
    """Encoded images, no two alike, the first three a PNG, a CMYK and a grey file."""
    import tensorflow as tf

    random = np.random.default_rng(seed)
    out = []
    for number in range(n):
        height, width = random.integers(40, 90, 2)
        coarse = random.uniform(0, 255, (1, 5, 5, 3))
        pixels = tf.cast(tf.image.resize(coarse, (height, width))[0], tf.uint8)
        if number == 0:
            data = tf.io.encode_png(pixels).numpy()
        elif number == 2:
            data = tf.io.encode_jpeg(pixels[..., :1]).numpy()
        else:
            data = tf.io.encode_jpeg(pixels, quality=95).numpy()
        out.append(CMYK if number == 1 else data)
    return out


def labels(n: int, seed: int) -> list[int]:
    """From 0; the first and the last class among them."""
    drawn = np.random.default_rng([seed, 1]).integers(0, CLASSES, n).tolist()
    return [0, CLASSES - 1, *drawn[2:]]


def example(encoded: bytes, label: int, image_key: str, label_key: str) -> bytes:
    import tensorflow as tf

    features = {
        image_key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        label_key: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString()


def write_records(path, records) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
        for record in records:
            writer.write(record)


def write_shards(folder, first_label: int = 1) -> None:
    """As the reference's scripts: labels from 1, contiguous runs of images a shard."""
    for split, n, shards, seed in (
        ("train", N_TRAIN, TRAIN_SHARDS, 0),
        ("validation", N_EVAL, EVAL_SHARDS, 1),
    ):
        rows = [
            example(image, label + first_label, "image/encoded", "image/class/label")
            for image, label in zip(images(n, seed), labels(n, seed), strict=True)
        ]
        for shard in range(shards):
            low, high = n * shard // shards, n * (shard + 1) // shards
            name = f"{split}-{shard:05d}-of-{shards:05d}"
            write_records(folder / name, rows[low:high])


def prepare_tfds(folder) -> None:
    """TFDS's own builder, on tar files such as ImageNet's in its manual folder."""
    import importlib.resources.abc
    import sys

    import tensorflow_datasets as tfds

    # TFDS 4.9.10 imports it to prepare data, and does not ask for it to be installed.
    sys.modules.setdefault("importlib_resources", importlib.resources)
    builder = tfds.builder("imagenet2012", data_dir=folder, file_format="tfrecord")
    names = builder.info.features["label"].names
    manual = folder / "manual"
    manual.mkdir()
    outer: dict[str, bytes] = {}
    by_class: dict[str, list[tuple[str, bytes]]] = {}
    rows = zip(images(N_TRAIN, 0), labels(N_TRAIN, 0), strict=True)
    for number, (image, label) in enumerate(rows):
        name = names[label]
        by_class.setdefault(name, []).append((f"{name}_{number}.JPEG", image))
    for name, files in by_class.items():
        outer[f"{name}.tar"] = tar_of(dict(files))
    (manual / "ILSVRC2012_img_train.tar").write_bytes(tar_of(outer))
    validation = {
        f"ILSVRC2012_val_{number + 1:08d}.JPEG": image
        for number, image in enumerate(images(N_EVAL, 1))
    }
    (manual / "ILSVRC2012_img_val.tar").write_bytes(tar_of(validation))
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(
            manual_dir=manual, num_shards=TRAIN_SHARDS
        )
    )


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()
