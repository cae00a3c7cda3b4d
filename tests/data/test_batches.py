"""Batches: whole epochs, one order a seed, every example once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlperf_tpu.data import digits
from mlperf_tpu.data.batches import (
    InMemory,
    padded_batches,
    prefetched,
    shuffled_batches,
)
from mlperf_tpu.errors import BadInput

TEN = {"x": np.arange(10)}


def stream(seed, first_step, batches, batch=4):
    made = shuffled_batches(TEN, batch, seed, first_step)
    return np.concatenate([b["x"] for b in itertools.islice(made, batches)])


def test_tf_pr_22010_each_epoch_is_a_permutation_though_batches_span_epochs():
    values = stream(seed=1, first_step=0, batches=5)
    assert sorted(values[:10]) == sorted(values[10:]) == list(range(10))


def test_tf_27680_epochs_have_different_orders_and_a_rerun_the_same():
    values = stream(seed=1, first_step=0, batches=5)
    assert (values[:10] != values[10:]).any()
    np.testing.assert_array_equal(values, stream(seed=1, first_step=0, batches=5))
    assert (values != stream(seed=2, first_step=0, batches=5)).any()


def on_hosts(batches, n_hosts, n_batches):
    """What each of the hosts reads of so many batches."""
    made = [batches.on_host(host, n_hosts) for host in range(n_hosts)]
    return [
        np.concatenate([b["x"] for b in each.take(n_batches).as_numpy_iterator()])
        for each in made
    ]


def test_the_hosts_of_a_slice_see_each_row_once_an_epoch(tensorflow):
    shares = on_hosts(InMemory(TEN, {}).train_batches(2, 1, 0), 2, 10)
    for epoch in (0, 5):
        seen = np.concatenate([share[epoch : epoch + 5] for share in shares])
        assert sorted(seen) == list(range(10))
    assert (shares[0][:5] != shares[0][5:]).any()


@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_resumed_host_goes_on_where_it_stopped(tensorflow, step):
    whole = on_hosts(InMemory(TEN, {}).train_batches(4, 1, 0), 2, 5)
    rest = on_hosts(InMemory(TEN, {}).train_batches(4, 1, step), 2, 5 - step)
    for each, all_of_it in zip(rest, whole, strict=True):
        np.testing.assert_array_equal(each, all_of_it[2 * step :])


def test_the_hosts_parts_of_an_evaluation_are_its_batches(tensorflow):
    evaluation = InMemory(TEN, {"x": -1})
    parts = on_hosts(evaluation.eval_batches(4), 2, 3)
    together = np.stack([part.reshape(3, 2) for part in parts], 1).reshape(-1)
    whole = np.concatenate([b["x"] for b in evaluation.eval_batches(4)])
    np.testing.assert_array_equal(together, whole)


def test_a_batch_that_does_not_divide_over_the_hosts_is_refused(tensorflow):
    with pytest.raises(BadInput, match="5 examples do not divide over 2 hosts"):
        InMemory(TEN, {}).eval_batches(5).on_host(0, 2)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_t5x_40_a_resumed_stream_goes_on_where_it_stopped(step):
    whole = stream(seed=1, first_step=0, batches=5)
    rest = stream(seed=1, first_step=step, batches=5 - step)
    np.testing.assert_array_equal(rest, whole[4 * step :])


def test_tf_25254_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(BadInput, match="64 examples, but the training set has 10"):
        next(shuffled_batches(TEN, 64, 0, 0))


@pytest.mark.parametrize("batch", [1, 3, 4, 10, 16])
def test_dawnbench_48_padding_counts_every_example_once(batch):
    batches = list(padded_batches(TEN, batch, {"x": -1}))
    assert all(len(b["x"]) == batch for b in batches)
    seen = np.concatenate([b["x"] for b in batches])
    np.testing.assert_array_equal(seen[seen >= 0], TEN["x"])


def test_prefetching_changes_nothing_and_passes_errors_on():
    assert list(prefetched(iter(range(20)))) == list(range(20))

    def broken():
        yield 1
        raise ValueError("bad record")

    made = prefetched(broken())
    assert next(made) == 1
    with pytest.raises(ValueError, match="bad record"):
        next(made)


def test_the_digits_are_cut_once_into_1437_and_360():
    train, test = (split.arrays for split in digits.load(32))
    assert train["image"].shape == (1437, 32, 32, 3)
    assert test["image"].shape == (360, 32, 32, 3)
    assert train["image"].dtype == np.uint8
    rows = {image.tobytes() for image in train["image"]}
    # Digits drawn twice alike: the set itself holds none across the cut.
    assert not rows & {image.tobytes() for image in test["image"]}


def test_a_fingerprint_tells_one_changed_pixel():
    train, _ = digits.load(32)
    image = train.arrays["image"].copy()
    image[0, 0, 0, 0] ^= 1
    changed = InMemory({**train.arrays, "image": image}, {})
    assert train.fingerprint() != changed.fingerprint()
    assert train.fingerprint() == InMemory(dict(train.arrays), {}).fingerprint()
