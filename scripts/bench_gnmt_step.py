"""Measures GNMT's training step at the proxy's size against its peers, in turns.

    python scripts/bench_gnmt_step.py [--rounds 5] [--out results/gnmt_step.md]

Ours is the proxy's program with the loops hoisted and plain. The peers compute the same
network, loss and update on the same batch: Keras with its own layers (LSTM, Embedding,
Dense, Adam; the attending cell, which Keras has not, in its RNN), PyTorch with nn.LSTM
and, for the attending layer, nn.LSTMCell. Each contender is a process of its own; the
rounds go through all of them, and a contender's figure is the median of its rounds.
"""

from __future__ import annotations

import os
import time

from contenders import PRECISION, in_turns, medians, options_of, publish, table

BATCH, SOURCE, TARGET = 128, 26, 12  # the proxy's mean batch
VOCABULARY, WIDTH, LAYERS = 256, 128, 4
# Pairs on two devices and width: as of v0.6-512, whose replicas hold 8 pairs each.
PUBLISHED = 16, 1024
DROPOUT, SMOOTHING, CLIP, RATE = 0.1, 0.1, 5.0, 1e-3


def timed(step, seconds: float, pairs: int = BATCH) -> float:
    """Pairs/s of `step`, which returns when its work is done."""
    step(), step()
    began, n = time.perf_counter(), 0
    while n < 3 or time.perf_counter() - began < seconds:
        step()
        n += 1
    return n * pairs / (time.perf_counter() - began)


def batch(pairs: int = BATCH):
    """Ids of source and target, int32 [pairs, ...], all rows full."""
    import numpy as np

    random = np.random.default_rng(0)
    return [
        random.integers(3, VOCABULARY, (pairs, length)).astype(np.int32)
        for length in (SOURCE, TARGET)
    ]


def ours(
    devices: int, hoisted: bool, precision: str, pairs: int, width: int, seconds: float
) -> float:
    from mlperf_tpu.cli.train import import_tensorflow

    import_tensorflow()
    import numpy as np

    from mlperf_tpu.mesh.virtual import VirtualMesh
    from mlperf_tpu.spec import benchmark_module, load, resolve

    settings = [
        f"training.global_batch={pairs}",
        f"training.precision={precision}",
        f"model.hoisted={str(hoisted).lower()}",
        f"data.vocabulary={VOCABULARY}",
        f"model.width={width}",
        f"model.layers={LAYERS}",
        f"model.dropout={DROPOUT}",
    ]
    spec = resolve(load("gnmt"), task="proxy", settings=settings).spec
    mesh = VirtualMesh(devices)
    program = benchmark_module("gnmt", "program").Program(spec)
    data = program.fake_batch(pairs)
    for side, ids in zip(("source", "target"), batch(pairs), strict=True):
        data[side] = np.zeros_like(data[side])
        data[side][:, : ids.shape[1]] = ids
        data[f"{side}_length"] = np.full(pairs, ids.shape[1], np.int32)
    state = program.initial_state(0, devices)
    mesh.start(program, state, data, program.fake_eval_batch(spec.eval_batch))
    return timed(lambda: list(mesh.train(iter([data]), 1)), seconds, pairs)


