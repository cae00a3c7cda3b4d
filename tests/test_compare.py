"""compare: what is refused, what is seen, how often it errs; the RCP test's vectors."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.compare import compare, sides
from mlperf_tpu.compare.sides import Side
from mlperf_tpu.compare.stats import holm, permutation, welch
from mlperf_tpu.compare.too_fast import (
    ReferencePoint,
    interpolated,
    least_mean,
    reference_point,
)
from mlperf_tpu.errors import BadInput


def document(seconds: list[float], **changes: Any) -> dict[str, Any]:
    """A stored entry; a run of infinite seconds did not converge."""
    runs = [
        {
            "path": f"result_{i}.txt",
            "seconds": 999.0 if math.isinf(s) else s,
            "epochs": 40,
            "evaluations": 10,
            "status": "not_converged" if math.isinf(s) else "success",
            "reason": "",
            "s_per_epoch": (999.0 if math.isinf(s) else s) / 40,
            "evaluation_s": None,
            "initialization_s": 60.0 + i,
        }
        for i, s in enumerate(seconds)
    ]
    entry = {
        "system": "tpu-v3-32",
        "benchmark": "resnet",
        "ruleset": "0.7.0",
        "score_minutes": None,
        "settings": {"global_batch_size": "4096"},
        "target": {"value": 0.759},
        "task": "proxy",
        "runs": runs,
    }
    return {"schema": 1, "entries": [{**entry, **changes}]}


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    def store(name: str, seconds: list[float], **changes: Any) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document(seconds, **changes)))
        return path

    return store


STEADY = [100.0, 100.4, 99.8, 100.1, 99.7]


def load(stored: Any, name: str, seconds: list[float], **changes: Any) -> Side:
    return sides.load(stored(name, seconds, **changes))


def metric(result: Any, name: str = "time_to_train_s") -> Any:
    return next(m for m in result.metrics if m.name == name)


def test_equal_runs_are_no_regression(stored: Any) -> None:
    result = compare(load(stored, "a", STEADY), load(stored, "b", STEADY[::-1]))
    assert result.decision == "ok"


def test_a_slowdown_of_5_percent_is_seen_with_5_runs(stored: Any) -> None:
    slower = [s * 1.05 for s in STEADY]
    result = compare(load(stored, "a", STEADY), load(stored, "b", slower))
    assert result.decision == "regression"
    assert metric(result).ratio == pytest.approx(1.05)
    low, high = metric(result).interval
    assert low < 1.05 < high
    assert metric(result, "epochs").decision == "ok"


def test_noise_leaves_it_undecided_and_says_what_would_show(stored: Any) -> None:
    noisy = [80.0, 120.0, 95.0, 110.0, 100.0]
    result = compare(
        load(stored, "a", noisy), load(stored, "b", [s * 1.02 for s in noisy])
    )
    assert result.decision == "undecided"
    assert metric(result).minimum_detectable > 0.1
    assert "would show with 80 %" in metric(result).note


def test_one_run_is_compared_without_statistics(stored: Any) -> None:
    for seconds, decision in ((100.5, "ok"), (103.0, "regression")):
        result = compare(load(stored, "a", [100.0]), load(stored, "b", [seconds]))
        assert result.decision == decision
        assert "no statistics" in metric(result).note


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("benchmark", "ssd"),
        ("ruleset", "0.6.0"),
        ("target", {"value": 0.97}),
        ("task", "full"),
    ],
)
def test_what_cannot_be_compared_is_refused(stored: Any, what: str, value: Any) -> None:
    other = load(stored, "b", STEADY, **{what: value})
    result = compare(load(stored, "a", STEADY), other)
    assert result.decision == "incomparable"
    assert result.reasons[0].startswith(f"another {what}")
    assert result.metrics == []


def test_settings_that_differ_are_shown(stored: Any) -> None:
    settings = {"global_batch_size": "4096.0", "lars_epsilon": "0.0"}
    other = load(stored, "b", STEADY, settings=settings, system="tpu-v3-64")
    result = compare(load(stored, "a", STEADY), other)
    assert [d["name"] for d in result.differences] == ["lars_epsilon", "system"]


def test_a_run_that_did_not_converge_is_slower_than_any(stored: Any) -> None:
    lost = [*STEADY[:4], math.inf]
    result = compare(load(stored, "a", STEADY), load(stored, "b", lost))
    assert metric(result).method == "permutation of ranks"
    assert metric(result).ratio is None
    assert result.decision == "undecided"


def test_training_policies_361_two_lost_runs_are_a_regression(stored: Any) -> None:
    lost = [*STEADY[:3], math.inf, math.inf]
    result = compare(load(stored, "a", STEADY), load(stored, "b", lost))
    assert result.decision == "regression"
    assert "2 of the candidate's 5 runs" in result.reasons[0]


def test_three_tied_runs_cannot_tell_and_say_so(stored: Any) -> None:
    result = compare(
        load(stored, "a", [100.0, 100.0, 100.0]), load(stored, "b", [110.0] * 3)
    )
    assert "smallest p is 0.1" in metric(result).note


def test_exact_permutation_p_of_complete_separation() -> None:
    """One arrangement of all: 1 / C(2n, n)."""
    for n in (3, 4, 5):
        p = permutation([float(i) for i in range(n)], [10.0 + i for i in range(n)])
        assert p == pytest.approx(1 / math.comb(2 * n, n))


def test_welch_is_scipys() -> None:
    from scipy.stats import ttest_ind

    a, b = [1.0, 1.1, 0.9, 1.05], [1.2, 1.0, 1.3]
    theirs = ttest_ind(b, a, equal_var=False, alternative="greater").pvalue
    assert welch(a, b)[0] == pytest.approx(theirs, rel=1e-9)


def test_holm_of_a_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


DRAWS = 10_000


@pytest.fixture(scope="module")
def alarm_rate() -> Any:
    """The simulation that the results file is made with."""
    script = Path(__file__).parents[1] / "scripts" / "bench_log_tools.py"
    return runpy.run_path(str(script))["alarm_rate"]


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("cv", [0.005, 0.10])
def test_false_alarms_are_at_most_5_percent(alarm_rate: Any, n: int, cv: float) -> None:
    rate = alarm_rate(n, cv, 1.0, DRAWS)
    power = alarm_rate(n, cv, 1.05, 1_000)
    print(f"n {n}, CV {cv}: false alarms {rate:.4f}, power at +5 % {power:.3f}")
    assert rate <= 0.05
    if cv == 0.005:
        assert power > 0.95


# The RCP test: the vectors of the rules' text and of the official code, N = 5.
TEXT_A = [16, 14, 16, 17, 16, 16, 15, 16, 15, 16]
TEXT_B = [20, 21, 21, 20, 22, 22, 21, 21, 20, 20]


@pytest.mark.parametrize(
    ("runs", "over", "mean", "stdev", "least", "speedup"),
    [
        (TEXT_A, "middle", 15.750, 0.433, 15.213, 3.53),
        (TEXT_A, "all", 15.750, 0.781, 14.781, 6.56),
        (TEXT_B, "middle", 20.750, 0.661, 19.929, 4.12),
        (TEXT_B, "all", 20.750, 0.748, 19.821, 4.69),
    ],
)
def test_rcp_vectors(
    runs: list[float],
    over: Any,
    mean: float,
    stdev: float,
    least: float,
    speedup: float,
) -> None:
    point = reference_point(runs, over)
    assert (point.mean, point.stdev) == pytest.approx((mean, stdev), abs=5e-4)
    lowest = least_mean(point, 5)
    assert lowest == pytest.approx(least, abs=5e-4)
    assert (point.mean / lowest - 1) * 100 == pytest.approx(speedup, abs=5e-3)


def test_rcp_interpolated_between_two_batches() -> None:
    low, high = reference_point(TEXT_A), reference_point(TEXT_B)
    point = interpolated((128, low), (256, high), 192)
    assert (point.mean, point.stdev, point.n) == pytest.approx(
        (18.25, 0.547, 10), abs=5e-4
    )
    assert least_mean(point, 5) == pytest.approx(17.603, abs=1e-3)


@pytest.mark.parametrize(
    ("runs", "batch", "passes"),
    [
        ([15, 15, 15, 16, 16], 128, True),
        ([19, 19, 19, 20, 21], 256, False),
        ([17, 18, 18, 18, 20], 192, True),
    ],
)
def test_rcp_worked_cases(runs: list[float], batch: int, passes: bool) -> None:
    low, high = reference_point(TEXT_A), reference_point(TEXT_B)
    point = {128: low, 256: high, 192: interpolated((128, low), (256, high), 192)}[
        batch
    ]
    mean = sum(sorted(runs)[1:-1]) / 3
    assert (mean >= least_mean(point, 5)) == passes


def test_rcp_without_spread_takes_the_mean() -> None:
    assert least_mean(ReferencePoint(16.0, 0.0, 8), 5) == 16.0
    with pytest.raises(ValueError, match="at least 3"):
        least_mean(ReferencePoint(16.0, 0.0, 8), 2)


def test_a_candidate_too_fast_to_be_true(stored: Any) -> None:
    """Google's v0.7 runs at batch 65536 take 84 to 92 epochs."""
    changes = {"task": "full", "settings": {"global_batch_size": "65536"}}
    result = compare(
        load(stored, "a", STEADY, **changes), load(stored, "b", STEADY, **changes)
    )
    assert result.too_fast is not None
    assert not result.too_fast["ok"]
    assert result.decision == "regression"


