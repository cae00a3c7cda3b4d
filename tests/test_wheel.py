"""A wheel in an environment of its own, outside the checkout, runs the commands."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The command of a fresh environment that holds the wheel; its dependencies are
    the tests' own, put on its path."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run([*build, "--outdir", folder, ROOT], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True, capture_output=True)
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    # A plain path: the checkout's editable install is not followed from it.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(*arguments):
        done = subprocess.run(
            [folder / "env" / "bin" / "mlperf-tpu", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert str(ROOT) not in done.stdout + done.stderr
        return done

    return run


def test_it_lists_and_shows(installed):
    assert "resnet50" in installed("list").stdout
    assert "31.2" in installed("show", "resnet50", "--chips", "1024").stdout


def test_it_trains(installed):
    done = installed(
        *("train", "resnet50", "--max-steps", "1", "--out", "run", "--devices", "2"),
        *("--set", "model.stages=[[1, 64]]"),
    )
    assert done.returncode == 1, done.stderr
    assert "--max-steps 1 done" in done.stdout