def keras(policy: str, seconds: float) -> float:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import tensorflow as tf

    keras.mixed_precision.set_global_policy(policy)
    layers = keras.layers

    class AttendingCell(layers.Layer):
        """An LSTM cell that is fed the context of the step before."""

        def __init__(self):
            super().__init__()
            self.cell = layers.LSTMCell(WIDTH)
            self.query = layers.Dense(WIDTH)
            self.state_size = [WIDTH, WIDTH, WIDTH]
            self.output_size = 2 * WIDTH

        def build(self, shape):
            self.cell.build((None, 2 * WIDTH))
            self.query.build((None, WIDTH))
            self.v = self.add_weight(shape=(WIDTH,), name="v")
            self.g = self.add_weight(shape=(), initializer="ones", name="g")

        def call(self, x, states, training=False):
            h, c, context = states
            _, (h, c) = self.cell(tf.concat([x, context], 1), [h, c])
            v = self.g * self.v / tf.norm(self.v)
            scores = tf.tanh(self.keys + self.query(h)[:, None])
            places = tf.nn.softmax(tf.linalg.matvec(scores, v))
            context = tf.matmul(places[:, None], self.memory)[:, 0]
            return tf.concat([h, context], 1), [h, c, context]

    lstm = lambda: layers.LSTM(WIDTH, return_sequences=True)  # noqa: E731
    embeddings = [layers.Embedding(VOCABULARY, WIDTH) for _ in range(2)]
    first = layers.Bidirectional(lstm())
    encoder = [lstm() for _ in range(LAYERS - 1)]
    keys = layers.Dense(WIDTH, use_bias=False)
    cell = AttendingCell()
    attending = layers.RNN(cell, return_sequences=True)
    decoder = [lstm() for _ in range(LAYERS - 1)]
    project = layers.Dense(VOCABULARY, use_bias=False)
    drop = layers.Dropout(DROPOUT)

    def logits(source, before):
        x = first(drop(embeddings[0](source), training=True))
        for k, layer in enumerate(encoder, 1):
            h = layer(drop(x, training=True))
            x = h + x if k >= 2 else h
        cell.memory, cell.keys = x, keys(x)
        both = attending(drop(embeddings[1](before), training=True))
        h, context = tf.split(both, 2, 2)
        for k, layer in enumerate(decoder, 1):
            below = h
            h = layer(drop(tf.concat([h, context], 2), training=True))
            h = h + below if k >= 2 else h
        return tf.cast(project(h), tf.float32)

    source, target = map(tf.constant, batch())
    before = tf.pad(target[:, :-1], [[0, 0], [1, 0]])
    logits(source, before)
    held = [*embeddings, first, *encoder, keys, attending, *decoder, project]
    weights = [v for layer in held for v in layer.trainable_variables]
    optimizer = keras.optimizers.Adam(RATE, global_clipnorm=CLIP)
    optimizer.build(weights)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            wanted = tf.one_hot(target, VOCABULARY) * (1 - SMOOTHING)
            losses = tf.nn.softmax_cross_entropy_with_logits(
                wanted + SMOOTHING / VOCABULARY, logits(source, before)
            )
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, [v.value for v in weights])
        optimizer.apply(gradients, weights)
        return loss

    return timed(lambda: step().numpy(), seconds)


def pytorch(bf16: bool, seconds: float) -> float:
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = nn.ModuleList(
                nn.Embedding(VOCABULARY, WIDTH) for _ in range(2)
            )
            self.first = nn.LSTM(WIDTH, WIDTH, bidirectional=True)
            narrow = [2 * WIDTH] + [WIDTH] * (LAYERS - 2)
            self.encoder = nn.ModuleList(nn.LSTM(n, WIDTH) for n in narrow)
            self.keys = nn.Linear(WIDTH, WIDTH, bias=False)
            self.query = nn.Linear(WIDTH, WIDTH)
            self.cell = nn.LSTMCell(2 * WIDTH, WIDTH)
            self.v = nn.Parameter(torch.randn(WIDTH))
            self.g = nn.Parameter(torch.ones(()))
            self.decoder = nn.ModuleList(
                nn.LSTM(2 * WIDTH, WIDTH) for _ in range(LAYERS - 1)
            )
            self.project = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.drop = nn.Dropout(DROPOUT)

        def forward(self, source, before):
            x, _ = self.first(self.drop(self.embeddings[0](source)))
            for k, layer in enumerate(self.encoder, 1):
                h, _ = layer(self.drop(x))
                x = h + x if k >= 2 else h
            memory = x.transpose(0, 1)
            keys = self.keys(memory)
            embedded = self.drop(self.embeddings[1](before))
            v = self.g * self.v / self.v.norm()
            h = c = context = torch.zeros(BATCH, WIDTH)
            states, contexts = [], []
            for x in embedded:
                h, c = self.cell(torch.cat([x, context], 1), (h, c))
                scores = torch.tanh(keys + self.query(h)[:, None])
                places = torch.softmax(scores @ v, 1)
                context = torch.bmm(places[:, None].to(memory.dtype), memory)[:, 0]
                states.append(h)
                contexts.append(context)
            h, context = torch.stack(states), torch.stack(contexts)
            for k, layer in enumerate(self.decoder, 1):
                below = h
                h, _ = layer(self.drop(torch.cat([h, context.to(h.dtype)], 2)))
                h = h + below if k >= 2 else h
            return self.project(h).float()

    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    source, target = (torch.from_numpy(ids).long().T for ids in batch())
    before = torch.cat([torch.zeros_like(target[:1]), target[:-1]])
    losses = nn.CrossEntropyLoss(label_smoothing=SMOOTHING, reduction="sum")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = network(source, before)
        loss = losses(logits.reshape(-1, VOCABULARY), target.reshape(-1)) / BATCH
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()

    return timed(step, seconds)


