"""Measures SSD's training step against PyTorch's, in processes apart, in turns.

    python scripts/bench_ssd.py [--rounds 3] [--out results/ssd_step.md]

Ours is the spec's program: loss with mined negatives, weight decay and update included.
PyTorch's is the same network in channels_last, with the same anchors, targets and loss
(negatives mined by a sort) under momentum SGD. Both compute in what `train` takes on
this CPU: PyTorch in bf16 by autocast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench_train_step import timed
from contenders import PRECISION, in_turns, medians, options_of, publish, table

SIZES = {
    # As PyTorch's, the batch norm spans the batch.
    "proxy, 64x64, batch 32": ("proxy", ("batch_norm.span=32 examples",)),
    "SSD-ResNet34, 300x300, batch 4": (
        "full",
        (
            "training.global_batch=4",
            "training.length=100 steps",
            "schedule.base_rate=0.001",
            "schedule.warmup=1 steps",
            "schedule.boundaries=[50 steps]",
            "evaluation.every=50 steps",
            "batch_norm.span=4 examples",
            "model.space_to_depth=false",
        ),
    ),
}


def _program(size: str):
    from mlperf_tpu.cli.train import import_tensorflow

    import_tensorflow()
    from mlperf_tpu.mesh.virtual import VirtualMesh
    from mlperf_tpu.spec import benchmark_module, load, resolve

    task, settings = SIZES[size]
    settings = (*settings, f"training.precision={PRECISION}")
    spec = resolve(load("ssd"), task=task, settings=settings).spec
    mesh = VirtualMesh(1)
    return mesh, benchmark_module("ssd", "program").Program(spec)


def ours(size: str, seconds: float) -> float:
    mesh, program = _program(size)
    batch = program.spec.training.global_batch
    data = program.fake_batch(batch)
    mesh.start(program, program.initial_state(0, 1), data)
    return timed(lambda: list(mesh.train(iter([data]), 1)), batch, seconds)


def targets(size: str, file: str) -> None:
    """A fake batch and what PyTorch's network must be, for the process that has it."""
    import numpy as np

    _, program = _program(size)
    fields = program.fake_batch(program.spec.training.global_batch)
    np.savez(file, **fields)
    model = program.spec.model.model_dump()
    classes = program.spec.data.classes
    print(json.dumps({**model, "classes": classes, "cells": program.anchors.per_cell}))


def pytorch(size: str, seconds: float) -> float:
    import tempfile

    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/batch.npz"
        code = f"import bench_ssd; bench_ssd.targets({size!r}, {file!r})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
        shape = json.loads(done.stdout.splitlines()[-1])
        with np.load(file) as found:
            fields = dict(found)

    def conv_norm(before, after, kernel, stride=1):
        conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(after))

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            self.first = conv_norm(before, width, 3, stride)
            self.second = conv_norm(width, width, 3)
            same = before == width and stride == 1
            self.shortcut = None if same else conv_norm(before, width, 1, stride)

        def forward(self, x):
            shortcut = x if self.shortcut is None else self.shortcut(x)
            return torch.relu(self.second(torch.relu(self.first(x))) + shortcut)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            width = before = shape["width"]
            layers = [conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
            for stage, blocks in enumerate(shape["blocks"]):
                for block in range(blocks):
                    stride = 2 if stage == 1 and block == 0 else 1
                    layers.append(Block(before, width << stage, stride))
                    before = width << stage
            self.trunk = nn.Sequential(*layers)
            self.extra, channels = nn.ModuleList(), [before]
            for layer in shape["extra"]:
                narrow = nn.Conv2d(channels[-1], layer["narrow"], 1)
                stride = layer["strides"]
                wide = nn.Conv2d(
                    layer["narrow"], layer["wide"], 3, stride, int(stride > 1)
                )
                self.extra.append(nn.Sequential(narrow, nn.ReLU(), wide, nn.ReLU()))
                channels.append(layer["wide"])
            self.heads = nn.ModuleList(
                nn.Conv2d(c, n * (shape["classes"] + 5), 3, 1, 1)
                for c, n in zip(channels, shape["cells"], strict=True)
            )

        def forward(self, images):
            maps = [self.trunk(images)]
            for layer in self.extra:
                maps.append(layer(maps[-1]))
            n, out = len(images), shape["classes"] + 5
            found = [
                head(x).permute(0, 2, 3, 1).reshape(n, -1, out)
                for head, x in zip(self.heads, maps, strict=True)
            ]
            return torch.cat(found, 1).float()

    n_maps = len(shape["cells"])
    images = torch.tensor(fields["image"]).permute(0, 3, 1, 2)
    n = len(images)
    classes = torch.cat(
        [torch.tensor(fields[f"classes{k}"]).reshape(n, -1) for k in range(n_maps)], 1
    ).long()
    codes = torch.cat(
        [torch.tensor(fields[f"codes{k}"]).reshape(n, -1, 4) for k in range(n_maps)], 1
    )
    model = Network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.001, momentum=0.9, weight_decay=5e-4
    )

    def loss_of(found):
        logits, boxes = found[..., :-4], found[..., -4:]
        positive = classes > 0
        entropy = functional.cross_entropy(
            logits.transpose(1, 2), classes, reduction="none"
        )
        box = functional.smooth_l1_loss(boxes, codes, reduction="none").sum(-1)
        mined = entropy.detach().masked_fill(positive, 0)
        order = mined.argsort(1, descending=True).argsort(1)
        n_positive = positive.sum(1)
        counted = positive | (order < shape["negatives"] * n_positive[:, None])
        total = (box * positive).sum(1) + (entropy * counted).sum(1)
        return (total / n_positive.clamp(min=1)).mean()

    def step():
        optimizer.zero_grad()
        pixels = ((images.float() - 120) / 58).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, PRECISION == "bfloat16"):
            found = model(pixels)
        loss_of(found).backward()
        optimizer.step()

    return timed(step, n, seconds)


KINDS = {"ours": ours, "PyTorch": pytorch}
CONTENDERS = {
    f"{size}, {kind}": (function, size)
    for size in SIZES
    for kind, function in KINDS.items()
}


def main() -> None:
    options = options_of(CONTENDERS)
    rounds = in_turns(__file__, CONTENDERS, options)
    rate = medians(rounds)
    lines = [
        "# SSD's training step, images/s",
        "",
        f"`python scripts/bench_ssd.py --rounds {options.rounds}` on {os.cpu_count()} "
        f"CPU cores, one device, {PRECISION}; medians, with the lowest and highest "
        "round.",
        "",
        *table(rounds, "images/s"),
        "",
        "| ours / PyTorch | measured | aim |",
        "|---|---:|---:|",
    ]
    for size in SIZES:
        mine, theirs = (rate[f"{size}, {kind}"] for kind in KINDS)
        lines.append(f"| {size} | {mine / theirs:.2f} | ≥ 1.0 |")
    publish(lines, options.out)


if __name__ == "__main__":
    main()
