"""The power edge and the meters with a moved clock and machines that behave as machines do; the lab
driver over a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock, deferLater
from twisted.protocols.basic import LineOnlyReceiver

from cod.flows.nodes import power as flows
from cod.model import Account, Node, Policy, Site, SiteRef, Subnet
from cod.policy.nodes.power import ASK_SYSTEM, BUDGET
from cod.pool import Pool, in_transaction
from cod.power import edge as edges
from cod.power.driver import PowerError, SignIn, Target
from cod.power.edge import LANE, Pace, PowerEdge
from cod.power.lab import LabDriver
from cod.power.meters import Meters
from cod.power.pdu import Outlet, PduDriver
from cod.power.poll import PowerPoll
from cod.power.poller import ALONE, AT_ONCE, LEASE, ROUND, TICK
from cod.states import POWER_CONTROL
from cod.store import claims, tables
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.conftest import SUBNET

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like


class Straight:
    """The pool without its threads: the flow runs now, in a transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_away, self.is_race = Pool.is_away, Pool.is_race

    def run(self, flow: Callable[..., Any], *args: Any, **words: Any) -> Deferred[Any]:
        return succeed(in_transaction(self.engine, flow, *args, **words))

    read = run


class Bmc:
    """Switches that take `delay` seconds to show; `deaf` machines accept and do nothing, of the
    commands named there; `dead` ones do not answer. `polite` ones have a system that can be asked
    to shut down."""

    switches_off = True
    measures = True

    def __init__(self, clock: Clock, delay: float = 0.0) -> None:
        self.clock, self.delay = clock, delay
        self.power: dict[str, str] = {}
        self.drawn: dict[str, float | None] = {}
        self.targets: list[Target] = []
        self.polite: set[str] = set()
        self.no_boot_order = False
        self.takes_uris = True
        self.said: list[str] = []
        self.deaf: dict[str, set[str]] = {}
        self.dead: set[str] = set()
        self.hung: set[str] = set()

    def status(self, target: Target) -> Deferred[str]:
        self.targets.append(target)
        if target.address in self.hung:
            return Deferred()
        if target.address in self.dead:
            return fail(PowerError("the BMC does not answer"))
        return succeed(self.power.get(target.address, "off"))

    def on(self, target: Target) -> Deferred[None]:
        return self._set(target.address, "on", "on")

    def off(self, target: Target) -> Deferred[None]:
        return self._set(target.address, "off", "off")

    def cycle(self, target: Target) -> Deferred[None]:
        return self._set(target.address, "cycle", "on")

    def soft(self, target: Target) -> Deferred[bool]:
        if target.address not in self.polite:
            return succeed(False)
        return self._set(target.address, "soft", "off").addCallback(lambda _: True)

    def boot_from_network(self, target: Target) -> Deferred[bool]:
        if self.no_boot_order:
            return fail(PowerError("no boot parameters here"))
        self.said.append(f"pxe {target.address}")
        return succeed(True)

    def boot_from_uri(self, target: Target, uri: str) -> Deferred[bool]:
        if self.takes_uris:
            self.said.append(uri)
        return succeed(self.takes_uris)

    def watts(self, target: Target) -> Deferred[float | None]:
        self.targets.append(target)
        if target.address in self.dead:
            return fail(PowerError("the BMC does not answer"))
        return succeed(self.drawn.get(target.address))

    def commands(self) -> list[str]:
        """What was said, without the boot order."""
        return [each for each in self.said if not each.startswith("pxe")]

    def _set(self, address: str, command: str, power: str) -> Deferred[None]:
        self.said.append(f"{command} {address}")
        if command not in self.deaf.get(address, ()):
            deferLater(self.clock, self.delay, self.power.__setitem__, address, power)
        return succeed(None)


