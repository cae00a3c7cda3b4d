"""WMT on disk: what `data check` and `train` find wrong, and what they read."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.data import number_words
from mlperf_tpu.data.subwords import Subwords
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import load, resolve

N_TEST = 20
SETTINGS = (
    "data.name=wmt_ende",
    f"data.eval_examples={N_TEST}",
    "data.vocabulary=120",
    "data.row_length=64",
    "data.longest=64",
    "data.eval_length=64",
    "training.global_batch=4",
)


@pytest.fixture(scope="module")
def wmt(tensorflow):
    from mlperf_tpu.data import wmt

    return wmt


@pytest.fixture(scope="module")
def lines():
    return number_words.load(200, N_TEST)


@pytest.fixture(scope="module")
def model(lines):
    return Subwords.train((s for pair in lines[0] for s in pair), 120).model


@pytest.fixture
def folder(tmp_path, lines, model):
    for name, pairs in zip(("train", "newstest2014"), lines, strict=True):
        for k, language in enumerate(("en", "de")):
            text = "".join(f"{pair[k]}\n" for pair in pairs)
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
    (tmp_path / "wmt.model").write_bytes(model)
    return tmp_path


def spec(*settings):
    return resolve(
        load("transformer"), scale_name="v0.6-16", settings=[*SETTINGS, *settings]
    ).spec


def change(folder, name, function):
    path = folder / name
    path.write_bytes(function(path.read_bytes()))


def data_check(folder, *settings, level="bytes"):
    words = [w for s in (*SETTINGS, *settings) for w in ("--set", s)]
    arguments = ["data", "check", "transformer", "--data-dir", str(folder)]
    arguments += ["--level", level, "--json", *words]
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, json.loads(done.stdout)


def test_right_files_pass_and_are_read(wmt, folder, lines):
    from mlperf_tpu.benchmarks.transformer.data import corpus

    code, found = data_check(folder)
    assert (code, found["ok"], found["findings"]) == (0, True, [])
    read = corpus(spec(), folder)
    assert read.references == tuple(german for _, german in lines[1])
    rows = read.train.arrays
    assert sum(rows["target_segment"].max(1)) == 200


@pytest.mark.parametrize(
    ("name", "damage", "kind", "message"),
    [
        ("train.de", lambda b: b.split(b"\n", 1)[1], "sides", "200 English lines, 199"),
        ("train.en", lambda b: b"", "empty", "no line"),
        ("train.de", lambda b: b"ein Wo@@ rt\n" + b, "cut", "line 1: cut into"),
        ("newstest2014.de", lambda b: b"\xff\n" + b, "encoding", "line 1: no UTF-8"),
    ],
)
def test_a_wrong_file_is_named(wmt, folder, name, damage, kind, message):
    from mlperf_tpu.benchmarks.transformer.data import corpus

    change(folder, name, damage)
    code, found = data_check(folder)
    assert code == 1
    [error] = [f for f in found["findings"] if f["kind"] == kind]
    assert message in error["message"] and error["file"].endswith(name)
    with pytest.raises(BadInput, match="--data-dir"):
        corpus(spec(), folder)


def test_t2t_1542_markup_is_no_text(wmt, folder):
    """tensor2tensor#1542: SGML lines were translated and scored."""
    for language in ("en", "de"):
        change(
            folder,
            f"newstest2014.{language}",
            lambda b: b'<seg id="1">zwei</seg>\n' + b.split(b"\n", 1)[1],
        )
    code, found = data_check(folder)
    kinds = {f["kind"] for f in found["findings"]}
    assert (code, kinds) == (1, {"markup"})


def test_fairseq_124_another_release_of_newstest2014(wmt, folder, lines):
    """fairseq#124: newstest2014 has 2,737 or 3,003 lines; the rules score 3,003."""
    english, german = lines[1][0]
    (folder / "newstest2014.en").write_text(f"{english}\n" * 2737)
    (folder / "newstest2014.de").write_text(f"{german}\n" * 2737)
    code, found = data_check(folder, "data.eval_examples=3003")
    assert code == 1
    assert "2,737 lines (an earlier release" in found["findings"][0]["message"]