# The command.


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def test_exit_codes(stored: Any) -> None:
    base = stored("a", STEADY)
    assert run(base, stored("b", STEADY)).exit_code == 0
    assert run(base, stored("c", [s * 1.2 for s in STEADY])).exit_code == 1
    assert run(base, stored("d", STEADY, benchmark="ssd")).exit_code == 2
    noisy = stored("e", [80.0, 120.0, 95.0, 110.0, 105.0])
    assert run(base, noisy).exit_code == 0
    assert run(base, noisy, "--fail-on-undecided").exit_code == 3


def test_json_has_the_keys_of_the_contract(stored: Any) -> None:
    done = run(stored("a", STEADY), stored("b", STEADY), "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert {"decision", "differences", "metrics"} <= set(document)
    wanted = "name baseline candidate ratio interval p decision minimum_detectable"
    assert set(wanted.split()) <= set(document["metrics"][0])


def test_files_for_other_tools(stored: Any, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    slower = stored("b", [s * 1.2 for s in STEADY])
    names = {kind: tmp_path / kind for kind in ("junit", "markdown", "benchmark-json")}
    options = [part for kind, path in names.items() for part in (f"--{kind}", path)]
    assert run(stored("a", STEADY), slower, *options).exit_code == 1
    suite = ElementTree.parse(names["junit"]).getroot()[0]
    assert int(suite.get("failures", "0")) == len(suite.findall(".//failure")) == 2
    assert names["markdown"].read_text().startswith("# regression")
    table = json.loads(names["benchmark-json"].read_text())
    assert {"name", "unit", "value", "range", "extra"} == set(table[0])
    assert table[0]["value"] == pytest.approx(120, rel=0.01)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"entries": 3}', '{"entries": [3]}', '{"entries": [{}]}'],
)
def test_a_file_that_is_no_stored_score(tmp_path: Path, content: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"score RUNS --json|holds 0 entries"):
        sides.load(path)
