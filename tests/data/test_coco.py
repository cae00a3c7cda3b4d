"""COCO from files: what is read, what is left out, what the check finds."""

from __future__ import annotations

import functools
import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import load, resolve
from tests.data import coco_on_disk
from tests.data.coco_on_disk import SETTINGS

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
def folder(tensorflow, tmp_path_factory):
    return coco_on_disk.write(tmp_path_factory.mktemp("coco"))


@functools.cache
def program():
    from mlperf_tpu.benchmarks.ssd.program import Program

    return Program(resolve(load("ssd"), settings=SETTINGS).spec)


def findings(folder, level="bytes"):
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    call = ["data", "check", "ssd", "--data-dir", str(folder), "--level", level]
    done = CliRunner().invoke(main, [*call, *settings, "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    document = json.loads(done.stdout)
    assert done.exit_code == (0 if document["ok"] else 1)
    return document, [(f["severity"], f["message"]) for f in document["findings"]]


def spoiled(tmp_path, change, level="bytes"):
    """The errors and warnings about a training set of which `change` changed the
    document."""

    def only_training(split, document):
        if split == "train2017":
            change(document)

    folder = coco_on_disk.write(tmp_path / "coco", only_training)
    return [f for f in findings(folder, level)[1] if f[0] != "note"]


def test_a_sound_folder_passes_and_its_oddities_are_noted(folder):
    document, found = findings(folder, "decode")
    assert document["ok"] and document["images"] == {"jpeg": 10}
    assert [split["records"] for split in document["splits"]] == [5, 5]
    text = " ".join(message for _, message in found)
    assert "1 crowds" in text and "leave out 87" in text
    assert "1 images without a box" in text


def test_mask_rcnn_649_a_crowd_is_not_trained_on(folder):
    train, held_out = program().datasets(folder)
    assert (train.n_examples, held_out.n_examples) == (4, 5)
    batches = itertools.islice(train.train_batches(2, 3, 0), 4)
    ids = [int(i) for batch in batches for i in batch["id"]]
    # Two epochs, each of the four images with a box, in orders of their own.
    assert sorted(ids[:4]) == sorted(ids[4:]) == [100, 101, 102, 103]


def test_a_batch_has_the_fields_that_the_program_declares(folder):
    train, held_out = program().datasets(folder)
    for batch in (next(train.train_batches(2, 3, 0)), next(held_out.eval_batches(2))):
        for name, values in program().fake_batch(2).items():
            assert batch[name].shape == values.shape
            assert batch[name].dtype == values.dtype
    fields = next(train.train_batches(2, 3, 0))
    assert any(fields[f"classes{k}"].any() for k in range(2))


def test_a_run_that_starts_later_sees_the_same(folder):
    train, _ = program().datasets(folder)
    whole = list(itertools.islice(train.train_batches(2, 3, 0), 4))
    later = next(train.train_batches(2, 3, 3))
    for name, values in whole[3].items():
        np.testing.assert_array_equal(values, later[name])
    assert not np.array_equal(whole[0]["image"], whole[2]["image"])


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_flax_264_the_evaluation_sees_each_image_once(folder, batch):
    _, held_out = program().datasets(folder)
    ids = np.concatenate([b["id"] for b in held_out.eval_batches(batch)])
    assert sorted(ids[ids >= 0].tolist()) == [900, 901, 902, 903, 904]
    assert len(ids) % batch == 0


@pytest.mark.parametrize(
    ("box", "severity", "message"),
    [
        ([30, 5, -10, 15], "error", "image 101, annotation 101: the box .* inverted"),
        ([4, 5, 0, 15], "warning", "image 101, annotation 101: the box .* is empty"),
        ([41, 5, 3, 15], "error", "image 101, annotation 101: .* outside of the image"),
        ([30, 5, 20, 15], "warning", "image 101, annotation 101: .* 10 pixels outside"),
        ([float("nan"), 5, 3, 15], "error", "image 101, annotation 101: .* not finite"),
    ],
)
def test_a_wrong_box_is_found_with_its_image(box, severity, message):
    import re

    from mlperf_tpu.data.coco_check import box_fault

    found = box_fault(box, 30, 40)
    assert found is not None and found[0] == severity
    assert re.search(message.partition(": ")[2], found[1])


def test_inverted_and_outside_boxes_and_unknown_ids_are_errors(tmp_path):
    def change(document):
        rows = document["annotations"]
        rows[0]["bbox"][2] = -20
        rows[1]["bbox"][0] = 50
        rows[2]["image_id"] = 7
        rows[3]["category_id"] = 4

    found = spoiled(tmp_path, change)
    assert [severity for severity, _ in found] == ["error"] * 4
    text = "\n".join(message for _, message in found)
    assert "image 100, annotation 100: the box" in text and "inverted" in text
    assert "image 101, annotation 101" in text and "outside of the image" in text
    assert "image 7, annotation 102: no image" in text
    assert "no category 4" in text


def test_mask_rcnn_159_an_empty_box_is_a_warning_and_no_example(tmp_path):
    def change(document):
        document["annotations"][0]["bbox"][2] = 0

    (first, message), (second, count) = spoiled(tmp_path, change)
    assert (first, second) == ("warning", "error")
    assert "image 100" in message and "empty" in message
    assert "3 images with a box; the spec (data.train_examples) says 4" in count


def test_an_image_of_another_size_than_its_annotations_say(tmp_path):
    def change(document):
        document["images"][1]["width"] = 41

    [(severity, message)] = spoiled(tmp_path, change)
    assert severity == "error"
    assert "image 101" in message and "40x30 pixels" in message and "41x30" in message


def test_a_missing_image_is_named(tmp_path):
    folder = coco_on_disk.write(tmp_path / "coco")
    (folder / "train2017" / "000000000102.jpg").unlink()
    document, found = findings(folder, "quick")
    assert not document["ok"]
    assert any("image 102" in m and "is missing" in m for _, m in found)
    with pytest.raises(BadInput, match=r"image 102.*is missing"):
        program().datasets(folder)


@pytest.mark.parametrize("text", ["{", "{}", '{"images": [{"id": 1}]}'])
def test_an_annotation_file_of_another_form_is_one_error(tmp_path, text):
    folder = coco_on_disk.write(tmp_path / "coco")
    file = folder / "annotations" / "instances_val2017.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=r"instances_val2017.json is no annotation file"):
        program().datasets(folder)
    file.unlink()
    with pytest.raises(BadInput, match=r"cannot read .*instances_val2017.json"):
        program().datasets(folder)


def test_a_folder_without_coco_says_what_to_give(tmp_path):
    with pytest.raises(BadInput, match="holds no COCO; give the folder of annotations"):
        program().datasets(tmp_path)
    with pytest.raises(BadInput, match="give --data-dir"):
        program().datasets(None)


def test_tensorflow_datasets_form_gives_the_same_images_boxes_and_scores(
    folder, tmp_path
):
    coco_on_disk.prepare_tfds(tmp_path, folder)
    document, _ = findings(tmp_path / "coco" / "1.1.0", "decode")
    assert document["ok"] and document["form"] == "TensorFlow Datasets"
    sets = [program().datasets(f)[1] for f in (folder, tmp_path)]
    plain, prepared = (list(held_out.eval_batches(5)) for held_out in sets)
    by_id = {
        int(i): image
        for i, image in zip(plain[0]["id"], plain[0]["image"], strict=True)
    }
    for number, image in zip(prepared[0]["id"], prepared[0]["image"], strict=True):
        np.testing.assert_array_equal(image, by_id[int(number)])
    of_image = [
        dict(
            zip(
                (i["id"] for i in s.split.document["images"]),
                s.split.objects,
                strict=True,
            )
        )
        for s in sets
    ]
    assert of_image[0].keys() == of_image[1].keys()
    for number, (boxes, classes) in of_image[0].items():
        np.testing.assert_allclose(of_image[1][number][0], boxes, atol=1e-6)
        np.testing.assert_array_equal(of_image[1][number][1], classes)
