"""The benchmarks' table: what was not measured now stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench.arena import page

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


def test_rows_of_a_benchmark_measured_now_are_replaced_also_by_others() -> None:
    text = page("benchmarks").read_text()
    before = bench.stayed(text, [])
    after = bench.stayed(text, [NEW])
    assert any(row["name"].startswith("tftp ") for row in before)
    assert after == [row for row in before if not row["name"].startswith("tftp ")]
