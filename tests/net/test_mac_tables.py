"""What switches say of a MAC, with a moved clock and switches whose answers are given by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from cod.model import Site, SiteRef, Switch
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.mac_tables import AT_ONCE, BATCH, PATIENCE, REST, MacTables

LEAF = Switch("leaf", "fake", "leaf.example", nodes_on=("p*",))
SPINE = replace(LEAF, name="spine")
Answer = Mapping[str, tuple[str, ...]]


class World:
    """Nodes that were on LEAF, or on the switch `before`."""

    def __init__(self, site: Site, *switches: Switch) -> None:
        self.clock = Clock()
        self.asked: list[tuple[str, list[str], Deferred[Answer]]] = []
        self.before: str | None = "leaf"
        drivers: Any = {"fake": self}
        site = replace(site, switches=switches)
        self.tables = MacTables(self.clock, self, drivers, SiteRef(site))

    def read(self, _flow: Any, _mac: str) -> Deferred[str | None]:
        return succeed(self.before)

    async def locate(self, target: SwitchTarget, macs: Collection[str]) -> Answer:
        answer: Deferred[Answer] = Deferred()
        self.asked.append((target.switch.name, list(macs), answer))
        return await answer

    def ask(self, mac: str) -> list[Any]:
        """Ask for a MAC; the answer is put into the list."""
        heard: list[Any] = []
        Deferred.fromCoroutine(self.tables.ports_of(mac)).addCallback(heard.append)
        return heard

    def answer(self, number: int, **ports: tuple[str, ...]) -> None:
        self.asked[number][2].callback(ports)

    @property
    def switches(self) -> list[str]:
        return [name for name, _, _ in self.asked]


def test_the_switch_that_the_node_was_on_is_asked_first(site: Site) -> None:
    world = World(site, SPINE, LEAF)
    heard = world.ask("a")
    world.answer(0, a=("p1", "port 1"))
    assert (world.switches, heard) == (["leaf"], [(("leaf p1", "leaf port 1"),)])


def test_the_others_are_asked_if_it_does_not_know(site: Site) -> None:
    world = World(site, SPINE, LEAF)
    heard = world.ask("a")
    world.answer(0)
    world.answer(1, a=("p7",))
    assert (world.switches, heard) == (["leaf", "spine"], [(("spine p7",),)])


@pytest.mark.parametrize(
    ("switch", "before"),
    [
        (replace(LEAF, nodes_on=()), "leaf"),  # an uplink looks like a node's port
        (replace(LEAF, driver="ovs"), "leaf"),  # its driver cannot tell
        (LEAF, None),  # no node that has just booted
    ],
)
def test_nobody_is_asked_where_nobody_can_tell(
    site: Site, switch: Switch, before: str | None
) -> None:
    world = World(site, switch)
    world.before = before
    assert (world.ask("a"), world.asked) == ([()], [])


def test_macs_that_wait_are_asked_for_together(site: Site) -> None:
    world = World(site, LEAF)
    heard = [world.ask(f"m{number}") for number in range(BATCH + 2)]
    assert [macs for _, macs, _ in world.asked] == [["m0"]]
    world.answer(0, m0=("p0",))
    assert (heard[0], len(world.asked[1][1])) == ([(("leaf p0",),)], BATCH)
    world.answer(1)
    world.answer(2, **{f"m{BATCH + 1}": ("p9",)})
    assert heard[1:] == [[()]] * BATCH + [[(("leaf p9",),)]]
    again = world.ask("m0")
    world.answer(3, m0=("p0",))
    assert again == heard[0]


def test_a_switch_that_does_not_answer_holds_boots_up_once_a_minute(site: Site) -> None:
    world = World(site, LEAF, SPINE)
    world.before = "spine"
    heard = [world.ask("a"), world.ask("b")]
    world.clock.advance(PATIENCE)
    assert heard == [[], []]
    world.clock.advance(PATIENCE)
    assert heard == [[()], [()]]
    assert world.switches == ["spine", "leaf"]
    world.before = "leaf"
    assert world.ask("a") == [()]
    assert world.switches == ["spine", "leaf"]
    world.clock.advance(REST)
    world.before = "spine"
    world.ask("a")
    assert world.switches == ["spine", "leaf", "spine"]


def test_a_switch_that_gives_up_meanwhile_is_passed_over(site: Site) -> None:
    world = World(site, LEAF, SPINE)
    world.before = "spine"
    world.ask("a")
    world.answer(0)
    world.clock.advance(PATIENCE / 2)
    heard = world.ask("b")
    world.clock.advance(PATIENCE / 2)  # LEAF rests
    world.answer(2)
    assert (world.switches, heard) == (["spine", "leaf", "spine"], [()])


@pytest.mark.parametrize("error", [SwitchError("it refuses"), ValueError("a bug")])
def test_an_error_is_no_evidence(site: Site, error: Exception) -> None:
    world = World(site, LEAF)
    heard = [world.ask("a"), world.ask("b")]
    world.asked[0][2].errback(error)
    assert (heard, len(world.asked)) == ([[()], [()]], 1)


def test_so_many_switches_are_asked_at_a_time(site: Site) -> None:
    leaves = [replace(LEAF, name=f"leaf{number}") for number in range(AT_ONCE + 1)]
    world = World(site, *leaves)
    heard = world.ask("a")
    assert len(world.asked) == AT_ONCE
    for number in range(AT_ONCE + 1):
        world.answer(number, a=("p1",))
    assert heard == [tuple((f"{leaf.name} p1",) for leaf in leaves)]