class World:
    """An edge, its clock, its database and its machines."""

    def __init__(self, engine: Engine, clock: Clock, **rules: Any) -> None:
        self.engine, self.clock, self.bmc = engine, clock, Bmc(clock)
        self.site = Site(name="test", domain="cod.test", subnets=(), policy=Policy(**rules))
        self.edge = PowerEdge(
            clock, Straight(engine), {"lab": self.bmc}, "s1", clock.seconds, SiteRef(self.site)
        )
        self.poll = PowerPoll(
            clock, Straight(engine), {"lab": self.bmc}, "s1", clock.seconds, SiteRef(self.site)
        )
        self.meters = Meters(
            clock, Straight(engine), {"lab": self.bmc}, "s1", clock.seconds, SiteRef(self.site)
        )

    def add(self, tx: Tx, name: str, **columns: Any) -> Node:
        return nodes.add(
            tx,
            name=name,
            boot_mac=f"52:54:00:00:00:{name[1:].zfill(2)}",
            now=0.0,
            cause="seen",
            actor="dhcp",
            **{"power_driver": "lab", "power_address": name} | columns,
        )

    def wish_all(self, names: Sequence[str]) -> None:
        """Wish nodes on, in that order."""

        def write(tx: Tx) -> None:
            for name in names:
                nodes.wish_power(tx, self.add(tx, name), "on", self.clock.seconds())

        in_transaction(self.engine, write)

    def wish(self, name: str, desired: str, **columns: Any) -> None:
        def write(tx: Tx) -> None:
            node = nodes.by_name(tx, name) or self.add(tx, name, **columns)
            nodes.wish_power(tx, node, desired, self.clock.seconds())

        in_transaction(self.engine, write)

    def node(self, name: str) -> Node:
        found = in_transaction(self.engine, nodes.by_name, name)
        assert found is not None
        return found

    def pass_(self, seconds: float) -> None:
        """Time goes by in tenths of a second."""
        self.clock.pump([0.1] * round(seconds * 10))

    def errors(self) -> list[str]:
        a = tables.power_actions.c
        with self.engine.connect() as connection:
            return list(
                connection.scalars(select(a.error).where(a.done_at.is_not(None)).order_by(a.id))
            )


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine, Clock())


@pytest.mark.parametrize(
    ("before", "desired", "said", "after"),
    [
        ("off", "on", ["pxe n1", "on n1"], "on"),
        ("on", "on", [], "on"),
        ("on", "off", ["off n1"], "off"),
        ("off", "off", [], "off"),
        ("on", "soft", ["off n1"], "off"),
        ("off", "soft", [], "off"),
        ("on", "cycle", ["pxe n1", "cycle n1"], "on"),
        ("off", "cycle", ["pxe n1", "on n1"], "on"),
    ],
)
def test_wishes(world: World, before: str, desired: str, said: list[str], after: str) -> None:
    world.bmc.power["n1"] = before
    world.wish("n1", desired)
    world.edge.startService()
    assert world.bmc.said == said
    world.pass_(1)
    assert world.node("n1").power == world.bmc.power["n1"] == after
    assert world.errors() == [""]


def test_a_slow_switch_is_verified_not_believed(world: World) -> None:
    world.bmc.delay = 11.0
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(10)
    assert world.node("n1").power == "unknown"
    world.pass_(2)
    assert world.node("n1").power == "on"
    assert world.bmc.commands() == ["on n1"]


def test_a_deaf_machine_is_asked_again_then_more_forcefully_then_given_up(world: World) -> None:
    world.bmc.deaf["n1"] = {"on", "cycle"}
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(20)
    assert world.bmc.commands() == ["on n1", "on n1"]
    world.pass_(100)
    assert set(world.bmc.commands()[2:]) == {"cycle n1"}
    world.clock.advance(BUDGET)
    world.pass_(200)
    assert world.node("n1").reason == "power: asked to be on, it is still off after 15 s"
    count = len(world.bmc.said)
    world.pass_(300)
    assert len(world.bmc.said) == count, "nobody tries for ever"


def test_a_machine_that_does_not_come_on_is_taken_through_off_and_on(world: World) -> None:
    world.bmc.deaf["n1"] = {"on"}
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(60)
    assert world.bmc.commands() == ["on n1", "on n1", "cycle n1"]
    assert world.node("n1").power == "on"


