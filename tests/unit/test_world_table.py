"""The table of simulated worlds: runs that are killed go on, and several are summed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from tests.world import table
from tests.world.table import WorldRow

ROW = WorldRow(1, "", 300, 40, 2.0, 1800.0, {"part killed": 2}, [])


def test_a_run_goes_on_where_one_that_was_killed_has_stopped(tmp_path: Path) -> None:
    file = tmp_path / "build/worlds.jsonl"
    assert list(islice(table.left(table.read([file])), 3)) == [1, 2, 3]
    own = replace(ROW, program=table.program())
    table.add(file, own)
    with file.open("a") as lines:
        lines.write('{"seed": 2, "pro')
    table.add(file, replace(own, seed=3))
    table.add(file, replace(own, seed=4, program="another"))
    assert [row.seed for row in table.read([file])] == [1, 3, 4]
    assert list(islice(table.left(table.read([file])), 3)) == [2, 4, 5]


def test_runs_are_summed_and_no_world_counts_twice(tmp_path: Path) -> None:
    files = tmp_path / "a", tmp_path / "b"
    for file in files:
        table.add(file, ROW)
    table.add(files[1], replace(ROW, seed=2, seen={"part killed": 1, "clock set": 5}))
    table.add(files[1], replace(ROW, program="other", troubles=["a node is lost", "another"]))
    lines = table.summed(table.read(files)).splitlines()
    assert {
        "| Programs | 2 |",
        "| Seeds | 3 |",
        "| Steps | 900 |",
        "| Hours of the worlds' own time | 1.5 |",
        "| Steps a second of processor time | 150 |",
        "| Seeds in which something is wrong | 1 |",
        "| clock set | 5 |",
    } <= set(lines)
    assert lines.index("| clock set | 5 |") == lines.index("| part killed | 5 |") - 1
    assert lines[-1] == "WRONG in seed 1 of other: a node is lost"
