"""Reads a spec file and lays a scale, the proxy and the user's settings over it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.spec.sections import Spec
from mlperf_tpu.spec.validation import validate


@dataclass(frozen=True)
class Scale:
    """A published run's row of a spec."""

    name: str
    chips: int
    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A spec file as read: the common values, its scales and its proxy."""

    name: str
    file: str
    common: Mapping[str, Any]
    scales: tuple[Scale, ...]
    proxy: Mapping[str, Any]

    def scale(self, chips: int | None, name: str | None) -> Scale | None:
        """The scale asked for: by name, or the first of so many chips."""
        if name is not None:
            for scale in self.scales:
                if scale.name == name and chips in (None, scale.chips):
                    return scale
            names = [s.name for s in self.scales]
            raise BadInput(f"no scale {name!r} in {self.file}; {nearest(name, names)}")
        if chips is None:
            return None
        return next((s for s in self.scales if s.chips == chips), None)

    def describe_scales(self) -> str:
        return ", ".join(f"{s.chips} ({s.name})" for s in self.scales)


@dataclass(frozen=True)
class Resolved:
    """A spec with what it was asked for, and where each of its values comes from."""

    spec: Spec
    name: str
    task: Literal["proxy", "full"]
    chips: int | None
    scale: str | None
    source: str | None
    origins: Mapping[str, str] = field(repr=False)

    def in_float32(self, origin: str) -> Resolved:
        """The same in float32, by `origin`, unless --set said in what to compute."""
        path, training = "training.precision", self.spec.training
        if training.precision == "float32" or self.origins[path].startswith("--set"):
            return self
        training = training.model_copy(update={"precision": "float32"})
        spec = self.spec.model_copy(update={"training": training})
        return replace(self, spec=spec, origins={**self.origins, path: origin})

    def values(self) -> dict[str, Any]:
        """The spec as plain values, as YAML or JSON holds them."""
        return self.spec.model_dump(mode="json")

    def record(self) -> dict[str, Any]:
        """All of it as plain values, for a run's folder; `from_record` undoes it."""
        return {
            "name": self.name,
            "task": self.task,
            "chips": self.chips,
            "scale": self.scale,
            "source": self.source,
            "origins": dict(self.origins),
            "spec": self.values(),
        }


def from_record(record: Mapping[str, Any], file: str) -> Resolved:
    """A Resolved from what `Resolved.record` gave; raises BadInput naming `file`."""
    try:
        rest = {k: record[k] for k in ("name", "task", "chips", "scale", "source")}
        return Resolved(
            spec=validate(file, record["spec"]), origins=record["origins"], **rest
        )
    except (KeyError, TypeError) as error:
        raise BadInput(f"{file} is no record of a run: {error}") from error


def names() -> list[str]:
    """The benchmarks that have a spec in the package."""
    files = resources.files("mlperf_tpu.configs").iterdir()
    return sorted(
        f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")
    )


