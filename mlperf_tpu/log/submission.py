"""A whole submission: layout, systems, run counts, and what runs of an entry share.

<org>/systems/<system>.json, <org>/benchmarks/<benchmark>/..., and
<org>/results/<system>/<benchmark>/result_<n>.txt (mlcommons/policies, July 2020).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_tpu.log import find, source
from mlperf_tpu.log.findings import BOTH, Finding, Findings, shown
from mlperf_tpu.log.rulesets import OWN, ruleset
from mlperf_tpu.log.run import Logged
from mlperf_tpu.log.validate import FileReport

FILE_LIMIT_MB = 50  # the official repository checker's
SYSTEM_LIMIT = 1 << 20
# What the policies want a meaningful value for; the checker's list has 33 keys.
MEANINGFUL = (
    "submitter",
    "division",
    "status",
    "system_name",
    "number_of_nodes",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_memory_capacity",
    "host_storage_type",
    "host_storage_capacity",
    "accelerators_per_node",
    "accelerator_model_name",
    "framework",
    "other_software_stack",
    "operating_system",
)
PRESENT = (
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
    "cooling",
    "hw_notes",
    "sw_notes",
)
FOLDER_NAMES = {"mask": "maskrcnn"}  # v0.6 trees


@dataclass
class SubmissionReport:
    """What is said of one organization's folder, apart from its logs."""

    path: str
    verdict: str
    findings: list[tuple[str, Finding]]  # (path it is about, finding)

    def document(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "verdict": self.verdict,
            "findings": [
                {"path": about, **finding.document()}
                for about, finding in self.findings
            ],
        }


def organizations(folder: Path) -> list[Path]:
    """The folders at or right below one that hold a submission: results and more."""
    if not folder.is_dir():
        return []
    try:
        below = sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        return []
    return [path for path in (folder, *below) if is_submission(path)]


def is_submission(folder: Path) -> bool:
    """results/ beside systems/ or benchmarks/: results/ alone is a training run's."""
    return (folder / "results").is_dir() and (
        (folder / "systems").is_dir() or (folder / "benchmarks").is_dir()
    )


def check(organization: Path, reports: Sequence[FileReport]) -> SubmissionReport:
    """Checks one organization's folder against its logs' reports."""
    checker = _Checker(organization)
    checker.tree()
    entries: dict[tuple[str, str], list[FileReport]] = {}
    for report in reports:
        try:
            parts = Path(report.path).relative_to(organization / "results").parts
        except ValueError:
            continue
        if len(parts) != 3:
            checker.add(
                report.path,
                "layout.result",
                "results/<system>/<benchmark>/result_<n>.txt",
                "results/" + "/".join(parts),
            )
            continue
        entries.setdefault((parts[0], parts[1]), []).append(report)
    if not entries:
        checker.add("results", "layout.empty", "at least one entry with logs", "none")
    for (system, benchmark), runs in sorted(entries.items()):
        checker.entry(system, benchmark, runs)
    return checker.report()


