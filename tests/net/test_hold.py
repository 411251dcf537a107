"""A restored site is held: machines are asked what they hold, and nothing is granted or erased on a
doubt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from cod.core import leases
from cod.core.nodes import stories
from cod.flows.agents import orders
from cod.flows.nodes import hold
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import explain, plan
from cod.model import Refused, Site
from cod.states import NodeEvent, Step, StoryVerdict
from cod.store import claims, dns_zones, schema, vcms, volumes, watermarks
from cod.store import tables as t
from cod.store.backup import backup, restore
from cod.store.engine import Tx
from cod.store.nodes import nodes, switch_ports
from cod.store.people import groups
from cod.store.scheduler import vclusters
from cod.workers import lost_commits
from tests.contexts import flow_context
from tests.net.test_manager import House, create
from tests.store.agentlab import Lab
from tests.store.manager_world import arrive, furnish, in_tx, states

pytestmark = pytest.mark.slow
MANAGERS = t.claims.c.name == "manager"


def wishes(tx: Tx) -> list[str | None]:
    return [node.power_wanted for node in nodes.every(tx)]


def stamped(engine: Engine) -> None:
    """Have the test's tables say of which schema they are, as a site's do."""
    with engine.begin() as tx:
        tx.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        tx.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{schema.head()}')")


def verdicts(tx: Tx) -> dict[str, str]:
    return {node.name: story.verdict for node, story in hold.show(tx).nodes}


def tells(lab: Lab, peer: Any, number: int, disks: str) -> None:
    """The agent carries out the order to look at its disks."""
    order = lab.order(number)
    assert order.action == "look"
    lab.look(peer, order.id, disks)


def test_a_node_granted_since_the_backup_runs_on_while_the_site_is_held(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    stamped(engine)
    in_tx(engine, furnish, 2)
    backup(engine, tmp_path / "backup")
    house = House(engine, site)
    create(engine, site, size=2)
    house.manager.startService()
    house.seconds(1)
    in_tx(engine, arrive, house.clock.seconds())
    in_tx(engine, arrive, house.clock.seconds())
    assert set(in_tx(engine, states).values()) == {"active"}
    house.manager.stopService()

    restore(engine, tmp_path / "backup", house.clock.seconds(), replace=True)
    held = in_tx(engine, hold.show)
    assert (held.since, held.why) == (house.clock.seconds(), "it was restored from a backup")
    before = in_tx(engine, states), in_tx(engine, wishes)
    again = House(engine, site, clock=house.clock)
    again.manager.startService()
    create(engine, site, "two", size=1)
    house.clock.advance(3600.0)  # past every deadline
    again.seconds(3)
    assert (in_tx(engine, states), in_tx(engine, wishes)) == before
    assert set(before[0].values()) == {"trampoline"}

    in_tx(engine, hold.end, house.clock.seconds())
    house.clock.advance(7200.0)
    again.seconds(3)
    assert (in_tx(engine, states), in_tx(engine, wishes)) == before, "each is held by itself"
    context = flow_context(site, house.clock.seconds(), "user:ann")
    in_tx(engine, hold.decide, context, keep=[], erase=["node0"])
    again.seconds(1)
    assert in_tx(engine, wishes)[0] != before[1][0]
    assert in_tx(engine, wishes)[1] == before[1][1]


def test_a_restore_without_a_hold_goes_on_at_once(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    stamped(engine)
    in_tx(engine, furnish, 1)
    in_tx(engine, hold.start, 0.0)
    backup(engine, tmp_path / "backup")
    restore(engine, tmp_path / "backup", 5.0, replace=True, hold=False)
    assert in_tx(engine, hold.show) == hold.SiteHold(None, "", ())


def test_a_free_site_grants_nothing_while_it_is_held(engine: Engine, site: Site) -> None:
    in_tx(engine, furnish, 2)
    in_tx(engine, hold.start, 0.0)
    house = House(engine, site)
    house.manager.startService()
    create(engine, site, size=1)
    house.seconds(20)
    assert set(in_tx(engine, states).values()) == {"trampoline"}
    in_tx(engine, hold.end, house.clock.seconds())
    house.seconds(20)
    assert set(in_tx(engine, states).values()) == {"trampoline"}, "no machine has told anything"


def test_a_request_of_a_held_site_is_told_what_it_waits_for(engine: Engine, site: Site) -> None:
    in_tx(engine, furnish, 2)
    create(engine, site, size=1)
    in_tx(engine, hold.start, 0.0)
    why = "the site is held: an administrator holds it; nothing is granted until the hold ends"
    assert [(one.kind, one.request_id, one.about) for one in in_tx(engine, plan_of, site)] == [
        ("wait", 1, why)
    ]
    found = in_tx(engine, explained, site)
    assert found.why.sentence.startswith(f"{why[0].upper()}{why[1:]}. ")
    assert found.start == ""
    in_tx(engine, hold.end, 1.0)
    assert "held:" not in in_tx(engine, explained, site).why.sentence
    assert "held:" not in str(in_tx(engine, plan_of, site))


def plan_of(tx: Tx, site: Site) -> list[plan.Planned]:
    return plan.preview(tx, site=site, now=5.0)


def explained(tx: Tx, site: Site) -> explain.Why:
    """Why the first request waits."""
    seen = plan.look(tx, site, 5.0)
    return explain.waits(
        tx, request_id=1, scene=seen.scene, snapshot=seen.site, site=site, groups=None, now=5.0
    )


def test_a_node_that_agrees_is_erased_only_after_the_hold(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline", disk="dirty", generation=2)
    first = hold.start(tx, 0.0)
    assert hold.start(tx, 5.0).since == first.since == 0.0
    peer = lab.boots(1)
    assert lab.node(1).state == "trampoline"
    tells(lab, peer, 1, f"{lab.node(1).id}.1 n1.web.example.org")
    assert verdicts(tx) == {"node1": "agrees"}
    assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "wait")
    hold.end(tx, lab.now)
    assert hold.end(tx, lab.now) == hold.SiteHold(None, "", ())
    lab.tick(10.0)
    assert lab.order(1).action == "wipe"


def test_leases_that_are_over_last_an_hour_after_the_hold(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    template = lab.template()
    ends = {"ended": -100.0, "soon": 600.0, "later": 7200.0}
    for name, left in ends.items():
        made = lab.vcluster(template, name=name)
        vclusters.change(tx, made, lab.now, state="active", expires_at=lab.now + left, warned=60.0)
    ended = vclusters.named(tx, "ended")
    vclusters.change(tx, ended, lab.now, drain_until=lab.now + 5)
    hold.start(tx, lab.now)
    hold.end(tx, lab.now + 50)
    found = {one.name: one for one in vclusters.every(tx)}
    hour = lab.now + 50 + leases.REPRIEVE
    assert [found[name].expires_at for name in ends] == [hour, hour, lab.now + 7200]
    assert found["ended"].drain_until is None
    assert [found[name].warned for name in ends] == [None, None, 60.0]


def test_a_lease_that_its_owner_extends_as_the_hold_ends_is_not_cut_short(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tx, site)
    made = lab.vcluster(lab.template(), name="web")
    vclusters.change(tx, made, lab.now, state="active", expires_at=lab.now + 1.0)
    hold.start(tx, lab.now)
    before = vclusters.every(tx)
    vclusters.change(tx, before[0], lab.now, expires_at=lab.now + 7200.0)
    monkeypatch.setattr(vclusters, "every", lambda *_: before)  # read before that was committed
    hold.end(tx, lab.now)
    assert vclusters.named(tx, "web").expires_at == lab.now + 7200.0


def test_a_blank_free_node_is_free_again_after_the_hold(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    peer = lab.boots(1)
    hold.start(tx, lab.now)
    tells(lab, peer, 1, "blank")
    hold.end(tx, lab.now)
    lab.tick(10.0)
    assert lab.node(1).state == "inactive"


@pytest.mark.parametrize(("later", "verdict"), [(-1, "agrees"), (0, "agrees"), (1, "differs")])
def test_an_installation_that_the_database_cannot_know_sets_the_node_aside(
    tx: Tx, site: Site, later: int, verdict: str
) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    lab.machine(2, "inactive")
    peer = lab.boots(1)
    known = lab.node(1).generation
    tx.execute(t.node_history.delete())  # it is older than histories are kept
    hold.start(tx, lab.now)
    tells(lab, peer, 1, f"{lab.node(1).id}.{known + later} n1.web.example.org")
    assert verdicts(tx) == {"node1": verdict, "node2": "silent"}, "its word is of itself alone"
    hold.end(tx, lab.now)
    lab.tick(10.0)
    if verdict == "agrees":
        assert lab.node(1).state == "inactive"
        return
    node = lab.node(1)
    assert (node.state, node.disk) == ("quarantined", "clean")
    assert node.reason == (
        f"the database says free, trampoline, installed in generation {known} at the latest; the"
        f" machine says: its disk was installed as n1.web.example.org, generation {known + 1}"
    )


@pytest.mark.parametrize("said", ["other", "999.1 n1.web.example.org", "1.2; rm -rf /"])
def test_a_disk_in_doubt_is_never_erased_by_itself(tx: Tx, site: Site, said: str) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline", disk="dirty")
    hold.start(tx, lab.now)
    peer = lab.boots(1)
    tells(lab, peer, 1, said)
    hold.end(tx, lab.now)
    lab.tick(100_000.0)
    assert (lab.node(1).state, "wipe_ordered" in lab.events(1)) == ("quarantined", False)
    hold.decide(tx, flow_context(site, lab.now, "user:ann"), keep=[], erase=["node1"])
    assert verdicts(tx) == {}
    lab.boots(1)
    assert lab.order(1).action == "wipe"


def test_a_node_that_was_out_of_service_is_asked_before_it_returns(tx: Tx, site: Site) -> None:
    """The database may have forgotten that it was in service meanwhile, and what it runs."""
    lab = Lab(tx, site)
    lab.machine(1, "inactive", disk="dirty", generation=1)
    context = flow_context(lab.site, lab.now, "user:root")
    node_flows.quarantine(tx, context, name="node1", reason="its fan")
    hold.start(tx, lab.now + 1.0)
    hold.end(tx, lab.now + 2.0)
    assert verdicts(tx) == {}
    lab.tick(10.0)

    def restored() -> Any:
        node_flows.restore(tx, flow_context(lab.site, lab.now, "user:root"), name="node1")
        return lab.boots(1)

    peer = restored()
    assert verdicts(tx) == {"node1": "silent"}
    tells(lab, peer, 1, f"{lab.node(1).id}.9 n1.web.example.org")
    assert lab.node(1).state == "quarantined"
    lab.tick(10.0)
    restored()  # the administrator has read both stories
    assert lab.order(1).action == "wipe"


def test_a_silent_node_that_is_set_aside_is_asked_when_it_returns(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive", generation=1)
    hold.start(tx, lab.now)
    hold.end(tx, lab.now + 1.0)
    lab.tick(10.0)
    context = flow_context(lab.site, lab.now, "user:root")
    node_flows.quarantine(tx, context, name="node1", reason="its fan")
    node_flows.restore(tx, context, name="node1")
    assert verdicts(tx) == {"node1": "silent"}
    tells(lab, lab.boots(1), 1, f"{lab.node(1).id}.9 n1.web.example.org")
    assert lab.node(1).state == "quarantined"


def test_a_node_in_doubt_can_be_kept(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    hold.start(tx, lab.now)
    context = flow_context(site, lab.now, "user:ann")
    with pytest.raises(Refused, match="node1 is not held"):
        hold.decide(tx, context, keep=["node1", "node1"], erase=[])
    assert (lab.node(1).state, verdicts(tx)) == ("quarantined", {})
    hold.end(tx, lab.now)
    lab.boots(1)
    assert (lab.node(1).state, lab.order(1).action) == ("quarantined", "wait")


def test_a_node_that_has_its_holders_system_boots_it_as_it_is(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    order = lab.order(1)
    assert order.action == "prime"
    lab.done(peer, order.id)
    assert lab.node(1).state == "boot"
    lab.apply(1, Step(NodeEvent.BOOT_FAILED, "restored"))  # as a restore leaves it
    hold.start(tx, lab.now)
    peer = lab.boots(1)
    tells(lab, peer, 1, f"{order.id} n1.vc.example.org")
    assert lab.node(1).state == "boot", "at once: nothing is written"
    assert lab.events(1).count("prime_ordered") == 1


def forgotten(lab: Lab, marks: str) -> str:
    """Return the reason of a node that was primed for the vcluster 'vc', after a hold in which its
    agent finds other `marks` of the same generation; '' where it boots."""
    lab.machine(1, "trampoline")
    lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    prime = lab.order(1)
    assert prime.action == "prime"
    told = json.loads(prime.seed["meta-data"])["cod-installation"]
    hold.start(lab.tx, lab.now)
    tells(lab, lab.boots(1), 1, f"{prime.id} n1.web.example.org {marks or told}".strip())
    return "" if lab.node(1).state == "boot" else lab.node(1).reason


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ("", ""),
        (f"1.999 {'0' * 64}", "for another vcluster than the one of that generation"),
        (
            f"1.1000 {'5e' * 32}",
            f"from the template with the digest {'5e' * 6}, and not {'0' * 12}",
        ),
    ],
)
def test_a_forgotten_installation_of_a_generation_that_was_given_again_is_not_booted(
    tx: Tx, site: Site, marks: str, reason: str
) -> None:
    """The database has lost the installation, and gave its generation and the vcluster's id again
    before the loss was noticed."""
    lab = Lab(tx, site)
    found = forgotten(lab, marks)
    assert found.endswith(reason)
    assert bool(found) == bool(reason)
    assert lab.node(1).state == ("quarantined" if reason else "boot")
    lab.tick(100_000.0)
    assert not {"wipe_ordered", "wiped"} & {*lab.events(1)}


def test_an_agent_of_before_names_no_installation(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    prime = lab.order(1)
    hold.start(tx, lab.now)
    tells(lab, lab.boots(1), 1, f"{prime.id} n1.vc.example.org")
    assert (lab.node(1).state, verdicts(tx)) == ("boot", {"node1": "agrees"})


def test_a_mark_of_a_generation_in_which_nothing_was_installed_differs(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    known = lab.node(1).generation
    hold.start(tx, lab.now)
    tells(lab, lab.boots(1), 1, f"{lab.node(1).id}.{known} n1.web.example.org")
    assert verdicts(tx) == {"node1": "differs"}
    assert lab.node(1).reason.endswith(
        "in which the node was in state inactive, and was not installed"
    )


def test_a_node_released_while_the_site_is_held_keeps_its_disk(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    vcluster = lab.vcluster(lab.template())
    peer = lab.boots(1)
    lab.assign(1, vcluster)
    order = lab.order(1)
    lab.done(peer, order.id)
    lab.apply(1, Step(NodeEvent.BOOTED, "its system runs"))
    hold.start(tx, lab.now)
    lab.release(1)
    peer = lab.boots(1)
    tells(lab, peer, 1, order.id)
    assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "wait")
    hold.end(tx, lab.now)
    lab.tick(10.0)
    assert lab.order(1).action == "wipe"


def test_a_machine_that_the_backup_does_not_know_is_not_erased(tx: Tx, site: Site) -> None:
    lab = Lab(tx, replace(site, policy=replace(site.policy, auto_approve=True)))
    lab.machine(1, "new", disk="foreign")
    hold.start(tx, lab.now)
    peer = lab.boots(1)
    assert lab.node(1).state == "trampoline"
    tells(lab, peer, 1, "77.12 n1.web.example.org")
    assert lab.node(1).state == "quarantined"


def test_silent_nodes_are_switched_on_when_an_administrator_says_so(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "off")
    lab.machine(2, "active")
    hold.start(tx, lab.now)
    assert lab.wishes(1) == []
    hold.wake(tx, lab.now)
    assert (lab.wishes(1), lab.wishes(2)) == (["on"], [])


def test_an_agent_that_waits_is_told_to_look_once(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline", disk="dirty")
    peer = lab.boots(1)
    lab.failed(peer, lab.order(1).id)
    assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "wait")
    orders.waiting(tx, "a", site, lab.now)
    before = lab.order(1).id
    hold.start(tx, lab.now)
    [(_, _, order)] = orders.waiting(tx, "a", site, lab.now).value
    assert order.action == "look"
    assert order.id != before, "an agent takes a second order of one id for a repeat"
    assert orders.waiting(tx, "a", site, lab.now).value == []
    lab.look(peer, order.id, "blank")
    assert verdicts(tx) == {"node1": "agrees"}


@pytest.mark.parametrize("assigned", [False, True])
def test_a_node_that_is_written_to_stops_until_it_has_told(
    tx: Tx, site: Site, assigned: bool
) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline", disk="clean" if assigned else "dirty")
    peer = lab.boots(1)
    if assigned:
        lab.assign(1, lab.vcluster(lab.template()))
    order = lab.order(1)
    assert order.action == ("prime" if assigned else "wipe")
    hold.start(tx, lab.now)
    lab.done(peer, order.id)
    assert lab.node(1).state == "trampoline", "an order of before means nothing"
    tells(lab, peer, 1, "other")
    assert lab.node(1).state == "quarantined"


def test_what_a_prime_had_finished_when_the_site_was_held_boots(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    order = lab.order(1)
    hold.start(tx, lab.now)
    tells(lab, peer, 1, f"{order.id} n1.vc.example.org")
    assert (lab.node(1).state, verdicts(tx)) == ("boot", {"node1": "agrees"})


def test_a_second_hold_knows_no_more_of_a_node_that_is_still_held(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "active", generation=5)
    hold.start(tx, lab.now)
    hold.end(tx, lab.now)
    lab.apply(1, Step(NodeEvent.RELEASED, "meanwhile"))
    for _ in range(3):
        lab.apply(1, Step(NodeEvent.TIMED_OUT, "meanwhile"))
    hold.start(tx, lab.now)
    peer = lab.boots(1)
    tells(lab, peer, 1, f"{lab.node(1).id}.7 n1.web.example.org")
    assert verdicts(tx) == {"node1": "differs"}, "an installation of generation 7 was forgotten"


def test_a_backup_of_held_nodes_knows_no_more_of_them(engine: Engine, tmp_path: Path) -> None:
    stamped(engine)
    in_tx(engine, furnish, 1)
    in_tx(engine, hold.start, 0.0)
    known = [story.known for _, story in in_tx(engine, hold.show).nodes]
    for turn in range(3):
        backup(engine, tmp_path / "backup")
        restore(engine, tmp_path / "backup", 5.0 + turn, replace=True)
    assert [story.known for _, story in in_tx(engine, hold.show).nodes] == known


def test_a_node_that_agrees_cannot_be_marked_for_erasure(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    peer = lab.boots(1)
    hold.start(tx, lab.now)
    tells(lab, peer, 1, "blank")
    assert lab.node(1).state == "inactive"
    with pytest.raises(Refused, match="node1 is not held"):
        hold.decide(tx, flow_context(site, lab.now, "user:ann"), keep=[], erase=["node1"])
    assert lab.node(1).disk == "clean", "a free node is never dirty"


def test_all_deadlines_are_put_off_by_the_time_of_the_hold(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "boot")
    lab.machine(2, "active")
    deadline = lab.node(1).deadline
    assert deadline is not None
    hold.start(tx, lab.now)
    hold.end(tx, lab.now + 50.0)
    assert lab.node(1).deadline == deadline + 50.0
    assert lab.node(2).deadline is None


def test_a_hold_that_two_end_at_once_puts_deadlines_off_once(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "boot")
    hold.start(tx, lab.now)
    hold.end(tx, lab.now + 50.0)
    ended = lab.node(1)
    monkeypatch.setattr(watermarks, "at", lambda *_: lab.now)  # read before that was committed
    hold.end(tx, lab.now + 50.0)
    assert lab.node(1).deadline == ended.deadline is not None


def test_why_an_agent_could_not_look_is_told(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    hold.start(tx, lab.now)
    peer = lab.boots(1)
    lab.failed(peer, lab.order(1).id, "the disk /dev/sda cannot be read: I/O error")
    [(node, story)] = hold.show(tx).nodes
    assert (node.state, story.verdict) == ("trampoline", "silent")
    assert story.said == ("its agent could not look: the disk /dev/sda cannot be read: I/O error")
    peer = lab.boots(1)
    tells(lab, peer, 1, "blank")
    assert verdicts(tx) == {"node1": "agrees"}


def test_an_agent_that_cannot_look_takes_back_no_doubt(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    hold.start(tx, lab.now)
    peer = lab.boots(1)
    stories.by_system(tx, lab.node(1).id, StoryVerdict.DIFFERS, "a system ran", lab.now)
    lab.failed(peer, lab.order(1).id, "the disk /dev/sda cannot be read: I/O error")
    [(_, story)] = hold.show(tx).nodes
    assert (story.verdict, story.said) == ("differs", "a system ran")


def remembered(engine: Engine) -> dict[str, Any]:
    """Return the manager's claim as it is in the database now."""
    with engine.begin() as tx:
        return dict(tx.execute(select(t.claims).where(MANAGERS)).mappings().one())


