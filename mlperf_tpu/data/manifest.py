"""What a data set's files held when they were checked: records and bytes of each.

TFRecord has no footer, so that only this tells a file cut between two records from a
whole one (tensorflow#13463). It also says that every byte of them was verified, so that
a run that finds the very same files need not read them all again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_tpu.data.tfrecord import Damage, Framing
from mlperf_tpu.errors import BadInput

FILE_NAME = "mlperf-tpu-manifest.json"
SCHEMA = 1


@dataclass(frozen=True)
class Manifest:
    """By file, relative to the data set's folder: bytes, records, digest and
    modified_ns."""

    path: Path
    files: Mapping[str, Mapping[str, Any]]

    def differences(
        self, folder: Path, framings: Sequence[Framing]
    ) -> Iterator[Damage]:
        """Files that are not what they were."""
        held = {_name(folder, f.path): f for f in framings}
        for name in self.files:
            if name not in held:
                yield Damage(folder / name, 0, f"missing; {self.path.name} lists it")
        for name, now in held.items():
            then = self.files.get(name)
            if then is None:
                yield Damage(now.path, 0, f"{self.path.name} does not list it")
            elif now.n_records < then["records"]:
                yield Damage(
                    now.path,
                    now.n_bytes,
                    f"truncated: {now.n_records} records, {then['records']} when "
                    f"{self.path.name} was written",
                )
            elif now.digest != then["digest"]:
                yield Damage(
                    now.path,
                    0,
                    f"its {now.n_records} records are not the {then['records']} of "
                    f"{self.path.name}",
                )

    def vouches(self, folder: Path, framings: Sequence[Framing]) -> bool:
        """Whether these are the very files whose every byte was verified."""
        keys = ("bytes", "modified_ns", "digest")
        return all(
            (was := self.files.get(_name(folder, f.path))) is not None
            and [was[k] for k in keys] == [f.n_bytes, f.modified_ns, f.digest]
            for f in framings
        )


def read(path: Path) -> Manifest | None:
    """None where there is none; raises BadInput for a file that is no manifest."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, not {SCHEMA}")
        for held in content["files"].values():
            _ = held["bytes"], held["records"], held["digest"], held["modified_ns"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path} is no manifest ({error}); remove it, or write it anew with "
            "--write-manifest"
        ) from error
    return Manifest(path, content["files"])


def write(path: Path, folder: Path, framings: Sequence[Framing]) -> None:
    """Of files whose every byte was verified."""
    files = {
        _name(folder, f.path): {
            "records": f.n_records,
            "bytes": f.n_bytes,
            "digest": f.digest,
            "modified_ns": f.modified_ns,
        }
        for f in framings
    }
    try:
        path.write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=1) + "\n")
    except OSError as error:
        raise BadInput(
            f"cannot write the manifest {path}: {error.strerror}; give a path with "
            "--manifest"
        ) from error


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()
