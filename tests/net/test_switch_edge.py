"""The switch edge with a moved clock and a switch that fails as switches do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from cod.core.networks import switch_ports
from cod.core.nodes.stories import by_system
from cod.flows.nodes import hold
from cod.flows.nodes import switches as flows
from cod.model import Account, Effect, Node, Site, SiteRef, Switch, SwitchPort
from cod.policy.nodes.switch_ports import BUDGET, LONGEST_PAUSE
from cod.pool import Pool, in_transaction
from cod.states import StoryVerdict
from cod.store import stories
from cod.store.claims import Lost
from cod.store.engine import NoWriter, Tx
from cod.store.nodes import conflicts, nodes
from cod.store.nodes import switch_ports as ports
from cod.store.nodes import switches as store
from cod.store.notices import notices
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.edge import ATTEMPT, LEASE, POLL, SwitchEdge
from tests.contexts import flow_context

LEAF = Switch("leaf", "fake", "leaf.example", account="net", provisioning_vlan=10, verify=300.0)


class Straight:
    """A pool without threads: a flow runs at once, in a transaction. `away`, if set, is called
    instead of the flow that records the VLANs in which ports were found."""

    is_away, is_race = staticmethod(Pool.is_away), staticmethod(Pool.is_race)

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.away: Callable[[], Deferred[Any]] | None = None

    def run(self, flow: Callable[..., Any], *args: Any, **words: Any) -> Deferred[Any]:
        if self.away is not None and flow is flows.found:
            return self.away()
        return succeed(in_transaction(self.engine, flow, *args, **words))

    read = run


class Leaf:
    """A switch with access ports. `deaf` ports accept a change and do not make it; `refused` ones
    say why not. A switch that is `away` does not answer; one that is `hung` never does."""

    about = "a fake switch"

    def __init__(self) -> None:
        self.vlans = {f"p{n}": 10 for n in range(1, 101)}
        self.deaf: set[str] = set()
        self.refused: dict[str, SwitchError] = {}
        self.away = ""
        self.hung = False
        self.sessions: list[dict[str, int]] = []
        self.open_now = self.most_open = 0
        self.passwords: list[str] = []
        self.before_change: Callable[[], None] = lambda: None

    async def open(self, target: SwitchTarget) -> Leaf:
        if self.hung:
            await Deferred()
        if self.away:
            raise SwitchError(self.away)
        assert target.sign_in is not None
        self.passwords.append(target.sign_in.password)
        self.sessions.append({})
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return self

    async def read(self, names: Collection[str]) -> Mapping[str, int | SwitchError]:
        missing = SwitchError("the switch has no such port", lasting=True)
        return {name: self.vlans.get(name, missing) for name in names}

    async def change(self, wanted: Mapping[str, int]) -> Mapping[str, SwitchError]:
        self.before_change()
        self.sessions[-1] |= wanted
        self.vlans |= {
            name: vlan
            for name, vlan in wanted.items()
            if name not in self.deaf | self.refused.keys()
        }
        return {name: self.refused[name] for name in wanted if name in self.refused}

    async def close(self) -> None:
        self.open_now -= 1


class World:
    """An edge, its clock, its database, and a switch."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.clock, self.leaf = engine, Clock(), Leaf()
        self.clock.advance(1000.0)
        password = folder / "password"
        password.touch(0o600)
        password.write_text("secret\n")
        self.password = password
        accounts = (Account("net", "cod", str(password)),)
        self.site = SiteRef(
            Site(name="test", domain="cod.test", subnets=(), switches=(LEAF,), accounts=accounts)
        )
        self.woken: list[Effect] = []
        self.pool = Straight(engine)
        self.edge = self.another("s1")

    def another(self, server: str) -> SwitchEdge:
        drivers: Any = {"fake": self.leaf}
        return SwitchEdge(
            self.clock,
            self.pool,
            drivers,
            server,
            self.clock.seconds,
            self.site,
            self.woken.extend,
        )

    def tx(self, flow: Callable[..., Any], *args: Any, **words: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **words)

    def node(self, number: int, name: str | None = None) -> Node:
        def add(tx: Tx) -> Node:
            node = nodes.add(
                tx,
                name=f"n{number}",
                boot_mac=f"52:54:00:00:00:{number:02x}",
                now=0.0,
                cause="seen",
                actor="dhcp",
            )
            switch_ports.connect(
                tx, node, node.boot_mac, "leaf", name or f"p{number}", source="lldp", now=0.0
            )
            return node

        node: Node = self.tx(add)
        return node

    def want(self, node: Node, vlan: int | None) -> None:
        self.tx(switch_ports.want, node, vlan, self.clock.seconds())

    def arrived(self, node: Node) -> bool:
        return bool(self.tx(switch_ports.arrived, node))

    def port(self, node: Node) -> SwitchPort:
        found: SwitchPort | None = self.tx(ports.of_mac, node.boot_mac)
        assert found is not None
        return found

    def after(self, seconds: float) -> None:
        for _ in range(int(seconds / POLL)):
            self.clock.advance(POLL)


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> Iterator[World]:
    world = World(engine, tmp_path)
    world.edge.startService()
    yield world
    world.edge.stopService()


pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine", ["sqlite"], indirect=True)]


def test_a_wish_is_carried_out_read_back_and_told(world: World) -> None:
    node = world.node(1)
    world.want(node, 20)
    assert not world.arrived(node)
    world.edge.wake()
    assert world.arrived(node)
    assert world.leaf.vlans["p1"] == 20
    assert set(flows.MOVED) <= set(world.woken)
    assert (world.port(node).applied_vlan, world.port(node).reason) == (20, "")
    world.want(node, None)
    world.after(POLL)
    assert world.leaf.vlans["p1"] == 10, "the provisioning VLAN of its switch"
    assert world.leaf.open_now == 0
    (session,) = world.tx(store.every)
    assert (session.about, session.reason, session.claimed_by) == ("a fake switch", "", None)


def test_ports_of_a_switch_are_changed_in_one_session_and_those_that_are_right_are_left_alone(
    world: World,
) -> None:
    several = [world.node(n) for n in range(1, 6)]
    world.leaf.vlans["p5"] = 20
    for node in several:
        world.want(node, 20)
    world.after(1.0)
    assert world.leaf.sessions == [{f"p{n}": 20 for n in range(1, 5)}]
    assert all(map(world.arrived, several))
    assert world.leaf.most_open == 1


def test_more_ports_than_a_session_takes(world: World) -> None:
    several = [world.node(n) for n in range(1, flows.BATCH + 11)]
    for node in several:
        world.want(node, 20)
    world.after(2 * POLL)
    assert [len(each) for each in world.leaf.sessions] == [flows.BATCH, 10]


def test_a_switch_that_is_away_is_asked_again_at_longer_pauses_until_it_answers(
    world: World,
) -> None:
    node = world.node(1)
    world.leaf.away = "the switch does not answer"
    world.want(node, 20)
    world.after(1.0)
    assert world.port(node).reason == "the switch does not answer"
    assert not world.port(node).given_up
    world.leaf.away = ""
    world.after(2.5)
    assert world.arrived(node)
    world.leaf.away = "the switch does not answer"
    world.want(node, None)
    world.after(BUDGET + LONGEST_PAUSE)
    port = world.port(node)
    assert (port.given_up, port.pending, port.applied_vlan) == (False, True, 20)
    assert 25 <= port.attempts <= 45
    (told,) = world.tx(
        lambda tx: [each.notice for each in notices.every(tx) if each.notice.kind[:6] == "switch"]
    )
    assert told.kind == "switch"
    assert "These nodes wait for it: n1." in told.about
    world.leaf.away = ""
    world.after(2 * LONGEST_PAUSE)
    assert world.arrived(node)


