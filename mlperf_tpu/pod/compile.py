"""Compiles a program for a slice in a child process, and keeps what was read from it.

Two levels are cached: the answer to a request (its spec's values, its slice, the code,
the compiler's version), which needs neither TensorFlow nor the compiler; and the
compiled module under the hash of the lowered one, which needs no compiler.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import BadInput, RunFailed
from mlperf_tpu.pod.hlo import Collective, Module, Op, read

# The two are built for each other; pyproject.toml's extra [pod] pins the same.
PINNED = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.52"}
INSTALL = "pip install 'mlperf-tpu[pod]'"
MEMORY_REMEDY = (
    "take a smaller batch a core (--set training.global_batch=…), shard the update "
    "(--set update.sharded=true) or split replicas (--set training.partitions=…)"
)


@dataclass(frozen=True)
class Request:
    """One function of a program, for one slice.

    `program` is "module:class", made from a spec's record (`Resolved.record`), or from
    None where there is no spec. devices[replica][partition] is a device id.
    """

    program: str
    function: str
    record: dict[str, Any] | None
    topology: str
    devices: list[list[int]]
    batch_per_replica: int

    def document(self) -> dict[str, Any]:
        """Plain values. Where a spec's values come from changes nothing."""
        out = asdict(self)
        if self.record is not None:
            out["record"] = {**self.record, "origins": {}}
        return out


@dataclass(frozen=True)
class Answer:
    """What was read from a compiled module. `stats` are libtpu's own figures."""

    module: Module
    stats: dict[str, Any]
    key: str
    cached: bool


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mlperf-tpu" / "plan"


def check_compiler() -> None:
    """Raises BadInput unless the jax and libtpu that work together are installed."""
    found = {}
    for name in PINNED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise BadInput(
                f"plan needs the TPU compiler, and {name} is not installed; {INSTALL}"
            ) from None
    if found != PINNED:
        raise BadInput(
            f"{_versions(found)} are not known to work together; plan needs "
            f"{_versions(PINNED)}: {INSTALL}"
        )


def answer(request: Request, folder: Path | None = None) -> Answer:
    """The compiled function's ops, collectives and figures; from the cache if there.

    Raises BadInput where the compiler knows no such topology, RunFailed where it cannot
    compile or aborts, DoesNotFit where the step needs more memory than a core has.
    """
    check_compiler()
    folder = folder or cache_folder()
    text = json.dumps(
        [request.document(), PINNED, code_version(request.program)], sort_keys=True
    )
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    file = folder / "requests" / f"{key}.json.gz"
    known = _load(file)
    if known is not None:
        return known
    module, stats = _compile(request, key, folder)
    found = Answer(module, stats, stats["module"], False)
    _save(file, found)
    return found


def module_text(found: Answer, folder: Path | None = None) -> str:
    """The compiled module as HLO text."""
    file = (folder or cache_folder()) / "modules" / found.key / "module.hlo.gz"
    try:
        with gzip.open(file, "rt") as text:
            return text.read()
    except OSError as error:
        raise RunFailed(f"the compiled module is gone from the cache: {error}") from (
            error
        )


