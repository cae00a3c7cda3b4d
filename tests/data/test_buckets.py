"""Global bucketing: what a batch holds, that no pair is lost, and resumption."""

import itertools

import numpy as np
import pytest

from mlperf_tpu.data.buckets import Bucketed, batches_of, bucket_of
from mlperf_tpu.errors import BadInput


def corpus(n=103, n_buckets=3):
    lengths = np.random.default_rng(5).integers(1, 13, n)
    buckets = bucket_of(lengths, 12, n_buckets)
    return Bucketed({"id": np.arange(n), "length": lengths}, {}, buckets)


def take(batches, n):
    return list(itertools.islice(batches, n))


def test_each_batch_is_of_one_bucket():
    for batch in take(corpus().train_batches(8, 1, 0), 40):
        assert len(set(bucket_of(batch["length"], 12, 3))) == 1


def test_an_epochs_pairs_are_each_seen_once_but_for_those_that_wait():
    seen = np.concatenate(take(batches_of(corpus().buckets, 8, seed=2), 10))
    # 103 pairs, at most 7 of each of 3 buckets wait for the next epoch.
    assert len(set(seen)) == len(seen) == 80


def test_no_pair_is_lost_over_epochs():
    found = corpus()
    seen = np.concatenate(take(batches_of(found.buckets, 8, seed=2), 250))
    times = np.bincount(seen, minlength=103)
    assert times.min() >= 18 and times.max() <= 20  # 2,000 of 103 pairs


def test_t5x_resume_sees_what_an_unbroken_run_would():
    found = corpus()
    whole = take(found.train_batches(8, 3, 0), 30)
    rest = take(found.train_batches(8, 3, 17), 13)
    for a, b in zip(whole[17:], rest, strict=True):
        np.testing.assert_array_equal(a["id"], b["id"])


def test_epochs_and_seeds_differ_and_the_same_seed_repeats():
    first, again, other = (
        np.concatenate(take(batches_of(corpus().buckets, 8, s), 24)) for s in (1, 1, 2)
    )
    assert (first == again).all() and (first != other).any()
    assert (first[:96] != first[96:192]).any()


def test_tf_26011_the_longest_row_has_a_bucket():
    assert bucket_of(np.array([1, 10, 11, 40, 41, 48]), 48, 5).tolist() == [
        0,
        0,
        1,
        3,
        4,
        4,
    ]


def test_opennmt_tf_131_an_empty_row_has_a_bucket():
    assert bucket_of(np.array([0, 3]), 12, 3).tolist() == [0, 0]


def test_tf_25254_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(BadInput, match=r"training\.global_batch: 200 examples"):
        next(corpus().train_batches(200, 0, 0))


def test_a_batch_that_no_bucket_fills_within_an_epoch_still_comes():
    # 48 pairs of one bucket, twice an epoch's worth a batch: made of two epochs.
    found = Bucketed({"id": np.arange(48)}, {}, np.zeros(48, np.int64))
    first, second = take(found.train_batches(32, 0, 0), 2)
    assert len(set(first["id"])) == 32 and len(second["id"]) == 32


def test_the_buckets_are_part_of_the_fingerprint():
    assert corpus().fingerprint() != corpus(n_buckets=2).fingerprint()