def test_a_cycle_that_is_slow_to_show_is_not_asked_for_twice(world: World) -> None:
    world.bmc.power["n1"] = "on"
    world.bmc.deaf["n1"] = {"cycle"}
    world.wish("n1", "cycle")
    world.bmc.delay = 1.0
    world.edge.startService()
    world.bmc.power["n1"] = "off"  # it has gone off, and takes longer than anybody waits
    world.pass_(16)
    world.bmc.power["n1"] = "on"
    world.pass_(10)
    assert world.bmc.commands() == ["cycle n1"]
    assert world.errors() == [""]


def test_a_system_is_asked_before_it_loses_its_power(world: World) -> None:
    for name in ("n1", "n2"):
        world.bmc.power[name] = "on"
        world.bmc.polite.add(name)
        world.wish(name, "soft")
    world.bmc.deaf["n2"] = {"soft"}
    world.edge.startService()
    world.pass_(1)
    assert (world.node("n1").power, world.bmc.power["n2"]) == ("off", "on")
    world.pass_(140)
    assert world.bmc.commands() == ["soft n1"] + ["soft n2"] * ASK_SYSTEM + ["off n2"]
    assert world.node("n2").power == "off"


def test_a_bmc_that_refuses_to_ask_the_system_leads_to_the_plug(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.bmc, "soft", lambda target: fail(PowerError("refused")))
    world.bmc.power["n1"] = "on"
    world.wish("n1", "soft")
    world.edge.startService()
    world.pass_(100)
    assert world.bmc.commands() == ["off n1"]


def test_a_node_whose_agent_was_told_to_power_down_has_time_for_it(world: World) -> None:
    for name in ("n1", "n2"):
        world.bmc.power[name] = "on"
        world.wish(name, "off", state="off")
    world.edge.startService()
    world.pass_(5)
    assert world.bmc.said == []
    world.bmc.power["n1"] = "off"
    world.pass_(20)
    assert world.bmc.commands() == ["off n2"], "n1 has gone by itself, the other is hung"


def test_a_bmc_without_boot_order_is_no_reason_to_stay_off(world: World) -> None:
    world.bmc.no_boot_order = True
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(1)
    assert world.bmc.said == ["on n1"]
    assert world.node("n1").power == "on"


@pytest.mark.parametrize("desired", ["on", "cycle"])
def test_an_outlet_sets_no_boot_device_and_switches_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, desired: str
) -> None:
    """The machine's own boot order leads to the network."""
    clock, said = Clock(), list[int]()
    driver = PduDriver(clock)

    def exchange(outlet: Outlet, _: SignIn | None, value: int | None) -> Deferred[int]:
        if value is not None:
            said.append(value)
        return succeed(said[-1] if said else on if desired == "cycle" else off)

    on, off = 1, 2
    monkeypatch.setattr(driver._snmp, "exchange", exchange)
    world = World(engine, clock)
    world.edge = PowerEdge(
        clock, Straight(engine), {"pdu": driver}, "s1", clock.seconds, SiteRef(world.site)
    )
    world.wish("n1", desired, power_driver="pdu", power_address="192.0.2.1/apc/7")
    world.edge.startService()
    world.pass_(60)
    assert said == ([off, on] if desired == "cycle" else [on])
    assert (world.node("n1").power, world.errors()) == ("on", [""])
    assert not [record for record in caplog.records if "boot from the network" in record.message]


def test_a_bmc_that_is_away_for_ten_minutes_ruins_nothing(world: World) -> None:
    world.bmc.power["n1"] = "on"
    world.bmc.dead.add("n1")
    world.wish("n1", "off")
    world.edge.startService()
    world.pass_(600)
    assert world.errors() == []
    world.bmc.dead.clear()
    world.pass_(61)
    assert world.bmc.power["n1"] == world.node("n1").power == "off"
    assert (world.errors(), world.node("n1").reason) == ([""], "")


