"""ImageNet on disk, made once for all tests."""

from __future__ import annotations

import pytest

from tests.data import imagenet_on_disk


@pytest.fixture(scope="session")
def mlperf_shards(tensorflow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlperf")
    imagenet_on_disk.write_shards(folder)
    return folder


@pytest.fixture(scope="session")
def tfds_folder(tensorflow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    imagenet_on_disk.prepare_tfds(folder)
    return folder
