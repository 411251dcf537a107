"""The tables of docs/scale.md, of a storm's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import scale


def storm(**more: Any) -> dict[str, Any]:
    edge = {"cpu": 0.012, "memory": 130_000_000, "memory_each": 13_000.0}
    images = {"cpu": 0.003, "memory": 118_000_000, "memory_each": -2.0}
    parts = {"edge": edge, "images": images}
    return {"machines": 2000, "server": {"cpu": 0.015}, "parts": parts, "waiting": None} | more


def test_the_busiest_part_sets_the_pace() -> None:
    row = scale.pace({"unknown": storm()}).splitlines()[2]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "unknown",
        "15.0 ms",
        "edge, 12.0 ms",
        "5,000",
        "2.0 min",
        "20.0 min",
        "yes",
        "no: 2 servers",
    ]


def test_what_waits_costs_cores_and_memory_for_each() -> None:
    storms = {
        "unknown": storm(waiting={"edge": 0.12, "images": 0.0}),
        "in a cluster": storm(waiting={"edge": 0.02, "images": 0.0}),
    }
    rows = scale.waiting(storms).splitlines()[2:]
    assert "| edge | 130 MB | 13.0 kB | 0.52 cores, 234 MB | 5.02 cores, 1,404 MB |" in rows
    assert "| images | 118 MB | -0.0 kB | 0.00 cores, 118 MB | 0.00 cores, 118 MB |" in rows
    assert scale.waiting({"unknown": storm()}) == ""


def test_the_tables_are_written_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, figures = tmp_path / "scale.md", tmp_path / "storm.json"
    page.write_text(f"before\n{scale.BEGIN}\nold\n{scale.END}\nafter\n")
    figures.write_text(json.dumps({"unknown": storm()}))
    monkeypatch.setattr(scale, "PAGES", tmp_path)
    monkeypatch.setattr("sys.argv", ["scale", str(figures)])
    scale.main()
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert "From 2,000 machines:" in lines


def test_the_page_has_a_place_for_them() -> None:
    page = (scale.PAGES / "scale.md").read_text()
    assert page.index(scale.BEGIN) < page.index(scale.END)