def test_what_cannot_be_switched_off_needs_an_operator_and_is_not_tried_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.bmc, "switches_off", False)
    monkeypatch.setattr(world.bmc, "status", lambda target: succeed("unknown"))
    world.wish("n1", "cycle")
    world.wish("n2", "off")
    world.wish("n3", "off", state="off")
    world.wish("n4", "on")
    world.edge.startService()
    world.pass_(30)
    assert world.bmc.commands() == ["on n1", "on n4"], "n1 may be off: waking it does no harm"
    for name in ("n1", "n2"):
        assert "needs an operator" in world.node(name).reason
    assert world.node("n3").reason == world.node("n4").reason == "", "n3's agent has been told"
    assert len(world.errors()) == 4


def test_the_account_is_read_when_it_is_used(world: World, tmp_path: Path) -> None:
    file = tmp_path / "password"
    object.__setattr__(world.site, "accounts", (Account("rack", "admin", str(file)),))
    world.wish("n1", "on", power_account="rack")
    world.wish("n2", "on", power_account="gone")
    world.edge.startService()
    assert world.node("n2").reason == "power: the site file has no [[account]] named 'gone'"
    assert world.bmc.targets == []
    file.touch(0o600)
    file.write_text("s3cret\n")
    world.pass_(10)
    assert world.node("n1").power == "on"
    assert {target.sign_in for target in world.bmc.targets} == {SignIn("admin", "s3cret")}
    assert "s3cret" not in repr(world.bmc.targets)


@pytest.fixture
def with_nonce(world: World, tmp_path: Path) -> dict[str, str]:
    """The columns of nodes whose boots are handed nonces."""
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("s3cret\n")
    rack = Account("rack", "admin", str(tmp_path / "password"), boot_nonce=True)
    object.__setattr__(world.site, "accounts", (rack,))
    object.__setattr__(world.site, "subnets", (SUBNET,))
    return {
        "power_account": "rack",
        "home_subnet": SUBNET.name,
        "state": "trampoline",
        "firmware": "uefi",
    }


def test_each_ordered_boot_is_handed_a_nonce_of_its_own(
    world: World, with_nonce: dict[str, str]
) -> None:
    for name in ("n1", "n2"):
        world.wish(name, "on", **with_nonce)
    world.edge.startService()
    world.pass_(1)
    assert sorted(world.bmc.commands())[-2:] == ["on n1", "on n2"]
    uris = {each for each in world.bmc.said if each.startswith("http://10.77.0.1:8069/boot/once/")}
    assert len(uris) == 2
    assert len(world.bmc.said) == 4, "no boot by PXE"


@pytest.mark.parametrize(
    ("takes", "firmware", "subnets", "why"),
    [
        (False, "uefi", (SUBNET,), "cannot hand its boot a nonce"),
        (True, "bios", (SUBNET,), "cannot hand its boot a nonce"),
        (True, "uefi", (), "the subnet in which n1 boots is not known"),
    ],
)
def test_what_can_be_handed_no_nonce_is_not_switched_on(
    world: World,
    with_nonce: dict[str, str],
    takes: bool,
    firmware: str,
    subnets: tuple[Subnet, ...],
    why: str,
) -> None:
    world.bmc.takes_uris = takes
    object.__setattr__(world.site, "subnets", subnets)
    world.wish("n1", "on", **with_nonce | {"firmware": firmware})
    world.edge.startService()
    world.pass_(1)
    assert world.bmc.said == []
    (error,) = world.errors()
    assert why in error


def test_old_wishes_are_forgotten(world: World) -> None:
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(1)
    assert world.errors() == [""]
    world.clock.advance(edges.KEEP)
    world.pass_(2)
    assert world.errors() == []


def test_a_machine_that_recovers_is_switched_by_a_retry(world: World) -> None:
    world.bmc.dead.add("n1")
    world.wish("n1", "on")
    world.edge.startService()
    world.pass_(3)
    world.bmc.dead.clear()
    world.pass_(10)
    assert world.node("n1").power == "on"
    assert world.errors() == [""]


def test_a_driver_that_hangs_is_left_before_the_claim_runs_out(world: World) -> None:
    world.bmc.hung.add("n1")
    world.wish("n1", "off")
    world.wish("n2", "on")
    world.edge.startService()
    world.pass_(1)
    assert world.node("n2").power == "on", "others do not wait"
    world.pass_(edges.ATTEMPT)
    a = tables.power_actions.c
    with world.engine.connect() as connection:
        error = connection.scalar(select(a.error).where(a.desired == "off"))
    assert error == "no answer from the lab driver within 60 s"
    assert edges.ATTEMPT < edges.LEASE


