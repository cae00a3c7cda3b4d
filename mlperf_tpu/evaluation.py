"""The evaluations of a run: predicted on the mesh, scored by the host, logged.

A program whose scores take the host a while says so (`scored_by_host`): a thread then
scores one evaluation while the mesh trains on, as the published runs did
(google_submissions.md 3.8). Round 0.6's logs want the score inside of its block, so
there the training waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mlperf_tpu.log.write import RunLog
from mlperf_tpu.mesh import Mesh
from mlperf_tpu.progress import Progress
from mlperf_tpu.spec import Spec


@dataclass
class _Pending:
    last_epoch: int
    count: int
    score: Future[float]


class Evaluations:
    """Of one run, in order. `quality` is the newest score, None before the first."""

    def __init__(
        self, spec: Spec, mesh: Mesh, program: Any, log: RunLog, progress: Progress
    ) -> None:
        self.spec, self.mesh, self.program = spec, mesh, program
        self.log, self.progress = log, progress
        self.quality: float | None = None
        self._pending: _Pending | None = None
        self._scorer = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        aside = getattr(program, "scored_by_host", False)
        self._waits = not aside or spec.rules.round == "0.6.0"

    @property
    def unjudged(self) -> int | None:
        """The last epoch of the evaluation that is being scored."""
        return None if self._pending is None else self._pending.last_epoch

    def predict(self, last_epoch: int, batches: Iterator[Any]) -> int:
        """Evaluates on the mesh after `last_epoch`, counted from 0; returns how many
        examples were counted. The score is left to `judge`."""
        assert self._pending is None, "the evaluation before was not judged"
        began = time.monotonic()
        self.log.start("eval_start", epoch_num=last_epoch)
        found = self.mesh.evaluate(batches)
        score = self._scorer.submit(self.program.quality, found)
        self._pending = _Pending(last_epoch, int(found["count"]), score)
        if self._waits:
            self._log_score()
        self.log.end("eval_stop", epoch_num=last_epoch)
        self.progress.evaluating(time.monotonic() - began)
        return int(found["count"])

    def judge(self, wait: bool) -> bool:
        """Whether the newest score reaches the target, once it is known; `wait` for it,
        or say no as long as it is not."""
        if self._pending is None or not (wait or self._pending.score.done()):
            return False
        if not self._waits:
            self._log_score()
        target, last_epoch = self.spec.rules.target, self._pending.last_epoch
        self._pending = None
        assert self.quality is not None
        self.progress.evaluated(
            last_epoch + 1, self.quality, target.value, target.metric
        )
        return self.quality >= target.value

    def close(self) -> None:
        self._scorer.shutdown(cancel_futures=True)

    def _log_score(self) -> None:
        assert self._pending is not None
        self.quality = self._pending.score.result()
        self.log.event(
            "eval_accuracy",
            self.quality,
            epoch_num=self._pending.last_epoch,
            eval_samples=self._pending.count,
        )
