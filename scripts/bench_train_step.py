"""Measures the training step against its peers, each in a process of its own, in turns.

    python scripts/bench_train_step.py [--rounds 5] [--out results/train_step.md]

Ours is the proxy's program (LARS, sharded update, label smoothing, batch norm groups)
at the size named; Keras is keras.applications.ResNet50 under `fit` with momentum SGD;
PyTorch, if it is installed, a ResNet-50 v1.5 in channels_last under bf16 autocast. The
rounds go through all contenders one after the other, and a contender's figure is the
median of its rounds: whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import os
import time

from contenders import in_turns, medians, options_of, publish, table

# Forward and backward of ResNet-50 at 224x224: 3 x 4.09 G multiply-adds an image.
FLOP_AN_IMAGE_224 = 3 * 2 * 4.09e9


def timed(step, batch: int, seconds: float) -> float:
    """Images/s of `step`, which returns when its work is done."""
    step(), step()
    began, n = time.perf_counter(), 0
    while n < 3 or time.perf_counter() - began < seconds:
        step()
        n += 1
    return n * batch / (time.perf_counter() - began)


def ours(size: int, batch: int, devices: int, seconds: float) -> float:
    from mlperf_tpu.cli.train import import_tensorflow

    import_tensorflow()
    from mlperf_tpu.mesh.virtual import VirtualMesh
    from mlperf_tpu.spec import benchmark_module, load, resolve

    settings = [
        f"data.image_size={size}",
        "data.classes=1000",
        f"training.global_batch={batch}",
        f"batch_norm.span={batch // devices} examples",
    ]
    spec = resolve(load("resnet50"), task="proxy", settings=settings).spec
    mesh = VirtualMesh(devices)
    program = benchmark_module("resnet50", "program").Program(spec)
    data = program.fake_batch(batch)
    mesh.start(program, program.initial_state(0, devices), data)
    return timed(lambda: list(mesh.train(iter([data]), 1)), batch, seconds)


def keras(size: int, batch: int, policy: str, seconds: float) -> float:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy as np
    import tensorflow as tf

    keras.mixed_precision.set_global_policy(policy)
    model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3))
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy"
    )
    random = np.random.default_rng(0)
    images = random.random((batch, size, size, 3), np.float32)
    labels = random.integers(0, 1000, batch)
    data = tf.data.Dataset.from_tensors((images, labels)).cache().repeat()
    model.fit(data, steps_per_epoch=2, verbose=0)
    began, n = time.perf_counter(), 0
    while n == 0 or time.perf_counter() - began < seconds:
        model.fit(data, steps_per_epoch=8, verbose=0)
        n += 8
    return n * batch / (time.perf_counter() - began)


def pytorch(size: int, batch: int, seconds: float) -> float:
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            after = 4 * width
            self.body = nn.Sequential(
                nn.Conv2d(before, width, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, after, 1, bias=False),
                nn.BatchNorm2d(after),
            )
            self.shortcut = (
                nn.Identity()
                if stride == 1 and before == after
                else nn.Sequential(
                    nn.Conv2d(before, after, 1, stride, bias=False),
                    nn.BatchNorm2d(after),
                )
            )

        def forward(self, x):
            return torch.relu(self.body(x) + self.shortcut(x))

    blocks, before = [], 64
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(count):
            stride = 2 if stage and not block else 1
            blocks.append(Bottleneck(before, width, stride))
            before = 4 * width
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    pool, top = nn.MaxPool2d(3, 2, 1), [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*stem, pool, *blocks, *top, nn.Linear(2048, 1000))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    images = torch.rand(batch, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.zeros(batch, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return timed(step, batch, seconds)


def matmul_flop_per_s(seconds: float) -> float:
    """The machine's own bf16 rate: TensorFlow's matmul of 4096 x 4096."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    a = tf.cast(tf.random.normal([4096, 4096]), tf.bfloat16)
    multiply = tf.function(lambda: tf.reduce_sum(tf.matmul(a, a)))
    return timed(lambda: multiply().numpy(), 1, seconds) * 2 * 4096**3


CONTENDERS = {
    "ours, 1 device, 64x64, batch 64": (ours, 64, 64, 1),
    "ours, 2 devices, 64x64, batch 64": (ours, 64, 64, 2),
    "ours, 8 devices, 64x64, batch 64": (ours, 64, 64, 8),
    "ours, 1 device, 64x64, batch 256": (ours, 64, 256, 1),
    "ours, 8 devices, 64x64, batch 256": (ours, 64, 256, 8),
    "Keras fit, float32, 64x64, batch 64": (keras, 64, 64, "float32"),
    "Keras fit, mixed_bfloat16, 64x64, batch 64": (keras, 64, 64, "mixed_bfloat16"),
    "PyTorch, bf16 autocast, 64x64, batch 64": (pytorch, 64, 64),
    "ours, 1 device, 224x224, batch 16": (ours, 224, 16, 1),
    "bf16 matmul, FLOP/s": (matmul_flop_per_s,),
}


def targets(rate: dict[str, float]) -> list[tuple[str, float, float]]:
    """(what is compared, the ratio, what it should reach at least)."""
    one, batch_256 = (rate[f"ours, 1 device, 64x64, batch {b}"] for b in (64, 256))
    rows = [
        (
            "ours / Keras float32",
            one / rate["Keras fit, float32, 64x64, batch 64"],
            1.8,
        ),
        ("2 devices / 1", rate["ours, 2 devices, 64x64, batch 64"] / one, 0.9),
        (
            "8 devices / 1, batch 64",
            rate["ours, 8 devices, 64x64, batch 64"] / one,
            0.5,
        ),
        (
            "8 devices / 1, batch 256",
            rate["ours, 8 devices, 64x64, batch 256"] / batch_256,
            0.8,
        ),
        (
            "224x224: share of the bf16 matmul rate",
            rate["ours, 1 device, 224x224, batch 16"]
            * FLOP_AN_IMAGE_224
            / rate["bf16 matmul, FLOP/s"],
            0.6,
        ),
    ]
    torch = rate.get("PyTorch, bf16 autocast, 64x64, batch 64")
    return rows + ([("ours / PyTorch bf16", one / torch, 1.0)] if torch else [])


def main() -> None:
    options = options_of(CONTENDERS)
    rounds = in_turns(__file__, CONTENDERS, options)
    rate = medians(rounds)
    lines = [
        "# Training step, images/s",
        "",
        f"`python scripts/bench_train_step.py --rounds {options.rounds}` on "
        f"{os.cpu_count()} CPU cores; medians, with the lowest and highest round.",
        "",
        *table(rounds, "images/s"),
    ]
    lines += ["", "| ratio | measured | aim | |", "|---|---|---|---|"]
    for name, ratio, aim in targets(rate):
        verdict = "reached" if ratio >= aim else "missed"
        lines.append(f"| {name} | {ratio:.2f} | ≥ {aim} | {verdict} |")
    publish(lines, options.out)


if __name__ == "__main__":
    main()
