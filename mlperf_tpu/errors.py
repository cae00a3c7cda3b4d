"""What can go wrong, and the exit code each kind leaves with (design.md, Contracts)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MlperfTpuError(Exception):
    """An error a user is to read: one sentence, no traceback."""

    exit_code = 1


class RunFailed(MlperfTpuError):
    """The run or the check failed: exit 1."""

    exit_code = 1


class PlaceLost(RunFailed):
    """What the run ran on went away: it may go on from its last checkpoint."""


class BadInput(MlperfTpuError):
    """The call, the spec or the input is wrong: exit 2."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that offers the known names, the likeliest ones first.

    >>> nearest("resnet", ["resnet50", "ssd"])
    'did you mean resnet50? Known: resnet50, ssd'
    >>> nearest("x", ["resnet50", "ssd"])
    'known: resnet50, ssd'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    listing = ", ".join(names)
    if close:
        return f"did you mean {' or '.join(close)}? Known: {listing}"
    return f"known: {listing}"