def forgets(engine: Engine, row: dict[str, Any]) -> None:
    """Have the database forget what became of the manager's claim since."""
    with engine.begin() as tx:
        tx.execute(update(t.claims).where(MANAGERS).values(**row))


def is_told(engine: Engine) -> list[str]:
    """Return the kinds of all notices."""
    with engine.begin() as tx:
        return list(tx.scalars(select(t.notices.c.kind)))


def test_a_lost_tail_of_the_database_holds_the_site_and_is_told(engine: Engine, site: Site) -> None:
    in_tx(engine, furnish, 1)
    house = House(engine, site)
    house.manager.startService()
    house.seconds(1)
    before = remembered(engine)
    house.seconds(30)
    assert in_tx(engine, hold.lasts) is False
    forgets(engine, before)
    house.seconds(2)
    held = in_tx(engine, hold.show)
    assert held.why == "its database has lost its last commits"
    assert is_told(engine) == ["site-held"]
    in_tx(engine, hold.end, house.clock.seconds())
    house.seconds(30)
    assert in_tx(engine, hold.lasts) is False, "one loss holds the site once"


def test_a_server_that_does_not_manage_holds_the_site_when_the_manager_is_gone(
    engine: Engine, site: Site
) -> None:
    in_tx(engine, furnish, 1)
    house = House(engine, site)
    house.manager.startService()
    other = House(engine, site, "b", house.clock)
    other.manager.startService()
    house.seconds(1)
    before = remembered(engine)
    house.seconds(30)
    house.manager.stopService()
    house.seconds(1)
    forgets(engine, before)
    other.seconds(2)
    assert in_tx(engine, hold.show).why == hold.LOST
    assert is_told(engine) == ["site-held"]


