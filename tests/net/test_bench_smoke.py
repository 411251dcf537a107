"""Every benchmark still runs in its smallest form, and yields the rows that it promises."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bench.__main__ import NAMES, module
from tests.bench.arena import RESULTS, ROOT, Smoke, put_pages, python
from tests.waiting import until

pytestmark = pytest.mark.slow  # a process for each, and what they all import

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
SMOKES: dict[str, Smoke] = {name: module(name).SMOKE for name in NAMES}


def runs() -> list[object]:
    """Return a case for each benchmark with a smallest form."""
    return [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.system] if smoke.system else []),
                *([pytest.mark.slow, pytest.mark.nightly] if smoke.slow else []),
                pytest.mark.skipif(
                    any(shutil.which(program, path=PATH) is None for program in smoke.needs),
                    reason=f"not installed: one of {', '.join(smoke.needs)}",
                ),
            ],
        )
        for name, smoke in SMOKES.items()
        if not smoke.test
    ]


@pytest.mark.in_turn(10)  # each is a process that loads the program
@pytest.mark.parametrize("name", runs())
def test_the_smallest_form_yields_the_rows_that_it_promises(name: str, tmp_path: Path) -> None:
    put_pages(tmp_path)
    done = subprocess.run(
        python("tests.bench", "--smoke", name),
        cwd=ROOT,
        env=os.environ | {"COD_BENCH_OUT": str(tmp_path), "ROUNDS": "1", "PATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    rows = json.loads((tmp_path / RESULTS.relative_to(ROOT) / f"{name}.json").read_text())
    promised = SMOKES[name].rows
    assert all(row["name"].startswith(promised) and math.isfinite(row["value"]) for row in rows)
    assert [
        start for start in promised if not any(row["name"].startswith(start) for row in rows)
    ] == []


@pytest.mark.parametrize("name", [name for name in NAMES if SMOKES[name].test])
def test_a_benchmark_without_a_smallest_form_names_the_test_that_runs_its_parts(name: str) -> None:
    assert f"bench_{name}" in (ROOT / SMOKES[name].test).read_text()


def is_running(process: Path) -> bool:
    """Return whether a process of /proc is there and not only waited for."""
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_removed(group: Path) -> bool:
    """Remove a control group; return whether it is gone, for which its processes have to be."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_benchmark_that_is_ended_by_a_signal_leaves_no_server(number: signal.Signals) -> None:
    name = f"t{os.getpid()}"
    program = f"""
import os, time
from tests.bench import arena
arena._only_one = lambda: open(os.devnull)
with arena.Arena("{name}") as place:
    server = lambda: (arena.COUNTED / "cgroup.procs").read_text().split()
    with place.serving(["sleep", "600"], server):
        print(arena.COUNTED, arena.SHARED, *server(), flush=True)
        time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout
        *groups, process = bench.stdout.readline().split()
        bench.send_signal(number)
    server = Path("/proc", process)
    until(lambda: not is_running(server), f"{server} has ended")
    namespaces = list(Path("/run/netns").glob(f"cod-{name}-?"))
    left = [group for group in map(Path, groups) if group.exists()]
    # a killed one cannot tidy up; the next benchmark replaces namespaces
    for each in namespaces:
        subprocess.run(["ip", "netns", "delete", each.name], check=True)
    for group in left:
        until(lambda group=group: is_removed(group), f"{group} is empty")
    assert number == signal.SIGKILL or not namespaces + left
