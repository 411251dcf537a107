"""The server's own code in worlds by seed: nothing is lost, nobody is served twice, and planted
faults are found."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from unittest.mock import patch

import pytest

from cod.flows.nodes import hold
from tests.sampling import day_of
from tests.world.__main__ import main
from tests.world.faults import FAULTS, SEEDS, found
from tests.world.lives import live, row_of, told
from tests.world.plan import Act
from tests.world.switch import WAYS

pytestmark = pytest.mark.slow
A_DAY = 2
"""Planted faults of a day's sample; without one, all are planted."""
FOUND = {
    "no pass for an hour after a clock was ahead": "--seed 12 --long",
    "a VLAN is given away while a session puts a port into it": "--seed 5 --long",
    "a VLAN is given away whose ports the switch has said are home": "--seed 40766",
}
"""Worlds in which a fault of the server was found, as the command line's options. A seed means
another world after a change of the program: each fault has a test of its own as well."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the planted faults by the day."""
    if "fault" not in metafunc.fixturenames:
        return
    day = day_of(metafunc.config)
    usual = [name for name, fault in FAULTS.items() if not fault.dear]
    usual.sort(key=lambda name: hashlib.sha256(f"{day} {name}".encode()).digest())
    dear = [name for name, fault in FAULTS.items() if fault.dear]
    metafunc.parametrize(
        "fault",
        [
            *sorted(usual[:A_DAY] if day else usual),
            *(pytest.param(name, marks=pytest.mark.nightly) for name in dear),
        ],
    )


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (4, 6, 10, 20, 50))]
)
def test_a_world_comes_to_rest_with_nothing_wrong(seed: int) -> None:
    outcome = live(seed)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert outcome.steps >= 300


@pytest.mark.parametrize("seed", [1, 2, 6024])  # 6024: its only server is off for over a minute
def test_a_short_world_comes_to_rest_with_nothing_wrong(seed: int) -> None:
    outcome = live(seed, short=True)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert outcome.steps >= 300


@pytest.mark.nightly
@pytest.mark.parametrize("words", FOUND.values(), ids=FOUND)
def test_a_world_in_which_a_fault_was_found_comes_to_rest(words: str) -> None:
    assert main(words.split()) == 0


def test_another_process_lives_the_same_world_step_by_step() -> None:
    """The digest is of each step's time and process, and of the story: sets of names, which have
    another order in each process, decide nothing."""
    program = "from tests.world.lives import live; print(live(11).digest)"
    other = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    environment = os.environ | {"PYTHONHASHSEED": other}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert said.stdout.strip() == live(11).digest


def test_nothing_in_a_world_reads_the_machines_clock() -> None:
    """Only log lines have the time of the machine that the test runs on."""
    readers = set[str]()

    def reader(read: Callable[[], float]) -> Callable[[], float]:
        def watched() -> float:
            readers.add(sys._getframe(1).f_globals["__name__"])
            return read()

        return watched

    with (
        patch.object(time, "time", reader(time.time)),
        patch.object(time, "monotonic", reader(time.monotonic)),
    ):
        outcome = live(5)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert {name for name in readers if name.startswith(("cod", "trampoline"))} == set()
    assert "logging" in readers  # or nothing was watched


def test_a_planted_fault_is_found(fault: str) -> None:
    assert found(FAULTS[fault]) is not None, f"{fault}: not in {SEEDS} worlds"


@pytest.mark.parametrize(
    "seed", [10, *(pytest.param(n, marks=pytest.mark.nightly) for n in (18, 32))]
)
def test_a_site_whose_database_forgets_is_held_and_goes_on(seed: int) -> None:
    outcome = live(seed, short=True)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert outcome.seen["database forgot its last seconds"]
    assert outcome.seen[f"hold: {hold.LOST}"]


def test_a_port_that_is_where_the_database_wants_it_is_not_one_that_was_forgotten() -> None:
    """The switch put ports into their VLAN and its answer was late, so the database has not read
    them back; after the loss they are where it wants them, and their cluster is deleted."""
    acts = (
        Act(3.0, "isolate", 2, 0.6),
        Act(4.0, "switch", WAYS.index("answers late"), 0.35),
        Act(30.0, "forget", 1, 0.0),
        Act(75.0, "delete", 0, 0.5),
        Act(150.0, "tag", 0, 0.9),  # until then things go wrong
    )
    outcome = live(1, acts=acts, calm=True, short=True)
    assert not outcome.troubles, "\n".join(outcome.story)
    assert outcome.seen["switch: answers late"]
    assert outcome.seen[f"hold: {hold.LOST}"]


def test_what_other_processes_run_is_not_of_the_module_main() -> None:
    """A process that is spawned by `python -m tests.world` does not import that module."""
    assert {each.__module__ for each in (row_of, told)} == {"tests.world.lives"}


@pytest.mark.nightly
def test_a_failing_world_becomes_a_test_of_few_acts(capsys: pytest.CaptureFixture[str]) -> None:
    fault = FAULTS["an address is given twice"]
    with patch.object(fault.room, fault.name, fault.planted):
        line = told(1, short=True).splitlines()[-1]
        ((name, words),) = ast.literal_eval(f"{{{line}}}").items()
        assert fault.found in name
        assert len(words.split()) < 12
        assert main(words.split()) == 1
    assert fault.found in capsys.readouterr().out
    assert main(words.split()) == 0