def test_a_broken_driver_is_an_error_on_the_row_not_the_end_of_the_edge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.bmc, "on", lambda target: {}[target])
    world.wish("n1", "on")
    world.edge.startService()
    world.clock.advance(BUDGET)
    world.pass_(1)
    assert world.node("n1").reason == "power: the lab driver failed: KeyError"
    world.bmc.power["n2"] = "on"
    world.wish("n2", "off")
    world.pass_(1)
    assert world.node("n2").power == "off"


def test_a_wish_for_a_node_that_lost_its_driver_is_given_up_at_once(world: World) -> None:
    world.wish("n1", "on")
    in_transaction(
        world.engine, lambda tx: tx.execute(tables.nodes.update().values(power_driver="none"))
    )
    world.edge.startService()
    world.pass_(1)
    assert world.errors() == ["this site has no power driver 'none'"]


def test_silent_bmcs_hold_up_no_others(engine: Engine) -> None:
    """96 BMCs that accept and never answer are wished first, 4 good ones last."""
    clock = Clock()
    world = World(engine, clock)
    silent = [f"n{number}" for number in range(96)]
    good = [f"n{number}" for number in range(96, 100)]
    world.bmc.hung = set(silent)
    world.wish_all([*silent, *good])
    begin, most = clock.seconds(), 0
    world.edge.startService()
    try:
        while not all(world.bmc.power.get(name) == "on" for name in good):
            clock.advance(0.5)
            most = max(most, sum(world.edge._lane.values()))
            assert clock.seconds() - begin <= 40.0
        for _ in range(300):
            clock.advance(1.0)
            most = max(most, sum(world.edge._lane.values()))
        asked = {target.address for target in world.bmc.targets}
        assert asked == {*silent, *good}
        assert 0 < most <= LANE
        # one that is replaced is switched when its turn comes, and is no longer silent
        world.bmc.hung.clear()
        for _ in range(900):
            clock.advance(1.0)
        assert all(world.bmc.power.get(name) == "on" for name in silent)
        assert not world.edge._silent
        assert not sum(world.edge._lane.values()) + sum(world.edge._busy.values())
    finally:
        world.edge.stopService()


def test_silent_bmcs_without_a_place_in_the_lane_are_waited_for_too(engine: Engine) -> None:
    """A server that begins anew does not know which BMCs are silent; the wishes are hours old."""
    clock = Clock()
    world = World(engine, clock)
    names = [f"n{number}" for number in range(2 * LANE)]
    world.bmc.hung = set(names)
    for name in names:
        world.wish(name, "on", state="trampoline")
    clock.advance(7200.0)
    world.edge.startService()
    try:
        world.pass_(5)
        assert sum(world.edge._lane.values()) == LANE
        assert len(world.edge._silent) == len(names)
        assert len(in_transaction(engine, nodes.waiting_for, POWER_CONTROL)) == LANE
        assert world.errors() == [], "none is given up"
    finally:
        world.bmc.hung.clear()
        world.pass_(100)
        world.edge.stopService()


def test_power_ons_are_paced_and_counted(engine: Engine) -> None:
    world = World(engine, Clock(), power_at_once=3, power_rate=2.0)
    world.bmc.delay = 5.0
    for number in range(1, 9):
        world.wish(f"n{number}", "on")
    world.edge.startService()
    assert len(world.bmc.commands()) == 2, "the burst"
    world.pass_(2)
    assert len(world.bmc.commands()) == 3, "no more than three at once"
    world.pass_(30)
    assert len(world.bmc.commands()) == 8
    assert {world.node(f"n{number}").power for number in range(1, 9)} == {"on"}


def test_a_wake_up_saves_the_wait_for_the_next_look(world: World) -> None:
    world.edge.startService()
    world.wish("n1", "on")
    world.edge.wake()
    assert world.bmc.commands() == ["on n1"]
    world.edge.wake()
    world.pass_(2)
    assert world.bmc.commands() == ["on n1"]


