"""Whose fault a failure is: one member's wrong template takes no more machines than it has to, and
a part of the site that is down takes none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from cod.core import snapshot as snapshots
from cod.core.networks import switch_ports
from cod.core.nodes import transitions
from cod.flows.nodes import nodes as node_flows
from cod.flows.nodes import power as power_flows
from cod.flows.nodes import switches as switch_flows
from cod.flows.scheduler import explain as explanations
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.flows.volumes import exports
from cod.flows.volumes import volumes as volume_flows
from cod.model import AskedVolume, Energy, FileServer, Site, Switch, Vcluster
from cod.states import POWER_CONTROL, Disk, NodeEvent, Step
from cod.store import tables, views
from cod.store.engine import Tx
from cod.store.nodes import nodes, power, switches
from cod.store.nodes import switch_ports as port_rows
from cod.store.notices import notices
from cod.store.people import groups
from cod.store.scheduler import node_picks, requests
from tests.contexts import flow_context
from tests.store.agentlab import Lab
from tests.store.manager_world import run_pass
from tests.store.spoilt_machines import DOCUMENT, MACHINES, Hall, revise, wanted

LEAF = Switch("leaf", "ovs", "unix:/none", provisioning_vlan=10)


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    groups.ensure(tx, "physics", 0.0)
    return Lab(tx, replace(site, energy=Energy()))


def stopped(lab: Lab, vcluster: Vcluster) -> list[str]:
    found = requests.every(lab.tx, states=["stopped"], vcluster_id=vcluster.id)
    return [one.reason for one in found]


def told(lab: Lab, kind: str) -> int:
    return [view.notice.kind for view in notices.every(lab.tx)].count(kind)


# ---------------------------------------------------------------- a member's wrong templates


@pytest.mark.slow
def test_a_template_that_nothing_becomes_ready_with_costs_one_machine(lab: Lab) -> None:
    hall = Hall(lab)
    vcluster = wanted(lab, revise(lab))
    hall.rest()
    assert hall.states() == ["inactive"] * 7 + ["quarantined"]
    assert all(
        lab.node(number).disk == Disk.CLEAN
        for number in hall.peers
        if lab.node(number).state == "inactive"
    )
    assert ["2 different nodes" in reason for reason in stopped(lab, vcluster)] == [True]
    assert (told(lab, "stopped"), told(lab, "quarantined")) == (1, 1)


@pytest.mark.slow
def test_one_group_brings_three_machines_into_quarantine_at_most(lab: Lab) -> None:
    hall = Hall(lab)
    for turn in range(1, 6):
        wanted(lab, revise(lab, turn), name=f"vc{turn}")
        hall.rest()
    assert hall.states() == ["inactive"] * 5 + ["quarantined"] * 3


@pytest.mark.slow
def test_many_nodes_at_once_cost_one_machine(lab: Lab) -> None:
    hall = Hall(lab)
    vcluster = wanted(lab, revise(lab), MACHINES)
    hall.rest()
    assert hall.states() == ["inactive"] * 7 + ["quarantined"]
    assert len(stopped(lab, vcluster)) == 8
    assert told(lab, "stopped") == 1


@pytest.mark.slow
def test_an_administrator_who_has_looked_gives_the_group_its_tries_back(lab: Lab) -> None:
    hall = Hall(lab)
    for turn in range(1, 4):
        wanted(lab, revise(lab, turn), name=f"vc{turn}")
        hall.rest()
    for node in nodes.every(lab.tx, ["quarantined"]):
        node_flows.restore(lab.tx, flow_context(lab.site, lab.now, "user:root"), name=node.name)
    hall.rest()
    assert hall.states() == ["inactive"] * 8
    wanted(lab, revise(lab, 4), name="vc4")
    hall.rest()
    assert hall.states() == ["inactive"] * 7 + ["quarantined"]


@pytest.mark.slow
def test_a_success_closes_the_breaker(lab: Lab) -> None:
    hall = Hall(lab)
    vcluster = wanted(lab, revise(lab))
    hall.rest()
    hall.spoils = ""
    [request] = requests.every(lab.tx, states=["stopped"], vcluster_id=vcluster.id)
    request_flows.retry(lab.tx, request_id=request.id)
    hall.rest()
    assert hall.states() == ["active"] + ["inactive"] * 6 + ["quarantined"]
    hall.spoils = "boot"
    wanted(lab, "debian@1", name="vc2")
    hall.rest()
    assert hall.states() == ["active"] + ["inactive"] * 5 + ["quarantined"] * 2


@pytest.mark.slow
def test_a_stopped_request_is_tried_again_with_another_template(lab: Lab) -> None:
    hall = Hall(lab)
    vcluster = wanted(lab, revise(lab))
    hall.rest()
    hall.spoils = ""
    [request] = requests.every(lab.tx, states=["stopped"], vcluster_id=vcluster.id)
    other = lab.template(revision=2, document=DOCUMENT)
    request_flows.retry(lab.tx, request_id=request.id, template="debian@2")
    hall.rest()
    [node] = nodes.every(lab.tx, vcluster_id=vcluster.id)
    assert (node.state, node.template_id) == ("active", other)


@pytest.mark.slow
def test_an_order_that_is_wrong_costs_no_machine(lab: Lab) -> None:
    hall = Hall(lab)
    hall.spoils, hall.cause = "prime", "order"
    vcluster = wanted(lab, revise(lab), 2)
    hall.rest()
    assert hall.states() == ["inactive"] * 8
    assert stopped(lab, vcluster) == ["no place"] * 2
    assert told(lab, "stopped") == 1


@pytest.mark.slow
def test_a_stopped_request_ends_with_its_vcluster(lab: Lab) -> None:
    hall = Hall(lab)
    hall.spoils, hall.cause = "prime", "order"
    vcluster = wanted(lab, revise(lab))
    hall.rest()
    owner_flows.delete(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name=vcluster.name)
    assert [one.state for one in requests.every(lab.tx)][-1] == "withdrawn"


# ---------------------------------------------------------------- the way is down


@pytest.mark.slow
def test_an_image_that_is_not_served_is_waited_for(lab: Lab) -> None:
    hall = Hall(lab)
    hall.spoils, hall.cause = "prime", "way"
    vcluster = wanted(lab, revise(lab), 2)
    hall.rest(20)
    assert told(lab, "image-server") == 1
    held = nodes.every(lab.tx, vcluster_id=vcluster.id)
    assert {(node.waits_for, node.attempts) for node in held} == {("the image server", 0)}
    hall.spoils = ""
    hall.rest(10)
    assert hall.states() == ["active"] * 2 + ["inactive"] * 6
    assert {node.waits_for for node in nodes.every(lab.tx)} == {""}
    assert (told(lab, "image-server"), told(lab, "images-recovered")) == (1, 1)


@pytest.mark.slow
def test_a_node_that_was_given_back_waits_for_no_image(lab: Lab) -> None:
    hall = Hall(lab)
    hall.spoils, hall.cause = "prime", "way"
    vcluster = wanted(lab, revise(lab), 2)
    hall.rest(20)
    held = nodes.every(lab.tx, vcluster_id=vcluster.id)
    owner_flows.delete(lab.tx, flow_context(lab.site, lab.now, "user:root"), name="vc")
    left = [nodes.get(lab.tx, node.id) for node in held]
    assert {node and (node.vcluster_id, node.waits_for) for node in left} == {(None, "")}


@pytest.mark.slow
def test_a_switch_that_does_not_answer_costs_no_machine(lab: Lab) -> None:
    hall = Hall(lab, machines=2)
    vcluster = wanted(lab, revise(lab), 1)
    hall.turn(10.0)
    [held] = nodes.every(lab.tx, vcluster_id=vcluster.id)
    switches.keep(lab.tx, ["leaf"])
    switch_ports.connect(lab.tx, held, held.boot_mac, "leaf", "p1", source="manual", now=lab.now)
    switch_ports.want(lab.tx, held, 20, lab.now)
    for _ in range(40):
        for task in switch_flows.claim(lab.tx, "a", [LEAF], [], 1, lab.now, 1.0):
            switch_flows.failed(lab.tx, task, "no route to host", lab.now)
        hall.turn(300.0)
    held = nodes.get(lab.tx, held.id) or held
    assert (held.state, held.waits_for, held.attempts) == ("boot", "switch leaf", 0)
    [shown] = views.vclusters(lab.tx, name="vc")
    assert [said.partition(", since")[0] for said in shown.waits] == [
        "1 node waits for switch leaf"
    ]
    assert (told(lab, "switch"), told(lab, "switch-port")) == (1, 0)
    assert switch_flows.is_due(lab.tx, lab.now), "it is asked until it answers"
    port = port_rows.of_mac(lab.tx, held.boot_mac)
    assert port is not None
    assert node_picks.with_usable_ports(lab.tx, [held.id]) == set()
    port_rows.outcome(lab.tx, port, applied_seq=port.seq, next_at=None)
    switches_row = switches.get(lab.tx, "leaf")
    assert switches_row is not None
    assert switches_row.failures > 5
    hall.turn(300.0)
    assert nodes.every(lab.tx, ["boot"]) != []
    [task] = switch_flows.claim(lab.tx, "a", [LEAF], [], 1, lab.now, 1.0)
    assert task.ports == ()
    switch_flows.ended(lab.tx, task, {}, "", lab.now)
    assert (told(lab, "switch"), told(lab, "switch-recovered")) == (1, 1)
    assert node_picks.with_usable_ports(lab.tx, [held.id]) == {held.id}
    hall.spoils = ""
    hall.rest()
    assert hall.states() == ["active", "inactive"]


@pytest.mark.slow
def test_a_file_server_that_does_not_answer_costs_no_machine(lab: Lab) -> None:
    lab.site = replace(lab.site, fileservers=(FileServer("nas", "ganesha", "10.77.0.5", "/srv"),))
    volume_flows.create(
        lab.tx, flow_context(lab.site, lab.now), name="data", size=2**30, group="physics"
    )
    hall = Hall(lab, machines=2)
    lab.template(document=DOCUMENT.replace("</t", '<ready port="80"/></t'))
    asked = {"mounts": [AskedVolume("data", "/data")]}
    vcluster = wanted(lab, "debian@1", **asked)
    for _ in range(2):
        hall.turn(10.0)
    [held] = nodes.every(lab.tx, vcluster_id=vcluster.id)
    bound = update(tables.bindings).where(tables.bindings.c.node_id == held.id)
    lab.tx.execute(bound.values(state="bound"))
    for _ in range(10):
        for task in exports.claim(lab.tx, "a", {"nas": 9}, lab.site, lab.now, 60.0):
            exports.failed(lab.tx, task, "no route to host", lab.now)
        hall.turn(300.0)
    held = nodes.get(lab.tx, held.id) or held
    assert (held.state, held.waits_for, held.attempts) == ("boot", "file server nas", 0)
    for task in exports.claim(lab.tx, "a", {"nas": 9}, lab.site, lab.now + 9999.0, 60.0):
        exports.succeeded(lab.tx, task, "quota", lab.now)
    for _ in range(20):
        hall.turn(300.0)
    assert "quarantined" in hall.states(), "with its mounts there, it is the system's fault"


class Silence:
    """BMCs that do not answer: what the power edge writes of them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def tried(self, answers: str = "") -> int:
        """Try what is due; `answers`: the power that the BMCs see. Return how many attempts."""
        tx, now = self.lab.tx, self.lab.now
        tasks = power_flows.claim(tx, "a", {"lab": 100}, now, 60.0)
        for task in tasks:
            if answers:
                power_flows.succeeded(tx, task, answers, now)
            else:
                power_flows.failed(tx, task, "the BMC does not answer", now, silent=True)
        return len(tasks)


