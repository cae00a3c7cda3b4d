"""What `mlperf-tpu verify ssd` proves, on a narrow network of SSD-ResNet34's layers.

One narrow block a stage and the five extra layers, on images of 300 pixels: the maps
have the published network's 150, 75, 38, 19, 10, 5, 3 and 1 rows, of which four
partitions divide none, and its 8,732 anchors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlperf_tpu.spec import load, resolve
from mlperf_tpu.topology import Topology
from mlperf_tpu.verify import MeshSize, Results, Technique

BASE = (
    "training.precision=float32",
    "training.global_batch=4",
    "training.length=40 steps",
    "schedule.base_rate=0.01",
    "schedule.warmup=1 steps",
    "schedule.boundaries=[20 steps]",
    "evaluation.every=20 steps",
    "data.classes=3",
    "model.width=8",
    "model.blocks=[1, 1, 1]",
    "model.extra=[{narrow: 8, wide: 16, strides: 2}, {narrow: 8, wide: 16, strides: 2},"
    " {narrow: 8, wide: 16, strides: 2}, {narrow: 8, wide: 16, strides: 1},"
    " {narrow: 8, wide: 16, strides: 1}]",
    "batch_norm.span=2 examples",
    "batch_norm.groups=consecutive",
)
# Maps of 38, 19, 10, 5, 3 and 1 rows, for meshes of many devices.
SMALL = (
    "data.image_size=76",
    "model.extra=[{narrow: 8, wide: 16, strides: 2}, {narrow: 8, wide: 16, strides: 2},"
    " {narrow: 8, wide: 16, strides: 1}]",
    "model.steps=[8, 16, 32, 76]",
    "model.sizes=[8, 16, 32, 48, 76]",
    "model.ratios=[[2], [2, 3], [2, 3], [2]]",
)
# Of what may pass as a detection, much: an untrained network is sure of nothing.
_DETECTING = ("model.least_score=0.0", "model.candidates=20")
_GRID = "v5e:4x2"
_TILE = 4
EXECUTED = (MeshSize("virtual", 2), MeshSize("xla", 2))
TILED = tuple(MeshSize(place, 8, grid=_GRID) for place in ("virtual", "xla"))
# Sums of up to a hundred thousand float32 terms in another order, through batch norm.
_REORDERED = 5e-4
_REORDERED_BY = "float32 sums in another order"
# Several batches, each from the same state: rounding may tip which of two equally hard
# negatives is taken on one of them; a technique that is wrong is wrong on all.
BATCHES = 3


def _program(mesh: Any, settings: Sequence[str]) -> Any:
    # Here, so that the list of techniques is read without TensorFlow.
    import tensorflow as tf
    from mlperf_tpu.benchmarks.ssd.program import Program

    spec = resolve(load("ssd"), settings=[*BASE, *settings]).spec
    spec.check_replicas(mesh.n_replicas)
    # ReLU's gradient jumps at zero: a difference in the last bit would become one in
    # the first digits. Softplus is as near to it and has no such place.
    return Program(spec, activation=tf.nn.softplus)


def _batches(program: Any, shift: int, order: Sequence[int]) -> Any:
    """Batches that differ from step to step; each one's examples in `order`."""
    batch = program.fake_batch(program.spec.training.global_batch)
    for step in itertools.count(shift):
        rolled = {name: np.roll(values, step, 0) for name, values in batch.items()}
        yield {name: values[order] for name, values in rolled.items()}


def train_two_steps(
    mesh: Any, settings: Sequence[str], order: Sequence[int] | None = None
) -> list[Results]:
    """Losses, weights and momentum of two steps. The momentum starts from zero, and so
    holds the gradients of every weight, small ones as exactly as large ones."""
    program = _program(mesh, settings)
    n = program.spec.training.global_batch
    order = range(n) if order is None else order
    state = program.initial_state(0, mesh.n_replicas)
    mesh.start(program, state, program.fake_batch(n))
    results = []
    for shift in range(BATCHES):
        mesh.load(state)
        batches = _batches(program, shift, np.array(order))
        losses = [m["loss"] for m in mesh.train(batches, 2)]
        fetched = mesh.fetch()
        found: Results = {"losses": np.array(losses)}
        for i, weight in enumerate(fetched["weights"]):
            found[f"weight {i}"] = np.asarray(weight)
            momentum = fetched["slots"]["momentum"][i]
            # Rows of all replicas one after the other are the tensor, padded.
            found[f"momentum {i}"] = np.reshape(momentum, -1)[: np.size(weight)]
        results.append(found)
    return results