def test_stop_waits_for_what_is_under_way(world: World) -> None:
    world.bmc.delay = 3.0
    world.wish("n1", "on")
    world.edge.startService()
    stopped = world.edge.stopService()
    world.wish("n2", "on")
    world.pass_(2)
    assert not stopped.called
    world.pass_(2)
    assert stopped.called
    assert world.node("n1").power == "on"
    assert world.bmc.commands() == ["on n1"], "nothing new is begun"
    assert not world.clock.getDelayedCalls()


def test_the_database_gone_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right = world.edge._pool.run
    monkeypatch.setattr(world.edge._pool, "run", lambda *_, **__: fail(OSError("database away")))
    world.edge.startService()
    world.pass_(2)
    monkeypatch.setattr(world.edge._pool, "run", right)
    world.wish("n1", "on")
    world.pass_(1)
    assert world.node("n1").power == "on"


def test_an_outcome_that_could_not_be_written_is_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = flows.succeeded
    monkeypatch.setattr(flows, "succeeded", lambda *_: 1 / 0)
    world.wish("n1", "on")
    world.edge.startService()
    monkeypatch.setattr(flows, "succeeded", right)
    world.pass_(edges.LEASE + 1)
    assert world.node("n1").power == "on"
    assert world.bmc.commands() == ["on n1"], "it was on already when asked again"


def test_the_bucket() -> None:
    pace = Pace(0.0, 4.0)
    assert pace.room(0.0, 4.0) == 4
    pace.took(4)
    assert [pace.room(now, 4.0) for now in (0.0, 0.2, 0.25, 0.5, 100.0)] == [0, 0, 1, 2, 4]
    assert pace.room(50.0, 4.0) == 4, "a clock that is set back gives nothing and takes nothing"


def test_a_bucket_of_less_than_one_a_second_fills_too() -> None:
    pace = Pace(0.0)
    assert pace.room(0.0, 0.2) == 1
    pace.took(1)
    assert [pace.room(now, 0.2) for now in (1.0, 4.9, 5.1, 100.0)] == [0, 0, 1, 1]


def test_a_new_pace_holds_without_a_restart(engine: Engine) -> None:
    world = World(engine, Clock(), power_rate=0.1)
    for number in range(1, 5):
        world.wish(f"n{number}", "on")
    world.edge.startService()
    world.pass_(9)
    assert len(world.bmc.commands()) == 1
    object.__setattr__(world.site, "policy", Policy(power_rate=50.0))
    world.pass_(1)
    assert len(world.bmc.commands()) == 4


# ---------------------------------------------------------------- meters


def test_every_machine_is_measured_once_a_round_and_not_all_at_once(world: World) -> None:
    with world.engine.begin() as tx:
        for number in range(1, 61):
            world.add(tx, f"n{number}")
    world.bmc.drawn = {f"n{number}": float(number) for number in range(1, 61)}
    world.meters.startService()
    first = {target.address for target in world.bmc.targets}
    assert 0 < len(first) < 10
    world.pass_(ROUND - 1)
    assert [world.node(f"n{number}").watts for number in (1, 30, 60)] == [1.0, 30.0, 60.0]
    assert len(world.bmc.targets) == 60
    world.bmc.dead = {"n2"}
    world.bmc.drawn["n3"] = None
    world.pass_(ROUND / 2)
    assert [world.node(f"n{number}").watts for number in (1, 2, 3)] == [1.0, None, None]


def test_another_server_measures_after_one_whose_clock_was_ahead(world: World) -> None:
    with world.engine.begin() as tx:
        world.add(tx, "n1")
        claims.hold(tx, "meter", "s2", 3600.0, LEASE)
    world.bmc.drawn = {"n1": 1.0}
    world.meters.startService()
    world.pass_(LEASE - 1)
    assert world.node("n1").watts is None
    world.pass_(ROUND + 2 * TICK)
    assert world.node("n1").watts == 1.0


