"""The tables of docs/scale, of a storm's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import scale
from tests.bench.arena import marks, page

MARKS = marks("storm", "tests.bench.scale")


def storm(**more: Any) -> dict[str, Any]:
    edge = {"cpu": 0.012, "memory": 130_000_000}
    images = {"cpu": 0.003, "memory": 118_000_000}
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
    fewer = storm(machines=1000)
    fewer["parts"]["edge"]["memory"] -= 13_000_000
    rows = scale.waiting(storms, {"unknown": fewer}).splitlines()[2:]
    assert "| edge | 130 MB | 13.0 kB | 0.52 cores, 234 MB | 5.02 cores, 1,404 MB |" in rows
    assert "| images | 118 MB | 0.0 kB | 0.00 cores, 118 MB | 0.00 cores, 118 MB |" in rows
    assert scale.waiting({"unknown": storm()}, {"unknown": fewer}) == ""


def test_the_tables_are_written_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, figures, fewer = (tmp_path / name for name in ("scale.md", "storm.json", "fewer.json"))
    page.write_text("\n".join(["before", MARKS[0], "old", MARKS[1], "after", ""]))
    figures.write_text(json.dumps({"unknown": storm()}))
    fewer.write_text(json.dumps({"unknown": storm(machines=200)}))
    monkeypatch.setattr(scale, "page", lambda name: tmp_path / f"{name}.md")
    monkeypatch.setattr("sys.argv", ["scale", str(figures), str(fewer)])
    scale.main()
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert "From 2,000 machines; memory from 200 and 2,000:" in lines


def test_the_page_has_a_place_for_them() -> None:
    text = page("scale").read_text()
    assert text.index(MARKS[0]) < text.index(MARKS[1])
