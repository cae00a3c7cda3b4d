"""ImageNet's batches: both forms alike, whole epochs, exact resume, every host's share.

Images are told apart by their pixels, labels being few.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlperf_tpu.errors import BadInput, RunFailed
from mlperf_tpu.spec import benchmark_module, load, resolve
from tests.data.imagenet_on_disk import (
    CMYK,
    N_EVAL,
    N_TRAIN,
    SPEC,
    example,
    images,
    labels,
    write_records,
    write_shards,
)


def datasets(folder, host=0, n_hosts=1, **settings):
    values = SPEC | {key.replace("__", "."): v for key, v in settings.items()}
    spec = resolve(
        load("resnet50"),
        scale_name="v0.6-1024",
        settings=[f"{key}={value}" for key, value in values.items()],
    ).spec
    return benchmark_module("resnet50", "data").datasets(spec, folder, host, n_hosts)


def train(folder, batches, batch=9, seed=1, first_step=0, **settings):
    made = datasets(folder, **settings)[0].train_batches(batch, seed, first_step)
    return list(itertools.islice(made, batches))


def label_rows(batches):
    return np.concatenate([b["label"] for b in batches])


def same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a["label"], b["label"])
        np.testing.assert_array_equal(a["image"], b["image"])


@pytest.fixture(params=["mlperf_shards", "tfds_folder"])
def folder(request):
    return request.getfixturevalue(request.param)


def test_batches_are_as_the_step_takes_them(folder):
    [batch] = train(folder, 1)
    assert (batch["image"].dtype, batch["label"].dtype) == (np.uint8, np.int32)
    assert batch["image"].shape == (9, 32, 32, 3)
    assert batch["image"].std() > 20


def test_tf_pr_22010_each_epoch_holds_every_example_once(folder):
    """Batches of 8 of 36 span epochs."""
    rows = label_rows(train(folder, 9, batch=8))
    for epoch in (rows[:N_TRAIN], rows[N_TRAIN:]):
        assert sorted(epoch) == sorted(labels(N_TRAIN, 0))


@pytest.mark.parametrize("cached", ["false", "true"])
def test_tf_27680_epochs_differ_in_order_and_crops_and_a_rerun_does_not(
    mlperf_shards, cached
):
    made = train(mlperf_shards, 8, data__cache_decoded=cached)
    same(made, train(mlperf_shards, 8, data__cache_decoded=cached))
    rows = label_rows(made)
    assert (rows[:N_TRAIN] != rows[N_TRAIN:]).any()
    assert (label_rows(train(mlperf_shards, 4, seed=2)) != rows[:N_TRAIN]).any()
    pixels = np.concatenate([b["image"] for b in made])
    [first], [second] = (np.flatnonzero(half == 999) for half in np.split(rows, 2))
    # The CMYK image: its crop is another in each epoch.
    assert (pixels[first] != pixels[N_TRAIN + second]).any()


@pytest.mark.parametrize("cached", ["false", "true"])
@pytest.mark.parametrize("step", [1, 4, 6])
def test_t5x_40_a_stream_from_any_step_is_that_of_the_whole_run(
    mlperf_shards, tensorflow, step, cached
):
    whole = train(mlperf_shards, 7, batch=8, data__cache_decoded=cached)
    # A resumed process sets no global seed, or another.
    tensorflow.random.set_seed(99)
    rest = train(
        mlperf_shards, 7 - step, batch=8, first_step=step, data__cache_decoded=cached
    )
    same(rest, whole[step:])


def test_a_crop_is_the_examples_own_whatever_the_order_and_the_cache(mlperf_shards):
    """Cached and fused decoding give the same pixels to the same example and epoch."""
    fused, cached = (
        np.concatenate(
            [b["image"] for b in train(mlperf_shards, 4, data__cache_decoded=kept)]
        ).astype(int)
        for kept in ("false", "true")
    )
    apart = abs(fused[:, None] - cached).mean((2, 3, 4))
    assert sorted(apart.argmin(1)) == list(range(N_TRAIN))
    # At a crop's right edge libjpeg knows no neighbour to smooth the colour with.
    assert apart.min(1).max() < 1


@pytest.mark.parametrize("hosts", [2, 3, 4, 6])
def test_tf_36846_tfds_1302_hosts_share_no_example_though_files_are_fewer(
    mlperf_shards, hosts
):
    """Three training files, two of validation."""
    seen, evaluated, n_batches = [], [], set()
    for host in range(hosts):
        local, validation = datasets(mlperf_shards, host, hosts)
        batch = hosts * (N_TRAIN // hosts)
        [epoch] = itertools.islice(local.train_batches(batch, 1, 0), 1)
        seen.append(epoch["label"])
        made = list(validation.eval_batches(2 * hosts))
        n_batches.add(len(made))
        evaluated.append(label_rows(made))
    assert sorted(np.concatenate(seen)) == sorted(labels(N_TRAIN, 0))
    rows = np.concatenate(evaluated)
    assert sorted(rows[rows >= 0]) == sorted(labels(N_EVAL, 1))
    # All hosts step alike, or one waits for ever.
    assert len(n_batches) == 1


def test_a_host_of_a_slice_reads_what_it_would_read_alone(mlperf_shards):
    whole, _ = datasets(mlperf_shards)
    for host in range(2):
        alone, _ = datasets(mlperf_shards, host, 2)
        there = whole.train_batches(4, 1, 3).on_host(host, 2).as_numpy_iterator()
        same(
            itertools.islice(there, 3),
            itertools.islice(alone.train_batches(4, 1, 3), 3),
        )


@pytest.mark.parametrize("batch", [1, 3, 4, 10, 16])
def test_dawnbench_48_tf_models_8206_padding_counts_each_example_once(folder, batch):
    _, validation = datasets(folder)
    made = list(validation.eval_batches(batch))
    assert all(b["image"].shape == (batch, 32, 32, 3) for b in made)
    rows = label_rows(made)
    assert (rows >= 0).sum() == N_EVAL == validation.n_examples
    assert (rows[rows < 0] == -1).all()
    padded = np.concatenate([b["image"] for b in made])[rows < 0]
    assert not padded.any()


def test_tf_25254_a_batch_larger_than_the_set_is_refused(mlperf_shards):
    with pytest.raises(BadInput, match="64 examples, but the training set has 36"):
        train(mlperf_shards, 1, batch=64)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_tf_models_2519_png_cmyk_and_grey_decode_on_every_path(tensorflow, number):
    from mlperf_tpu.data import jpeg

    encoded = images(3, 0)[number]
    whole = jpeg.decoded(encoded).numpy()
    assert whole.shape[2] == 3
    crop = tensorflow.constant([3, 5, 11, 14])
    part = jpeg.cropped(encoded, lambda shape: crop)
    np.testing.assert_array_equal(part, whole[3:14, 5:19])
    np.testing.assert_array_equal(jpeg.cut(whole, crop), whole[3:14, 5:19])
    assert jpeg.kind(encoded) == ["png", "cmyk", "grey"][number]


def test_tf_models_2519_cmyk_ink_becomes_its_colour(tensorflow):
    """(C, M, Y, K) of 255, plain ink: red is (1 - C)(1 - K)."""
    from mlperf_tpu.data import jpeg

    image = jpeg.decoded(CMYK).numpy()
    for y, ink in ((4, (10, 180, 0, 90)), (20, (200, 30, 60, 20))):
        wanted = [(255 - c) * (255 - ink[3]) / 255 for c in ink[:3]]
        # JPEG of quality 60.
        np.testing.assert_allclose(image[y, 12], wanted, atol=12)


def test_the_training_crop_is_the_references(tensorflow):
    """Area 0.08 to 1, aspect 3/4 to 4/3; another for another seed."""
    from mlperf_tpu.data import jpeg

    crops = np.array(
        [jpeg.training_crop([375, 500, 3], [7, seed]).numpy() for seed in range(400)]
    )
    y, x, height, width = crops.T
    assert (y >= 0).all() and (x >= 0).all()
    assert (y + height <= 375).all() and (x + width <= 500).all()
    area, aspect = height * width / (375 * 500), width / height
    # Whole pixels: the least side is about 106.
    assert area.min() > 0.079 and area.min() < 0.12 and area.max() > 0.8
    assert aspect.min() > 0.74 and aspect.max() < 1.35
    assert len({tuple(crop) for crop in crops}) > 390


def test_evaluation_keeps_the_centre_224_of_256(tensorflow):
    from mlperf_tpu.data import jpeg

    crop = jpeg.centre_crop(tensorflow.constant([375, 500, 3]), 224).numpy()
    assert crop.tolist() == [24, 86, 328, 328]  # int(375 * 0.875) = 328


@pytest.mark.parametrize("method", ["bicubic", "bilinear"])
def test_resizing_is_that_of_tensorflow_1(tensorflow, method):
    from mlperf_tpu.data import jpeg

    image = tensorflow.constant(
        np.random.default_rng(0).integers(0, 256, (50, 70, 3)), tensorflow.uint8
    )
    v1 = tensorflow.compat.v1.image
    wanted = {"bicubic": v1.resize_bicubic, "bilinear": v1.resize_bilinear}[method](
        [image], [32, 32]
    )[0]
    made = jpeg.resized(image, 32, method)
    assert made.dtype == tensorflow.uint8
    np.testing.assert_array_equal(made, np.clip(np.round(wanted), 0, 255))


def test_tf_35090_each_example_has_a_flip_of_its_own(tensorflow, tmp_path):
    """One image, 12 times: about half of an epoch's copies are mirrored."""
    ramp = np.broadcast_to(np.linspace(0, 255, 64)[None, :, None], (64, 64, 3))
    png = tensorflow.io.encode_png(ramp.astype(np.uint8)).numpy()
    row = example(png, 1, "image/encoded", "image/class/label")
    write_records(tmp_path / "train-00000-of-00001", [row] * 12)
    write_records(tmp_path / "validation-00000-of-00001", [row])
    counts = {"data__train_examples": 12, "data__eval_examples": 1}
    [batch] = train(tmp_path, 1, batch=12, **counts)
    image = batch["image"].astype(int)
    mirrored = image[:, 16, 0, 0] > image[:, 16, -1, 0]
    assert 2 <= mirrored.sum() <= 10
    assert len({i.tobytes() for i in image}) == 12