def test_a_server_whose_clock_is_behind_goes_on_measuring(world: World) -> None:
    with world.engine.begin() as tx:
        world.add(tx, "n1")
        held = claims.hold(tx, "meter", "s2", -3600.0, LEASE)
    world.bmc.drawn = {"n1": 1.0}
    world.meters.startService()
    for _ in range(4):
        world.pass_(LEASE / 2)
        with world.engine.begin() as tx:
            held = claims.hold(tx, "meter", "s2", world.clock.seconds() - 3600.0, LEASE, held, held)
            assert held is not None
    assert world.node("n1").watts is None


def test_a_bmc_that_hangs_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.engine.begin() as tx:
        for number in range(1, 4):
            world.add(tx, f"n{number}")
    world.bmc.drawn = {"n1": 1.0, "n3": 3.0}
    right = world.bmc.watts
    monkeypatch.setattr(
        world.bmc, "watts", lambda target: Deferred() if target.address == "n2" else right(target)
    )
    world.meters.startService()
    world.pass_(ROUND)
    assert [world.node(f"n{number}").watts for number in (1, 2, 3)] == [1.0, None, 3.0]
    stopped = world.meters.stopService()
    world.pass_(TICK * 3)
    assert stopped.called
    assert not world.clock.getDelayedCalls()
    assert AT_ONCE > 1


