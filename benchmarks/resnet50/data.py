"""ResNet-50's data sets by the name in the spec, and the check of those on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlperf_tpu.data.batches import Dataset
from mlperf_tpu.errors import BadInput
from mlperf_tpu.spec import Spec

if TYPE_CHECKING:
    from mlperf_tpu.data.check import Level, Report


def datasets(
    spec: Spec, data_dir: Path | None, host: int = 0, n_hosts: int = 1
) -> tuple[Dataset, Dataset]:
    """(training, evaluation) as host `host` of `n_hosts` reads them.

    Raises BadInput for files that the check finds wrong.
    """
    if spec.data.name == "digits":
        from mlperf_tpu.data import digits

        return digits.load(spec.data.image_size)
    from mlperf_tpu.data.batches import Host
    from mlperf_tpu.data.check import refuse
    from mlperf_tpu.data.imagenet import ImageNet, Settings, refuse_small_memory

    if data_dir is None:
        raise BadInput("data.name: imagenet is read from a folder; give --data-dir")
    report = check(spec, data_dir, n_hosts=n_hosts)
    # A damaged file says more than the count that it makes wrong.
    refuse(sorted(report.errors, key=lambda found: found.file is None))
    data = spec.data
    if data.cache_decoded:
        refuse_small_memory(data.train_examples // n_hosts)
    settings = Settings(data.classes, data.image_size, data.resize, data.cache_decoded)
    train, validation = (
        ImageNet(
            report.form, tuple(report.framings[split]), settings, Host(host, n_hosts)
        )
        for split in ("train", "validation")
    )
    return train, validation


def check(
    spec: Spec,
    data_dir: Path,
    level: Level | None = None,
    n_hosts: int = 1,
    manifest_path: Path | None = None,
    write_manifest: bool = False,
) -> Report:
    """What is wrong with the files in `data_dir` (mlperf_tpu.data.check)."""
    if spec.data.name != "imagenet":
        raise BadInput(f"data.name: {spec.data.name} is embedded; nothing to check")
    from mlperf_tpu.data import check as imagenet

    data = spec.data
    counts = {"train": data.train_examples, "validation": data.eval_examples}
    return imagenet.check(
        data_dir, counts, data.classes, level, n_hosts, manifest_path, write_manifest
    )
