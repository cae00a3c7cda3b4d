"""The 311 published logs, and the 22 odd ones, with their recorded verdicts."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from mlperf_tpu.log.score import entries
from mlperf_tpu.log.validate import FileReport, Options, validate, validate_many


@pytest.fixture(scope="module")
def manifest(data: Path) -> list[dict[str, str]]:
    with (data / "logs" / "MANIFEST.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture(scope="module")
def reports(data: Path, manifest: list[dict[str, str]]) -> dict[str, FileReport]:
    paths = [data / row["path"] for row in manifest]
    return {
        row["path"]: report
        for row, report in zip(manifest, validate_many(paths, Options()), strict=True)
    }


def test_every_published_log_is_read(reports: dict[str, FileReport]) -> None:
    assert len(reports) == 311
    assert all("unreadable" not in r.verdicts.values() for r in reports.values())


def test_official_verdicts_of_v07_are_the_recorded_ones(
    manifest: list[dict[str, str]], reports: dict[str, FileReport]
) -> None:
    for row in manifest:
        if "/v0.7/" not in row["path"]:
            continue
        verdict = reports[row["path"]].verdicts["official"]
        if row["checker_pass"] == "True":
            assert verdict == "pass", row["path"]
        elif "abort" in row["run_stop_status"]:
            assert verdict == "not_converged", row["path"]
        else:  # The official checker crashes on these: no time_ms.
            assert verdict == "fail", row["path"]


def test_official_verdicts_of_v06_are_the_recorded_ones(
    manifest: list[dict[str, str]], reports: dict[str, FileReport]
) -> None:
    for row in manifest:
        if "/v0.6/" in row["path"]:
            passed = reports[row["path"]].verdicts["official"] == "pass"
            assert passed == (row["checker_pass"] == "True"), row["path"]


def test_published_accepts_googles_v06_logs_but_the_aborted_one(
    reports: dict[str, FileReport],
) -> None:
    google = [r for path, r in reports.items() if "/v0.6/Google/" in path]
    assert Counter(r.verdicts["published"] for r in google) == {
        "pass": 184,
        "not_converged": 1,
    }


@pytest.mark.parametrize("who", ["NVIDIA", "Intel", "Fujitsu"])
def test_published_accepts_other_v06_dialects(
    reports: dict[str, FileReport], who: str
) -> None:
    theirs = [r for path, r in reports.items() if f"/v0.6/{who}/" in path]
    assert theirs
    assert all(r.verdicts["published"] == "pass" for r in theirs)


def test_no_rule_rejects_a_published_v07_log_without_cause(
    reports: dict[str, FileReport],
) -> None:
    """Alibaba's two lack time_ms; one of Google's has a run_start edited by hand."""
    rejected = [
        path
        for path, r in reports.items()
        if "/v0.7/" in path and r.verdicts["rules"] == "fail"
    ]
    assert len(rejected) == 3
    assert sum("Alibaba" in path for path in rejected) == 2
    assert sum("tpu-v3-8192-TF/ssd/result_0" in path for path in rejected) == 1


@pytest.mark.parametrize(
    ("entry", "minutes"),
    [
        ("tpu-v3-2048/resnet", 1.28),
        ("tpu-v3-2048/ssd", 1.21),
        ("tpu-v3-256/mask", 35.60),
        ("tpu-v3-1024/gnmt", 2.11),
        ("tpu-v3-2048/transformer", 0.85),
    ],
)
def test_headline_scores_of_v06(data: Path, entry: str, minutes: float) -> None:
    (found,) = entries([data / "logs" / "v0.6" / "Google" / entry])
    assert found.score_minutes is not None
    assert round(found.score_minutes, 2) == minutes


def test_all_google_scores_and_epochs(data: Path) -> None:
    """Against scores and epochs that were computed apart from this package."""
    text = (data / "google_results.json").read_text(encoding="utf-8")
    known = {(e["round"], e["system"], e["benchmark"]): e for e in json.loads(text)}
    for name in ("v0.6", "v0.7"):
        for entry in entries([data / "logs" / name / "Google"]):
            one = known[name, entry.system, Path(entry.folder).name]
            assert entry.score_minutes == pytest.approx(one["score_s"] / 60, abs=1e-4)
            assert [run.epochs for run in entry.runs] == one["epochs"]


def _expected(word: str) -> set[str]:
    if "non-converged" in word:
        return {"not_converged"}
    if "WARN" in word and "FAIL" in word:
        return {"pass", "fail"}
    return {word.split()[0].split("/")[0].lower()}


def test_odd_logs_have_their_verdicts_in_both_profiles(data: Path) -> None:
    folder = data / "odd_logs"
    cases = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert len(cases) == 22
    for case in cases:
        path = folder / f"{case['name']}.txt"
        verdicts = validate(path, Options(ruleset=case["ruleset"])).verdicts
        for profile in ("official", "rules"):
            expected = _expected(case[f"{profile}_profile"])
            assert verdicts[profile] in expected, (case["name"], profile)
