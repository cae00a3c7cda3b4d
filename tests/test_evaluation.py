"""Scores that come in while the training goes on."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from mlperf_tpu.evaluation import Evaluations
from mlperf_tpu.spec import load, resolve


class Log:
    """Keeps what is logged, in order."""

    def __init__(self):
        self.said = []

    def start(self, key, **metadata):
        self.said.append((key, metadata["epoch_num"]))

    end = start

    def event(self, key, value, **metadata):
        self.said.append((key, metadata["epoch_num"], value))


class Program:
    """Scores by the table it is given, each once `let` is set."""

    def __init__(self, aside=True):
        self.scored_by_host = aside
        self.let = threading.Event()

    def quality(self, found):
        assert self.let.wait(10)
        return found["score"]


def evaluations(program, scores, round_="0.7.0"):
    spec = resolve(load("ssd"), task="proxy", settings=[f"rules.round={round_}"]).spec
    answers = iter(scores)
    mesh = SimpleNamespace(
        evaluate=lambda batches: {"count": 3.0, "score": next(answers)}
    )
    quiet = SimpleNamespace(evaluating=lambda s: None, evaluated=lambda *a: None)
    return Evaluations(spec, mesh, program, Log(), quiet)


def test_a_score_comes_in_beside_the_training_and_is_logged_then():
    program = Program()
    run = evaluations(program, [0.9])
    assert run.predict(4, iter(())) == 3
    assert not run.judge(wait=False) and run.unjudged == 4
    assert run.log.said == [("eval_start", 4), ("eval_stop", 4)]
    program.let.set()
    assert run.judge(wait=True) and run.quality == 0.9 and run.unjudged is None
    assert run.log.said[2:] == [("eval_accuracy", 4, 0.9)]
    assert not run.judge(wait=True)  # an evaluation is judged once
    run.close()


@pytest.mark.parametrize(("aside", "round_"), [(False, "0.7.0"), (True, "0.6.0")])
def test_a_score_stands_inside_of_its_evaluation_where_it_must(aside, round_):
    program = Program(aside)
    program.let.set()
    run = evaluations(program, [0.1], round_)
    run.predict(0, iter(()))
    keys = [said[0] for said in run.log.said]
    assert keys == ["eval_start", "eval_accuracy", "eval_stop"]
    assert not run.judge(wait=False) and run.quality == 0.1 and run.unjudged is None
    run.close()


def test_what_goes_wrong_in_scoring_ends_the_run():
    program = Program()
    program.quality = lambda found: 1 / 0
    run = evaluations(program, [0.1])
    run.predict(0, iter(()))
    with pytest.raises(ZeroDivisionError):
        run.judge(wait=True)
    run.close()
