"""From plain values to a validated spec, or one clear error."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mlperf_tpu.errors import BadInput, nearest
from mlperf_tpu.spec.sections import Spec


def benchmark_module(name: str, part: str = "") -> Any:
    """`mlperf_tpu.benchmarks.<name>`, or a module of it.

    Raises BadInput where the spec names a benchmark that has no folder.
    """
    package = importlib.import_module("mlperf_tpu.benchmarks")
    folders = [m.name for m in pkgutil.iter_modules(package.__path__)]
    if name not in folders:
        raise BadInput(f"benchmark: no folder {name!r}; {nearest(name, folders)}")
    dotted = f"mlperf_tpu.benchmarks.{name}" + (f".{part}" if part else "")
    return importlib.import_module(dotted)


def has_part(name: str, part: str) -> bool:
    """Whether the benchmark's folder has that module."""
    package = benchmark_module(name)
    return any(m.name == part for m in pkgutil.iter_modules(package.__path__))


def validate(file: str, values: Mapping[str, Any]) -> Spec:
    name = values.get("benchmark")
    if not isinstance(name, str):
        raise BadInput(f"{file}: `benchmark:` names no benchmark ({name!r})")
    sections = benchmark_module(name, "sections")
    try:
        data = sections.Data.model_validate(_numbers(values.get("data", {})))
    except ValidationError as error:
        raise _bad_fields(file, error, "data.", sections.Data) from error
    try:
        model = sections.Model.model_validate(_numbers(values.get("model", {})))
    except ValidationError as error:
        raise _bad_fields(file, error, "model.", sections.Model) from error
    try:
        return Spec.model_validate({**_numbers(values), "data": data, "model": model})
    except ValidationError as error:
        raise _bad_fields(file, error, "", Spec) from error


def _numbers(value: Any) -> Any:
    """YAML reads `1e-4` as a string: numbers in that form become floats."""
    if isinstance(value, Mapping):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_numbers(v) for v in value)
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def _bad_fields(
    file: str, error: ValidationError, prefix: str, section: type[BaseModel]
) -> BadInput:
    lines = []
    tags = {"lars", "sgd", "adam", "polynomial", "stepwise", "rsqrt", "intervals"}
    for found in error.errors():
        path = prefix + ".".join(str(p) for p in found["loc"] if p not in tags)
        message = found["msg"].removeprefix("Value error, ")
        if found["type"] == "extra_forbidden":
            known = _keys(section, found["loc"])
            message = f"no such key; {nearest(str(found['loc'][-1]), known)}"
        elif found["type"] == "missing":
            message = "is missing; say it in the spec or with --set"
        elif found["type"] != "value_error":
            message = f"{found['input']!r}: {message[0].lower()}{message[1:]}"
        # What a section's own check says names its field itself.
        lines.append(f"{path}: {message}" if found["loc"] else message)
    return BadInput(f"{file}: " + "\n  ".join(lines))


def _keys(section: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys known where `path` ends, for the nearest to be offered."""
    candidates: list[type[BaseModel]] = [section]
    for key in path[:-1]:
        # In a union of sections the path holds the tag, the section's `name`.
        tagged = [s for s in candidates if key in _tags(s)]
        if tagged:
            candidates = tagged
            continue
        annotation = candidates[0].model_fields[str(key)].annotation
        candidates = [
            s
            for s in (annotation, *get_args(annotation))
            if isinstance(s, type) and issubclass(s, BaseModel)
        ]
    return list(candidates[0].model_fields)


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    field = section.model_fields.get("name")
    return get_args(field.annotation) if field is not None else ()