OURS = f"ours, hoisted, {PRECISION}"
IN_BF16 = {
    "ours, hoisted, bfloat16": (ours, 2, True, "bfloat16", BATCH, WIDTH),
    "ours, plain, bfloat16": (ours, 2, False, "bfloat16", BATCH, WIDTH),
    "Keras, mixed_bfloat16": (keras, "mixed_bfloat16"),
    "PyTorch, bf16 autocast": (pytorch, True),
}
CONTENDERS = {
    "ours, hoisted, float32": (ours, 2, True, "float32", BATCH, WIDTH),
    "ours, plain, float32": (ours, 2, False, "float32", BATCH, WIDTH),
    "Keras, float32": (keras, "float32"),
    "PyTorch, float32": (pytorch, False),
    # Elsewhere they are emulated, and PyTorch has no LSTM.
    **(IN_BF16 if PRECISION == "bfloat16" else {}),
}
# For scripts/gnmt_hoisting.py: no turn of this script's rounds.
WIDE = {
    f"ours, {way}, {PRECISION}, wide": (ours, 2, hoisted, PRECISION, *PUBLISHED)
    for way, hoisted in (("hoisted", True), ("plain", False))
}


def main() -> None:
    options = options_of({**CONTENDERS, **WIDE})
    rounds = in_turns(__file__, CONTENDERS, options)
    rate = medians(rounds)
    best = max((n for n in rate if not n.startswith("ours")), key=rate.__getitem__)
    load = os.getloadavg()[2]
    lines = [
        "# GNMT's training step at the proxy's size, pairs/s",
        "",
        f"`python scripts/bench_gnmt_step.py --rounds {options.rounds}` on "
        f"{os.cpu_count()} CPU cores (load of the last 15 minutes at its end: "
        f"{load:.1f}); medians, with the lowest and highest round. Batch {BATCH}, "
        f"{SOURCE} source and {TARGET} target sub-words, width {WIDTH}, {LAYERS} + "
        f"{LAYERS} layers.",
        "",
        *table(rounds, "pairs/s"),
    ]
    lines += ["", "| ratio | measured | aim | |", "|---|---:|---:|---|"]
    for name, ratio in (
        (f"ours / the best peer ({best})", rate[OURS] / rate[best]),
        *(
            (
                f"hoisted / plain, {p}",
                rate[f"ours, hoisted, {p}"] / rate[f"ours, plain, {p}"],
            )
            for p in dict.fromkeys((PRECISION, "float32"))
        ),
    ):
        verdict = "reached" if ratio >= 1 else "missed"
        lines.append(f"| {name} | {ratio:.2f} | ≥ 1 | {verdict} |")
    publish(lines, options.out)


if __name__ == "__main__":
    main()