def train_over_tiles(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The same with batch-norm groups that are tiles of a 4x2 grid; one device, whose
    groups are consecutive examples, sees the examples tile by tile."""
    order = None
    if mesh.n_replicas == 1:
        tiles = Topology.parse(_GRID).replicas(1).tiles(_TILE)
        order = [replica for tile in tiles for replica in tile]
    return train_two_steps(mesh, settings, order)


def mine(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """The mask of the hardest of 8,732 values, many of them equal, as a sort (`by sort`
    in the settings) or the step's own search finds it."""
    from mlperf_tpu.benchmarks.ssd.loss import largest

    random = np.random.default_rng(0)
    values = random.random((6, 8732), np.float32)
    values[2] = np.round(values[2], 2)
    values[3] = 0.0
    values[4, ::2] = 0.0
    counts = np.array([0, 17, 900, 31, 8000, 9000], np.int32)
    if "by sort" in settings:
        order = np.argsort(-values, 1, kind="stable")
        ranks = np.argsort(order, 1, kind="stable")
        return [{"mask": ranks < counts[:, None]}]
    return [{"mask": _computed(mesh, largest, values, counts)}]


def suppress(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """Detections of crowded boxes, by the step's own rounds or, one box after the other
    (`one by one` in the settings), by a plain loop."""
    from mlperf_tpu.detection.nms import detections

    random = np.random.default_rng(0)
    corners = random.uniform(0, 0.7, (2, 300, 2))
    sides = random.uniform(0.05, 0.3, (2, 300, 2))
    boxes = np.concatenate([corners, corners + sides], -1, dtype=np.float32)
    scores = random.random((2, 300, 4), np.float32) ** 4
    limits = (0.05, 0.5, 100, 60)  # least score, IoU, of a class, of an image
    if "one by one" in settings:
        found = [
            _one_by_one(*image, *limits) for image in zip(scores, boxes, strict=True)
        ]
        return [{"detections": np.stack(found)}]
    computed = _computed(mesh, lambda s, b: detections(s, b, *limits), scores, boxes)
    return [{"detections": computed}]


def _one_by_one(scores, boxes, least, threshold, per_class, total):
    found = []
    for label in range(scores.shape[1]):
        order = np.argsort(-scores[:, label], kind="stable")[:per_class]
        kept: list[int] = []
        for i in order:
            if scores[i, label] > least and all(
                _overlap(boxes[i], boxes[j]) <= threshold for j in kept
            ):
                kept.append(i)
        found += [[*boxes[i], scores[i, label], label] for i in kept]
    found.sort(key=lambda row: -row[4])
    rows = np.zeros((total, 6), np.float32)
    rows[: len(found)] = found[:total]
    return rows


def _overlap(a, b) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    common = np.prod(np.maximum(high - low, 0))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


# By hand: a map of 1 cell over an image of 100, sizes 50 and 72, ratio 2, and boxes
# that overlap its four anchors by more and by less than 0.5.
_HALF = 0.5 * 0.5**0.5  # half of a side of 50 x sqrt(2), in fractions
_SMALL = 0.5 * 0.5 / 2**0.5
BY_HAND = {
    "anchors": np.array(
        [
            [0.25, 0.25, 0.75, 0.75],
            [0.2, 0.2, 0.8, 0.8],  # sqrt(50 x 72) = 60
            [0.5 - _SMALL, 0.5 - _HALF, 0.5 + _SMALL, 0.5 + _HALF],
            [0.5 - _HALF, 0.5 - _SMALL, 0.5 + _HALF, 0.5 + _SMALL],
        ]
    ),
    # The first box is the first anchor, lies within the second (0.25 / 0.36) and shares
    # 0.177 / 0.323 with the others. The second shares 0.06 / 0.42 with the second
    # anchor and 0.0543 / 0.3157 with the last: too little, but it is given that one.
    "matched": np.array([0, 0, 0, 1]),
    # The second box's code against the second anchor: its centre is 0.3 off in y, by a
    # side of 0.6, times 10; log(0.2 / 0.6) and log(1) times 5.
    "code": np.array([5.0, 0.0, 5 * np.log(1 / 3), 0.0]),
}
_BOXES = np.array([[0.25, 0.25, 0.75, 0.75], [0.7, 0.2, 0.9, 0.8]], np.float32)


def match(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """Anchors, their matches and a code; or (`by hand`) what these must be."""
    if "by hand" in settings:
        return [BY_HAND]
    from mlperf_tpu.detection.anchors import ssd_anchors
    from mlperf_tpu.detection.boxes import encode
    from mlperf_tpu.detection.matching import match as matched

    [anchors] = ssd_anchors(100, [1], [100], [50, 72], [[2]])
    anchors = anchors.reshape(-1, 4)
    return [
        {
            "anchors": anchors,
            "matched": _computed(
                mesh, lambda b, a: matched(b, a, 0.5), _BOXES, anchors
            ),
            "code": _computed(mesh, encode, _BOXES[1], anchors[1]),
        }
    ]


def score(mesh: Any, settings: Sequence[str]) -> list[Results]:
    """mAP of 11 images in batches of 4, the last padded; or (`alone`) each image in a
    batch of copies of it, scored by COCO's evaluator itself."""
    from faster_coco_eval import COCO, COCOeval_faster

    from mlperf_tpu.data.batches import InMemory
    from mlperf_tpu.detection.coco import PADDED, in_pixels

    program = _program(mesh, _DETECTING)
    images = program.fake_batch(11)
    batch = program.fake_batch(4)
    mesh.start(program, program.initial_state(0, mesh.n_replicas), batch)
    alone = []
    for i in range(11):
        copies = {k: np.repeat(v[i : i + 1], 4, 0) for k, v in images.items()}
        alone.append(mesh.evaluate([copies])["detections"][0])
    truth = _truth(alone)
    if "alone" in settings:
        coco = COCO(truth)
        rows = in_pixels(truth, images["id"], np.stack(alone))
        run = COCOeval_faster(coco, coco.loadRes(rows), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
        return [{"mAP": np.array(run.stats[0]), "count": np.array(11)}]
    program.truth = truth
    found = mesh.evaluate(InMemory(images, {"id": PADDED}).eval_batches(4))
    quality = np.array(program.quality(found))
    return [{"mAP": quality, "count": np.array(found["count"])}]


def _truth(detections: Sequence[np.ndarray]) -> dict[str, Any]:
    """An annotation file in which every third detection is nearly right."""
    annotations = []
    for image, found in enumerate(detections):
        for top, left, bottom, right, _, label in found[::3].tolist():
            box = [left * 300 + 2, top * 300, (right - left) * 300, 0.0]
            box[3] = (bottom - top) * 300
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(label) + 1,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    return {
        "images": [{"id": i, "height": 300, "width": 300} for i in range(11)],
        "categories": [{"id": c, "name": str(c)} for c in (1, 2, 3)],
        "annotations": annotations,
    }


def _computed(mesh: Any, function: Any, *arguments: Any) -> np.ndarray:
    """A function's result on a mesh's first device, compiled by XLA where the mesh is
    XLA's."""
    import tensorflow as tf

    run = tf.function(function, autograph=False, jit_compile=mesh.name == "xla")
    return run(*map(tf.constant, arguments)).numpy()


def _partitioning(cores: int, replicas: int = 2) -> Technique:
    return Technique(
        f"spatial partitioning, {cores} core{'s' if cores > 1 else ''}",
        train_two_steps,
        (MeshSize("xla", replicas, cores),),
        _REORDERED,
        _REORDERED_BY,
        (f"training.partitions={cores}",),
    )


_OVER_TILES = (*SMALL, f"batch_norm.span={_TILE} examples", "training.global_batch=8")

TECHNIQUES = (
    _partitioning(1),
    _partitioning(2),
    _partitioning(4),
    _partitioning(8),
    Technique(
        "batch norm over tiles of replicas",
        train_over_tiles,
        TILED,
        _REORDERED,
        _REORDERED_BY,
        (*_OVER_TILES, "batch_norm.groups=tiles"),
        _OVER_TILES,
    ),
    Technique(
        "batch norm over replicas of 2 cores",
        train_two_steps,
        (MeshSize("xla", 4, 2),),
        _REORDERED,
        _REORDERED_BY,
        ("training.partitions=2",),
    ),
    Technique(
        "hardest negatives without a sort",
        mine,
        EXECUTED,
        0.0,
        "a mask, exact",
        (),
        ("by sort",),
    ),
    Technique(
        "non-maximum suppression in rounds",
        suppress,
        EXECUTED,
        0.0,
        "the same rows, exact",
        (),
        ("one by one",),
    ),
    Technique(
        "anchors and matching",
        match,
        EXECUTED,
        1e-6,
        "float32 of values computed by hand",
        (),
        ("by hand",),
    ),
    Technique(
        "mAP of padded batches",
        score,
        EXECUTED,
        1e-6,
        "the same detections, scored by the library itself",
        (),
        ("alone",),
    ),
)