def test_a_server_that_is_started_anew_finds_what_was_lost_meanwhile(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    """All servers died, and the database with them."""
    in_tx(engine, furnish, 1)
    first, second = tmp_path / "a" / "seen", tmp_path / "b" / "seen"
    house = House(engine, site, memory=first)
    other = House(engine, site, "b", house.clock, memory=second)
    house.manager.startService()
    other.manager.startService()
    house.seconds(31)
    before = remembered(engine)
    create(engine, site, size=1)
    house.seconds(2)
    assert set(in_tx(engine, states).values()) == {"prime"}
    house.manager.stopService()
    other.manager.stopService()
    forgets(engine, before)

    again = House(engine, site, clock=house.clock, memory=first)
    again.manager.startService()
    again.seconds(1)
    assert in_tx(engine, hold.show).why == hold.LOST
    in_tx(engine, hold.end, house.clock.seconds())
    again.manager.stopService()
    late = House(engine, site, "b", house.clock, memory=second)
    late.manager.startService()
    late.seconds(30)
    assert in_tx(engine, hold.lasts) is False, "the other server knows of the same loss"
    assert is_told(engine).count("site-held") == 1


def test_no_part_begins_before_it_has_looked_for_a_loss(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    """An agent that comes first would be told to erase a disk by what the database had forgotten."""
    in_tx(engine, furnish, 1)
    house = House(engine, site, memory=tmp_path / "seen")
    lost_commits.look_first(engine, tmp_path / "seen", 0.0)
    house.manager.startService()
    house.seconds(1)
    before = remembered(engine)
    house.seconds(30)
    lost_commits.look_first(engine, tmp_path / "seen", 31.0)
    assert in_tx(engine, hold.lasts) is False
    forgets(engine, before)
    lost_commits.look_first(engine, tmp_path / "seen", 32.0)
    lost_commits.look_first(engine, tmp_path / "seen", 33.0)
    assert in_tx(engine, hold.show).since == 32.0
    assert is_told(engine) == ["site-held"]


def expiring(engine: Engine, site: Site) -> House:
    """A manager whose next pass drains three vclusters, in a transaction for each."""
    in_tx(engine, furnish, 3)
    house = House(engine, site)
    for name in ("one", "two", "three"):
        create(engine, site, name, size=1)
    house.manager.startService()
    house.seconds(62)  # so that leases run out
    for _ in range(2):
        in_tx(engine, arrive, house.clock.seconds())
    assert set(in_tx(engine, states).values()) == {"active"}
    with engine.begin() as tx:
        tx.execute(update(t.vclusters).values(expires_at=house.clock.seconds()))
    return house


def test_a_loss_amid_the_acts_of_a_plan_is_found_though_more_acts_follow(
    engine: Engine, site: Site
) -> None:
    house = expiring(engine, site)
    kept: list[dict[str, Any]] = []

    def meanwhile(flow: str) -> None:
        if flow == "drain":
            kept.append(remembered(engine))
        if flow == "drain" and len(kept) == 2:
            forgets(engine, kept[0])

    house.pool.before = meanwhile
    house.seconds(20)
    assert len(kept) == 3
    assert in_tx(engine, hold.show).why == hold.LOST


def test_a_loss_is_found_while_a_plan_is_carried_out(engine: Engine, site: Site) -> None:
    """Also where the claim need not be renewed yet: what else is granted is erased first."""
    house = expiring(engine, site)
    drained = 0

    def meanwhile(flow: str) -> None:
        nonlocal drained
        if flow == "drain":
            drained += 1
            forgets(engine, remembered(engine) | {"acts": 0})
            house.clock.rightNow += 1.0  # what the act takes

    house.pool.before = meanwhile
    house.seconds(20)
    assert drained == 1
    assert in_tx(engine, hold.show).why == hold.LOST


def test_a_loss_that_is_itself_lost_holds_the_site_again(engine: Engine, site: Site) -> None:
    in_tx(engine, furnish, 1)
    house = House(engine, site)
    house.manager.startService()
    house.seconds(1)
    before = remembered(engine)
    house.seconds(30)
    forgets(engine, before)
    house.seconds(2)
    assert in_tx(engine, hold.lasts)
    in_tx(engine, hold.end, 0.0)  # as it was before the hold
    with engine.begin() as tx:
        tx.execute(update(t.marks).where(t.marks.c.name == watermarks.DATABASE).values(at=0.0))
    house.seconds(2)
    assert in_tx(engine, hold.lasts)


def test_what_was_told_before_a_loss_in_a_hold_is_not_believed(tx: Tx, site: Site) -> None:
    """The database may be as it was in a hold that has ended since: what was installed after it is
    forgotten."""
    lab = Lab(tx, site)
    lab.machine(1, "inactive")
    lab.machine(2, "boot")
    hold.start(tx, 10.0)
    deadline = lab.node(2).deadline
    tells(lab, lab.boots(1), 1, "blank")
    assert verdicts(tx)["node1"] == "agrees"
    claim = claims.hold(tx, "manager", "a", 20.0, 10.0)
    claims.name_database(tx, "a 0.0")
    found = claims.progress(tx)
    assert found is not None
    assert claim is not None
    assert hold.watch(tx, replace(found, acts=found.acts + 1), now=500.0)
    assert verdicts(tx)["node1"] == "silent"
    assert (hold.show(tx).since, hold.show(tx).why) == (10.0, hold.LOST)
    # the row that a database host which is only late cannot write
    with pytest.raises(claims.Lost):
        claims.confirm(tx, claim)
    tells(lab, lab.boots(1), 1, f"{lab.node(1).id}.99 n1.web.example.org")
    assert lab.node(1).state == "quarantined"
    hold.end(tx, 600.0)
    assert deadline is not None
    assert lab.node(2).deadline == deadline + 590.0


def test_a_restored_database_is_no_lost_tail(engine: Engine, site: Site, tmp_path: Path) -> None:
    """A restore holds the site by itself, unless it was told not to."""
    stamped(engine)
    in_tx(engine, furnish, 1)
    house = House(engine, site, memory=tmp_path / "seen")
    house.manager.startService()
    house.seconds(1)
    backup(engine, tmp_path / "backup")
    house.seconds(60)
    house.manager.stopService()
    restore(engine, tmp_path / "backup", house.clock.seconds(), replace=True, hold=False)
    again = House(engine, site, clock=house.clock, memory=tmp_path / "seen")
    again.manager.startService()
    again.seconds(10)
    before = remembered(engine)
    again.seconds(20)
    assert in_tx(engine, hold.lasts) is False
    forgets(engine, before)
    again.seconds(2)
    assert in_tx(engine, hold.lasts), "it remembers the new database"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'["a", 1, 2, "x"]', b"[]"])
