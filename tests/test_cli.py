"""The command line: quick without TensorFlow, clear about wrong calls."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlperf_tpu import __version__
from mlperf_tpu.cli import COMMANDS, main


def call(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["show", "resnet50", "--chips", "1024"]]
)
def test_commands_that_read_import_no_tensorflow(run_python, arguments):
    code = (
        "import sys; from mlperf_tpu.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'scipy', 'jax'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run_python("-c", code)


def test_help_lists_every_command_with_its_line():
    output = call("--help").output
    for name in COMMANDS:
        assert name in output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_listed_command_exists_under_its_name(name):
    assert call(name, "--help").exit_code == 0


def test_version():
    assert call("--version").output == f"mlperf-tpu, version {__version__}\n"


def test_python_m_is_the_command(run_python):
    assert run_python("-m", "mlperf_tpu", "--version").stdout.endswith(
        __version__ + "\n"
    )


def test_an_unknown_command_offers_the_nearest():
    done = call("trian")
    assert done.exit_code == 2
    assert "did you mean train?" in done.stderr


def test_an_unknown_benchmark_offers_the_nearest():
    done = call("show", "resnet")
    assert done.exit_code == 2
    assert "did you mean resnet50?" in done.stderr


def test_list_says_what_each_benchmark_lacks_here():
    [row] = [
        row
        for row in json.loads(call("list", "--json").output)["benchmarks"]
        if row["name"] == "resnet50"
    ]
    assert any("imagenet" in lack for lack in row["lacks"])
    assert ("v0.6-1024", 1024) in [(s["name"], s["chips"]) for s in row["scales"]]


def test_show_gives_each_value_with_its_origin():
    output = call("show", "resnet50", "--chips", "1024").output
    [line] = [x for x in output.splitlines() if x.startswith("schedule.base_rate")]
    assert "31.2" in line
    assert "Google tpu-v3-2048" in line
    assert "topology" in output


def test_show_json_holds_the_resolved_spec():
    shown = json.loads(call("show", "resnet50", "--chips", "4096", "--json").output)
    assert shown["schema"] == 1
    assert shown["spec"]["training"]["global_batch"] == 65536
    assert shown["facts"]["examples_per_replica"] == 8
