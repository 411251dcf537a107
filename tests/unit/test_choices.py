"""What people choose by name has one record each: a power driver, and a test of a burn-in, that are
planted there alone appear at every door, or are missed by a check."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from cod import choices
from cod.choices import (
    BurninTest,
    Choice,
    DeliveryState,
    FileServerDriverKind,
    LeastWipe,
    PowerDriverKind,
    SingleRight,
    SwitchDriverKind,
    Wipe,
)
from cod.model import Send
from cod.power.loading import consoles, drivers
from cod.switches import loading as switches
from tests import manual
from trampoline.burnin import run

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    '    NONE = (\n        "none",': (
        '    ABACUS = ("abacus", "beads", PowerAbilities(measure=True))\n'
    ),
    '    MEMORY = "memory"': '    FAN = "fan", "Fans"\n',
    '    OWNER = "owner"': '    GUEST = "guest", "reads one page"\n',
}
"""Lines of `cod/choices.py`, and what stands in front of them in a child's copy."""
DOORS = """
import json, sys, types
module = types.ModuleType("cod.choices")
sys.modules["cod.choices"] = module
exec(compile(sys.stdin.read(), "choices.py", "exec"), module.__dict__)

import click
from cod import init
from cod.cli.nodes.burnin import burnin
from cod.cli.nodes.node import set_
from cod.cli.people.member import invite
from cod.power import loading
from cod.web.portal.pages import groups
from cod.web.api.resources.jobs.burnins import BurninWish
from cod.web.api.resources.nodes import NodePatch
from cod.web.api.resources.invitations import Invite

def of(model):
    return [kind["enum"] for kind in model.model_json_schema()["$defs"].values() if "enum" in kind]

def option(command, name):
    (found,) = (one for one in command.params if one.name == name)
    return found

try:
    loading.drivers(None)
except ModuleNotFoundError as error:
    missed = str(error)
planted = types.ModuleType("cod.power.abacus")
class AbacusDriver:
    def __init__(self, reactor): pass
planted.AbacusDriver = AbacusDriver
sys.modules["cod.power.abacus"] = planted
print(json.dumps({
    "missed": missed,
    "drivers": list(loading.drivers(None)),
    "cli": [list(option(set_, "power_driver").type.choices),
            option(burnin, "tests").help,
            list(option(invite.commands["group"], "role").type.choices)],
    "api": [of(NodePatch), of(BurninWish), of(Invite)],
    "site file": init.reference(),
    "portal": groups.Role.abouts(),
}))
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    """What the doors of a child say whose records have the planted ones."""
    text = Path(choices.__file__).read_text()
    for before, planted in PLANTED.items():
        assert text.count(before) == 1
        text = text.replace(before, planted + before)
    child = subprocess.run(
        [sys.executable, "-c", DOORS], input=text, capture_output=True, text=True, cwd=ROOT
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.slow
def test_a_planted_power_driver_is_an_option_of_every_door(seen: Any) -> None:
    assert "abacus" in seen["cli"][0]
    assert any("abacus" in names for names in seen["api"][0])
    assert "abacus (beads)" in seen["site file"]
    assert "abacus" in seen["drivers"]


@pytest.mark.slow
def test_a_planted_power_driver_without_its_module_is_missed(seen: Any) -> None:
    assert seen["missed"] == "No module named 'cod.power.abacus'"


@pytest.mark.slow
def test_a_planted_test_of_a_burnin_is_an_option_of_every_door(seen: Any) -> None:
    assert "fan" in seen["cli"][1]
    assert any("fan" in names for names in seen["api"][1])
    assert "fan" in seen["site file"]


@pytest.mark.slow
def test_a_planted_role_is_an_option_of_every_door(seen: Any) -> None:
    assert "guest" in seen["cli"][2]
    assert any("guest" in names for names in seen["api"][2])
    assert seen["portal"]["guest"] == "reads one page"


def test_the_agent_has_a_share_of_the_time_for_each_test() -> None:
    assert list(run._SHARES) == BurninTest.names()


def test_every_driver_is_made_and_has_all_methods() -> None:
    """A method that is left out is abstract: the driver cannot be made."""
    made = drivers(object())
    assert {*made, "none"} == set(PowerDriverKind.names())
    for name, driver in made.items():
        assert driver.measures is PowerDriverKind(name).can.measure
        assert driver.switches_off is PowerDriverKind(name).can.switch_off
    assert set(consoles(object())) == choices.WITH_CONSOLES


def test_the_page_of_power_has_a_section_of_each_driver() -> None:
    sections = re.findall(r"^## `(\w+)`$", manual.page("power").read_text(), re.M)
    assert {*sections, "none"} == set(PowerDriverKind.names())


@pytest.mark.parametrize(
    ("page", "row", "choice"),
    [
        ("burnin", r"^\| ([a-z]+) \| [^|]*\| [^|]*\|$", BurninTest),
        ("people", r"^\| `(\w+)` \| .*\| (?:member, )?owner \|$", SingleRight),
    ],
)
def test_a_page_has_a_row_for_each(page: str, row: str, choice: type[Choice]) -> None:
    text = manual.page(page).read_text()
    assert re.findall(row, text, re.M) == choice.names()


def test_a_template_can_ask_for_the_ways_of_erasing_that_a_group_can() -> None:
    schema = (ROOT / "schema/template.rng").read_text()
    (rule,) = re.findall(r'<attribute name="wipe">(.*?)</attribute>', schema, re.S)
    assert re.findall(r"<value>(\w+)</value>", rule) == list(get_args(LeastWipe))
    assert {*get_args(LeastWipe)} == {*Wipe.names()} - {Wipe.TABLES}


def test_a_driver_that_machines_are_asked_through_has_a_remedy() -> None:
    assert all(kind.can.remedy for kind in PowerDriverKind if kind.can.tell)


def test_each_driver_of_a_switch_has_its_class() -> None:
    found = switches.drivers(None)
    assert list(found) == SwitchDriverKind.names()
    told = {kind.value for kind in SwitchDriverKind if kind.tells_macs}
    assert {name for name, one in found.items() if hasattr(one, "locate")} == told
    assert set(switches.mac_tables(None)) == told


def test_each_driver_of_a_file_server_has_its_functions_and_its_directory() -> None:
    for kind in FileServerDriverKind:
        assert (ROOT / f"cod/fileservers/{kind}.sh").is_file()
        assert kind.exports.startswith("/etc/")


def test_a_delivery_waits_until_it_is_over() -> None:
    send = Send(1, 1, "email", "", 0, 0.0, None, None, None, False, "")
    assert send.state is DeliveryState.WAITING
    assert replace(send, done_at=1.0).state is DeliveryState.GIVEN_UP
    assert replace(send, done_at=1.0, delivered=True).state is DeliveryState.DELIVERED
