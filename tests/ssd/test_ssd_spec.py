"""SSD's spec, its published scales, the trunk's file, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import load, resolve
from mlperf_tpu.topology import Topology

SMALL = (
    "data.image_size=32",
    "model.blocks=[1, 1, 1]",
    "model.width=4",
    "model.extra=[{narrow: 4, wide: 4, strides: 2}]",
    "model.steps=[8, 16]",
    "model.sizes=[8, 16, 24]",
    "model.ratios=[[2], [2]]",
)


# google_submissions.md 2: replicas, images of each, the labels of the first and the
# target's evaluation, and steps of warm-up.
@pytest.mark.parametrize(
    ("scale", "replicas", "images", "first", "met", "warmup"),
    [
        ("v0.6-16", 32, 32, 33, 60, 585),
        ("v0.6-64", 128, 8, 33, 60, 585),
        ("v0.6-128", 256, 4, 33, 60, 585),
        ("v0.6-256", 512, 4, 33, 76, 1171),
        ("v0.6-512", 256, 8, 33, 76, 1171),
        ("v0.6-1024", 512, 4, 33, 76, 1171),
        ("v0.7-2048", 1024, 4, 40, 80, 750),
        ("v0.7-4096", 1024, 4, None, None, 721),
    ],
)
def test_the_published_scales(scale, replicas, images, first, met, warmup):
    resolved = resolve(load("ssd"), scale_name=scale)
    spec = resolved.spec
    placed = Topology.for_chips(resolved.chips).replicas(spec.training.partitions)
    assert placed.n_replicas == replicas
    spec.check_replicas(replicas)
    assert spec.training.global_batch == replicas * images
    assert round(spec.warmup_steps) == warmup
    # Batch norm's groups are tiles of whole replicas.
    if images < 64:
        assert {len(t) for t in placed.tiles(64 // images)} == {64 // images}
    ends = [block.first_epoch + block.epochs for block in spec.blocks()]
    if first is not None:
        assert ends[0] == first and met in ends


def test_weight_decay_is_of_every_weight_norms_too(tensorflow):
    from mlperf_tpu.optim.optimizers import Momentum, Parameter

    tf = tensorflow
    kinds = [Parameter(kind, (1,), kind) for kind in ("kernel", "bias", "norm")]
    weights, none = [tf.constant([2.0])] * 3, [tf.constant([0.0])] * 3
    optimizer = Momentum(0.9, 5e-4)
    new, _ = optimizer.update(kinds, weights, none, {"momentum": none}, 1.0, None)
    np.testing.assert_allclose(new, [[2.0 - 2.0 * 5e-4]] * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.steps=[8, 16]"], r"model: 2 extra layers make 3 feature maps"),
        (["data.image_size=33"], r"data.image_size: 33"),
        (["model.match_iou=1.5"], r"model.match_iou: 1.5"),
        (["training.partitions=3"], r"training.partitions: 3"),
        (["evaluation.at=[4 epochs, 2 epochs]"], r"evaluation.at: 4 epochs, 2 epochs"),
        (["evaluation.at=[400 epochs]"], r"evaluation.at: 400 epochs"),
        (
            ["evaluation={at: [4 epochs], first: 2 epochs}"],
            r"evaluation.first: 2 epochs, but evaluation.at",
        ),
    ],
)
def test_a_wrong_spec_is_one_error_with_the_field_and_its_value(settings, message):
    with pytest.raises(BadInput, match=message):
        resolve(load("ssd"), task="proxy", settings=settings)


def test_an_image_too_small_for_its_maps_is_refused():
    extra = "model.extra=" + str([{"narrow": 4, "wide": 4, "strides": 1}] * 2)
    settings = [extra.replace("'", ""), "data.image_size=32"]
    spec = resolve(load("ssd"), task="proxy", settings=settings).spec
    with pytest.raises(BadInput, match="32 pixels leave nothing of the map of extra"):
        spec.model.maps(spec.data.image_size)


def test_partitions_that_no_grid_places_are_refused():
    with pytest.raises(BadInput, match="2x2 chips does not tile the grid of 3x3"):
        Topology.parse("v3:3x3").replicas(8)


@pytest.fixture(scope="module")
def trunk(tensorflow):
    """The arrays of a file that fits the small network."""
    from mlperf_tpu.benchmarks.ssd.program import Program

    program = Program(resolve(load("ssd"), task="proxy", settings=SMALL).spec)
    random = np.random.default_rng(0)
    arrays = {}
    for layer in [program.model.stem, *program.model.blocks]:
        for variable in layer.weights:
            name = variable.path.removeprefix("ssd/")
            name = name.replace("moving_mean_square", "moving_variance")
            arrays[name] = random.random(variable.shape, np.float32)
    return arrays


def started_from(path):
    from mlperf_tpu.benchmarks.ssd.program import Program

    settings = [*SMALL, f"data.backbone={path}"]
    program = Program(resolve(load("ssd"), task="proxy", settings=settings).spec)
    state = program.initial_state(0, 1)
    names = [p.path.removeprefix("ssd/") for p in program.step.update.parameters]
    statistics = [
        v.path.removeprefix("ssd/") for v in program.model.non_trainable_variables
    ]
    return dict(
        zip(names + statistics, [*state["weights"], *state["statistics"]], strict=True)
    )


def test_the_trunk_starts_from_its_file(trunk, tmp_path):
    np.savez(tmp_path / "trunk.npz", **trunk, classifier=np.zeros(3))
    found = started_from(tmp_path / "trunk.npz")
    name = "stage2_block1/shortcut/conv/kernel"
    np.testing.assert_array_equal(found[name], trunk[name])
    mean, variance = (
        trunk[f"stem/batch_norm/moving_{m}"] for m in ("mean", "variance")
    )
    square = found["stem/batch_norm/moving_mean_square"]
    np.testing.assert_allclose(square, variance + mean**2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"stage3_block1/first/conv/kernel": np.zeros((3, 3, 8, 7), np.float32)},
            r"stage3_block1/first/conv/kernel has the shape \[3, 3, 8, 7\]",
        ),
        ({"stem/batch_norm/gamma": None}, "has no stem/batch_norm/gamma"),
        ({"stem/batch_norm/moving_variance": None}, "has no stem/batch_norm/moving"),
    ],
)
def test_a_trunk_that_does_not_fit_names_the_layer(trunk, tmp_path, change, message):
    arrays = {k: v for k, v in {**trunk, **change}.items() if v is not None}
    np.savez(tmp_path / "trunk.npz", **arrays)
    with pytest.raises(BadInput, match=message):
        started_from(tmp_path / "trunk.npz")


def test_a_trunk_that_is_no_file_of_arrays_is_one_error(tensorflow, tmp_path):
    (tmp_path / "trunk.npz").write_text("no arrays")
    for name in ("trunk.npz", "nowhere.npz"):
        with pytest.raises(BadInput, match=f"data.backbone: cannot read .*{name}"):
            started_from(tmp_path / name)
