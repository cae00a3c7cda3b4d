"""Specs: published values, resolution, and errors that name the field."""

from __future__ import annotations

import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import from_record, load, resolve

RESNET = load("resnet50")

# lars_opt_learning_rate_decay_steps of the published logs (google_results.json).
PUBLISHED_DECAY_STEPS = {
    "v0.6-16": 20974,
    "v0.6-64": 5245,
    "v0.6-128": 2007,
    "v0.6-256": 2007,
    "v0.6-512": 2007,
    "v0.6-1024": 2007,
    "v0.7-16": 12169,
    "v0.7-4096-tf": 1133,
    "v0.7-4096-jax": 1166.25,
}


def spec_of(scale, *settings):
    return resolve(RESNET, scale_name=scale, settings=settings).spec


@pytest.mark.parametrize("scale", PUBLISHED_DECAY_STEPS)
def test_decay_steps_are_those_of_the_published_logs(scale):
    assert spec_of(scale).decay_steps == PUBLISHED_DECAY_STEPS[scale]


@pytest.mark.parametrize(
    ("scale", "steps"),
    [("v0.6-16", 1252), ("v0.6-64", 313), ("v0.6-1024", 157), ("v0.7-4096-tf", 79)],
)
def test_blocks_have_the_published_iterations_per_loop(scale, steps):
    blocks = spec_of(scale).blocks()
    assert [b.last_step for b in blocks[:2]] == [steps, 2 * steps]
    assert [b.first_epoch for b in blocks[:3]] == [0, 4, 8]


def test_a_first_evaluation_of_its_own_shifts_all_the_others():
    blocks = spec_of("v0.7-16").blocks()
    assert [b.first_epoch + b.epochs for b in blocks[:3]] == [2, 6, 10]


def test_the_last_block_ends_with_the_run():
    spec = resolve(RESNET, task="proxy").spec
    assert spec.blocks()[-1].last_step == spec.total_steps == 315


def test_chips_pick_the_first_scale_of_that_size():
    assert resolve(RESNET, chips=1024).scale == "v0.6-1024"


def test_a_named_variant_is_the_papers_tuned_row():
    spec = spec_of("paper-1024-tuned")
    assert spec.schedule.base_rate == 29.0
    assert spec.optimizer.momentum == 0.929
    assert str(spec.training.length) == "64 epochs"


def test_chips_that_no_published_run_used_are_refused_with_the_list():
    with pytest.raises(BadInput, match=r"on 100 chips; published: 16 \(v0.6-16\), 64"):
        resolve(RESNET, chips=100)


def test_other_chips_are_taken_with_what_a_scale_must_give():
    resolved = resolve(
        RESNET,
        chips=32,
        settings=[
            "training.global_batch=8192",
            "training.length=72 epochs",
            "schedule.base_rate=17.0",
            "schedule.warmup=5 epochs",
            "batch_norm.span=128 examples",
        ],
    )
    assert resolved.chips == 32
    assert resolved.origins["schedule.base_rate"] == "--set schedule.base_rate=17.0"


def test_each_value_says_where_it_comes_from():
    origins = resolve(RESNET, chips=1024).origins
    assert "v0.6, Google tpu-v3-2048" in origins["schedule.base_rate"]
    assert origins["data.train_examples"] == "configs/resnet50.yaml"


def test_float32_takes_the_place_of_bfloat16_and_says_why():
    resolved = resolve(RESNET, task="proxy").in_float32("no bf16 here")
    assert resolved.spec.training.precision == "float32"
    assert resolved.origins["training.precision"] == "no bf16 here"


def test_a_precision_that_was_asked_for_stays():
    asked = resolve(RESNET, task="proxy", settings=["training.precision=bfloat16"])
    assert asked.in_float32("no bf16 here") is asked


def test_a_resolved_spec_survives_its_record():
    resolved = resolve(RESNET, task="proxy", settings=["training.global_batch=32"])
    assert from_record(resolved.record(), "run.json") == resolved


def test_a_spec_of_ones_own_builds_on_a_named_one(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("base: resnet50\nproxy: {training: {global_batch: 16}}\n")
    spec = resolve(load(str(own)), task="proxy").spec
    assert spec.training.global_batch == 16
    assert spec.data.name == "digits"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.momentm=0.9", "optimizer.momentm: .* did you mean momentum"),
        ("batch_norm.spn=3", "batch_norm.spn: .* did you mean span"),
        ("model.smoothing=0.1", "model.smoothing: no such key"),
        ("training.global_batch=many", "training.global_batch: 'many': .* integer"),
        ("training.global_batch=-4", "training.global_batch: -4: .* greater than 0"),
        ("training.length=3 eons", "training.length: '3 eons' is no duration"),
        ("schedule.warmup=99 epochs", "99 epochs is 2222.86 steps, .* has 315"),
        ("schedule.warmup=14 epochs", "14 epochs is 314"),
        ("training.length=0 epochs", "has 0"),
        ("evaluation.every=99 epochs", "99 epochs is longer than the run"),
        ("optimizer.momentum=1.0", "optimizer.momentum: 1.0: .* less than 1"),
        ("rules.round=0.5.0", "rules.round: '0.5.0'"),
        ("optimizer={name: adagrad}", "adagrad"),
        ("benchmark=resnet5", "no folder 'resnet5'; did you mean resnet50"),
        ("training.global_batch", "is not path=value"),
        ("training.global_batch=[", "no YAML"),
    ],
)
def test_bad_settings_name_the_field_the_value_and_the_limit(setting, message):
    with pytest.raises(BadInput, match=message):
        resolve(RESNET, task="proxy", settings=[setting]).spec.blocks()


def test_tpu_34_a_warm_up_as_long_as_the_run_is_refused():
    # tensorflow/tpu lars_util.py leaves such a run at a rate of 1e-4.
    with pytest.raises(BadInput, match=r"20 steps, but the run .* has 5"):
        settings = ["training.length=5 steps", "schedule.warmup=20 steps"]
        resolve(RESNET, task="proxy", settings=settings)


@pytest.mark.parametrize(
    ("replicas", "message"),
    [(3, "64 examples do not divide over 3 replicas; choose 2"), (64, None)],
)
def test_replicas_must_divide_the_batch(replicas, message):
    spec = resolve(RESNET, task="proxy").spec
    if message is None:
        spec.check_replicas(replicas)
    else:
        with pytest.raises(BadInput, match=message):
            spec.check_replicas(replicas)


def test_a_span_that_fits_no_group_is_refused():
    spec = resolve(RESNET, task="proxy", settings=["batch_norm.span=24 examples"]).spec
    with pytest.raises(BadInput, match=r"batch_norm.span: 24 .* the 32 examples"):
        spec.check_replicas(2)


def test_an_unknown_benchmark_offers_the_nearest():
    with pytest.raises(BadInput, match="did you mean resnet50"):
        load("resnet5")


def test_a_spec_file_that_is_no_yaml_is_refused(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(BadInput, match="is no YAML"):
        load(str(broken))
