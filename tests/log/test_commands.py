"""The validate and score commands: outputs, exit codes, whole submissions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.log import submission

Records = list[dict[str, Any]]
Write = Callable[..., Path]


def run(*arguments: object, stdin: bytes | None = None, **env: str) -> Any:
    words = list(map(str, arguments))
    return CliRunner().invoke(main, words, input=stdin, env=env)


@pytest.fixture
def bad(records: Records, of: Any) -> Records:
    of("submission_division")["value"] = "Closed"
    return records


def test_exit_codes(write: Write, records: Records, of: Any, tmp_path: Path) -> None:
    assert run("validate", write(records)).exit_code == 0
    of("run_stop")["metadata"]["status"] = "aborted"
    assert run("validate", write(records)).exit_code == 1
    assert run("validate", write(b"\0" * 500, "binary.txt")).exit_code == 2
    missing = run("validate", tmp_path / "none")
    assert missing.exit_code == 2 and "no such file" in missing.output
    (tmp_path / "empty").mkdir()
    empty = run("validate", tmp_path / "empty")
    assert empty.exit_code == 2 and "no log in" in empty.output


def test_an_unknown_ruleset_offers_the_known(write: Write, records: Records) -> None:
    done = run("validate", write(records), "--ruleset", "0.7")
    assert done.exit_code == 2
    assert "did you mean 0.7.0" in done.output


def test_profiles_may_be_chosen(write: Write, records: Records, of: Any) -> None:
    of("lars_opt_end_learning_rate")["value"] = 9.999999747378752e-05
    path = write(records)
    assert run("validate", path).exit_code == 1
    assert run("validate", path, "--profile", "rules").exit_code == 0


def test_stdin(records: Records, text: Any) -> None:
    done = run("validate", "-", stdin=text(records).encode())
    assert done.exit_code == 0
    assert "official pass" in done.output


def test_json_has_the_keys_of_the_contract(write: Write, bad: Records) -> None:
    document = json.loads(run("validate", write(bad), "--json").stdout)
    assert document["schema"] == 1
    (file,) = document["files"]
    assert {"path", "ruleset", "benchmark", "verdicts", "findings"} <= set(file)
    finding = file["findings"][0]
    wanted = "rule severity profiles line column expected actual hint count"
    assert set(wanted.split()) <= set(finding)
    assert (finding["line"], finding["column"]) == (3, 1)
    assert finding["hint"] == "did you mean closed?"


def test_junit_markdown_and_sarif(write: Write, bad: Records, tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("junit", "markdown", "sarif")}
    options = [part for kind, path in paths.items() for part in (f"--{kind}", path)]
    assert run("validate", write(bad), *options).exit_code == 1
    suite = ElementTree.parse(paths["junit"]).getroot()[0]
    assert suite.get("failures") == "2"
    assert "did you mean closed?" in (suite.find(".//failure").text or "")  # type: ignore[union-attr]
    assert "| 3:1 |" in paths["markdown"].read_text()
    result = json.loads(paths["sarif"].read_text())["runs"][0]["results"][0]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 3, "startColumn": 1}


def test_a_report_that_cannot_be_written(write: Write, records: Records) -> None:
    done = run("validate", write(records), "--junit", "/nonexistent/x.xml")
    assert done.exit_code == 2
    assert "cannot write /nonexistent/x.xml" in done.output


def test_github_annotations(write: Write, bad: Records) -> None:
    path = write(bad, "a,b:c.txt")
    done = run("validate", path, GITHUB_ACTIONS="true")
    (line,) = [x for x in done.output.splitlines() if x.startswith("::error")]
    assert "a%2Cb%3Ac.txt,line=3,col=1,title=submission_division.choice::" in line
    assert "::error" not in run("validate", path, GITHUB_ACTIONS="").output


def test_a_log_cannot_give_commands_to_a_ci(
    write: Write, bad: Records, of: Any
) -> None:
    of("submission_division")["value"] = "x\n::set-output name=a::b\x1b[31m%0A"
    done = run("validate", write(bad), GITHUB_ACTIONS="true")
    assert not any(x.startswith("::set-output") for x in done.output.splitlines())
    assert "\x1b" not in done.output


def test_logging_278_inputs_and_working_folder_are_left_alone(
    write: Write, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(records, "in/result_0.txt")
    monkeypatch.chdir(tmp_path)
    run("validate", path.parent, "--official-tool")
    run("score", path.parent)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "result_0.txt"]


def test_logging_130_usage_errors_name_the_option(tmp_path: Path) -> None:
    done = run("validate")
    assert done.exit_code == 2
    assert "PATHS" in done.output


def test_folder_links_are_not_followed(
    write: Write, records: Records, tmp_path: Path
) -> None:
    write(records, "logs/result_0.txt")
    secret = write(records, "elsewhere/result_1.txt")
    (tmp_path / "logs" / "result_1.txt").symlink_to(secret)
    (tmp_path / "logs" / "up").symlink_to(tmp_path)
    document = json.loads(run("validate", tmp_path / "logs", "--json").stdout)
    assert [Path(f["path"]).name for f in document["files"]] == ["result_0.txt"]


def test_logs_come_in_the_order_of_their_numbers(
    write: Write, records: Records
) -> None:
    for number in (10, 2, 1):
        path = write(records, f"logs/result_{number}.txt")
    document = json.loads(run("validate", path.parent, "--json").stdout)
    names = [Path(f["path"]).name for f in document["files"]]
    assert names == ["result_1.txt", "result_2.txt", "result_10.txt"]


# Scores.


@pytest.fixture
def entry(write: Write, records: Records, of: Any) -> Callable[..., Path]:
    """Writes runs of given seconds; a negative number is a run that was aborted."""

    def make(*seconds: float) -> Path:
        start, stop = of("run_start")["time_ms"], of("run_stop")
        path = Path()
        for number, value in enumerate(seconds):
            stop["time_ms"] = start + round(abs(value) * 1000)
            stop["metadata"]["status"] = "success" if value > 0 else "aborted"
            of("seed")["value"] = number
            path = write(records, f"org/results/sys/resnet/result_{number}.txt")
        return path.parent

    return make


def score_of(folder: Path) -> dict[str, Any]:
    (found,) = json.loads(run("score", folder, "--json").stdout)["entries"]
    return dict(found)


def test_the_olympic_mean(entry: Any) -> None:
    found = score_of(entry(410, 400, 420, 480, 430))
    assert found["score_minutes"] == pytest.approx((410 + 420 + 430) / 3 / 60)
    assert [r["dropped"] for r in found["runs"]] == [
        None, "fastest", None, "slowest", None,
    ]  # fmt: skip
    assert (found["system"], found["benchmark"]) == ("sys", "resnet")
    assert found["runs"][0]["s_per_epoch"] == pytest.approx(410 / 40)


def test_one_run_that_did_not_converge_is_the_slowest(entry: Any) -> None:
    found = score_of(entry(410, -400, 420, 480, 430))
    assert found["score_minutes"] == pytest.approx((420 + 430 + 480) / 3 / 60)
    assert found["runs"][1]["dropped"] == "did not converge"


def test_training_policies_361_two_such_runs_leave_no_score(entry: Any) -> None:
    folder = entry(410, -400, -420, 480, 430)
    assert score_of(folder)["score_minutes"] is None
    assert run("score", folder).exit_code == 1


def test_the_clock_starts_with_the_earliest_run_start(
    write: Write, records: Records, new: Any
) -> None:
    """The official summarizer takes the last one: 349.5 s instead of 399.5."""
    at = next(i for i, r in enumerate(records) if r["key"] == "run_start")
    records.insert(at + 1, new("run_start", None, 141))
    found = score_of(write(records).parent)
    assert found["runs"][0]["seconds"] == pytest.approx(399.5)


def test_logging_419_fewer_runs_than_the_round_asks_for_are_said(entry: Any) -> None:
    found = score_of(entry(410, 400, 420))
    assert found["score_minutes"] == pytest.approx(410 / 60)
    assert "3 of the 5 runs that the round asks for" in found["note"]


def test_csv_and_markdown(entry: Any) -> None:
    folder = entry(410, 400, 420)
    rows = run("score", folder, "--csv").output.splitlines()
    assert rows[0].startswith("system,benchmark,ruleset,score_minutes")
    assert len(rows) == 4
    table = run("score", folder, "--markdown", "--reference-minutes", "60").output
    assert "| 8.78049 |" in table


def test_a_file_name_that_is_no_unicode(records: Records, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff=\n"
    os.mkdir(folder)
    for name in (b"result_0.txt", b"result_1.txt", b"result_2.txt"):
        with open(folder + b"/" + name, "w") as file:
            file.write("".join(f":::MLLOG {json.dumps(r)}\n" for r in records))
    done = run("validate", tmp_path, "--json", "--markdown", tmp_path / "out.md")
    assert done.exit_code == 0
    for option in ("--csv", "--markdown", "--json"):
        assert run("score", tmp_path, option).exit_code == 0


def test_a_run_without_run_stop_has_no_time(write: Write, records: Records) -> None:
    found = score_of(write(records[:-1]).parent)
    assert found["runs"][0]["status"] == "invalid"


def test_the_target_that_train_wrote_beside_its_logs(entry: Any) -> None:
    folder = entry(410, 400, 420)
    summary = {"task": "proxy", "target": {"metric": "top1", "value": 0.97}}
    (folder.parents[3] / "summary.json").write_text(json.dumps(summary))
    found = score_of(folder.parents[3])
    assert (found["task"], found["target"]) == ("proxy", {"value": 0.97})


def test_nothing_beside_a_single_file_is_read(entry: Any) -> None:
    folder = entry(410)
    (folder / "summary.json").write_text('{"target": {"value": 0.97}}')
    assert score_of(folder / "result_0.txt")["target"] == {"value": 0.759}


# Whole submissions.


@pytest.fixture
def organization(entry: Any) -> Path:
    results = entry(410, 400, 420, 480, 430)
    root = Path(*results.parts[: results.parts.index("org") + 1])
    (root / "benchmarks" / "resnet" / "implementations").mkdir(parents=True)
    (root / "systems").mkdir()
    values = dict.fromkeys((*submission.MEANINGFUL, *submission.PRESENT), "x")
    values["division"] = "closed"
    (root / "systems" / "sys.json").write_text(json.dumps(values))
    return root


def submission_findings(root: Path) -> dict[str, str]:
    """rule -> path of the findings on a submission as a whole."""
    (found,) = json.loads(run("validate", root, "--json").stdout)["submissions"]
    return {f["rule"]: f["path"] for f in found["findings"]}


def test_a_whole_submission_passes(organization: Path) -> None:
    assert submission_findings(organization) == {}
    assert run("validate", organization).exit_code == 0


def test_missing_runs_fail_it(organization: Path) -> None:
    (organization / "results/sys/resnet/result_4.txt").unlink()
    assert "entry.runs" in submission_findings(organization)
    assert run("validate", organization).exit_code == 1


def test_a_forbidden_value_in_one_run_is_not_excused(
    organization: Path, records: Records, of: Any, text: Any
) -> None:
    """The official checker lets any one failing file of an entry pass."""
    of("lars_epsilon")["value"] = 0.1
    (organization / "results/sys/resnet/result_2.txt").write_text(text(records))
    found = submission_findings(organization)
    assert "entry.run" in found
    assert "entry.lars_epsilon" in found


def test_logging_384_one_seed_in_two_runs(
    organization: Path, records: Records, of: Any, text: Any
) -> None:
    of("seed")["value"] = "0x3"
    (organization / "results/sys/resnet/result_4.txt").write_text(text(records))
    found = submission_findings(organization)
    assert found["entry.seed"].endswith("result_4.txt")


def test_one_seed_twice_in_one_run_is_no_clash(
    organization: Path, records: Records, of: Any, text: Any, new: Any
) -> None:
    of("seed")["value"] = 77
    records.insert(10, new("seed", 77, 2))
    (organization / "results/sys/resnet/result_4.txt").write_text(text(records))
    assert "entry.seed" not in submission_findings(organization)


def test_logging_205_names_sizes_and_links(organization: Path) -> None:
    code = organization / "benchmarks" / "resnet"
    (code / "a b.txt").write_text("x")
    (code / ".hidden").write_text("x")
    (code / "broken").symlink_to("nowhere")
    (code / "outside").symlink_to("/etc/passwd")
    with (code / "large.bin").open("wb") as file:
        file.truncate((50 << 20) + 1)
    found = submission_findings(organization)
    assert {"tree.space", "tree.leading_dot", "tree.link", "tree.size"} <= set(found)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, None])
def test_a_system_description_that_is_none(
    organization: Path, content: str | None
) -> None:
    path = organization / "systems" / "sys.json"
    if content is None:
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_text(content)
    found = submission_findings(organization)
    assert {"system.json", "system.file"} & set(found)


def test_a_missing_system_key_is_named(organization: Path) -> None:
    path = organization / "systems" / "sys.json"
    values = json.loads(path.read_text())
    del values["cooling"]
    values["framework"] = ""
    path.write_text(json.dumps(values))
    assert {"system.cooling", "system.framework"} == set(
        submission_findings(organization)
    )


def test_results_alone_are_a_training_runs_folder(entry: Any) -> None:
    results = entry(410, 400, 420)
    done = run("validate", results.parents[1], "--json")
    assert "submissions" not in json.loads(done.stdout)
    assert done.exit_code == 0
