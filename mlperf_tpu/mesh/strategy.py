"""A mesh over a `tf.distribute` strategy: how a TPU slice holds state and takes steps.

The state lives in variables that each replica reads and writes as its own
(synchronization ON_READ): what is equal on all replicas stays so by construction, and
sharded slots are each replica's. No variable is ever broadcast or averaged.

One host call takes many steps: a loop, in one tf.function, of the step over an iterator
that fetches batches to the devices ahead.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mlperf_tpu import collectives
from mlperf_tpu.data.batches import HostFed, Repeated
from mlperf_tpu.errors import BadInput, PlaceLost
from mlperf_tpu.mesh import (
    Batch,
    Evaluation,
    Feed,
    Metrics,
    Program,
    State,
    gathered,
)

# What TensorFlow raises when a worker or its network is gone.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


class StrategyMesh:
    """The strategy's replicas; `place` emits their collectives."""

    name = "tpu"

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        place: collectives.Place,
        steps_per_call: int = 50,
    ) -> None:
        self.strategy = strategy
        self.place = place
        self.n_replicas = strategy.num_replicas_in_sync
        self.steps_per_call = steps_per_call
        self._batches: Any = None
        self._input_error: Exception | None = None

    def start(
        self,
        program: Program,
        state: State,
        batch: Batch,
        eval_batch: Batch | None = None,
    ) -> None:
        """Takes the state, traces and compiles all that the run will call.

        `batch` is a global batch of the right shapes that may hold anything, and so is
        `eval_batch` where evaluation takes another; the step it is spent on is undone
        by taking the state again.
        """
        self._sharded = program.step.update.sharded
        self._feed = Feed(self.n_replicas, getattr(program, "infeed_hosts", 0))
        self._make_variables(state)
        self._step = self._function(program.step, self._assign)
        self._evaluation = self._function(
            lambda *arguments: everyones(program.evaluate(*arguments))
        )
        self._batches = None
        fake = self._iterator(Repeated(batch), self._feed)
        fake_eval = self._iterator(Repeated(eval_batch)) if eval_batch else fake
        with self._watched():
            # A trace of its own, which the loop calls, says what metrics there are.
            traced = self._step.get_concrete_function(fake)
            self._loop = self._loop_of(sorted(traced.structured_outputs))
            self._loop(fake, 1)
            self._evaluation(fake_eval)
            self._fetch()
        self.load(state)

    def load(self, state: State) -> None:
        """Takes another state of the program that was started."""
        with self._watched():
            self._load(state)

    def train(self, batches: Iterator[Batch], n_steps: int) -> Iterator[Metrics]:
        """Takes `n_steps` steps, one global batch each; yields each step's metrics,
        those of a host call at a time."""
        if batches is not self._batches:
            # The iterator reads ahead, so it is kept for the next block.
            self._batches = batches
            self._ahead = self._iterator(batches, self._feed)
        for first in range(0, n_steps, self.steps_per_call):
            n = min(self.steps_per_call, n_steps - first)
            with self._watched():
                metrics = {k: v.numpy() for k, v in self._loop(self._ahead, n).items()}
            for step in range(n):
                yield {name: float(values[step]) for name, values in metrics.items()}

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """The sums and predictions of all batches (mesh.gathered)."""
        iterator, done = self._iterator(batches), []
        with self._watched(), contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                done.append(self._evaluation(iterator))
        self._raise_input_error()
        with self._watched():
            return gathered(done)

    def fetch(self) -> State:
        """The state of all replicas as host arrays: slots as [replicas, row]."""
        with self._watched():
            return tf.nest.map_structure(lambda t: t.numpy(), self._fetch())

    def _make_variables(self, state: State) -> None:
        def variable(value):
            value = tf.convert_to_tensor(value)
            return tf.Variable(
                tf.zeros(value.shape, value.dtype),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
            )

        mine = {**state, "slots": self._slots(state, lambda rows: rows[0])}
        with self.strategy.scope():
            self._variables = tf.nest.map_structure(variable, mine)

        def load(state):
            replica = self.place.replica_id()
            slots = self._slots(state, lambda rows: tf.gather(rows, replica))
            self._assign({**state, "slots": slots})

        def read():
            state = self._read()
            return {
                **state,
                "slots": self._slots(state, lambda r: collectives.all_gather([r])[0]),
            }

        self._load = self._on_replicas(load)
        self._fetch = self._on_replicas(read)

    def _slots(self, state: State, change: Callable[[Any], Any]) -> Any:
        """The slots, each changed where they are sharded."""
        if not self._sharded:
            return state["slots"]
        return tf.nest.map_structure(change, state["slots"])

    def _read(self) -> State:
        return tf.nest.map_structure(lambda v: v.read_value(), self._variables)

    def _assign(self, state: State) -> None:
        tf.nest.map_structure(lambda v, new: v.assign(new), self._variables, state)

    def _on_replicas(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` on each replica; what the first one returned."""

        def on_replica(*arguments):
            with collectives.running_on(self.place):
                return function(*arguments)

        def call(*arguments):
            results = self.strategy.run(on_replica, arguments)
            return tf.nest.map_structure(
                lambda value: self.strategy.experimental_local_results(value)[0],
                results,
            )

        return tf.function(call, autograph=False)

    def _function(self, function: Callable[..., Any], keep: Any = None) -> Any:
        """`function(state, batch)` as a call of an iterator; with `keep`, which takes
        the new state, it returns (new state, metrics)."""

        def on_replica(batch):
            result = function(self._read(), batch)
            if keep is None:
                return result
            state, metrics = result
            keep(state)
            return metrics

        run = self._on_replicas(on_replica)
        return tf.function(lambda iterator: run(next(iterator)), autograph=False)

    def _loop_of(self, names: list[str]) -> Callable[..., Any]:
        """loop(iterator, n): the metrics of n steps, [n] of each name."""

        def loop(iterator, n):
            def body(step, arrays):
                metrics = self._step(iterator)
                return step + 1, {
                    k: a.write(step, metrics[k]) for k, a in arrays.items()
                }

            arrays = {name: tf.TensorArray(tf.float32, n) for name in names}
            _, arrays = tf.while_loop(
                lambda step, _: step < n, body, (0, arrays), parallel_iterations=1
            )
            return {name: array.stack() for name, array in arrays.items()}

        traced = tf.function(loop, autograph=False)
        return lambda iterator, n: traced(iterator, tf.constant(n))

    def _iterator(self, batches: Iterable[Batch], feed: Feed | None = None) -> Any:
        """The batches cut into the replicas' parts, fetched to the devices ahead."""
        feed = feed or Feed(self.n_replicas)
        options = tf.distribute.InputOptions(
            experimental_fetch_to_device=True, experimental_per_replica_buffer_size=2
        )
        return iter(
            self.strategy.distribute_datasets_from_function(
                lambda context: self._of_host(batches, context, feed), options
            )
        )

    def _of_host(
        self, batches: Iterable[Batch], context: Any, feed: Feed
    ) -> tf.data.Dataset:
        """What a host reads itself, a replica's part after the other. The only host of
        a slice is this process, which can say what is wrong with a file."""
        n_hosts = context.num_input_pipelines
        if n_hosts == 1:
            return self._of_this_process(batches, feed)
        if feed.infeed_hosts:
            raise BadInput(
                f"data.infeed_hosts: {feed.infeed_hosts}, but on a slice of {n_hosts} "
                "hosts each reads its own rows yet; give 0"
            )
        if not isinstance(batches, HostFed):
            raise BadInput(
                f"the slice has {n_hosts} hosts, but only one could read this data "
                "set; use a slice of one host (4 chips), or --fake-data"
            )
        parts = self.n_replicas // n_hosts

        def split(rows):
            return {k: tf.reshape(v, _split(v.shape, parts)) for k, v in rows.items()}

        rows = batches.on_host(context.input_pipeline_id, n_hosts)
        return rows.map(split).unbatch().prefetch(2 * parts)

    def _of_this_process(self, batches: Iterable[Batch], feed: Feed) -> tf.data.Dataset:
        batches = iter(batches)
        first = next(batches)
        # Shapes alone: whose turn it is stays as it was.
        signature = tf.nest.map_structure(
            _spec, Feed(self.n_replicas, feed.infeed_hosts)(first)[0]
        )
        return tf.data.Dataset.from_generator(
            lambda: self._noting_errors(itertools.chain([first], batches), feed),
            output_signature=signature,
        ).prefetch(2 * self.n_replicas)

    def _noting_errors(self, batches: Iterator[Batch], feed: Feed) -> Iterator[Batch]:
        """The replicas' parts one after the other. TensorFlow would turn an error of
        the data set into one of its own."""
        try:
            for batch in batches:
                yield from feed(batch)
        except Exception as error:
            self._input_error = error

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Tells a lost worker and an error of the data from others."""
        try:
            yield
        except _LOST as error:
            first_line = str(error.message).partition("\n")[0]
            raise PlaceLost(f"a worker of the TPU went away: {first_line}") from error
        except tf.errors.OutOfRangeError as error:
            self._raise_input_error(error)
            raise

    def _raise_input_error(self, cause: Exception | None = None) -> None:
        error, self._input_error = self._input_error, None
        if error is not None:
            raise error from cause


def everyones(evaluation):
    """The sums over all replicas, by one all-reduce, and the predictions of all."""
    sums = {k: v for k, v in evaluation.items() if not v.shape.rank}
    rows = {k: v for k, v in evaluation.items() if v.shape.rank}
    totals = collectives.all_reduce(list(sums.values()))
    of_all = collectives.all_gather(list(rows.values())) if rows else []
    return dict(zip(sums, totals, strict=True)) | {
        k: tf.reshape(v, [-1, *v.shape[2:]]) for k, v in zip(rows, of_all, strict=True)
    }


def _split(shape: Any, parts: int) -> list[int]:
    return [parts, shape[0] // parts, *shape[1:]]


def _spec(value: np.ndarray) -> tf.TensorSpec:
    return tf.TensorSpec(value.shape, value.dtype)