def test_joeynmt_183_blank_lines_are_warned_of_and_left_out(wmt, folder):
    """joeynmt#183, tensorflow/datasets#2837: a blank side shifts lines, or is a source
    of length 0."""
    from mlperf_tpu.benchmarks.transformer.data import corpus

    change(folder, "train.de", lambda b: b"\n" + b.split(b"\n", 1)[1])
    code, found = data_check(folder)
    assert (code, [f["severity"] for f in found["findings"]]) == (0, ["warning"])
    assert "1 blank lines (1)" in found["findings"][0]["message"]
    assert corpus(spec(), folder).pairs == 199


def test_a_unicode_line_end_ends_no_line(wmt, folder):
    change(folder, "train.de", lambda b: "ein\u2028 ".encode() + b)
    assert data_check(folder)[0] == 0


def test_one_side_alone_is_refused(wmt, folder):
    (folder / "train.de").unlink()
    with pytest.raises(BadInput, match=r"train has one side; train\.de is missing"):
        wmt.find(folder)


def test_no_text_at_all_is_refused(wmt, tmp_path):
    with pytest.raises(BadInput, match=r"no train text; name it train\.en"):
        wmt.find(tmp_path)


def test_a_missing_or_another_subword_model_is_an_error(wmt, folder):
    code, found = data_check(folder, "data.vocabulary=130")
    assert code == 1
    assert "120 pieces, but the spec" in found["findings"][0]["message"]
    (folder / "wmt.model").unlink()
    code, found = data_check(folder)
    assert code == 1
    assert "no sub-word model" in found["findings"][0]["message"]


def test_tf_26011_long_pairs_are_left_out_counted_and_said(wmt, folder):
    """tensorflow#26011's family: a line past the last bound stops the input."""
    from mlperf_tpu.benchmarks.transformer.program import Program

    long = " ".join(["neunhundertneunundneunzig"] * 30)
    for language in ("en", "de"):
        change(folder, f"train.{language}", lambda b: f"{long}\n".encode() + b)
    code, found = data_check(folder, "data.longest=60", level="decode")
    [note] = [f for f in found["findings"] if f["severity"] == "note"]
    assert note["message"].startswith("1 of 201 training pairs")
    assert code == 1  # the spec's count of packed rows is another corpus's
    [error] = [f for f in found["findings"] if f["severity"] == "error"]
    assert "data.train_examples" in error["message"]
    tiny = ("model.width=8", "model.heads=1", "model.layers=1", "model.inner=8")
    program = Program(spec("data.longest=60", *tiny))
    program.datasets(folder)
    assert program.notes[0].startswith("1 of 201 training pairs are longer than 60")


@pytest.fixture
def prepared(tmp_path, tensorflow, lines, model):
    """As TensorFlow Datasets lays a data set out: two files of training records."""
    tf = tensorflow

    def example(pair):
        texts = zip(("en", "de"), pair, strict=True)
        lists = {k: tf.train.BytesList(value=[t.encode()]) for k, t in texts}
        feature = {k: tf.train.Feature(bytes_list=v) for k, v in lists.items()}
        return tf.train.Example(features=tf.train.Features(feature=feature))

    files = {"train": [lines[0][:120], lines[0][120:]], "test": [lines[1]]}
    for split, parts in files.items():
        for k, part in enumerate(parts):
            name = f"wmt14_translate-{split}.tfrecord-{k:05}-of-{len(parts):05}"
            with tf.io.TFRecordWriter(str(tmp_path / name)) as out:
                for pair in part:
                    out.write(example(pair).SerializeToString())
    splits = [
        {"name": split, "shardLengths": [str(len(part)) for part in parts]}
        for split, parts in files.items()
    ]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    (tmp_path / "wmt.model").write_bytes(model)
    return tmp_path


def test_a_prepared_data_set_is_read(wmt, prepared, lines):
    code, found = data_check(prepared)
    assert (code, found["form"]) == (0, "TensorFlow Datasets")
    assert [split["records"] for split in found["splits"]] == [200, N_TEST]
    _, texts = wmt.find(prepared)
    assert list(texts["train"].lines()) == lines[0]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(lambda b: b[:-3], "damaged"), (lambda b: b[:60] + b"?" + b[61:], "damaged")],
)
def test_a_damaged_record_is_named(wmt, prepared, damage, kind):
    change(prepared, "wmt14_translate-train.tfrecord-00001-of-00002", damage)
    code, found = data_check(prepared)
    assert code == 1
    error = found["findings"][0]
    assert error["kind"] == kind and error["file"].endswith("00001-of-00002")