@pytest.mark.slow
def test_a_bmc_that_does_not_answer_costs_no_machine(lab: Lab) -> None:
    hall = Hall(lab, machines=2)
    hall.spoils = ""
    vcluster = wanted(lab, revise(lab), 2)
    hall.rest()
    owner_flows.delete(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name=vcluster.name)
    silence = Silence(lab)
    attempts = 0
    for _ in range(80):
        attempts += silence.tried()
        lab.tick(60.0)
    assert {(node.state, node.waits_for, node.attempts) for node in nodes.every(lab.tx)} == {
        ("trampoline", POWER_CONTROL, 0)
    }
    assert told(lab, "power-control") == 1
    assert 40 < attempts < 150, "it is asked for as long as it takes, though less often"
    lab.tick(300.0)
    silence.tried("on")
    lab.tick(1.0)
    assert {node.waits_for for node in nodes.every(lab.tx)} == {""}
    assert (told(lab, "power-control"), told(lab, "power-recovered")) == (1, 1)
    for number in hall.peers:
        hall.boots(number)
    hall.rest()
    assert hall.states() == ["inactive"] * 2


@pytest.mark.slow
def test_a_holder_gets_another_node_for_one_whose_bmc_is_silent(lab: Lab) -> None:
    hall, silence = Hall(lab, machines=2), Silence(lab)
    vcluster = wanted(lab, revise(lab))
    for _ in range(2):
        hall.turn(10.0)
    [held] = nodes.every(lab.tx, vcluster_id=vcluster.id)
    assert held.state == "boot"
    again = Step(NodeEvent.BOOT_FAILED, "it asked again", {}, "cycle")
    transitions.apply(lab.tx, held, again, now=lab.now, actor="test", policy=lab.site.policy)
    for _ in range(20):
        silence.tried()
        lab.tick(60.0)
    [shown] = views.vclusters(lab.tx, name="vc")
    assert [said.partition(", since")[0] for said in shown.waits] == [
        "1 node waits for power control"
    ]
    for _ in range(30):
        silence.tried()
        run_pass(lab.tx, lab.site, lab.now)
        lab.tick(60.0)
    [other] = nodes.every(lab.tx, vcluster_id=vcluster.id)
    left = nodes.get(lab.tx, held.id)
    assert left is not None
    assert other.id != held.id
    assert (left.state, left.waits_for, left.vcluster_id) == ("trampoline", POWER_CONTROL, None)
    assert power.newest(lab.tx, held.id) is not None, "it is asked until it answers"


