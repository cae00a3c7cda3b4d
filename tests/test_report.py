"""report: one page that needs nothing else, safe and readable."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlperf_tpu.cli import main

VOID = {"meta", "path", "use", "br"}


def write_run(
    path: Path, *, system: str, final: float = 0.76, step_s: float = 40
) -> None:
    """A ResNet-50 log of ten evaluations, the last at `final`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at, lines = 1_593_000_000_000, []

    def log(key: str, value: Any = None, after_s: float = 0.0, **metadata: Any) -> None:
        nonlocal at
        at += round(after_s * 1000)
        body = {"time_ms": at, "key": key, "value": value, "metadata": metadata}
        lines.append(":::MLLOG " + json.dumps({"namespace": "", **body}))

    for key, value in (
        ("submission_benchmark", "resnet"),
        ("submission_division", "closed"),
        ("submission_platform", system),
        ("global_batch_size", 4096),
        ("submission_org", "<script>alert(1)</script> $x^2$ \\1"),
    ):
        log(key, value)
    log("init_start", None, 1)
    log("init_stop", None, 60)
    log("run_start", None, 1)
    for block in range(10):
        log("eval_start", None, step_s * 0.8, epoch_num=4 * block + 4)
        value = final if block == 9 else 0.4 + block * 0.03
        log("eval_accuracy", value, step_s * 0.2, epoch_num=4 * block + 4)
        log("eval_stop", None, 0, epoch_num=4 * block + 4)
    log("run_stop", None, 0.5, status="success" if final >= 0.759 else "aborted")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    for system in ("tpu-v3-32", "tpu-v3-128"):
        for number in range(3):
            folder = tmp_path / "results" / system / "resnet"
            final = 0.7 if number == 2 else 0.76
            write_run(
                folder / f"result_{number}.txt",
                system=system,
                final=final,
                step_s=40 + number,
            )
    out = tmp_path / "page.html"
    done = CliRunner().invoke(
        main, ["report", str(tmp_path / "results"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    return out


class Balanced(HTMLParser):
    """Fails on a tag closed out of order; collects ids and referenced names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_in_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "http:" not in text and "https:" not in text and "//" not in text
    assert "<script" not in text and "<link" not in text and "@import" not in text
    assert "default-src 'none'" in text


def test_the_page_is_well_formed_and_its_ids_unique(page: Path) -> None:
    parser = Balanced()
    text = page.read_text(encoding="utf-8")
    parser.feed(text)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    for name in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert name in parser.ids


def test_every_picture_has_a_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r"<svg[^>]*>", text)
    assert len(pictures) == 5  # Two an entry, and the scaling curve.
    for one in pictures:
        assert 'role="img"' in one
        assert re.search(r'aria-label="[^"]{20,}"', one)
    assert "target 0.759" in text


def test_pictures_take_the_pages_colours(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "color-scheme: light dark" in text
    assert text.count("currentColor") > 50
    assert "#000000" not in text and "#ffffff" not in text and "#010203" not in text


def test_scores_runs_findings_and_settings_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in ("Scores", "Runs", "Findings", "Hyperparameters", "did not converge"):
        assert words in text
    assert "global_batch_size" in text and "4096" in text
    assert "cache_clear.missing" in text
    assert "Scaling, with Google" in text


def test_text_of_a_log_stays_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in text


def test_equal_runs_make_an_equal_page(page: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    CliRunner().invoke(main, ["report", str(tmp_path / "results"), "--out", str(again)])
    assert again.read_bytes() == page.read_bytes()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path / "result_0.txt", system="x")
    out = str(tmp_path / "none" / "page.html")
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--out", out])
    assert done.exit_code == 2
    assert "cannot write" in done.output


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
@pytest.mark.parametrize("dark", [False, True])
def test_chromium_draws_it(page: Path, tmp_path: Path, dark: bool) -> None:
    assert BROWSER is not None
    shot = tmp_path / "page.png"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--force-dark-mode"] if dark else []
    command += [f"--screenshot={shot}", "--window-size=1000,2000", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert shot.stat().st_size > 20_000