def test_a_memory_that_cannot_be_read_or_written_keeps_no_manager(
    engine: Engine, site: Site, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    in_tx(engine, furnish, 1)
    (tmp_path / "seen").write_bytes(content)
    (tmp_path / "seen.new").mkdir()
    house = House(engine, site, memory=tmp_path / "seen")
    house.manager.startService()
    create(engine, site, size=1)
    house.seconds(5)
    assert set(in_tx(engine, states).values()) == {"prime"}
    told = [each for each in caplog.messages if "seen.new" in each]
    assert len(told) == 1
    (tmp_path / "seen.new").rmdir()
    house.seconds(5)
    assert (tmp_path / "seen").read_bytes() != content


def test_what_is_seen_of_a_database_is_written_once_a_second_at_most(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    house = House(engine, site, memory=tmp_path / "seen")
    house.manager.startService()
    house.seconds(8)
    written = (tmp_path / "seen").read_bytes()
    with engine.begin() as tx:
        claim = claims.find(tx, "manager")
        assert claim is not None
        claims.confirm(tx, claim)
    house.manager.wake()
    house.clock.advance(0.25)
    assert (tmp_path / "seen").read_bytes() == written
    house.seconds(2)
    assert (tmp_path / "seen").read_bytes() != written


def test_a_database_host_that_is_only_late_is_none_that_has_lost_commits(
    engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a proxy, a read may be answered by a host that has not applied the last commits."""
    in_tx(engine, furnish, 1)
    house = House(engine, site)
    house.manager.startService()
    house.seconds(1)
    late = in_tx(engine, hold.observe)
    house.seconds(10)
    with monkeypatch.context() as patch:
        patch.setattr(hold, "observe", lambda tx: late)
        house.seconds(3)
    assert in_tx(engine, hold.lasts) is False
    assert not [each for each in caplog.records if lost_commits.HELD in each.message]
    before = remembered(engine)
    house.seconds(10)
    forgets(engine, before)
    house.seconds(2)
    assert in_tx(engine, hold.lasts), "what was seen before the late reads is remembered"


def test_only_a_database_that_is_older_than_it_was_seen_has_lost_commits() -> None:
    seen = claims.Progress("a 1.0", 1, 5, 70)
    assert not seen.is_behind(seen)
    assert not replace(seen, generation=6, acts=71).is_behind(seen)
    assert replace(seen, generation=4, acts=71).is_behind(seen)
    assert replace(seen, acts=69).is_behind(seen)
    assert replace(seen, losses=0, acts=100).is_behind(seen)
    assert not replace(seen, losses=2, generation=1, acts=1).is_behind(seen)
    assert not replace(seen, database="b 1.0", generation=1, acts=1).is_behind(seen)


def test_what_was_told_to_others_is_told_anew_when_a_site_is_held(tx: Tx, site: Site) -> None:
    """File servers refuse a change that is older than what they have carried out, secondaries of
    DNS a serial that is older than theirs, and a port may be in another VLAN than it was in."""
    lab = Lab(tx, site)
    node = lab.machine(1, "active")
    group = groups.add(tx, "red", 0.0).id
    number = volumes.add(
        tx,
        name="red/d1",
        group_id=group,
        kind="data",
        fileserver="nas",
        path="/srv/x",
        export_id=1000,
        size=1,
        sequence=4,
        applied=4,
        next_at=0.0,
        created_at=0.0,
    ).id
    port = switch_ports.add(
        tx, switch="leaf", port="p1", node_id=node.id, mac=node.boot_mac, source="lldp", now=0.0
    )
    tx.execute(t.dns_zones.insert().values(kind="site", key="x", serial=900))
    hold.start(tx, 500.0)
    volume = volumes.get(tx, number)
    assert volume is not None
    assert (volume.sequence, volume.applied, volume.next_at) == (500, 0, 500.0)
    again = switch_ports.ROWS.get(tx, port.id)
    assert again is not None
    assert (again.seq, again.applied_seq, again.next_at) == (port.seq + 1, port.applied_seq, 500.0)
    assert set(dns_zones.serials(tx).values()) == {901}


def test_a_vcm_asks_how_things_are_when_a_site_is_held(engine: Engine, site: Site) -> None:
    """Numbers of messages that were forgotten are given again: it would take the new ones for
    repeats."""
    in_tx(engine, furnish, 1)
    create(engine, site, size=1)
    with engine.begin() as tx:
        vcms.enrol(tx, 1, serial="a1", address="", head=None, now=0.0)
        vcms.enqueue(tx, 1, "lease", {}, 0.0)
        before = vcms.get(tx, 1)
        hold.start(tx, 500.0)
        vcms.enqueue(tx, 1, "lease", {}, 500.0)
        [owed] = vcms.unacknowledged(tx, {1: 0})
        found = vcms.get(tx, 1)
    assert before is not None
    assert found is not None
    assert (found.acked, owed.sequence, found.server) == (500, 501, None)
    assert found.epoch > before.epoch


def test_a_plan_that_is_being_carried_out_ends_when_the_site_is_held(tx: Tx) -> None:
    claim = claims.hold(tx, "manager", "a", 0.0, 10.0)
    assert claim is not None
    hold.start(tx, 1.0)
    with pytest.raises(claims.Lost):
        claims.confirm(tx, claim)
    again = claims.hold(tx, "manager", "a", 2.0, 10.0, claim)
    assert again is not None
    claims.confirm(tx, again)


def test_the_first_claim_is_an_act_like_any_other(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    in_tx(engine, claims.name_database, "a 0.0")
    (tmp_path / "seen").write_text('["a 0.0", 0, 0, 0]')
    house = House(engine, site, memory=tmp_path / "seen")
    house.manager.startService()
    assert in_tx(engine, hold.lasts) is False


def test_a_claim_that_grows_or_was_taken_over_is_no_lost_tail(tx: Tx) -> None:
    mine = claims.hold(tx, "manager", "a", 0.0, 10.0)
    assert mine is not None
    claims.name_database(tx, "a 0.0")
    seen = claims.progress(tx)
    assert seen is not None
    claims.hold(tx, "manager", "a", 5.0, 10.0, mine)
    claims.hold(tx, "manager", "b", 100.0, 10.0, over=claims.find(tx, "manager"))
    found = claims.progress(tx)
    assert found is not None
    assert (found.is_behind(seen), seen.is_behind(found)) == (False, True)
    tx.execute(t.claims.delete())
    gone = claims.progress(tx)
    assert gone is not None
    assert gone.is_behind(seen)


def test_an_approval_while_the_site_is_held_writes_to_no_disk(tx: Tx, site: Site) -> None:
    """The database may have forgotten that the machine was approved, and what it runs."""
    by_hand = replace(site.policy, auto_approve=False)
    tests = replace(site.burnin, at_registration=True)
    lab = Lab(tx, replace(site, policy=by_hand, burnin=tests))
    lab.machine(1, "new", disk="foreign")
    peer = lab.boots(1)
    hold.start(tx, lab.now)
    node_flows.approve(tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")
    assert verdicts(tx) == {"node1": "silent"}
    tells(lab, peer, 1, "77.12 n1.web.example.org")
    assert (lab.node(1).state, "burnin_ordered" in lab.events(1)) == ("quarantined", False)


def test_a_machine_that_waited_for_approval_in_a_hold_is_asked_when_it_is_approved(
    tx: Tx, site: Site
) -> None:
    lab = Lab(tx, replace(site, policy=replace(site.policy, auto_approve=False)))
    lab.machine(1, "new", disk="foreign")
    peer = lab.boots(1)
    hold.start(tx, lab.now)
    hold.end(tx, lab.now + 1.0)
    lab.tick(10.0)
    node_flows.approve(tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")
    tells(lab, peer, 1, "blank")
    assert (lab.node(1).state, verdicts(tx)) == ("inactive", {})


@pytest.mark.parametrize("auto_approve", [True, False])
def test_a_machine_that_had_not_reported_in_a_hold_is_asked_when_it_does(
    tx: Tx, site: Site, auto_approve: bool
) -> None:
    """The machine may have been registered and installed since the backup."""
    lab = Lab(tx, replace(site, policy=replace(site.policy, auto_approve=auto_approve)))
    lab.machine(1, "new", disk="foreign")
    hold.start(tx, lab.now)
    hold.end(tx, lab.now + 1.0)
    lab.tick(10.0)
    peer = lab.boots(1)
    if not auto_approve:
        node_flows.approve(tx, flow_context(lab.site, lab.now, "user:ann"), name="node1")
    tells(lab, peer, 1, "77.12 n1.web.example.org")
    assert lab.node(1).state == "quarantined"


def test_a_machine_that_waited_for_approval_in_a_hold_is_asked_when_the_site_approves_it(
    tx: Tx, site: Site
) -> None:
    lab = Lab(tx, replace(site, policy=replace(site.policy, auto_approve=False)))
    lab.machine(1, "new", disk="foreign")
    lab.boots(1)
    hold.start(tx, lab.now)
    lab.site = replace(site, policy=replace(site.policy, auto_approve=True))
    tells(lab, lab.boots(1), 1, "77.12 n1.web.example.org")
    assert lab.node(1).state == "quarantined"


@pytest.mark.parametrize("source", ["dhcp", "switch"])
def test_a_node_whose_agent_has_not_told_is_asked_when_it_returns(
    tx: Tx, site: Site, source: str
) -> None:
    """What makes it differ is more of a doubt than silence."""
    lab = Lab(tx, site)
    lab.machine(1, "inactive", generation=1)
    hold.start(tx, lab.now)
    tx.execute(update(t.node_stories).values(verdict="differs", source=source))
    context = flow_context(lab.site, lab.now, "user:root")
    node_flows.quarantine(tx, context, name="node1", reason="its fan")
    hold.end(tx, lab.now + 1.0)
    node_flows.restore(tx, context, name="node1")
    tells(lab, lab.boots(1), 1, f"{lab.node(1).id}.9 n1.web.example.org")
    assert lab.node(1).state == "quarantined"


def test_a_node_is_asked_when_it_returns_though_the_clock_of_the_hold_was_behind(
    tx: Tx, site: Site
) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "inactive", disk="dirty", generation=1)
    context = flow_context(lab.site, lab.now, "user:root")
    node_flows.quarantine(tx, context, name="node1", reason="its fan")
    hold.start(tx, lab.now - 60.0)
    hold.end(tx, lab.now - 50.0)
    lab.tick(10.0)
    node_flows.restore(tx, flow_context(lab.site, lab.now, "user:root"), name="node1")
    assert verdicts(tx) == {"node1": "silent"}


def test_a_cached_disk_that_its_holder_runs_boots_as_it_is_after_a_restore(
    tx: Tx, site: Site
) -> None:
    """The mark of such a disk is that of an installation for another vcluster of the group."""
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    template = lab.template(cache="yes")
    lab.assign(1, lab.vcluster(template))
    prime = lab.order(1)
    lab.done(peer, prime.id)
    lab.apply(1, Step(NodeEvent.BOOTED, "test"))
    lab.release(1)
    lab.boots(1)
    assert (lab.node(1).state, lab.node(1).disk) == ("inactive", "cached")
    lab.assign(1, lab.vcluster(template, name="two"))
    assert lab.node(1).state == "boot"
    dirty = {"disk": "dirty", "cached_template_id": None, "cached_group_id": None}
    lab.apply(1, Step(NodeEvent.BOOT_FAILED, "restored", dirty))  # as a restore leaves it
    hold.start(tx, lab.now)
    told = json.loads(prime.seed["meta-data"])["cod-installation"]
    tells(lab, lab.boots(1), 1, f"{prime.id} n1.vc.example.org {told}")
    hold.end(tx, lab.now)
    lab.tick(10.0)
    assert lab.node(1).state == "boot"
