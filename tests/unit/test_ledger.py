"""The ledger of what tests cost: arithmetic, files, and what is counted."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ledger
from tests.ledger import Cost, Machines

A, B = "tests/unit/test_a.py", "tests/net/test_b.py"


def test_costs_add_up() -> None:
    assert Cost(1, 0.5, 2.0, 1, 0, 3) + Cost(2, 1.5, 1.0, 0, 4, 0) == Cost(3, 2.0, 3.0, 1, 4, 3)


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    costs = {A: Cost(3, 2.0, 3.5, 1, 4, 3), B: Cost(1)}
    ledger.write(costs, tmp_path / "l.tsv")
    assert ledger.read(tmp_path / "l.tsv") == costs
    assert (tmp_path / "l.tsv").read_text().splitlines()[1].startswith(B)  # sorted
    assert ledger.read(tmp_path / "absent") == {}


def test_the_last_run_replaces_its_files_and_gone_files_go() -> None:
    kept = {A: Cost(9, 9.0), B: Cost(1, 1.0), "tests/unit/test_gone.py": Cost(1)}
    assert ledger.folded(kept, {A: Cost(2, 4.0)}, [A, B]) == {A: Cost(2, 4.0), B: Cost(1, 1.0)}


@pytest.mark.parametrize(
    ("option", "args", "right"),
    [
        ({}, ["tests"], True),
        ({"markexpr": "not nightly"}, [], True),
        ({"markexpr": "not slow"}, [], False),
        ({"keyword": "dhcp"}, [], False),
        ({"maxfail": 1}, [], False),
        ({"hypothesis_profile": "fast"}, [], False),
        ({}, ["tests/unit/test_a.py::test_one"], False),
    ],
)
def test_only_runs_of_whole_files_count(
    option: dict[str, Any], args: list[str], right: bool
) -> None:
    asked = argparse.Namespace(**{"markexpr": "", "keyword": "", "maxfail": 0} | option)
    assert ledger.whole(asked, args) == right


def test_the_page_gets_a_table_by_folder_and_keeps_the_rest() -> None:
    page = "before\n<!-- ledger -->\nformer\n<!-- /ledger -->\nafter\n"
    made = ledger.paged(page, {A: Cost(2, 4.0, 5.0, 0, 0, 1), B: Cost(1, 1.0, 9.0, 2, 3, 0)})
    assert made.startswith("before\n<!-- ledger -->\n| Folder")
    assert made.endswith("<!-- /ledger -->\nafter\n")
    assert "| `tests/unit` | 1 | 2 | 4 | 5 | 0 | 0 | 1 |" in made
    assert "| all | 2 | 3 | 5 | 14 | 2 | 3 | 1 |" in made
    assert "former" not in made


def test_the_dearest_come_first() -> None:
    lines = ledger.dearest({A: Cost(1, 1.0), B: Cost(1, 2.0)}, 1)
    assert [line.split()[-1] for line in lines] == ["file", B, "files"]


def test_machines_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "machines"
    machines = Machines(path)
    assert machines.new() == (0, 0)
    path.write_text('{"event": "cold", "machine": "m1"}\n{"event": "restored", "machine": "m2"}\n')
    assert machines.new() == (1, 1)
    with path.open("a") as file:
        file.write('{"event": "cold", "machine"')  # half a line: another process is writing
    assert machines.new() == (0, 0)
    with path.open("a") as file:
        file.write(': "m3"}\n')
    assert machines.new() == (1, 0)


@pytest.mark.slow  # a process that imports pytest
def test_a_daemon_is_a_process_that_nobody_waits_for_at_once() -> None:
    """Counted in a process of its own: a hook stays."""
    code = """
import subprocess, sys
from tests.ledger import Daemons
daemons = Daemons()
subprocess.run(["true"])
subprocess.check_output(["true"])
subprocess.call(["true"])
with subprocess.Popen(["true"]), subprocess.Popen(["true"]):
    pass
print(daemons.number)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ledger.ROOT, check=True, capture_output=True, text=True
    )
    assert told.stdout == "2\n"


BURN = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.slow  # four processes
@pytest.mark.parametrize("grouped", [True, False], ids=["by group", "by tree"])
def test_the_meter_counts_processes_that_end_and_that_go_on(grouped: bool) -> None:
    """In a process of its own, which a meter moves into another control group."""
    code = f"""
import subprocess, sys, os
from tests import ledger
if not {grouped}:
    ledger._new_group = lambda name: None
meter = ledger.Meter(f"test-{{os.getpid()}}")
if {grouped} and meter._group is None:
    sys.exit(3)
before = meter.cpu()
subprocess.run([sys.executable, "-c", {BURN!r}])
still = "import sys\\n" + {BURN!r} + "\\nprint(flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", still], stdin=-1, stdout=-1) as going:
    going.stdout.readline()
    print(meter.cpu() - before)
    going.stdin.close()
meter.leave()
"""
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ledger.ROOT, capture_output=True, text=True
    )
    if told.returncode == 3:
        pytest.skip("no control group can be made here")
    assert 0.55 < float(told.stdout) < 1.2, told.stderr  # ticks of 10 ms are cut