def test_a_wrong_password_is_told_and_the_next_attempt_reads_the_file_again(world: World) -> None:
    node = world.node(1)
    world.password.unlink()
    world.want(node, 20)
    world.after(1.0)
    assert world.port(node).reason.startswith("account net: ")
    assert world.tx(store.get, "leaf").reason == world.port(node).reason
    world.password.touch(0o600)
    world.password.write_text("new\n")
    world.after(5.0)
    assert world.arrived(node)
    assert world.leaf.passwords == ["new"]


def test_a_port_that_does_not_exist_is_given_up_at_once_and_the_others_are_changed(
    world: World,
) -> None:
    there, lost = world.node(1), world.node(2, "p999")
    world.want(there, 20)
    world.want(lost, 20)
    world.after(1.0)
    assert world.arrived(there)
    assert (world.port(lost).given_up, world.port(lost).reason) == (
        True,
        "the switch has no such port",
    )


def test_a_switch_that_accepts_and_does_not_apply(world: World) -> None:
    node = world.node(1)
    world.leaf.deaf = {"p1"}
    world.want(node, 20)
    world.after(1.0)
    assert world.port(node).reason == "the switch accepted VLAN 20 and still shows VLAN 10"
    assert not world.arrived(node)
    world.leaf.deaf = set()
    world.after(5.0)
    assert world.arrived(node)


def test_a_change_that_the_switch_refuses_says_why(world: World) -> None:
    node = world.node(1)
    world.leaf.refused = {"p1": SwitchError("VLAN 20 does not exist", lasting=True)}
    world.want(node, 20)
    world.after(1.0)
    assert (world.port(node).reason, world.port(node).given_up) == ("VLAN 20 does not exist", True)


def test_a_switch_that_never_answers_is_left_after_a_while(world: World) -> None:
    node = world.node(1)
    world.leaf.hung = True
    world.want(node, 20)
    world.after(ATTEMPT + 1.0)
    assert world.port(node).reason == f"no answer within {ATTEMPT:.0f} s"