@cache
def code_version(program: str) -> str:
    """A hash of the code that a lowered module and its reading depend on."""
    package = Path(__file__).parents[1]
    folders = [package / name for name in ("collectives", "mesh", "nn", "optim")]
    home = importlib.util.find_spec(program.partition(":")[0])
    assert home is not None and home.origin is not None
    folders.append(Path(home.origin).parent)
    files = [
        package / "pod" / name
        for name in ("compile.py", "hlo.py", "traffic.py", "worker.py")
    ]
    files += [file for folder in folders for file in sorted(folder.glob("*.py"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.parent.name}/{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


class DoesNotFit(RunFailed):
    """The step needs more memory than a core has."""


def _compile(request: Request, key: str, folder: Path) -> tuple[Module, dict[str, Any]]:
    modules, logs = folder / "modules", folder / "logs"
    for place in (modules, logs):
        _make(place)
    log = logs / f"{key}.log"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # gone after Ctrl-C too
        file = Path(scratch) / "request.json"
        file.write_text(json.dumps(request.document()))
        module_key = _child(file, modules, log, request)
    entry = modules / module_key
    with gzip.open(entry / "module.hlo.gz", "rt") as text:
        module = read(text.read())
    log.unlink(missing_ok=True)
    stats = json.loads((entry / "stats.json").read_text())
    return module, {**stats, "module": module_key}


def _child(file: Path, modules: Path, log: Path, request: Request) -> str:
    command = [sys.executable, "-m", "mlperf_tpu.pod.worker", str(file), str(modules)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("w") as noise:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=noise, env=environment, text=True
        )
        try:
            said, _ = child.communicate()
        except BaseException:  # Ctrl-C: the compiler hears of it from us
            child.kill()
            child.wait()
            raise
    if child.returncode == 0:
        return said.split()[-1]
    raise _error(child.returncode, log, request)


def _error(code: int, log: Path, request: Request) -> BadInput | RunFailed:
    text = log.read_text(errors="replace")
    if code < 0:
        return RunFailed(
            f"the TPU compiler aborted (signal {-code}) on {request.function} for "
            f"{request.topology}; its log: {log}"
        )
    if "topology" in text and re.search(r"INVALID_ARGUMENT|NOT_FOUND|Unknown", text):
        wrong = re.findall(r"(?:ValueError|RuntimeError|INVALID_ARGUMENT): (.*)", text)
        return BadInput(
            f"the TPU compiler knows no topology {request.topology}"
            + (f" ({wrong[-1].strip()[:200]})" if wrong else "")
            + "; name one as v3:32x32x1, v4:8x8x16 or v5e:16x16"
        )
    # Not every RESOURCE_EXHAUSTED: a core has a scalar memory, too, which may be full.
    if "Ran out of memory" in text or "exceeds available HBM" in text:
        return DoesNotFit(_memory_report(text))
    lines = [line for line in text.splitlines() if re.match(r"[\w.]*Error\b", line)]
    why = lines[-1].strip()[:300] if lines else f"exit {code}"
    return RunFailed(
        f"{request.function} did not compile for {request.topology}: {why}; "
        f"the whole log: {log}"
    )


def _memory_report(text: str) -> str:
    """From libtpu's message and the arguments' sizes that the worker wrote before."""
    numbers = re.search(r"\(([\d.]+)G\) exceeds available HBM \(([\d.]+)G\)", text)
    sizes = re.search(r"^arguments: (\{.*\})$", text, re.MULTILINE)
    if numbers is None or sizes is None:
        return f"the step does not fit into the memory of a core; {MEMORY_REMEDY}"
    needed, there = float(numbers[1]), float(numbers[2])
    kinds = {k: n / 2**30 for k, n in json.loads(sizes[1]).items()}
    kinds["activations"] = needed
    largest = sorted(kinds.items(), key=lambda kind: -kind[1])[:3]
    return (
        f"the step's activations need {needed:.2f} GiB of the {there:.2f} GiB that a "
        f"core has for them, {needed - there:.2f} GiB too much; the largest: "
        + ", ".join(f"{kind} {n:.2f} GiB" for kind, n in largest)
        + f"; {MEMORY_REMEDY}"
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot keep compiled modules in {folder}: {error.strerror}; name another "
            "folder in XDG_CACHE_HOME"
        ) from error


def _save(file: Path, found: Answer) -> None:
    """Writes aside, then renames: an entry is whole, or it is not there."""
    module = found.module
    groups = list(dict.fromkeys(c.groups for c in module.collectives))
    numbers = {g: k for k, g in enumerate(groups)}
    document = {
        "stats": found.stats,
        "ops": [list(vars(op).values()) for op in module.ops],
        "groups": groups,
        "collectives": [
            {**vars(c), "groups": numbers[c.groups]} for c in module.collectives
        ],
        "unknown_loops": module.unknown_loops,
    }
    _make(file.parent)
    handle, aside = tempfile.mkstemp(dir=file.parent, prefix="unfinished-")
    try:
        with os.fdopen(handle, "wb") as raw, gzip.open(raw, "wt", 3) as out:
            json.dump(document, out)
        os.replace(aside, file)
    finally:
        Path(aside).unlink(missing_ok=True)


def _load(file: Path) -> Answer | None:
    try:
        with gzip.open(file, "rt") as text:
            document = json.load(text)
    except (OSError, EOFError, ValueError):
        return None
    groups = [tuple(tuple(g) for g in each) for each in document["groups"]]
    module = Module(
        [replace(Op(*op), loops=tuple(op[-1])) for op in document["ops"]],
        [
            Collective(
                **{**c, "groups": groups[c["groups"]], "loops": tuple(c["loops"])}
            )
            for c in document["collectives"]
        ],
        document["unknown_loops"],
    )
    stats = document["stats"]
    return Answer(module, stats, stats["module"], True)


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
