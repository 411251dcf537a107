"""Traces in Standard Workload Format: what is read of them, what is passed over, what is refused
with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.sim.scenario.swf import SwfError, SwfJob, load, parse
from tests.unit.swf_lines import HEADER, line


def test_the_fields_of_a_job() -> None:
    log = parse([line(9, 100, runtime=3600, procs=16, asked=7200)])
    assert log.jobs == (SwfJob(9, 100.0, 3600.0, 16, 7200.0, 7, 3, 2),)


def test_the_header_is_read_up_to_the_first_job() -> None:
    log = parse([*HEADER.splitlines(), line(), "; MaxNodes: 3", "; Late: yes"])
    assert log.number("MaxNodes") == 64
    assert log.number("maxprocs") == 512
    assert log.header["note"] == "nothing: at all"
    assert log.number("Note") is None
    assert log.number("Late") is None
    assert "just words" not in log.header


def test_processors_that_were_asked_for_stand_in_for_those_allocated() -> None:
    assert parse([line(procs=-1, asked_procs=8)]).jobs[0].procs == 8
    assert parse([line(procs=4, asked_procs=8)]).jobs[0].procs == 4


def test_a_time_limit_may_be_missing() -> None:
    assert parse([line(asked=-1)]).jobs[0].asked is None
    assert parse([line(asked=0)]).jobs[0].asked is None


@pytest.mark.parametrize(
    "passed",
    [
        line(status=2),
        line(status=3),
        line(status=4),  # parts of a job that has its own line
        line(status=5, runtime=-1),
        line(runtime=-1),
        line(procs=-1),
        line(procs=0, asked_procs=0),
    ],
)
def test_what_is_no_job_that_ran_is_passed_over(passed: str) -> None:
    log = parse([line(1), passed])
    assert len(log.jobs) == 1
    assert log.passed_over == 1


def test_a_cancelled_job_that_ran_counts() -> None:
    assert len(parse([line(status=5, runtime=30)]).jobs) == 1


def test_jobs_are_put_in_order() -> None:
    log = parse([line(1, 50), line(2, 10), line(3, 50)])
    assert [job.number for job in log.jobs] == [2, 1, 3]
    assert log.days == pytest.approx((50 + 60 - 10) / 86400)


def test_an_empty_trace() -> None:
    log = parse([HEADER, "", "   "])
    assert log.jobs == ()
    assert log.days == 0


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ("1 2 3", "a job has 18 fields, this line has 3"),
        (line().replace("60", "x60"), "field 4 should be a number, not 'x60'"),
        (line().replace("60", "nan"), "field 4 should be a number, not 'nan'"),
        (line().replace("60", "inf"), "field 4 should be a number, not 'inf'"),
        (line(submit=-5), "field 2, the submit time, should not be negative: -5"),
        ("\x00\x01\x02", "a job has 18 fields, this line has 1"),
    ],
)
def test_a_malformed_line_is_named(bad: str, sentence: str) -> None:
    with pytest.raises(SwfError) as error:
        parse([line(1), "; a comment", "", bad], "log.swf")
    assert str(error.value) == f"log.swf: line 4: {sentence}"


def test_fields_beyond_the_formats_are_ignored() -> None:
    log = parse([line(1), line(2, procs=8) + " 4096 -1 cl_zewura", line(3) + " 5"])
    assert log.jobs == parse([line(1), line(2, procs=8), line(3)]).jobs
    assert log.remarks("log.swf") == [
        "log.swf: lines with more than 18 fields, of which the first 18 were read: 2"
    ]
    assert parse([line(1)]).remarks("log.swf") == []


def test_plain_and_gzip_are_the_same(tmp_path: Path) -> None:
    text = HEADER + "\n".join(line(n, n * 10) for n in range(1, 20)) + "\n"
    (tmp_path / "plain.swf").write_text(text)
    with gzip.open(tmp_path / "packed.swf.gz", "wt") as file:
        file.write(text)
    (tmp_path / "misnamed.swf").write_bytes((tmp_path / "packed.swf.gz").read_bytes())
    plain = load(tmp_path / "plain.swf")
    assert len(plain.jobs) == 19
    assert plain == load(tmp_path / "packed.swf.gz") == load(tmp_path / "misnamed.swf")


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(line(n, n) for n in range(1, 2000)).encode())
    (tmp_path / "cut.swf.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SwfError, match="cannot be read"):
        load(tmp_path / "cut.swf.gz")
    (tmp_path / "spoilt.swf.gz").write_bytes(whole[:40] + b"\xff" * 20 + whole[60:])
    with pytest.raises(SwfError):
        load(tmp_path / "spoilt.swf.gz")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SwfError, match="No such file"):
        load(tmp_path / "none.swf")


@given(st.lists(st.text(max_size=200), max_size=10))
def test_rubbish_is_read_or_refused(lines: list[str]) -> None:
    try:
        parse(lines)
    except SwfError as error:
        assert "line " in str(error)  # noqa: PT017