def test_a_bmc_that_says_no_is_left_alone_for_an_hour(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.engine.begin() as tx:
        for name in ("n1", "n2", "n3"):
            world.add(tx, name)
    asked: list[str] = []

    def watts(target: Target) -> Deferred[float | None]:
        asked.append(target.address)
        no = fail(PowerError("refused", lasting=True)) if target.address == "n1" else succeed(None)
        return fail(PowerError("away")) if target.address == "n3" else no

    monkeypatch.setattr(world.bmc, "watts", watts)
    world.meters.startService()
    world.pass_(2.5 * ROUND)
    assert sorted(asked) == ["n1", "n2", "n3", "n3", "n3"]
    with world.engine.begin() as tx:
        tx.execute(
            tables.nodes.update().where(tables.nodes.c.name == "n1").values(power_account="other")
        )
    world.pass_(ROUND)
    assert asked.count("n1") == 1, "the account is not one that the site has"
    with world.engine.begin() as tx:
        tx.execute(
            tables.nodes.update().where(tables.nodes.c.name == "n1").values(power_account=None)
        )
        tx.execute(
            tables.nodes.update().where(tables.nodes.c.name == "n2").values(power_address="n2b")
        )
    world.pass_(ROUND)
    assert "n2b" in asked
    world.clock.advance(ALONE)
    world.pass_(2 * ROUND)
    assert asked.count("n1") >= 2


def test_the_database_gone_while_measuring(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.engine.begin() as tx:
        world.add(tx, "n1")
    world.bmc.drawn = {"n1": 1.0}
    right = world.meters._pool.run
    monkeypatch.setattr(world.meters._pool, "run", lambda *_, **__: fail(OSError("database away")))
    world.meters.startService()
    world.pass_(TICK * 2)
    monkeypatch.setattr(world.meters._pool, "run", right)
    world.pass_(ROUND * 1.1)
    assert world.node("n1").watts == 1.0


# ---------------------------------------------------------------- looks at the power


def told(world: World) -> list[str]:
    with world.engine.begin() as tx:
        return list(tx.scalars(select(tables.notices.c.kind)))


def test_power_is_looked_at_and_has_an_age(world: World) -> None:
    with world.engine.begin() as tx:
        for number in (1, 2, 3):
            world.add(tx, f"n{number}")
        world.add(tx, "n4", power_driver="none")
    world.bmc.power, world.bmc.dead = {"n1": "on"}, {"n3"}
    world.poll.startService()
    world.pass_(ROUND)
    seen = [world.node(f"n{number}") for number in range(1, 5)]
    assert [node.power for node in seen] == ["on", "off", "unknown", "unknown"]
    assert [node.power_seen_at is None for node in seen] == [False, False, True, True]
    at = seen[0].power_seen_at
    world.bmc.dead = {"n1", "n3"}
    world.pass_(2 * ROUND)
    assert (world.node("n1").power, world.node("n1").power_seen_at) == ("on", at), "it gets older"
    assert told(world) == []


def test_an_active_node_that_is_found_off_twice_is_told_once(world: World) -> None:
    with world.engine.begin() as tx:
        world.add(tx, "n1", state="active", power="on")
        world.add(tx, "n2", state="off", power="off")
        world.add(tx, "n3", state="active", power="off", power_wanted="off")
    world.poll.startService()
    assert (world.node("n1").power, told(world)) == ("off", [])  # it may be a reset
    world.pass_(3 * ROUND)
    assert told(world) == ["found-off"]
    assert world.node("n1").reason == flows.FOUND_OFF
    world.bmc.power = {"n1": "on"}
    world.pass_(ROUND)
    assert (world.node("n1").power, world.node("n1").reason) == ("on", "")
    assert told(world) == ["found-off", "found-on"]


def test_what_cod_switches_itself_is_left_to_the_wish(world: World) -> None:
    world.wish("n1", "on", state="active")
    world.bmc.dead = {"n1"}
    world.edge.startService()
    world.bmc.dead = set()
    world.poll.startService()
    assert world.node("n1").power_seen_at is None
    world.pass_(10.0)
    assert world.node("n1").power == "on"
    assert world.node("n1").power_seen_at is not None


# ---------------------------------------------------------------- the lab driver


class Lab(LineOnlyReceiver):
    """The lab's end of the socket: what was asked is kept, `answers` are given one by one."""

    delimiter = b"\n"
    asked: list[Any]
    answers: list[bytes | None]

    def lineReceived(self, line: bytes) -> None:
        self.asked.append(json.loads(line))
        answer = self.answers.pop(0)
        if answer is None:
            self.transport.loseConnection()
        else:
            self.transport.write(answer + b"\n")  # type: ignore[call-arg]


@pytest.fixture
def lab(reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path) -> Iterator[type[Lab]]:
    kind = type("Kind", (Lab,), {"asked": [], "answers": []})
    port = in_reactor(reactor.listenUNIX, str(tmp_path / "lab.sock"), Factory.forProtocol(kind))
    yield kind
    in_reactor(port.stopListening)


def test_the_lab_driver_speaks_one_line_each_way(
    lab: type[Lab], reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path
) -> None:
    driver, address = LabDriver(reactor), Target(f"{tmp_path}/lab.sock#52:54:00:00:00:01")
    lab.answers += [
        b'{"ok": true, "power": "off"}',
        b'{"ok": true, "power": "on"}',
        b'{"ok": true, "power": "on"}',
        b'{"ok": true, "power": "off"}',
    ]
    assert in_reactor(driver.status, address) == "off"
    for command in (driver.on, driver.cycle, driver.off):
        assert in_reactor(command, address) is None
    assert [request["op"] for request in lab.asked] == ["status", "on", "reset", "off"]
    assert {request["node"] for request in lab.asked} == {"52:54:00:00:00:01"}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b'{"ok": false, "error": "no node n9"}', "the lab says: no node n9"),
        (b"hello", "is not the socket of a lab"),
        (b"[]", "the lab says: nothing"),
        (None, "closed the connection without an answer"),
    ],
)
def test_the_lab_driver_gives_reasons(
    lab: type[Lab],
    reactor: Any,
    in_reactor: Callable[..., Any],
    tmp_path: Path,
    answer: bytes | None,
    sentence: str,
) -> None:
    lab.answers.append(answer)
    with pytest.raises(PowerError, match=sentence) as raised:
        in_reactor(LabDriver(reactor).on, Target(f"{tmp_path}/lab.sock#n9"))
    assert not raised.value.lasting


def test_the_lab_driver_without_a_lab(
    reactor: Any, in_reactor: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(PowerError, match="does not answer"):
        in_reactor(LabDriver(reactor).status, Target(f"{tmp_path}/gone.sock#n1"))
    with pytest.raises(PowerError, match="SOCKET#NODE") as raised:
        in_reactor(LabDriver(reactor).status, Target("nonsense"))
    assert raised.value.lasting