def load(name_or_path: str) -> Document:
    """Reads a named spec, or a file of the user's own.

    Raises BadInput for an unknown name (the nearest are offered), a file that cannot
    be read or parsed, and a file whose top level is not as documented.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _read(path.stem, str(path), _read_text(path))
    if name_or_path not in names():
        raise BadInput(
            f"no benchmark {name_or_path!r}; {nearest(name_or_path, names())}; "
            "a spec of one's own is given as a path ending in .yaml"
        )
    file = resources.files("mlperf_tpu.configs") / f"{name_or_path}.yaml"
    return _read(name_or_path, f"configs/{name_or_path}.yaml", file.read_text())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the spec {path}: {error}") from error


def _read(name: str, file: str, text: str) -> Document:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{file} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise BadInput(f"{file} holds no mapping at its top; see configs/resnet50.yaml")
    content = dict(content)
    base = content.pop("base", None)
    inherited = load(str(base)) if base is not None else None
    scales = content.pop("scales", [])
    proxy = content.pop("proxy", {})
    common: Mapping[str, Any] = content
    if inherited is not None:
        common = _merge(inherited.common, content)
        proxy = _merge(inherited.proxy, proxy)
    own = tuple(_scale(file, index, row) for index, row in enumerate(scales))
    replaced = {s.name for s in own}
    kept = inherited.scales if inherited is not None else ()
    return Document(
        name, file, common, (*(s for s in kept if s.name not in replaced), *own), proxy
    )


def _scale(file: str, index: int, row: Any) -> Scale:
    where = f"{file}, scales[{index}]"
    if not isinstance(row, dict):
        raise BadInput(f"{where}: {row!r} is no mapping")
    row = dict(row)
    try:
        return Scale(
            str(row.pop("name")), int(row.pop("chips")), row.pop("source"), row
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where}: needs name, chips and source ({error})") from error


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`high` over `low`, mapping by mapping. A section whose `name` changes (another
    optimizer, another schedule) starts afresh: the other's keys mean nothing to it."""
    out = dict(low)
    for key, value in high.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            fresh = "name" in value and value["name"] != old.get("name")
            out[key] = dict(value) if fresh else _merge(old, value)
        else:
            out[key] = value
    return out


def resolve(
    document: Document,
    chips: int | None = None,
    scale_name: str | None = None,
    task: Literal["proxy", "full"] = "full",
    settings: Sequence[str] = (),
) -> Resolved:
    """Lays the scale, the proxy (for that task) and `path=value` settings over the
    common values, and validates the whole.

    Raises BadInput with the field's path, its value, the limit and the remedy.
    """
    scale = document.scale(chips, scale_name)
    layers = [(document.file, document.common)]
    if scale is not None:
        layers.append((f"{document.file}, {scale.name}: {scale.source}", scale.values))
    if task == "proxy":
        layers.append((f"{document.file}, proxy", document.proxy))
    layers += [(f"--set {text}", parse_setting(text)) for text in settings]

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        values = _merge(values, layer)
        origins.update({path: origin for path, _ in leaves(layer)})
    if chips is not None and scale is None and task == "full":
        _need_scale_values(document, chips, settings)
    if chips is not None and scale is None and task == "proxy" and not settings:
        raise _no_scale(document, chips)
    spec = validate(document.file, values)
    return Resolved(
        spec=spec,
        name=document.name,
        task=task,
        chips=scale.chips if scale is not None else chips,
        scale=scale.name if scale is not None else None,
        source=scale.source if scale is not None else None,
        origins={
            path: origins.get(path, "the code's default")
            for path, _ in leaves(spec.model_dump(mode="json"))
        },
    )


# What differs from scale to scale, and so must be said for a number of chips that no
# published run used.
_SCALE_FIELDS = ("training.global_batch", "training.length", "schedule.base_rate")


def _need_scale_values(document: Document, chips: int, settings: Sequence[str]) -> None:
    given = {text.split("=", 1)[0] for text in settings}
    if not given.issuperset(_SCALE_FIELDS):
        raise _no_scale(document, chips)


def _no_scale(document: Document, chips: int) -> BadInput:
    return BadInput(
        f"no published run of {document.name} on {chips} chips; published: "
        f"{document.describe_scales()}. For another number, say what a scale must: "
        + " ".join(f"--set {path}=…" for path in _SCALE_FIELDS)
    )


def parse_setting(text: str) -> dict[str, Any]:
    """`training.global_batch=64` as a nest of one value, read as YAML."""
    path, sign, value = text.partition("=")
    if not sign or not re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)*", path):
        raise BadInput(
            f"--set {text!r} is not path=value; for example --set "
            "training.global_batch=64"
        )
    try:
        nest: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise BadInput(f"--set {text!r}: the value is no YAML: {error}") from error
    for key in reversed(path.split(".")):
        nest = {key: nest}
    return nest  # type: ignore[no-any-return]


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every value that is not a mapping itself."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
