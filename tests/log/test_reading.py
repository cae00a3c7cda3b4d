"""Reading: encodings, line ends, glued and torn records, JSON that is none."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlperf_tpu.log.validate import FileReport, Options, validate

Write = Callable[..., Path]
Records = list[dict[str, Any]]


def rules_of(report: FileReport, profile: str = "official") -> set[str]:
    return {f.rule for f in report.findings if profile in f.profiles}


def test_a_clean_log_passes_every_profile(write: Write, records: Records) -> None:
    report = validate(write(records))
    assert report.verdicts == dict.fromkeys(("official", "rules", "published"), "pass")
    assert report.findings == []
    assert (report.ruleset, report.benchmark) == ("0.7.0", "resnet")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_line_ends(write: Write, records: Records, text: Any, ends: str) -> None:
    broken = text(records).replace("\n", ends) + ":::MLLOG {" + ends
    report = validate(write(broken))
    (finding,) = [f for f in report.findings if f.rule == "record.json"]
    assert finding.places[0].line == len(records) + 1
    assert report.verdicts["official"] == "fail"


def test_a_lone_cr_ends_a_record_not_a_physical_line(
    write: Write, records: Records, text: Any
) -> None:
    """A progress bar rewrites its line with \\r, and the record follows on it."""
    progress = "".join(f"{i}/100\r" for i in range(100))
    body = text(records).split("\n")
    body[7] = progress + body[7]
    body[9] = ":::MLLOG {"
    report = validate(write("\n".join(body)))
    (finding,) = [f for f in report.findings if f.rule == "record.json"]
    assert finding.places[0].line == 10


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_read_and_said_once(
    write: Write, records: Records, text: Any, encoding: str
) -> None:
    """The official checker finds nothing in them: its verdict stays, one reason."""
    report = validate(write(text(records).encode(encoding)))
    assert report.verdicts["official"] == "fail"
    assert rules_of(report) == {"input.encoding"}
    assert report.verdicts["rules"] == "pass"


def test_a_byte_order_mark_is_no_fault(
    write: Write, records: Records, text: Any
) -> None:
    report = validate(write(b"\xef\xbb\xbf" + text(records).encode()))
    assert report.findings == []


def test_invalid_utf8_is_read_with_a_warning(
    write: Write, records: Records, text: Any
) -> None:
    report = validate(write(text(records).encode().replace(b"ACME", b"AC\xffME")))
    assert report.verdicts["official"] == "pass"
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ("input.encoding", "warning")
    assert finding.places[0].line == 2


def test_nuls_between_records_are_passed_over(
    write: Write, records: Records, text: Any
) -> None:
    report = validate(write(text(records).encode().replace(b"\n", b"\n\0\0\0")))
    assert report.verdicts["official"] == "pass"


@pytest.mark.parametrize(
    "prefix", ["0: ", "[1,7]<stdout>:", "12:", "Binding: cpu 3 ", "100%|###| 3/3\r"]
)
def test_text_before_the_token_is_stripped(
    write: Write, records: Records, text: Any, prefix: str
) -> None:
    body = "".join(f"{prefix}{line}\n" for line in text(records).splitlines())
    assert validate(write(body)).verdicts["official"] == "pass"


def test_glued_records_are_all_read(write: Write, records: Records, text: Any) -> None:
    """The official checker reads the last of a line; here that loses the target."""
    body = text(records).splitlines()
    hit = next(i for i, line in enumerate(body) if '"value": 0.76,' in line)
    body[hit : hit + 2] = [body[hit] + body[hit + 1]]
    report = validate(write("\n".join(body)))
    assert report.verdicts["official"] == "pass"
    (finding,) = report.findings
    assert (finding.rule, finding.places[0].line) == ("record.glued", hit + 1)


def test_the_whole_log_on_one_line(write: Write, records: Records, text: Any) -> None:
    body = text(records).replace("\n", "")
    assert validate(write(body)).verdicts["official"] == "pass"


def test_a_token_inside_a_string_is_part_of_it(
    write: Write, records: Records, of: Any
) -> None:
    of("submission_org")["value"] = "A :::MLLOG {} B"
    assert validate(write(records)).findings == []


def test_a_torn_record_before_a_whole_one_is_a_warning(
    write: Write, records: Records, text: Any
) -> None:
    body = text(records).splitlines()
    body[3] = body[1][:50] + body[3]
    report = validate(write("\n".join(body)))
    assert report.verdicts["official"] == "pass"
    assert rules_of(report) == {"record.torn"}


def test_text_after_a_record_fails_as_it_does_officially(
    write: Write, records: Records, text: Any
) -> None:
    report = validate(write(text(records).rstrip() + " step 4\n"))
    assert report.verdicts["official"] == "fail"
    assert "record.trailing_text" in rules_of(report)


def _with_value(value: str, time: str = "1") -> str:
    head = f'{{"namespace": "", "time_ms": {time}, "key": "x", "value": '
    return f':::MLLOG {head}{value}, "metadata": {{}}}}\n'


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (_with_value("[" * 100_000 + "]" * 100_000), "record.nesting"),
        (_with_value('{"a":' * 50_000 + "1" + "}" * 50_000), "record.nesting"),
        (_with_value("9" * 5_000), "record.json"),
        (_with_value("'single'"), "record.json"),
        (_with_value("1", time="1" + "0" * 400), "record.time"),
        (_with_value("1", time="null"), "record.time"),
        (":::MLLOG [1, 2]\n", "record.fields"),
        (':::MLLOG "text"\n', "record.fields"),
        (':::MLLOG {"time_ms": 1, "value": 1, "metadata": {}}\n', "record.fields"),
        (':::MLLOG {"time_ms": 1, "key": "a", "value": 1}\n', "record.fields"),
        (":::MLLOG \n", "record.json"),
        (_with_value('"' + "a" * 2_000_000 + '"'), "record.size"),
    ],
)  # fmt: skip
def test_what_is_no_record_fails_with_its_line(
    write: Write, records: Records, text: Any, line: str, rule: str
) -> None:
    """Most of these end the official checker in a traceback."""
    report = validate(write(text(records) + line))
    assert report.verdicts["official"] == "fail"
    (finding,) = [f for f in report.findings if f.severity == "error"]
    assert (finding.rule, finding.places[0].line) == (rule, len(records) + 1)
    assert len(finding.places[0].actual) <= 300


def test_a_numeric_string_as_time_is_read_as_officially(
    write: Write, records: Records, of: Any
) -> None:
    of("run_stop")["time_ms"] = str(of("run_stop")["time_ms"])
    assert validate(write(records)).verdicts["official"] == "pass"


def test_duplicate_names_in_a_record_are_said(
    write: Write, records: Records, text: Any
) -> None:
    body = text(records).replace('"value": 0.76,', '"value": 0.76, "value": 0.1,')
    report = validate(write(body))
    assert report.verdicts["official"] == "fail"  # The last one counts: 0.1.
    assert "record.duplicate_name" in rules_of(report)


def test_a_token_without_its_space_is_named(
    write: Write, records: Records, text: Any
) -> None:
    report = validate(write(text(records).replace(":::MLLOG {", ":::MLLOG{")))
    assert report.verdicts["official"] == "fail"
    assert {"log.empty", "record.token"} == rules_of(report)


def test_an_empty_file_gets_one_message(write: Write) -> None:
    report = validate(write(b""))
    assert set(report.verdicts.values()) == {"fail"}
    assert [f.rule for f in report.findings] == ["log.empty"]


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(256)) * 40,
        b"\x1f\x8b\x08" + b"abc" * 99,
        b"PK\x03\x04zip",
        b"\0" * 9999,
    ],
    ids=["bytes", "gzip", "zip", "zeros"],
)
def test_binary_files_are_unreadable(write: Write, content: bytes) -> None:
    report = validate(write(content))
    assert set(report.verdicts.values()) == {"unreadable"}
    assert [f.rule for f in report.findings] == ["input.binary"]


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    os.mkfifo(path)
    report = validate(path)
    assert report.findings[0].places[0].actual == "a FIFO"


def test_a_device_is_refused(tmp_path: Path) -> None:
    assert validate("/dev/zero").verdicts["official"] == "unreadable"


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.symlink_to(path)
    assert validate(path).findings[0].rule == "input.open"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_said(write: Write, records: Records) -> None:
    path = write(records)
    path.chmod(stat.S_IWUSR)
    assert validate(path).findings[0].places[0].actual == "Permission denied"


def test_a_v06_log_read_as_v07_gets_one_error(write: Write, records: Records) -> None:
    body = "".join(
        f":::MLL {r['time_ms'] / 1e3} {r['key']}: "
        + json.dumps({"value": r["value"], "metadata": r["metadata"]})
        + "\n"
        for r in records
    )
    report = validate(write(body), Options(ruleset="0.7.0"))
    errors = [f for f in report.findings if f.severity == "error"]
    assert [f.rule for f in errors] == ["log.empty"]
    assert "--ruleset 0.6.0" in errors[0].hint


def test_intels_python_literals_are_read_by_published_alone(
    write: Write, data: Path
) -> None:
    (path,) = (data / "logs/v0.6/Intel").glob("*/minigo/result_0.txt")
    report = validate(path)
    assert report.verdicts["official"] == "fail"
    assert report.verdicts["published"] == "pass"


def test_infinity_and_nan_times_fail_without_a_traceback(
    write: Write, records: Records, text: Any, of: Any
) -> None:
    stop = str(of("run_stop")["time_ms"])
    for word in ("NaN", "Infinity", "-Infinity", "1e999"):
        report = validate(write(text(records).replace(stop, word)))
        assert report.verdicts["official"] == "fail"
        assert "clock.duration" in rules_of(report)