class _Checker:
    def __init__(self, organization: Path) -> None:
        self._root = organization
        self._by_path: dict[str, Findings] = {}

    def add(
        self,
        about: str,
        rule: str,
        expected: str,
        actual: str,
        hint: str = "",
        *,
        warning: bool = False,
        line: int = 0,
    ) -> None:
        self._by_path.setdefault(about, Findings()).add(
            rule,
            "warning" if warning else "error",
            BOTH,
            expected=expected,
            actual=actual,
            hint=hint,
            line=line,
        )

    def report(self) -> SubmissionReport:
        findings = [
            (about, finding)
            for about, group in sorted(self._by_path.items())
            for finding in group.sorted()
        ]
        failed = any(finding.severity == "error" for _, finding in findings)
        return SubmissionReport(str(self._root), "fail" if failed else "pass", findings)

    def tree(self) -> None:
        """Names, sizes and links of everything below."""
        root = self._root.resolve()
        for path in find.entries(self._root):
            about = str(path.relative_to(self._root))
            if " " in about:
                self.add(about, "tree.space", "names without spaces", shown(path.name))
            if (
                any(p.startswith(".") for p in Path(about).parts)
                and ".git" not in about
            ):
                self.add(
                    about, "tree.leading_dot", "names without a leading dot", path.name
                )
            if path.is_symlink():
                self._link(path, about, root)
                continue
            size = _size(path)
            if size > FILE_LIMIT_MB << 20:
                self.add(
                    about,
                    "tree.size",
                    f"files of at most {FILE_LIMIT_MB} MB",
                    f"{size / (1 << 20):,.0f} MB",
                )

    def _link(self, path: Path, about: str, root: Path) -> None:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self.add(about, "tree.link", "links that lead somewhere", "a broken link")
            return
        if not target.is_relative_to(root):
            self.add(
                about,
                "tree.link",
                "links within the submission",
                "one that leads out of it",
                "it was not followed",
            )

    def entry(self, system: str, benchmark: str, runs: list[FileReport]) -> None:
        """One benchmark on one system: its runs together."""
        about = f"results/{system}/{benchmark}"
        self._system(system)
        if not (self._root / "benchmarks" / benchmark).is_dir():
            self.add(
                f"benchmarks/{benchmark}",
                "layout.code",
                f"benchmarks/{benchmark}/implementations with the code of {about}",
                "no such folder",
            )
        name = FOLDER_NAMES.get(benchmark, benchmark)
        for run in runs:
            if run.benchmark is not None and run.benchmark != name:
                self.add(
                    run.path,
                    "entry.benchmark",
                    f"logs of {name} in its folder",
                    shown(run.benchmark),
                )
        self._count(about, name, runs)
        self._verdicts(about, runs)
        self._seeds(about, runs)
        self._hyperparameters(about, runs)

    def _count(self, about: str, benchmark: str, runs: list[FileReport]) -> None:
        rounds = sorted({run.ruleset for run in runs})
        if len(rounds) > 1:
            self.add(about, "entry.round", "logs of one round", ", ".join(rounds))
        if rounds[0] not in OWN:
            return
        due = ruleset(rounds[0]).runs.get(benchmark)
        if due is not None and len(runs) != due:
            self.add(about, "entry.runs", f"{due} runs", f"{len(runs)}")

    def _verdicts(self, about: str, runs: list[FileReport]) -> None:
        profile = "official" if any(r.ruleset != "0.6.0" for r in runs) else "published"
        words = [run.verdicts[profile] for run in runs]  # type: ignore[index]
        slow = words.count("not_converged")
        if slow > 1:
            self.add(
                about,
                "entry.not_converged",
                "at most one run that did not converge",
                f"{slow}",
                "two such runs make a result infinite",
            )
        elif slow:
            self.add(
                about,
                "entry.not_converged",
                "runs that converge",
                "one did not; it counts as the slowest",
                warning=True,
            )
        for run, word in zip(runs, words, strict=True):
            if word in ("fail", "unreadable"):
                self.add(
                    run.path,
                    "entry.run",
                    "every run to pass: only a run that did not converge is excused",
                    word,
                )

    def _seeds(self, about: str, runs: list[FileReport]) -> None:
        owner: dict[str, FileReport] = {}
        for run in runs:
            seeds: dict[str, Logged] = {}
            for seed in run.run.seeds if run.run else ():
                seeds.setdefault(str(_seed(seed.value)), seed)
            for value, seed in seeds.items():
                other = owner.setdefault(value, run)
                if other is not run:
                    self.add(
                        run.path,
                        "entry.seed",
                        "a seed of its own for each run",
                        f"seed {value[:40]}, as in {Path(other.path).name}",
                        "take it from the clock or the OS's randomness",
                        warning=True,  # Tested by the official tools from v1.0 on.
                        line=seed.line,
                    )

    def _hyperparameters(self, about: str, runs: list[FileReport]) -> None:
        first = runs[0]
        if first.run is None or first.ruleset not in OWN:
            return
        rules = ruleset(first.ruleset)
        keys = rules.known_keys - set(rules.common) | {"train_samples", "eval_samples"}
        for key in sorted(keys):
            values: dict[str, FileReport] = {}
            for run in runs:
                if run.run is not None:
                    values.setdefault(shown(run.run.value(key)), run)
            if len(values) > 1:
                text = "; ".join(
                    f"{v} in {Path(r.path).name}" for v, r in values.items()
                )
                self.add(
                    about,
                    f"entry.{key}",
                    "one value in all runs of an entry",
                    text[:300],
                )

    def _system(self, system: str) -> None:
        path = self._root / "systems" / f"{system}.json"
        about = f"systems/{system}.json"
        if about in self._by_path:
            return
        described = self._read_system(path, about)
        if described is None:
            return
        for key in (*MEANINGFUL, *PRESENT):
            if key not in described:
                self.add(about, f"system.{key}", f"a value for {key}", "none")
            elif key in MEANINGFUL and described[key] in ("", None):
                self.add(
                    about, f"system.{key}", "a meaningful value", shown(described[key])
                )
        counts = ("host_processor_core_count", "host_processor_vcpu_count")
        if not any(described.get(key) not in ("", None) for key in counts):
            self.add(about, "system.cores", "cores or virtual CPUs", "neither")
        if described.get("division") not in ("closed", "open"):
            self.add(
                about,
                "system.division",
                "closed or open",
                shown(described.get("division")),
            )

    def _read_system(self, path: Path, about: str) -> dict[str, Any] | None:
        self._by_path.setdefault(about, Findings())
        if path.is_symlink() and not path.resolve().is_relative_to(
            self._root.resolve()
        ):
            self.add(
                about, "system.link", "a file of the submission", "a link out of it"
            )
            return None
        try:
            with source.open_log(path) as file:
                text = file.read(SYSTEM_LIMIT)
            described = json.loads(text)
        except source.Unreadable as problem:
            self.add(about, "system.file", "the system's description", problem.actual)
            return None
        except (ValueError, RecursionError) as error:
            self.add(about, "system.json", "valid JSON", str(error)[:100])
            return None
        if not isinstance(described, dict):
            self.add(about, "system.json", "a JSON object", type(described).__name__)
            return None
        return described


def _seed(value: Any) -> Any:
    """A seed as an integer where it is one, in any spelling that Python reads."""
    if isinstance(value, str):
        try:
            return int(value, 0) if len(value) < 40 else value
        except ValueError:
            return value
    return value


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
