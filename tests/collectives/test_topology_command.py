"""`mlperf-tpu topology`: what it draws and prints."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlperf_tpu.cli import main
from mlperf_tpu.topology.links import MESSAGE_US


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["topology", *arguments])


def test_a_mesh_is_drawn_with_its_pairs_of_rows_and_its_hole() -> None:
    result = run("6x4", "--failed", "2,2:2x2")
    assert result.exit_code == 0
    drawn = result.output.split("reduce-scatter x:\n")[1].split("\n\nreduce")[0]
    assert drawn == (
        "   0   1   2   3   4   5\n"
        "0  o---o---o---o---o---o\n"
        "   |                   |\n"
        "1  o---o---o---o---o---o\n"
        "\n"
        "2  o---o   x   x   o---o\n"
        "   |   |           |   |\n"
        "3  o---o   x   x   o---o"
    )


def test_a_torus_names_its_wrap_and_tiles_have_letters() -> None:
    result = run("4x4:torus", "--tile", "8")
    assert "closed by wrap-around: rows 0-3" in result.output
    assert "0  a---a---b---b" in result.output


def test_json_holds_the_forecast_alone_on_stdout() -> None:
    document = json.loads(run("--chips", "1024", "--json").output)
    assert document["schema"] == 1
    assert document["steps"] == 124  # 4 (N - 1)
    assert document["chips"] == 1024
    assert document["latency_ms"] == pytest.approx(124 * MESSAGE_US * 1e-3)
    assert document["sum_ms"] > document["busiest_link_ms"]


def test_the_note_of_a_fallback_is_printed() -> None:
    result = run("4x4", "--failed", "1,1:2x2", "--no-draw")
    assert "note: failed chips leave no whole ring" in result.output
    assert "1-D circuit" in result.output


def test_svg_shows_every_chip_and_marks_the_failed(tmp_path: Path) -> None:
    file = tmp_path / "grid.svg"
    assert run("8x6", "--failed", "2,2:4x2", "--svg", str(file)).exit_code == 0
    root = ElementTree.parse(file).getroot()
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    titles = [circle[0].text or "" for circle in circles]
    assert len(circles) == 2 * 48  # a panel a colour
    assert sum("failed" in title for title in titles) == 2 * 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a grid"),
        (["4x4", "--chips", "16"], "one of the two"),
        (["4x4", "--failed", "9"], "is not a place"),
        (["6x4", "--failed", "2,0:2x4"], "cut the grid"),
        (["4x4", "--sum", "tree"], "no gradient sum 'tree'"),
        (["8x8", "--peers", "0"], "0 is not in the range"),
        (["1x1"], "has nothing to sum"),
        (["4x4", "--mb", "0"], "give more than 0"),
        (["4x4", "--svg", "no/such/folder/a.svg"], "cannot write"),
        (["3x3", "--tile", "8"], "no tile of 8 replicas"),
        (["8x8", "--peers", "3"], "3 model-parallel peers"),
    ],
)
def test_a_wrong_call_leaves_with_2_and_says_why(
    arguments: list[str], says: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_the_topology_module_imports_neither_numpy_nor_tensorflow() -> None:
    code = (
        "import sys, mlperf_tpu.topology, mlperf_tpu.cli.topology; "
        "print([m for m in ('numpy', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
