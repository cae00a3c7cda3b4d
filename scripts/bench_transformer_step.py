"""Measures the Transformer proxy's training step against its peers, as
bench_train_step.py measures ResNet-50's: each in a process of its own, in turns.

    python scripts/bench_transformer_step.py [--rounds 5] [--out FILE]

All train the proxy's network on packed rows with segment masks, dropout 0.1, label
smoothing and Adam: 2 + 2 layers of 64, 2 heads, 256 inside, 256 ids, 32 rows of 64.
Keras is its own layers (MultiHeadAttention, LayerNormalization, Dense, Dropout) in one
tf.function; PyTorch nn.TransformerEncoderLayer and nn.TransformerDecoderLayer.
"""

from __future__ import annotations

import os

import numpy as np
from bench_train_step import timed
from contenders import in_turns, medians, options_of, publish, table

ROWS, LENGTH, WIDTH, INNER, HEADS, LAYERS, IDS, RATE = 32, 64, 64, 256, 2, 2, 256, 0.1


def rows() -> dict[str, np.ndarray]:
    """Rows of two pairs each; the ids are made up."""
    from mlperf_tpu.data.packing import pack

    ids = np.random.default_rng(0).integers(2, IDS, (2 * ROWS, 2, LENGTH // 2))
    return pack([(s.tolist(), t.tolist()) for s, t in ids], LENGTH)


def ours(devices: int, seconds: float) -> float:
    from mlperf_tpu.cli.train import import_tensorflow

    import_tensorflow()
    from mlperf_tpu.mesh.virtual import VirtualMesh
    from mlperf_tpu.spec import benchmark_module, load, resolve

    mesh, data = VirtualMesh(devices), rows()
    spec = resolve(load("transformer"), task="proxy").spec
    made = benchmark_module("transformer", "program").Program(spec)
    state = made.initial_state(0, devices)
    mesh.start(made, state, data, made.fake_eval_batch(made.spec.eval_batch))
    return timed(lambda: list(mesh.train(iter([data]), 1)), ROWS, seconds)


def keras(seconds: float) -> float:
    data = rows()
    import keras
    import tensorflow as tf
    from keras import layers

    def sublayer(x, inner):
        return x + layers.Dropout(RATE)(inner(layers.LayerNormalization()(x)))

    def attend(x, memory, mask):
        attention = layers.MultiHeadAttention(
            HEADS, WIDTH // HEADS, dropout=RATE, use_bias=False
        )
        return sublayer(
            x,
            lambda y: attention(
                y, memory if memory is not None else y, attention_mask=mask
            ),
        )

    def feed(x):
        def inner(y):
            y = layers.Dropout(RATE)(layers.Dense(INNER, activation="relu")(y))
            return layers.Dense(WIDTH)(y)

        return sublayer(x, inner)

    ids = [keras.Input([LENGTH], dtype="int32") for _ in range(2)]
    masks = [keras.Input([LENGTH, LENGTH], dtype="bool") for _ in range(3)]
    embedding = layers.Embedding(IDS, WIDTH)
    x = layers.Dropout(RATE)(embedding(ids[0]))
    for _ in range(LAYERS):
        x = feed(attend(x, None, masks[0]))
    memory = layers.LayerNormalization()(x)
    x = layers.Dropout(RATE)(embedding(ids[1]))
    for _ in range(LAYERS):
        x = feed(attend(attend(x, None, masks[1]), memory, masks[2]))
    model = keras.Model([*ids, *masks], layers.LayerNormalization()(x))
    optimizer = keras.optimizers.Adam(1e-3, 0.9, 0.98, 1e-9)
    source, target = data["source_segment"], data["target_segment"]
    causal = np.tril(np.ones([LENGTH, LENGTH], bool))
    inputs = [
        tf.constant(v)
        for v in (
            data["source"],
            np.roll(data["target"], 1, 1),
            source[:, :, None] == source[:, None],
            (target[:, :, None] == target[:, None]) & causal,
            target[:, :, None] == source[:, None],
        )
    ]
    labels = tf.constant(data["target"])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            x = model(inputs, training=True)
            flat = tf.reshape(x, [-1, WIDTH])
            logits = tf.matmul(flat, embedding.embeddings, transpose_b=True)
            smooth = tf.one_hot(tf.reshape(labels, [-1]), IDS, 0.9, 0.1 / (IDS - 1))
            loss = tf.reduce_mean(
                tf.nn.softmax_cross_entropy_with_logits(smooth, logits)
            )
        weights = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    optimizer.build(model.trainable_variables)
    return timed(lambda: step().numpy(), ROWS, seconds)


def pytorch(seconds: float) -> float:
    data = rows()
    import torch
    from torch import nn

    options = {"dropout": RATE, "batch_first": True, "norm_first": True}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, **options),
        LAYERS,
        nn.LayerNorm(WIDTH),
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(WIDTH, HEADS, INNER, **options),
        LAYERS,
        nn.LayerNorm(WIDTH),
    )
    embedding, drop = nn.Embedding(IDS, WIDTH), nn.Dropout(RATE)
    modules = nn.ModuleList([encoder, decoder, embedding])
    optimizer = torch.optim.Adam(modules.parameters(), 1e-3, (0.9, 0.98), 1e-9)
    ids, labels = (torch.tensor(data[k]).long() for k in ("source", "target"))
    before = labels.roll(1, 1)
    source, target = (torch.tensor(data[f"{k}_segment"]) for k in ("source", "target"))
    causal = torch.ones(LENGTH, LENGTH).tril().bool()

    def barred(queries, keys, also=None):
        may = queries[:, :, None] == keys[:, None]
        may = may if also is None else may & also
        return (~may).repeat_interleave(HEADS, 0)

    masks = (
        barred(source, source),
        barred(target, target, causal),
        barred(target, source),
    )

    def step():
        optimizer.zero_grad()
        memory = encoder(drop(embedding(ids)), masks[0])
        x = decoder(drop(embedding(before)), memory, masks[1], masks[2])
        logits = x @ embedding.weight.T
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1
        )
        loss.backward()
        optimizer.step()

    return timed(step, ROWS, seconds)


CONTENDERS = {
    "ours, 1 device": (ours, 1),
    "ours, 2 devices": (ours, 2),
    "Keras's own layers": (keras,),
    "PyTorch": (pytorch,),
}


def main() -> None:
    options = options_of(CONTENDERS)
    rounds = in_turns(__file__, CONTENDERS, options)
    rate = medians(rounds)
    lines = [
        "# The Transformer proxy's training step, rows/s",
        "",
        f"`python scripts/bench_transformer_step.py --rounds {options.rounds}` on "
        f"{os.cpu_count()} CPU cores; medians, with the lowest and highest round.",
        "",
        *table(rounds, "rows/s"),
    ]
    best = max(v for n, v in rate.items() if n.startswith("ours"))
    peer = max(v for n, v in rate.items() if not n.startswith("ours"))
    lines += ["", f"Ours / the best of the others: {best / peer:.2f} (aim: ≥ 1.0)."]
    publish(lines, options.out)


if __name__ == "__main__":
    main()
