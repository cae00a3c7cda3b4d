"""The child that compiles: what is read, what is kept, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main
from mlperf_tpu.errors import BadInput, RunFailed
from mlperf_tpu.pod import compile as compiling
from mlperf_tpu.pod.compile import DoesNotFit, Request, answer
from mlperf_tpu.pod.forecast import collective_part, layer, phases
from mlperf_tpu.pod.network import SWEEPS
from mlperf_tpu.topology import Topology
from tests.conftest import ROOT

pytest.importorskip("jax")
pytest.importorskip("libtpu")


def request_of(name: str, replicas: int = 8, partitions: int = 1) -> Request:
    ids = range(replicas * partitions)
    devices = [list(ids[k : k + partitions]) for k in ids[::partitions]]
    return Request(f"tests.pod.programs:{name}", "step", None, "v3:2x2", devices, 2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def toy(cache):
    return answer(request_of("Toy"), cache)


def test_every_op_has_its_phase_and_layer(toy) -> None:
    ops = toy.module.ops
    times: dict[tuple[str, str], int] = {}
    for op, phase in zip(ops, phases(ops), strict=True):
        key = (phase, layer(op))
        times[key] = times.get(key, 0) + op.cycles
    for expected in (
        ("forward", "layer0"),
        ("forward", "layer1"),
        ("backward", "layer1"),
        ("update", "(update)"),
    ):
        assert times[expected] > 1000
    assert sum(times.values()) == toy.module.cycles


def test_collectives_are_read_with_kind_bytes_and_groups(toy) -> None:
    found = toy.module.collectives
    parts = [collective_part(c, 8) for c in found]
    # Batch norm: two moments of 128 channels forwards, two sums backwards.
    norms = [c for c, p in zip(found, parts, strict=True) if p == "batch_norm"]
    assert [(c.kind, c.n_bytes) for c in norms] == [("all-reduce", 2 * 128 * 4)] * 2
    assert norms[0].groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    sums = [c for c, p in zip(found, parts, strict=True) if p == "gradient_sum"]
    weights = 9 * (3 * 128 + 128 * 128) * 4
    assert sum(c.n_bytes for c in sums) == pytest.approx(weights, abs=64)
    assert all(c.groups == (tuple(range(8)),) for c in sums)


def test_sizes_and_flops_are_the_steps(toy) -> None:
    assert toy.stats["state_bytes"]["weights"] == 9 * (3 * 128 + 128 * 128) * 4
    pixels = 2 * 16 * 16
    forward = 2 * pixels * 9 * (3 * 128 + 128 * 128)
    assert 2 * forward < toy.stats["flops"] < 4 * forward


def test_the_second_call_starts_no_process(toy, cache, monkeypatch) -> None:
    monkeypatch.setattr(compiling.subprocess, "Popen", None)
    again = answer(request_of("Toy"), cache)
    assert again.cached and not toy.cached
    assert again.module == toy.module and again.stats == toy.stats
    with pytest.raises(TypeError):  # another request is no hit
        answer(replace(request_of("Toy"), batch_per_replica=4), cache)


def test_a_damaged_entry_is_made_again(toy, cache) -> None:
    [file] = (cache / "requests").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert compiling._load(file) is None
    file.write_bytes(whole)
    assert compiling._load(file) is not None


def test_loops_are_multiplied_out(cache) -> None:
    module = answer(request_of("Loop"), cache).module
    [matmul] = [op for op in module.ops if op.op_name.endswith("while/matmul")]
    assert matmul.count == 7


def test_a_beam_search_over_a_split_vocabulary_compiles(cache) -> None:
    request = replace(request_of("Decodes", 4, 2), function="evaluate")
    collectives = answer(request, cache).module.collectives
    assert "all-to-all" not in {c.kind for c in collectives}


def test_the_stages_of_torus2d_stay_reduce_scatters(cache) -> None:
    found = answer(request_of("Torus"), cache).module.collectives
    lines = ((0, 1, 2, 3), (4, 5, 6, 7))
    sums = [c for c in found if c.groups == lines]
    # The second kernel's 144 tiles and what is less, filled up; 4 are libtpu's.
    kernel, rest = 4 * 9 * 128 * 128, 4 * 4096
    for kind in ("reduce-scatter", "all-gather"):
        moved = sum(c.n_bytes for c in sums if c.kind == kind)
        assert moved == pytest.approx(kernel + rest, rel=0.03), kind
    assert max(c.n_bytes for c in found if c.kind == "all-reduce") < rest


def test_what_does_not_fit_says_by_how_much(cache) -> None:
    with pytest.raises(DoesNotFit, match=r"GiB too much; the largest: activations"):
        answer(request_of("TooLarge"), cache)


def test_partitions_exchange_halos(cache, toy) -> None:
    module = answer(request_of("Toy", 4, 2), cache).module
    halos = [c for c in module.collectives if collective_part(c, 4) == "halo"]
    assert {"collective-permute"} <= {c.kind for c in halos}
    # Batch norm's groups of two replicas, which libtpu does not reduce over here, swap
    # their sums.
    norms = [c for c in module.collectives if collective_part(c, 4) == "batch_norm"]
    swaps = [c for c in norms if c.kind == "collective-permute"]
    assert [c.n_bytes for c in swaps] == [2 * 128 * 4] * 2
    assert swaps[0].groups == ((0, 1), (1, 0), (2, 3), (3, 2))
    # Two cores share what one does in the other; what they exchange is no cycles.
    assert module.cycles < toy.module.cycles


def test_a_partition_sums_and_gathers_its_part_alone(cache) -> None:
    module = answer(request_of("Sharded", 4, 2), cache).module
    over_replicas = [c for c in module.collectives if c.devices == "replica"]
    moved = sum(c.n_bytes for c in over_replicas if c.kind in SWEEPS)
    weights = 4 * (3 * 3 * 3 * 128 + 3 * 3 * 128 * 128)
    assert moved == weights  # half of them summed, half of them gathered


def test_ssd_v07_4096_statistics_need_no_ring_of_replicas(cache) -> None:
    ids = Topology.for_chips(4096).replicas(8).device_ids()
    request = replace(request_of("Averages"), topology="v3:128x32x1", devices=ids)
    found = answer(request, cache).module.collectives
    sums = {c.devices for c in found if c.kind == "all-reduce"}
    assert sums == {"both", "replica and partitions"}


def test_an_abort_of_the_child_is_one_line_and_a_log(tmp_path) -> None:
    with pytest.raises(RunFailed, match=r"aborted \(signal 6\).*its log: ") as failed:
        answer(request_of("Aborts"), tmp_path)
    message = str(failed.value)
    assert "\n" not in message
    assert Path(message.rpartition("its log: ")[2]).is_file()
    assert not list((tmp_path / "modules").iterdir())


def test_scalar_memory_that_is_full_is_not_said_to_be_hbm(tmp_path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Allocation (size=32768) would "
        "exceed memory (size=16384) :: #allocation21 [space=smem] :: all-reduce.546\n"
    )
    error = compiling._error(1, log, request_of("Toy"))
    assert not isinstance(error, DoesNotFit)
    assert "did not compile" in str(error) and "space=smem" in str(error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_plan_leaves_no_entry(tmp_path, number) -> None:
    code = (  # what a shell starts in the background ignores Ctrl-C
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from mlperf_tpu.cli import main; main(['plan', 'resnet50', '--chips=16'])"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    folder = tmp_path / "mlperf-tpu" / "plan"
    deadline = time.monotonic() + 60
    while not list(folder.glob("tmp*/request.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(number)
    assert child.wait(30) == 1
    assert not list(folder.glob("tmp*"))
    assert not list((folder / "modules").iterdir())


def test_the_pins_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = dict(p.split("==") for p in project["optional-dependencies"]["pod"])
    assert {k: compiling.PINNED[k] for k in pinned} == pinned


def test_a_wrong_or_missing_compiler_is_named_with_the_remedy(monkeypatch) -> None:
    def versions(found):
        def version(name):
            if name not in found:
                raise compiling.importlib.metadata.PackageNotFoundError(name)
            return found[name]

        monkeypatch.setattr(compiling.importlib.metadata, "version", version)

    versions({})
    with pytest.raises(BadInput, match=r"jax is not installed; pip install .*\[pod\]"):
        compiling.check_compiler()
    versions({**compiling.PINNED, "libtpu": "0.0.1"})
    with pytest.raises(
        BadInput, match=r"libtpu 0\.0\.1 are not known.*libtpu 0\.0\.52"
    ):
        compiling.check_compiler()


def test_plan_through_the_command_line(tmp_path, monkeypatch) -> None:
    """Small images and a network of ResNet-50's layers on one host's chips."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = (
        "model.stages=[[1, 64], [1, 128]]",
        "data.image_size=32",
        "training.global_batch=64",
        "training.length=90 epochs",
        "schedule.base_rate=1",
        "schedule.warmup=5 epochs",
        "batch_norm.span=16 examples",
    )
    settings = [word for value in small for word in ("--set", value)]
    call = ["plan", "resnet50", "--chips", "4", *settings]
    saved = tmp_path / "plan.json"
    done = CliRunner().invoke(main, [*call, "--json", "--save", str(saved)])
    assert done.exit_code == 0, done.output
    [row] = json.loads(done.stdout)["rows"]
    assert row["replicas"] == 8 and row["published"] is None
    step = row["step_ms"]
    parts = ("compute", "update", "gradient_sum", "batch_norm", "halo", "input")
    assert step["total"] == pytest.approx(sum(step[p] for p in parts), abs=1e-3)
    assert min(step[p] for p in ("compute", "update", "gradient_sum", "batch_norm")) > 0
    # Batch norm spans two replicas: 9 layers, forwards and backwards; the compiler may
    # make one sum of a shortcut's and its neighbour's.
    assert 9 < row["collectives"]["batch_norm"]["count"] <= 18

    began = time.monotonic()
    again = CliRunner().invoke(main, [*call, "--against", str(saved), "--profile"])
    assert again.exit_code == 0, again.output
    assert time.monotonic() - began < 3
    assert "stage2_block1/expand/conv" in again.stdout
    document = json.loads(saved.read_text())
    document["rows"][0]["step_ms"]["total"] *= 0.9
    saved.write_text(json.dumps(document))
    grown = CliRunner().invoke(main, [*call, "--against", str(saved)])
    assert grown.exit_code == 1 and "grown: " in grown.stdout
    assert os.listdir(tmp_path / "cache" / "mlperf-tpu" / "plan" / "requests")