def test_a_sleeper_whose_bmc_is_silent_is_passed_over(lab: Lab) -> None:
    hall, silence = Hall(lab, machines=2), Silence(lab)
    hall.spoils = ""
    hall.turn(10.0)
    down = Step(NodeEvent.POWERED_DOWN, "nobody needs it", {}, "soft")
    for number in hall.peers:
        lab.apply(number, down)
    lab.tick(1.0)
    silence.tried()
    nodes.change(lab.tx, lab.node(2), waits_for="", waits_since=None)  # only node1 stays silent
    vcluster = wanted(lab, revise(lab), 2)
    run_pass(lab.tx, lab.site, lab.now)
    assert [node.vcluster_id for node in nodes.every(lab.tx)] == [None, None], "too few"
    [request] = requests.every(lab.tx, vcluster_id=vcluster.id)
    scene = snapshots.look(lab.tx, lab.site, lab.now)
    why = explanations.waits(
        lab.tx,
        request_id=request.id,
        scene=scene.scene,
        snapshot=snapshots.snapshot(lab.tx, lab.site, lab.now),
        site=lab.site,
        groups=None,
        now=lab.now,
    ).why
    assert "1 of them is passed over: power control does not answer." in why.sentence
    assert (why.free, why.coming) == (1, 0)


@pytest.mark.slow
def test_a_holder_s_failures_do_not_count_against_the_free_node(lab: Lab) -> None:
    hall = Hall(lab, machines=1)
    vcluster = wanted(lab, revise(lab))
    while lab.node(1).attempts < 2:
        hall.turn(300.0)
    owner_flows.delete(lab.tx, flow_context(lab.site, lab.now, "user:ann"), name=vcluster.name)
    assert (lab.node(1).vcluster_id, lab.node(1).attempts) == (None, 0)