def test_tf_25700_damage_that_comes_during_a_run_is_named_and_ends_it(
    tensorflow, tmp_path
):
    write_shards(tmp_path)
    dataset, _ = datasets(tmp_path)
    shard = tmp_path / "train-00001-of-00003"
    offset = int(dataset.files[1].offsets[4])
    broken = bytearray(shard.read_bytes())
    broken[offset + 40] ^= 1
    shard.write_bytes(broken)
    with pytest.raises(RunFailed, match=rf"train-00001-of-00003, byte {offset}: corr"):
        list(itertools.islice(dataset.train_batches(9, 1, 0), 8))


def test_tf_13463_a_file_cut_during_a_run_between_records_ends_it(tensorflow, tmp_path):
    write_shards(tmp_path)
    dataset, _ = datasets(tmp_path)
    shard = tmp_path / "train-00001-of-00003"
    shard.write_bytes(shard.read_bytes()[: int(dataset.files[1].offsets[4])])
    with pytest.raises(RunFailed, match="changed since it was checked"):
        list(itertools.islice(dataset.train_batches(9, 1, 0), 8))


@pytest.mark.parametrize("label", [0, 1001])
def test_tf_models_2383_a_label_off_by_one_ends_a_run_though_it_passed_a_check(
    mlperf_shards, tmp_path, label
):
    """Not trained on as a padded row, nor with a loss of 0."""
    from mlperf_tpu.data.imagenet import ImageNet
    from mlperf_tpu.data.tfrecord import read_framing

    dataset, _ = datasets(mlperf_shards)
    row = example(images(4, 5)[3], label, "image/encoded", "image/class/label")
    write_records(tmp_path / "shard", [row])
    wrong = ImageNet(
        dataset.form, (read_framing(tmp_path / "shard"),), dataset.settings
    )
    with pytest.raises(RunFailed, match=r"a label is outside of 0\.\.999"):
        next(wrong.train_batches(1, 1, 0))


