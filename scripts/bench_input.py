"""Measures ImageNet's input alone: ours, plain tf.data, and Keras's loader, in turns.

    python scripts/bench_input.py [--rounds 15] [--out results/input.md]

JPEGs of ImageNet's usual size are made (500 x 375 pixels, 110 kB) and read from the
page cache. A round measures each pipeline once, one after the other, so that another
load on the machine meets all.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mlperf_tpu.cli.train import import_tensorflow

N_IMAGES, N_FILES, CLASSES = 640, 8, 10
BATCH, SIZE = 64, 224
# The first batches wait for files to be opened and buffers to be filled.
FIRST_BATCHES, MEASURED_BATCHES = 5, 8
METHOD = "bicubic"
PLAIN, KERAS = "tf.data + decode_and_crop_jpeg", "keras image_dataset_from_directory"
OTHERS, RAW = (PLAIN, KERAS), "libjpeg-turbo alone"


def photograph(seed):
    """uint8 [375, 500, 3] with detail at every scale, as photographs have it."""
    import tensorflow as tf

    random = np.random.default_rng(seed)
    image = np.full((375, 500, 3), 128.0, np.float32)
    for pixels, strength in ((64, 60), (16, 30), (4, 20), (1, 9)):
        grid = random.normal(0, strength, (375 // pixels + 2, 500 // pixels + 2, 3))
        image += tf.image.resize(grid.astype(np.float32), (375, 500), "bicubic")
    return np.clip(image, 0, 255).astype(np.uint8)


def write_images(folder):
    """The same JPEGs as TFRecord shards and as a folder a class; returns them."""
    import tensorflow as tf

    encoded = [
        tf.io.encode_jpeg(photograph(seed), quality=95).numpy()
        for seed in range(N_IMAGES)
    ]
    shards, classes = folder / "shards", folder / "classes"
    shards.mkdir()
    for split, chosen in (("train", encoded), ("validation", encoded[:N_FILES])):
        for number in range(N_FILES):
            name = f"{split}-{number:05d}-of-{N_FILES:05d}"
            with tf.io.TFRecordWriter(str(shards / name)) as writer:
                for index in range(number, len(chosen), N_FILES):
                    writer.write(record(chosen[index], 1 + index % CLASSES))
    for index, data in enumerate(encoded):
        path = classes / str(index % CLASSES) / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return encoded


def record(encoded, label):
    import tensorflow as tf

    bytes_list = tf.train.BytesList(value=[encoded])
    int64_list = tf.train.Int64List(value=[label])
    feature = {
        "image/encoded": tf.train.Feature(bytes_list=bytes_list),
        "image/class/label": tf.train.Feature(int64_list=int64_list),
    }
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString()


def ours(folder, cached):
    """A data set, whose batches are those of a run."""
    from mlperf_tpu.data.check import check
    from mlperf_tpu.data.imagenet import ImageNet, Settings

    counts = {"train": N_IMAGES, "validation": N_FILES}
    report = check(folder / "shards", counts, CLASSES)
    assert not report.errors, report.errors
    settings = Settings(CLASSES, SIZE, METHOD, cached)
    files = tuple(report.framings["train"])
    return ImageNet(report.form, files, settings)


def plain(folder):
    """As tf.data's guide and the reference have it, without seeds or checks."""
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def example(data):
        found = tf.io.parse_single_example(data, features)
        encoded = found["image/encoded"]
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], extent[:2]], 0)
        image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.resize(image, [SIZE, SIZE], METHOD)
        return tf.image.random_flip_left_right(image), found["image/class/label"] - 1

    files = tf.data.Dataset.list_files(str(folder / "shards" / "train-*"))
    return (
        files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(N_IMAGES)
        .repeat()
        .map(example, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )


def keras_loader(folder):
    import keras

    return keras.utils.image_dataset_from_directory(
        str(folder / "classes"),
        batch_size=BATCH,
        image_size=(SIZE, SIZE),
        interpolation=METHOD,
        seed=1,
        verbose=False,
    ).repeat()


def measured(start):
    """(images/s, milliseconds of CPU an image) of the batches that `start` begins.

    They end with the measurement: a pipeline left alone would fill its buffers while
    another is measured.
    """
    batches = start()
    for _ in range(FIRST_BATCHES):
        next(batches)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(MEASURED_BATCHES):
        next(batches)
    images = BATCH * MEASURED_BATCHES
    cpu = time.process_time() - cpu
    return images / (time.perf_counter() - wall), 1e3 * cpu / images


def raw_decode(encoded):
    """(images/s, CPU ms) of libjpeg-turbo alone: whole images, a thread a core."""
    import tensorflow as tf

    chosen = [tf.constant(data) for data in encoded[: BATCH * MEASURED_BATCHES // 2]]

    def decode(data):
        return tf.io.decode_jpeg(data, channels=3).shape

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        wall, cpu = time.perf_counter(), time.process_time()
        list(threads.map(decode, chosen, chunksize=8))
        cpu = time.process_time() - cpu
        return len(chosen) / (time.perf_counter() - wall), 1e3 * cpu / len(chosen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results/input.md"))
    options = parser.parse_args()
    import_tensorflow()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoded = write_images(folder)
        fused, cached = ours(folder, False), ours(folder, True)
        pipelines = {
            "ours": lambda: fused.train_batches(BATCH, 1, 0),
            PLAIN: plain(folder).as_numpy_iterator,
            KERAS: keras_loader(folder).as_numpy_iterator,
            "ours, cache_decoded": lambda: cached.train_batches(BATCH, 1, 0),
        }
        for start in pipelines.values():  # caches are filled
            list(itertools.islice(start(), 1 + N_IMAGES // BATCH))
        rows = {name: [] for name in (*pipelines, RAW)}
        for number in range(options.rounds):
            # Each round begins with another, so that none has a place of its own.
            order = [*pipelines.items()]
            turn = number % len(order)
            for name, start in order[turn:] + order[:turn]:
                rows[name].append(measured(start))
            rows[RAW].append(raw_decode(encoded))
    text = table(rows, statistics.mean(map(len, encoded)), options.rounds)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(text)
    print(text)
    slower = [name for name in OTHERS if factor(rows, name) < 1]
    sys.exit(f"slower than {' and '.join(slower)}" if slower else 0)


def factor(rows, name):
    """How many times as fast as another ours is: the median over the rounds."""
    pairs = zip(rows["ours"], rows[name], strict=True)
    return statistics.median(ours[0] / other[0] for ours, other in pairs)


def table(rows, mean_bytes, rounds):
    lines = [
        "# ImageNet's input alone",
        "",
        f"Made by `python scripts/bench_input.py --rounds {rounds}` on "
        f"{len(os.sched_getaffinity(0))} cores: {N_IMAGES} JPEGs of 500 x 375 pixels, "
        f"{mean_bytes / 1e3:.0f} kB each, to batches of {BATCH} at {SIZE} x {SIZE} "
        f"({METHOD}), from the page cache. Each round measures all in turns. Rates are "
        "medians of the rounds, the ratio is the median of each round's, and the CPU "
        "time is the least, which other loads on the machine disturb the least. Only "
        "the ratios carry over.",
        "",
        "| | images/s | ours is as fast | CPU ms an image |",
        "| --- | --- | --- | --- |",
    ]
    for name, figures in rows.items():
        rates, cpu = zip(*figures, strict=True)
        ratio = "-" if name == "ours" else f"{factor(rows, name):.2f} x"
        rate = statistics.median(rates)
        lines.append(f"| {name} | {rate:.0f} | {ratio} | {min(cpu):.2f} |")
    lines += [
        "",
        f"Ours reaches {factor(rows, RAW):.0%} of the speed of libjpeg-turbo alone, "
        "which decodes whole images and does nothing else; the pipeline decodes only "
        "what a crop needs of an image, but reads, crops, resizes, flips and batches "
        "as well.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
