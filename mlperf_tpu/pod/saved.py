"""A plan kept in a file, and what has grown against it: for a CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlperf_tpu.errors import BadInput

Row = dict[str, Any]
# What a plan is of: rows are compared with the row that agrees in these.
SAME = ("benchmark", "scale", "chips", "topology", "partitions")


def text(rows: list[Row]) -> str:
    return json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n"


def grown(rows: list[Row], file: Path, margin_percent: float) -> list[str]:
    """What is larger than in the saved plan by more than the margin."""
    saved = {_name(row): row for row in _read(file)}
    found = []
    for row in rows:
        name = _name(row)
        if name not in saved:
            raise BadInput(
                f"{file} holds no plan of {_words(name)}; it has: "
                f"{'; '.join(map(_words, saved))}; make it with --save"
            )
        before, after = _watched(saved[name]), _watched(row)
        for what in dict.fromkeys([*before, *after]):
            old, new = before.get(what, 0.0), after.get(what, 0.0)
            if new > old * (1 + margin_percent / 100):
                by = f"{new / old - 1:+.1%}" if old else "new"
                found.append(f"{_words(name)}: {what} {old:g} to {new:g} ({by})")
    return found


def _watched(row: Row) -> dict[str, float]:
    sums = {
        f"{part} {measure}": float(found[measure])
        for part, found in row["collectives"].items()
        for measure in ("count", "bytes")
    }
    return {
        "step_ms": float(row["step_ms"]["total"]),
        "hbm_bytes": float(row["hbm_bytes"]["total"]),
        **sums,
    }


def _read(file: Path) -> list[Row]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        rows: list[Row] = document["rows"]
        for row in rows:
            _name(row), _watched(row)
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is no saved plan; make it with --save") from error
    return rows


def _name(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in SAME)


def _words(name: tuple[Any, ...]) -> str:
    benchmark, scale, chips, topology, _ = name
    return f"{benchmark} {scale or ''} on {chips} chips ({topology})"