def test_decoded_images_are_kept_after_the_first_epoch(tensorflow, tmp_path):
    write_shards(tmp_path)
    dataset, validation = datasets(tmp_path, data__cache_decoded="true")
    made = dataset.train_batches(9, 1, 0)
    first = [next(made) for _ in range(4)]
    evaluated = list(validation.eval_batches(4))
    for shard in tmp_path.iterdir():
        shard.unlink()
    again = list(itertools.islice(made, 4))
    assert sorted(label_rows(again)) == sorted(label_rows(first))
    same(list(validation.eval_batches(4)), evaluated)


def test_a_cache_that_does_not_fit_the_memory_is_refused(mlperf_shards, monkeypatch):
    from mlperf_tpu.data import imagenet

    monkeypatch.setattr(imagenet, "_available_bytes", lambda: 1 << 20)
    with pytest.raises(BadInput, match=r"add --set data\.cache_decoded=false"):
        datasets(mlperf_shards, data__cache_decoded="true")


def test_one_data_set_has_one_fingerprint(mlperf_shards, tensorflow, tmp_path):
    write_shards(tmp_path)
    for copy, original in zip(datasets(tmp_path), datasets(mlperf_shards), strict=True):
        assert copy.fingerprint() == original.fingerprint()
    train_set, validation = datasets(mlperf_shards)
    assert train_set.fingerprint() != validation.fingerprint()


def test_the_digits_take_neither_a_resize_nor_a_cache():
    with pytest.raises(BadInput, match="digits are decoded already"):
        resolve(load("resnet50"), task="proxy", settings=["data.resize=bicubic"])
