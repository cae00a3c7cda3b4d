"""Verdicts and findings of logs with one thing wrong; reports from users by number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlperf_tpu.log import rulesets
from mlperf_tpu.log.findings import Finding
from mlperf_tpu.log.validate import FileReport, Options, validate

Write = Callable[..., Path]
Records = list[dict[str, Any]]


def found(report: FileReport, rule: str) -> Finding:
    """The finding of a rule; fails where there is none."""
    (finding,) = [f for f in report.findings if f.rule == rule]
    return finding


def without(records: Records, key: str) -> Records:
    return [one for one in records if one["key"] != key]


@pytest.mark.parametrize(
    "key",
    [
        "submission_org", "submission_division", "submission_status", "init_stop",
        "submission_benchmark", "submission_platform", "cache_clear", "init_start",
        "run_start", "run_stop", "eval_accuracy", "train_samples", "eval_samples",
        "global_batch_size", "opt_name", "lars_epsilon", "lars_opt_momentum",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(write: Write, records: Records, key: str) -> None:
    report = validate(write(without(records, key)))
    assert report.verdicts["official"] == "fail"
    assert found(report, f"{key}.missing").places[0].actual == "none"


@pytest.mark.parametrize(
    "value", ["Closed", "closed ", "CLOSED", "", None, ["closed"], 3]
)
def test_a_division_that_is_none(
    write: Write, records: Records, of: Any, value: Any
) -> None:
    of("submission_division")["value"] = value
    report = validate(write(records))
    assert set(report.verdicts.values()) == {"fail"}
    finding = found(report, "submission_division.choice")
    assert finding.places[0].line == 3
    if value in ("Closed", "closed ", "CLOSED"):
        assert finding.hint == "did you mean closed?"


@pytest.mark.parametrize(
    "key", ["submission_division", "submission_benchmark", "opt_name"]
)
@pytest.mark.parametrize("tool", [False, True])
def test_a_path_in_a_value_opens_nothing(
    write: Write, records: Records, of: Any, tmp_path: Path, key: str, tool: bool
) -> None:
    """The official checker formats these into the name of a file that it executes."""
    proof = tmp_path / "executed"
    code = f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w').close()\"\n"
    for name in ("planted_common.yaml", "closed_planted.yaml", "planted.yaml"):
        (tmp_path / name).write_text(code)
    up = "../" * 40
    of(key)["value"] = f"{up}{str(tmp_path / 'planted').lstrip('/')}"
    options = Options(official_tool=tool, ruleset="0.7.0")
    report = validate(write(records), options)
    assert report.verdicts["official"] == "fail"
    assert not proof.exists()


def test_a_benchmark_called_common_does_not_hang(
    write: Write, records: Records, of: Any
) -> None:
    of("submission_benchmark")["value"] = "common"
    report = validate(write(records), Options(official_tool=True))
    assert report.verdicts["official"] == "fail"
    assert report.official_tool is not None
    assert report.official_tool["verdict"] == "refused"


def test_aborted_runs_are_not_converged(
    write: Write, records: Records, of: Any
) -> None:
    for word in ("abort", "aborted"):
        of("run_stop")["metadata"]["status"] = word
        verdicts = validate(write(records)).verdicts
        assert set(verdicts.values()) == {"not_converged"}


def test_an_unknown_status_breaks_the_rules(
    write: Write, records: Records, of: Any
) -> None:
    of("run_stop")["metadata"]["status"] = "bogus"
    report = validate(write(records))
    assert report.verdicts["official"] == "not_converged"
    assert report.verdicts["rules"] == "fail"


@pytest.mark.parametrize("seconds", [-10.0, 91.0])
def test_a_run_that_takes_no_time_fails(
    write: Write, records: Records, new: Any, seconds: float
) -> None:
    records[-1] = new("run_stop", None, seconds, status="success")
    report = validate(write(records))
    assert report.verdicts["official"] == "fail"
    assert found(report, "clock.duration").places[0].line == len(records)


def test_the_target_reached_after_run_stop_is_not_reached(
    write: Write, records: Records, of: Any
) -> None:
    of("run_stop")["time_ms"] -= 60_000
    report = validate(write(records))
    assert report.verdicts["official"] == "fail"
    assert "after run_stop" in found(report, "target.after_run_stop").places[0].actual


def test_success_without_the_target_fails(write: Write, records: Records) -> None:
    for one in records:
        if one["key"] == "eval_accuracy":
            one["value"] = min(one["value"], 0.75)
    report = validate(write(records))
    assert set(report.verdicts.values()) == {"fail"}
    assert "0.75 at best" in found(report, "target.not_reached").places[0].actual


@pytest.mark.parametrize("value", [None, "0.76", [0.76], {"BBOX": 0.4}])
def test_an_accuracy_that_is_no_number(
    write: Write, records: Records, of: Any, value: Any
) -> None:
    of("eval_accuracy")["value"] = value
    report = validate(write(records))
    assert report.verdicts["official"] == report.verdicts["rules"] == "fail"
    assert found(report, "eval_accuracy.value").places[0].line > 1


def test_a_percentage_is_no_fraction(write: Write, records: Records) -> None:
    for one in records:
        if one["key"] == "eval_accuracy":
            one["value"] *= 100
    assert validate(write(records)).verdicts["official"] == "fail"


def test_nan_in_an_early_evaluation_warns(
    write: Write, records: Records, of: Any
) -> None:
    of("eval_accuracy")["value"] = float("nan")
    report = validate(write(records))
    assert report.verdicts["official"] == report.verdicts["rules"] == "pass"
    assert found(report, "eval_accuracy.not_finite").severity == "warning"


@pytest.mark.parametrize("key", ["lars_opt_end_learning_rate", "global_batch_size"])
def test_a_number_as_a_string(
    write: Write, records: Records, of: Any, key: str
) -> None:
    of(key)["value"] = str(of(key)["value"])
    report = validate(write(records))
    assert report.verdicts["official"] == report.verdicts["rules"] == "fail"
    assert found(report, f"{key}.type").places[0].actual.endswith("a string")


def test_float32_rounding_fails_officially_alone(
    write: Write, records: Records, of: Any
) -> None:
    of("lars_opt_end_learning_rate")["value"] = 9.999999747378752e-05
    verdicts = validate(write(records)).verdicts
    assert (verdicts["official"], verdicts["rules"]) == ("fail", "pass")


def test_every_bad_record_of_a_key_is_kept(write: Write, records: Records) -> None:
    """The official report keeps the last one alone."""
    for one in records:
        if one["key"] == "block_start":
            del one["metadata"]["epoch_count"]
    finding = found(validate(write(records)), "block_start.epoch_count")
    assert finding.count == 10
    assert len({place.line for place in finding.places}) == 10


def test_lars_momentum_below_32k_warns_and_says_why(
    write: Write, records: Records, of: Any
) -> None:
    of("lars_opt_momentum")["value"] = 0.95
    report = validate(write(records))
    assert report.verdicts["official"] == report.verdicts["rules"] == "pass"
    assert "verifier" in found(report, "lars_opt_momentum.table").hint
    of("global_batch_size")["value"] = 65536
    assert validate(write(records)).findings == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lars_opt_weight_decay", 0.0003),
        ("lars_epsilon", 1e-5),
        ("lars_opt_learning_rate_decay_poly_power", 1),
        ("lars_opt_learning_rate_decay_steps", -5),
        ("train_samples", 0),
        ("eval_samples", 49152),
    ],
)
def test_values_that_break_the_written_rules(
    write: Write, records: Records, of: Any, key: str, value: Any
) -> None:
    of(key)["value"] = value
    assert validate(write(records)).verdicts["rules"] == "fail"


def test_another_data_set_is_a_proxy_not_an_error(
    write: Write, records: Records, of: Any
) -> None:
    of("train_samples")["value"], of("eval_samples")["value"] = 1437, 360
    report = validate(write(records))
    assert report.verdicts["rules"] == "pass"
    assert "proxy" in found(report, "eval_samples.data_set").hint


def test_a_gap_in_the_schedule(write: Write, records: Records) -> None:
    kept = [
        r for r in records
        if not (r["key"] == "eval_accuracy" and r["metadata"]["epoch_num"] == 20)
    ]  # fmt: skip
    report = validate(write(kept))
    assert report.verdicts["official"] == "pass"
    assert found(report, "schedule.too_rare").places[0].actual.endswith("16 and 24")


def test_an_epoch_that_does_not_rise(write: Write, records: Records) -> None:
    for one in records:
        if one["key"] == "eval_accuracy":
            one["metadata"]["epoch_num"] = 4
    report = validate(write(records))
    assert (report.verdicts["official"], report.verdicts["rules"]) == ("pass", "fail")


def test_cache_clear_after_the_clock_started(
    write: Write, records: Records, of: Any
) -> None:
    of("cache_clear")["time_ms"] = of("run_start")["time_ms"] + 5_000
    report = validate(write(records))
    assert (report.verdicts["official"], report.verdicts["rules"]) == ("pass", "fail")


def test_cache_clear_after_initialization_began(
    write: Write, records: Records, of: Any
) -> None:
    of("cache_clear")["time_ms"] = of("init_start")["time_ms"] + 10
    report = validate(write(records))
    assert (report.verdicts["official"], report.verdicts["rules"]) == ("pass", "fail")


def test_a_clock_that_goes_back_during_the_run(write: Write, records: Records) -> None:
    later = [one for one in records if one["metadata"].get("epoch_num") == 20]
    for one in later:
        one["time_ms"] -= 60_000
    report = validate(write(records))
    assert (report.verdicts["official"], report.verdicts["rules"]) == ("pass", "fail")
    assert found(report, "clock.backwards").places[0].line > 1


def test_an_evaluation_that_never_stops_warns(write: Write, records: Records) -> None:
    at = next(i for i, r in enumerate(records) if r["key"] == "eval_stop")
    report = validate(write(records[:at] + records[at + 1 :]))
    assert report.verdicts["rules"] == "pass"
    assert found(report, "eval_stop.pairs").places[0].actual == "10 starts, 9 stops"


def test_initialization_over_20_minutes(
    write: Write, records: Records, new: Any
) -> None:
    for one in records:
        if one["key"] not in ("init_start", "cache_clear"):
            one["time_ms"] += 25 * 60_000
    report = validate(write(records))
    assert report.verdicts["official"] == report.verdicts["rules"] == "fail"
    assert found(report, "init_stop.within_cap").places[0].actual == "26.5 minutes"


def test_an_hour_between_init_stop_and_run_start_is_on_the_clock(
    write: Write, records: Records
) -> None:
    late = False
    for one in records:
        late = late or one["key"] == "run_start"
        one["time_ms"] += 3_600_000 * late
    report = validate(write(records))
    assert (report.verdicts["official"], report.verdicts["rules"]) == ("pass", "fail")
    assert found(report, "clock.initialization_cap").profiles == ("rules", "published")


# Reports from users, named after them.


def test_training_policies_132_epochs_from_zero_warn(
    write: Write, records: Records
) -> None:
    for one in records:
        for name in ("epoch_num", "first_epoch_num"):
            if name in one["metadata"]:
                one["metadata"][name] -= 1
    report = validate(write(records))
    assert report.verdicts["rules"] == "pass"
    assert found(report, "epoch_num.from_one").severity == "warning"


def test_logging_28_the_earliest_init_start_counts(
    write: Write, records: Records, new: Any
) -> None:
    at = next(i for i, r in enumerate(records) if r["key"] == "init_start")
    records[at:at] = [new("init_start", None, -1200), new("init_start", None, 0.5)]
    report = validate(write(records))
    assert found(report, "init_stop.within_cap").places[0].actual == "21.5 minutes"


def test_logging_64_bert_from_batch_8192_may_reach_0706(write: Write, new: Any) -> None:
    for batch, verdict in ((8192, "pass"), (4096, "fail")):
        log = _minimal(new, "bert", _values("bert", 1), 0.707)
        next(r for r in log if r["key"] == "global_batch_size")["value"] = batch
        assert validate(write(log)).verdicts["official"] == verdict


def test_bert_batch_logged_after_the_first_evaluation(write: Write, new: Any) -> None:
    """The official checker crashes: it wants the batch when the evaluation comes."""
    log = _minimal(new, "bert", _values("bert", 1), 0.72)
    batch = next(r for r in log if r["key"] == "global_batch_size")
    log.remove(batch)
    assert validate(write([*log, batch])).verdicts["official"] == "pass"


def _values(benchmark: str, value: Any) -> dict[str, Any]:
    """Every key that a closed v0.7 submission of a benchmark owes, with one value."""
    return dict.fromkeys(rulesets.ruleset("0.7.0").closed[benchmark].keys, value)


def _minimal(new: Any, benchmark: str, values: dict[str, Any], quality: Any) -> Records:
    samples = {"train_samples": 10, "eval_samples": 10, **values}
    return [
        new("submission_benchmark", benchmark),
        new("submission_org", "ACME"),
        new("submission_division", "closed"),
        new("submission_status", "cloud"),
        new("submission_platform", "x"),
        new("cache_clear", True),
        new("init_start", None, 1),
        *(new(key, value, 2, method="discard") for key, value in samples.items()),
        new("init_stop", None, 3),
        new("run_start", None, 4),
        new("block_start", None, 5, first_epoch_num=1, epoch_count=1),
        new("eval_accuracy", quality, 6, epoch_num=1),
        new("block_stop", None, 7, first_epoch_num=1),
        new("run_stop", None, 8, status="success"),
    ]


def test_training_policies_160_maskrcnn_needs_both_values(
    write: Write, new: Any
) -> None:
    values: dict[str, Any] = dict.fromkeys(
        rulesets.ruleset("0.7.0").closed["maskrcnn"].keys, 1000
    )
    values |= {"opt_base_learning_rate": 0.16, "opt_learning_rate_decay_factor": 0.1}
    values["opt_learning_rate_decay_steps"] = [9000, 12000]
    for quality, verdict in (
        ({"BBOX": 0.38, "SEGM": 0.34}, "pass"),
        ({"BBOX": 0.38, "SEGM": 0.33}, "fail"),
        ({"bbox": 0.38, "segm": 0.34}, "fail"),
        ({"BBOX": 0.38}, "fail"),
    ):
        report = validate(write(_minimal(new, "maskrcnn", values, quality)))
        assert report.verdicts["official"] == verdict, quality


def test_primus_1055_a_near_miss_of_a_key_is_named(
    write: Write, records: Records, of: Any
) -> None:
    of("lars_opt_base_learning_rate")["key"] = "lars_opt_base_learning_rte"
    finding = found(validate(write(records)), "lars_opt_base_learning_rate.missing")
    assert finding.hint == "the log has lars_opt_base_learning_rte"


def test_logging_130_the_ruleset_is_inferred_and_said(
    write: Write, records: Records, of: Any
) -> None:
    report = validate(write(records))
    assert report.ruleset == "0.7.0"
    assert "resnet" in report.inferred
    assert validate(write(records), Options(ruleset="0.7.0")).inferred == ""


def test_dllogger_9_records_of_512_ranks_pass(write: Write, records: Records) -> None:
    ranks = [one for one in records for _ in range(4)]
    report = validate(write(ranks))
    assert report.verdicts["official"] == "pass"
    assert found(report, "run_stop.repeated").severity == "warning"


def test_logging_382_a_ruleset_stays_in_its_round() -> None:
    for name in rulesets.OWN:
        assert rulesets.ruleset(name).name == name


def test_logging_172_every_benchmark_of_a_round_has_rules() -> None:
    for name in rulesets.OWN:
        rules = rulesets.ruleset(name)
        assert set(rules.benchmarks) == set(rules.closed)
        assert set(rules.benchmarks) | set(rules.structure_only) == set(rules.targets)
        assert set(rules.benchmarks) <= set(rules.runs)


def test_logging_237_maskrcnn_learning_rate_of_001(write: Write, new: Any) -> None:
    """0.01 fails the rule of multiples of 0.02, and the finding shows the rule."""
    values: dict[str, Any] = dict.fromkeys(
        rulesets.ruleset("0.7.0").closed["maskrcnn"].keys, 1000
    )
    values |= {"opt_base_learning_rate": 0.01, "opt_learning_rate_decay_factor": 0.1}
    values["opt_learning_rate_decay_steps"] = [9000, 12000]
    log = _minimal(new, "maskrcnn", values, {"BBOX": 0.38, "SEGM": 0.34})
    finding = found(validate(write(log)), "opt_base_learning_rate.multiple")
    assert finding.expected == "a multiple of 0.02"
    assert finding.places[0].actual == "0.01"


def test_the_first_boundary_of_ssd_is_tested_too(write: Write, new: Any) -> None:
    """In the verifier's YAML a duplicate key loses the test of the first one."""
    values: dict[str, Any] = dict.fromkeys(
        rulesets.ruleset("0.7.0").closed["ssd"].keys, 1
    )
    values["opt_learning_rate_decay_boundary_epochs"] = [41, 50]
    report = validate(write(_minimal(new, "ssd", values, 0.24)))
    finding = found(report, "opt_learning_rate_decay_boundary_epochs.table")
    assert "first boundary" in finding.expected
    assert finding.severity == "warning"


def test_open_division_owes_the_target_alone(write: Write, new: Any) -> None:
    for quality, verdict in ((0.76, "pass"), (0.75, "fail")):
        log = _minimal(new, "resnet", {}, quality)
        next(r for r in log if r["key"] == "submission_division")["value"] = "open"
        assert validate(write(log)).verdicts["official"] == verdict


def test_logging_123_minigo_may_lack_samples_and_blocks(write: Write, new: Any) -> None:
    log = _minimal(new, "minigo", _values("minigo", 8192), 0.51)
    log = [r for r in log if r["key"] not in ("train_samples", "eval_samples")]
    assert validate(write(log)).verdicts["official"] == "pass"
