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
    assert list(islice(table.left(table.read([file])), 3)) == [(1, True), (2, True), (3, True)]
    own = replace(ROW, program=table.program(), short=True)
    table.add(file, own)
    with file.open("a") as lines:
        lines.write('{"seed": 2, "pro')
    table.add(file, replace(own, seed=3))
    table.add(file, replace(own, seed=4, program="another"))
    table.add(file, replace(own, seed=5, short=False))
    rows = table.read([file])
    assert [row.seed for row in rows] == [1, 3, 4, 5]
    assert list(islice(table.left(rows), 3)) == [(2, True), (4, True), (5, True)]
    assert list(islice(table.left(rows, 4, long=True), 2)) == [(4, False), (6, False)]


def test_each_tenth_of_many_worlds_has_its_long_form() -> None:
    assert [seed for seed, short in islice(table.left([]), 20) if not short] == [10, 20]


def test_runs_are_summed_and_no_world_of_several_programs_counts_twice(tmp_path: Path) -> None:
    files = tmp_path / "a", tmp_path / "b"
    for file in files:
        table.add(file, ROW)
    table.add(files[0], replace(ROW, short=True))
    table.add(files[1], replace(ROW, seed=2, seen={"part killed": 1, "clock set": 5}))
    table.add(files[1], replace(ROW, program="other", troubles=["a node is lost", "another"]))
    lines = table.summed(table.read(files)).splitlines()
    assert {
        "| Programs | 2 |",
        "| Worlds | 3 |",
        "| of them in their short form | 1 |",
        "| Runs of them | 4 |",
        "| Steps | 1,200 |",
        "| Fewest steps of a world | 300 |",
        "| Hours of the worlds' own time | 2.0 |",
        "| Steps a second of processor time | 150 |",
        "| Runs in which something is wrong | 1 |",
        "| clock set | 5 |",
    } <= set(lines)
    assert lines.index("| part killed | 7 |") == lines.index("| clock set | 5 |") - 1
    assert lines[-1] == "WRONG in SEED=1 LONG=1 of other: a node is lost"