@pytest.mark.parametrize("away", [lambda: fail(NoWriter("none is known")), Deferred])
def test_a_database_that_is_away_in_a_session_is_not_charged_to_the_switch(
    world: World, away: Callable[[], Deferred[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    node = world.node(1)
    world.pool.away = away
    world.want(node, 20)
    world.after(ATTEMPT + 1.0)
    session = world.tx(store.get, "leaf")
    assert (session.failures, session.reason, world.port(node).reason) == (0, "", "")
    assert (world.leaf.vlans["p1"], world.leaf.open_now) == (10, 0), "it is not changed unwritten"
    assert "driver" not in caplog.text
    world.pool.away = None
    world.after(LEASE - ATTEMPT)
    assert world.arrived(node)


def test_a_late_change_does_not_count_for_the_next_wish(world: World) -> None:
    """The node moves on while the switch is being told: the old VLAN is read back, and the new wish
    stays open."""
    node = world.node(1)
    world.leaf.before_change = lambda: world.want(node, None)
    world.want(node, 20)
    world.edge.wake()
    assert world.leaf.vlans["p1"] == 20
    assert not world.arrived(node)
    world.leaf.before_change = lambda: None
    world.after(1.0)
    assert world.arrived(node)
    assert world.leaf.vlans["p1"] == 10


def test_a_change_that_a_switch_makes_after_its_session_was_given_up_is_undone(
    world: World,
) -> None:
    node = world.node(1)
    world.leaf.hung = True
    world.want(node, 20)
    world.after(ATTEMPT + 1.0)
    world.leaf.hung = False
    world.want(node, None)
    world.after(LONGEST_PAUSE)
    assert world.arrived(node)
    world.leaf.vlans["p1"] = 20  # of the session that was given up
    world.after(LEAF.verify)
    assert world.leaf.vlans["p1"] == 10


def test_a_port_that_came_back_is_read_again_at_pauses_that_double_for_a_day(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "LATE", 6 * LEAF.verify)  # not a day: the clock moves by seconds
    node = world.node(1)
    for vlan in (20, None):
        world.want(node, vlan)
        world.after(1.0)
    sessions = len(world.leaf.sessions)
    world.after(3 * LEAF.verify)
    assert len(world.leaf.sessions) == sessions + 2, "after one pause, and after two"
    world.leaf.vlans["p1"] = 20  # of a session of long ago
    world.after(2 * LEAF.verify)
    assert world.leaf.vlans["p1"] == 10
    world.after(6 * LEAF.verify)
    sessions = len(world.leaf.sessions)
    world.after(6 * LEAF.verify)
    assert len(world.leaf.sessions) == sessions, "a port that stays at home is left alone"


def test_a_port_that_went_away_at_home_is_not_asked_for_again(world: World) -> None:
    node = world.node(1)
    world.want(node, 20)
    world.after(1.0)
    world.want(node, None)
    world.after(1.0)
    assert world.arrived(node)
    del world.leaf.vlans["p1"]
    world.after(LEAF.verify)
    sessions = len(world.leaf.sessions)
    world.after(3 * LONGEST_PAUSE)
    assert len(world.leaf.sessions) == sessions
    assert world.port(node).reason == "the switch has no such port"


def test_a_server_that_is_killed_between_the_steps_is_followed_by_another(world: World) -> None:
    node = world.node(1)
    world.want(node, 20)
    assert len(world.tx(flows.claim, "dead", (LEAF,), [], 1, world.clock.seconds(), LEASE)) == 1
    world.leaf.vlans["p1"] = 20  # and there it was killed
    world.after(LEASE - 1.0)
    assert not world.arrived(node), "no other server has a session while the claim lasts"
    world.after(2.0)
    assert world.arrived(node)
    assert world.leaf.sessions == [{}], "it was read, and is right already"


def test_a_server_that_starts_again_waits_for_a_moment_only(world: World) -> None:
    node = world.node(1)
    world.want(node, 20)
    assert len(world.tx(flows.claim, "s2", (LEAF,), [], 1, world.clock.seconds(), LEASE)) == 1
    world.edge.stopService()
    again = world.another("s2")
    again.startService()
    world.after(flows.LINGERS - 1.0)
    assert not world.arrived(node)
    world.after(2.0)
    assert world.arrived(node)
    again.stopService()


def test_a_server_whose_claim_was_taken_over_says_nothing_and_its_ports_are_read_again(
    world: World,
) -> None:
    node = world.node(1)
    world.want(node, 20)
    (late,) = world.tx(flows.claim, "slow", (LEAF,), [], 1, world.clock.seconds(), 0.0)
    world.after(1.0)
    assert world.arrived(node)
    world.want(node, None)
    world.after(1.0)
    world.leaf.vlans["p1"] = 20  # what the slow server did at last
    outcome = {port.id: flows.PortOutcome(10, 20) for port, _ in late.ports}
    assert world.tx(flows.ended, late, outcome, "", world.clock.seconds()) == (switch_ports.WAKE,)
    world.after(1.0)
    assert world.leaf.vlans["p1"] == 10
    assert world.arrived(node)


def test_ports_of_isolated_nodes_are_looked_at_and_put_right(world: World) -> None:
    held, free = world.node(1), world.node(2)
    world.want(held, 20)
    world.after(1.0)
    world.leaf.vlans |= {"p1": 10, "p2": 77}  # it was restarted, and has its old configuration
    world.after(LEAF.verify)
    assert (world.leaf.vlans["p1"], world.leaf.vlans["p2"]) == (
        20,
        77,
    ), "p2 was never COD's to change"
    assert world.port(held).corrected_at is not None
    (conflict,) = world.tx(conflicts.every)
    assert (
        conflict["about"]
        == "port p1 of switch leaf was in VLAN 10 where COD had put it in VLAN 20; it was put back"
    )
    assert world.arrived(free)


def test_a_vlan_is_in_use_from_the_moment_that_a_port_is_found_in_it(world: World) -> None:
    node = world.node(1)
    for vlan in (20, None):
        world.want(node, vlan)
        world.after(1.0)
    assert 20 not in world.tx(ports.vlans)
    world.leaf.vlans["p1"] = 20  # the switch had said that it was home, and it was not
    seen: list[bool] = []
    world.leaf.before_change = lambda: seen.append(20 in world.tx(ports.vlans))
    world.after(LEAF.verify)
    assert (seen, world.leaf.vlans["p1"]) == ([True], 10)
    assert 20 not in world.tx(ports.vlans)


def test_what_a_late_session_found_is_not_written_after_the_next_one(world: World) -> None:
    """A port in its provisioning VLAN is seldom read again: a VLAN recorded late for the port would
    stay in use until then."""
    node = world.node(1)
    for vlan in (20, None):
        world.want(node, vlan)
        world.after(1.0)
    due = world.clock.seconds() + LEAF.verify
    (late,) = world.tx(flows.claim, "slow", (LEAF,), [], 1, due, -LEAF.verify)
    world.after(LEAF.verify + 1.0)
    with pytest.raises(Lost):
        world.tx(flows.found, late, [(world.port(node), 20)], due)
    assert 20 not in world.tx(ports.vlans)


def test_a_port_that_strays_and_cannot_be_put_back_has_not_arrived(world: World) -> None:
    held = world.node(1)
    world.want(held, 20)
    world.after(1.0)
    world.leaf.vlans["p1"] = 10
    world.leaf.deaf = {"p1"}
    world.after(LEAF.verify)
    assert not world.arrived(held)
    world.leaf.deaf = set()
    world.after(LONGEST_PAUSE)
    assert world.arrived(held)


def test_a_switch_that_cannot_be_looked_at_does_not_cost_a_node_its_place(world: World) -> None:
    held = world.node(1)
    world.want(held, 20)
    world.after(1.0)
    world.leaf.away = "the switch does not answer"
    world.after(BUDGET + LEAF.verify + LONGEST_PAUSE)
    assert world.arrived(held)
    assert not world.port(held).given_up
    assert world.port(held).reason == "the switch does not answer"


def test_reports_that_were_stored_before_the_site_file_named_the_switch(world: World) -> None:
    def add(tx: Tx) -> Node:
        report = (
            '<node><nic mac="52:54:00:00:00:07"><neighbour switch="leaf" port="p7"/></nic></node>'
        )
        return nodes.add(
            tx,
            name="n7",
            boot_mac="52:54:00:00:00:07",
            now=0.0,
            cause="seen",
            actor="dhcp",
            attributes=report,
            reported_at=5.0,
        )

    node = world.tx(add)
    world.site.current = Site(
        name="test",
        domain="cod.test",
        subnets=(),
        switches=(LEAF, Switch("b", "fake", "b")),
        accounts=world.site.current.accounts,
    )
    world.after(1.0)
    assert (world.port(node).port, world.port(node).seen_at) == ("p7", 5.0)


def held(world: World, state: str, wanted: int | None, found: int) -> Node:
    """Hold the site with a node whose port is wanted in one VLAN, and found in another."""
    node = world.node(1)
    world.tx(nodes.ROWS.set, node.id, state=state)
    world.want(node, wanted)
    world.after(POLL)
    world.leaf.vlans["p1"] = found
    world.tx(hold.start, world.clock.seconds())
    world.after(POLL)
    return node


def story(world: World, node: Node) -> tuple[str, str, str]:
    found = world.tx(stories.get, node.id)
    return found.verdict, found.source, found.said


@pytest.mark.parametrize(
    ("state", "wanted", "found"),
    [
        ("trampoline", None, 30),  # it was given to an isolated cluster
        ("active", 20, 30),  # to another one
        ("active", 20, 10),  # it was released
    ],
)
def test_a_port_that_contradicts_the_database_is_left_where_it_is_until_its_node_is_decided(
    world: World, state: str, wanted: int | None, found: int
) -> None:
    """A system that the database has forgotten would be cut off, or brought into the network of
    another cluster."""
    node = held(world, state, wanted, found)
    where = f"its port p1 of switch leaf is in VLAN {found}"
    said = f"{where}, where the database had it in VLAN {wanted or 10}"
    assert story(world, node) == ("differs", "switch", said)
    world.after(BUDGET + LONGEST_PAUSE)
    assert (world.leaf.vlans["p1"], world.port(node).given_up) == (found, False)
    assert world.port(node).reason == "left in its VLAN: its node is held"
    assert found in world.tx(ports.vlans), "no other cluster gets the VLAN"
    world.tx(hold.end, world.clock.seconds())
    world.after(LONGEST_PAUSE)
    assert world.leaf.vlans["p1"] == found, "its node is still held"
    context = flow_context(world.site.current, world.clock.seconds(), "user:ann")
    names = {"keep": [node.name], "erase": []}
    world.tx(hold.decide, context, **(names if wanted else {"keep": [], "erase": [node.name]}))
    world.leaf.refused = {"p1": SwitchError("busy")}
    world.after(LONGEST_PAUSE)
    assert (world.port(node).reason, world.port(node).given_up) == ("busy", False)
    world.leaf.refused = {}
    world.after(LONGEST_PAUSE)
    assert world.leaf.vlans["p1"] == (wanted or 10)


def test_a_port_says_nothing_of_a_disk(world: World) -> None:
    """The port is where the database wants it, or was on its way there."""
    node = held(world, "active", 20, 20)
    assert story(world, node) == ("silent", "", "")
    world.want(node, None)
    world.leaf.deaf = {"p1"}
    world.after(POLL)
    assert story(world, node) == ("silent", "", ""), "known to have been there"
    world.leaf.deaf = set()
    world.after(LONGEST_PAUSE)
    assert world.leaf.vlans["p1"] == 10


def test_a_port_that_was_put_into_the_wanted_vlan_and_not_read_back_says_nothing(
    world: World,
) -> None:
    node = world.node(1)
    world.tx(nodes.ROWS.set, node.id, state="active")
    world.want(node, 20)
    world.leaf.vlans["p1"] = 20  # by a session whose server crashed
    world.tx(hold.start, world.clock.seconds())
    world.want(node, None)
    world.after(POLL)
    assert story(world, node) == ("silent", "", "")
    assert world.leaf.vlans["p1"] == 10


@pytest.mark.parametrize(
    ("source", "verdict", "left"), [("agent", "agrees", False), ("dhcp", "agrees", True)]
)
def test_an_agent_outweighs_a_switch_and_a_switch_a_packet(
    world: World, source: str, verdict: str, left: bool
) -> None:
    node = world.node(1)
    world.tx(nodes.ROWS.set, node.id, state="active")
    world.want(node, 20)
    world.after(POLL)
    world.tx(hold.start, world.clock.seconds())
    world.tx(stories.ROWS.set, node.id, verdict=verdict, source=source)
    world.leaf.vlans["p1"] = 30
    world.after(POLL)
    assert (world.leaf.vlans["p1"] == 30) is left
    assert story(world, node)[:2] == (("differs", "switch") if left else (verdict, source))
    agrees = "its system uses its address 10.0.0.5"
    world.tx(by_system, node.id, StoryVerdict.AGREES, agrees, world.clock.seconds())
    assert story(world, node)[1] == ("switch" if left else "dhcp")
