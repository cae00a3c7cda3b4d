"""Proves that a technique computes the same distributed as on one device.

A benchmark's `verify` module lists its techniques. Each is measured on one device and
on each of its meshes, every mesh in a process of its own (one mesh size a process), and
the results are compared: the largest error of any tensor, relative to that tensor's
largest element, against a tolerance that says where it comes from.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlperf_tpu.errors import BadInput, RunFailed, nearest
from mlperf_tpu.spec import benchmark_module
from mlperf_tpu.topology import Topology

Results = dict[str, np.ndarray]


@dataclass(frozen=True, order=True)
class MeshSize:
    """A place and its size; `virtual` has one partition a replica.

    `grid` names the topology, less `hole`, whose survivors the replicas are; unless
    given, the place's own.
    """

    place: str
    replicas: int
    partitions: int = 1
    grid: str = ""
    hole: str = ""

    def __str__(self) -> str:
        across = f" x {self.partitions}" if self.partitions > 1 else ""
        around = f" around {self.hole}" if self.hole else ""
        return f"{self.place} {self.replicas}{across}{around}"

    def make(self) -> Any:
        topology = None
        if self.grid:
            holes = [self.hole] if self.hole else []
            topology = Topology.parse(self.grid).with_holes(holes)
        if self.place == "virtual":
            from mlperf_tpu.mesh.virtual import VirtualMesh

            return VirtualMesh(self.replicas, topology)
        from mlperf_tpu.mesh.xla import XlaMesh

        return XlaMesh(self.replicas, self.partitions, topology)


ONE_DEVICE = MeshSize("virtual", 1)


@dataclass(frozen=True)
class Technique:
    """What is done both ways, and how near the results must be.

    `measure(mesh, settings)` returns named arrays, for each of several inputs; it runs
    with `reference` on one device and with `settings` on each of `meshes`.
    """

    name: str
    measure: Callable[[Any, Sequence[str]], list[Results]]
    meshes: tuple[MeshSize, ...]
    tolerance: float
    origin: str
    settings: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()


def techniques(benchmark: str, names: Iterable[str] = ()) -> list[Technique]:
    """The benchmark's techniques, or those named."""
    known = {t.name: t for t in benchmark_module(benchmark, "verify").TECHNIQUES}
    for name in names:
        if name not in known:
            raise BadInput(f"--technique: no {name!r}; {nearest(name, known)}")
    return [t for t in known.values() if not names or t.name in set(names)]


def verify(
    benchmark: str, names: Sequence[str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row a technique (design.md, `verify`); `say` is told of each mesh's start."""
    chosen = techniques(benchmark, names)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        results: dict[MeshSize, Results] = {}
        for size in sorted({ONE_DEVICE, *(m for t in chosen for m in t.meshes)}):
            say(f"measuring on {size}")
            wanted = [t.name for t in chosen if size == ONE_DEVICE or size in t.meshes]
            results[size] = _measure_apart(benchmark, size, wanted, Path(scratch))
        for technique in chosen:
            rows.append(compare(technique, results))
    return rows


def compare(technique: Technique, results: dict[MeshSize, Results]) -> dict[str, Any]:
    """The technique's row: the worst mesh's error, on the input where that is least
    (what tips rounding on one input is no fault of the technique)."""
    expected = _inputs(technique.name, results[ONE_DEVICE])
    error = 0.0
    for mesh in technique.meshes:
        actual = _inputs(technique.name, results[mesh])
        errors = map(largest_relative_error, expected, actual)
        error = max(error, min(errors, default=float("inf")))
    return {
        "technique": technique.name,
        "places": [str(mesh) for mesh in technique.meshes],
        # None: not comparable (missing, misshapen or not finite); JSON has no infinity.
        "max_relative_error": error if np.isfinite(error) else None,
        "tolerance": technique.tolerance,
        "origin": technique.origin,
        "ok": bool(error <= technique.tolerance),
    }


def largest_relative_error(expected: Results, actual: Results) -> float:
    """Over all arrays, the largest error by the array's largest element; infinite
    where an array is missing, of another shape, or not finite."""
    if expected.keys() != actual.keys():
        return float("inf")
    worst = 0.0
    for name, want in expected.items():
        got = actual[name]
        if got.shape != want.shape or not np.isfinite(got).all():
            return float("inf")
        scale = np.abs(want).max(initial=0) or 1.0
        worst = max(worst, float(np.abs(got - want).max(initial=0) / scale))
    return worst


def measure_all(
    benchmark: str, size: MeshSize, names: Sequence[str], mesh: Any = None
) -> Results:
    """The techniques' results on one mesh, keyed by technique and array."""
    mesh = size.make() if mesh is None else mesh
    out: Results = {}
    for technique in techniques(benchmark, names):
        here = size == ONE_DEVICE
        settings = technique.reference if here else technique.settings
        for i, results in enumerate(technique.measure(mesh, settings)):
            for name, value in results.items():
                out[f"{technique.name}:{i}:{name}"] = np.asarray(value, np.float64)
    return out


def _measure_apart(
    benchmark: str, size: MeshSize, names: Sequence[str], scratch: Path
) -> Results:
    shape = [str(value) for value in astuple(size)]
    out = scratch / f"{'-'.join(shape)}.npz"
    command = [sys.executable, "-m", "mlperf_tpu.verify", str(out), benchmark, *shape]
    done = subprocess.run([*command, *names], capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RunFailed(f"verify on {size} ended with {done.returncode}: {last[0]}")
    with np.load(out) as file:
        return dict(file)


def _inputs(technique: str, results: Results) -> list[Results]:
    """The technique's results, one dictionary an input."""
    out: dict[str, Results] = {}
    for key, value in results.items():
        name, number, array = key.split(":")
        if name == technique:
            out.setdefault(number, {})[array] = value
    return [out[number] for number in sorted(out)]


def _work(
    out: str,
    benchmark: str,
    place: str,
    replicas: str,
    partitions: str,
    grid: str,
    hole: str,
    *names: str,
) -> None:
    from mlperf_tpu.cli.train import import_tensorflow

    import_tensorflow()
    size = MeshSize(place, int(replicas), int(partitions), grid, hole)
    arrays: Any = measure_all(benchmark, size, names)
    np.savez(out, **arrays)


if __name__ == "__main__":
    _work(*sys.argv[1:])
