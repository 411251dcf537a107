"""The benchmarks' table: what was not measured now stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import pass_results
from tests.bench.arena import marks, page
from tests.bench.pass_results import LARGEST, Pass, Result

NEW = {
    "bench": "tftp",
    "name": "tftp lockstep, 9 clients",
    "value": 120.0,
    "unit": "MB/s",
    "peer": "tftpd-hpa",
    "peer_value": 100.0,
    "ratio": 1.2,
    "goal": ">= 0.8",
}


def test_page_without_results_is_written_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page("benchmarks").read_text()
    monkeypatch.setattr(bench, "PAGE", tmp_path / "benchmarks.md")
    bench.PAGE.write_text(text)
    bench.write_table(bench.stayed(text, []))
    assert bench.PAGE.read_text() == text


def test_a_row_that_stays_keeps_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show that a row which met its goal by 149.6 ms still meets it, though the page says 150."""
    line = "| Portal: a page | 150 ms |  |  | < 150 ms | met |"
    begin, end = marks("table")
    text = "\n".join([begin, "", "| heads |", "|---|", line, "", end])
    monkeypatch.setattr(bench, "PAGE", tmp_path / "benchmarks.md")
    bench.PAGE.write_text(text)
    bench.write_table(bench.stayed(text, []))
    assert line in bench.PAGE.read_text()


def test_rows_of_a_benchmark_measured_now_are_replaced_also_by_others() -> None:
    text = page("benchmarks").read_text()
    before = bench.stayed(text, [])
    after = bench.stayed(text, [NEW])
    assert any(row["name"].startswith("tftp ") for row in before)
    assert after == [row for row in before if not row["name"].startswith("tftp ")]


def test_rows_of_passes_are_replaced_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page("benchmarks").read_text()
    monkeypatch.setattr(pass_results, "PAGE", tmp_path / "benchmarks.md")
    pass_results.PAGE.write_text(text)
    pass_results.write_table([])
    assert pass_results.PAGE.read_text() == text
    one = Pass(0.1, 0.2, 0.3)
    pass_results.write_table([Result("MariaDB", LARGEST, one, one, one, 0.001, 1.0)])
    now = pass_results.PAGE.read_text().splitlines()
    changed = [pair for pair in zip(text.splitlines(), now, strict=True) if len(set(pair)) > 1]
    ((old, new),) = changed
    assert old.startswith("| 100,000 | 10,000 | MariaDB |")
    assert new.startswith("| 100,000 | 10,000 | MariaDB | 0.100 s | 0.200 s | 0.30 s |")
