"""The portal's list of nodes: found by a filter, chosen, and acted on after a page that asks; all
without scripts."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from cod.cli.root import cod
from cod.model import Role, Who
from cod.policy.hardware import equal, identity
from cod.store import tables as t
from cod.store.nodes import nodes, types
from cod.store.people import groups
from tests.net.apiserver import ADMIN, Served, add_node
from tests.net.ownersite import engine, furnished_sqlite, there
from tests.net.portalclient import Shown, signed_in

pytestmark = pytest.mark.slow
LOOK, DO = "/node-actions/check", "/node-actions"


def state(served: Served, name: str) -> str:
    found = served.tx(nodes.by_name, name)
    return str(found.state)


def chosen(page: Shown, action: str, *names: str) -> Shown:
    """Tick the boxes of these nodes, and go on to the action's page."""
    fields = page.filled(LOOK, action=action)
    return page.browser.post(LOOK, fields + [("node", name) for name in names])


def rows(page: Shown) -> list[str]:
    return [str(name) for name in page.tree.xpath("//tbody/tr/th//a/text()")]


def test_the_list_is_narrowed_by_a_filter(there: Served) -> None:
    browser = signed_in(there)
    assert rows(browser.get("/nodes", where="name in (node01,node19)")) == ["node01", "node19"]
    assert rows(browser.get("/nodes", where="node1 vcluster = none", state="inactive"))
    wrong = browser.get("/nodes", where="stat = 'free'")
    assert wrong.status == 200
    assert "there is no field stat; is state meant?" in wrong.words
    assert wrong.tree.xpath("//input[@name='where']/@value") == ["stat = 'free'"]
    assert rows(wrong) == []
    assert "No node matches" in browser.get("/nodes", where="nowhere").words


def test_others_than_administrators_find_their_own_and_choose_none(there: Served) -> None:
    physics = there.tx(groups.by_name, "physics")
    owner = signed_in(there, Who("user:olga", user_id=2, roles={physics.id: Role.OWNER}))
    page = owner.get("/nodes", where="not vcluster = none")
    assert "node01" in rows(page)
    assert not page.tree.xpath("//input[@type='checkbox']")
    assert owner.get("/node-actions").status == 403


def test_what_stops_is_said_and_wants_a_tick(there: Served) -> None:
    page = signed_in(there).get("/nodes", where="n")
    asked = chosen(page, "quarantine", "node01", "node19", "node20")
    assert "Take out of service: " in asked.title
    assert "1 node in use by the virtual cluster batch" in asked.words
    assert state(there, "node19") == "inactive", "a look changes nothing"
    wrong = asked.send(DO, reason="")
    assert wrong.status == 422
    assert "tick this: work stops in batch" in wrong.words
    assert "node01, node19, node20" in wrong.words, "it still says for which nodes"
    assert wrong.tree.xpath("//*[@autofocus]/@name") == ["sure"]
    assert state(there, "node01") == "active"
    again = wrong.send(DO, reason=" ", sure="yes")
    assert again.status == 422
    assert "Take out of service: " in again.title
    done = again.send(DO, reason="power feed", sure="yes")
    assert " done" in done.title
    assert state(there, "node01") == state(there, "node19") == "quarantined"
    back = signed_in(there).get("/nodes", where="reason ~ 'power feed'")
    assert {"node01", "node19"} <= set(rows(back))


def test_all_that_match_are_meant_by_the_filter(there: Served) -> None:
    page = signed_in(there).get("/nodes", where="name in (node19, node01)", state="inactive")
    [meant] = page.tree.xpath("//input[@name='all']/@value") or [None]
    assert meant is None, "one needs no 'all'"
    page = signed_in(there).get("/nodes", where="state in (free, asleep)")
    [meant] = page.tree.xpath("//input[@name='all']/@value")
    meant_names = set(rows(page))
    asked = page.send(LOOK, all=meant, action="change")
    assert set(asked.tree.xpath("//main//details//a/text()")) == meant_names
    done = asked.send(DO, block="r77")
    assert f"{len(meant_names)} nodes done" in done.title
    assert set(rows(signed_in(there).get("/nodes", where="@r77"))) == meant_names


def test_what_is_not_possible_is_listed_and_left_out(there: Served) -> None:
    page = signed_in(there).get("/nodes")
    asked = chosen(page, "retire", "node01", "node19")
    assert "Retire: 1 node" in asked.words
    assert "1 node: not possible" in asked.words
    assert "node node01 is held by a vcluster" in asked.words
    assert "1 node done" in asked.send(DO).title
    assert state(there, "node19") == "retired"
    nothing = chosen(page, "approve", "node01")
    assert "Nothing to do" in nothing.words
    assert "needs no approval" in nothing.words


def test_nothing_that_is_chosen_is_said(there: Served) -> None:
    browser = signed_in(there)
    refused = browser.get("/nodes").send(LOOK, action="approve")
    assert refused.status == 422
    assert "No node is chosen: tick some in the list." in refused.words
    assert "Nothing to do" in browser.get("/node-actions").words
    wrong = browser.get("/nodes").send(LOOK, all="stat = x", action="approve")
    assert "there is no field stat" in wrong.words


def test_nodes_are_renamed_in_their_order(there: Served) -> None:
    asked = chosen(signed_in(there).get("/nodes"), "rename", "node19", "node01")
    wrong = asked.send(DO, to="a[1-3]")
    assert "these are 3 names, and 2 nodes are meant" in wrong.words
    assert "2 nodes done" in wrong.send(DO, to="a[1-2]").title
    assert state(there, "a1") == "inactive"
    assert state(there, "a2") == "active"


def test_nodes_are_tagged(there: Served) -> None:
    asked = chosen(signed_in(there).get("/nodes"), "tag", "node19", "node01")
    assert "2 nodes done" in asked.send(DO, tags="gpu, loan").title
    found = signed_in(there).get("/nodes", where="tag = loan")
    assert rows(found) == ["node01", "node19"]
    asked = chosen(found, "untag", "node01")
    asked.send(DO, tags="loan")
    assert rows(signed_in(there).get("/nodes", where="tag = loan")) == ["node19"]
    one = signed_in(there).get("/nodes/node19")
    assert one.tree.xpath("//input[@name='tags']/@value") == ["gpu, loan"]
    one.send("/nodes/node19/change", tags="old gpu", position="17")
    assert rows(signed_in(there).get("/nodes", where="tag = old and position = 17")) == ["node19"]


REPORT = """<node version="1"><system/><firmware kind="uefi"/><memory mib="4000"/>
<cpu count="2" sockets="1" arch="x86_64"/><nic name="eth0" mac="52:54:00:00:77:0{n}" link="up"
 boot="yes" speed="10000"><neighbour switch="leaf-{rack}" port="Eth{n}"/></nic></node>"""


def newcomer(served: Served, number: int, rack: int) -> str:
    """Add a machine that waits for approval."""
    name = f"node-52540000770{number}"
    report = REPORT.format(n=number, rack=rack)
    labels = identity.read(report).labels
    add_node(
        served, name, 0x7700 + number, state="registering", attributes=report, serial=f"S{number}"
    )
    served.tx(lambda tx: nodes.set_labels(tx, nodes.named(tx, name).id, labels))
    return name


def test_new_machines_are_approved_named_and_racked_at_once(there: Served) -> None:
    waiting = update(t.nodes).where(t.nodes.c.state == "registering").values(state="retired")
    there.tx(lambda tx: tx.execute(waiting))
    names = [newcomer(there, number, rack=1 if number < 4 else 2) for number in range(1, 6)]
    browser = signed_in(there)
    assert "5 new machines wait" in browser.get("/nodes").words
    page = browser.get("/new-machines")
    assert [str(text) for text in page.tree.xpath("//main//h2/text()")] == [
        "Rack leaf-1: 3 machines", "Rack leaf-2: 2 machines"
    ]  # fmt: skip
    assert "2 CPUs, 4 GiB, 10 Gb/s" in page.words
    assert page.tree.xpath("//input[@name='to']/@value") == ["leaf-1-[01-03]", "leaf-2-[01-02]"]
    [form, _] = page.tree.xpath("//main//form[@action='/new-machines']")
    fields = [
        (str(field.get("name")), str(field.get("value")))
        for field in form.xpath(".//input[@name]")
        if field.get("value") != names[1]
    ]
    done = browser.post("/new-machines", fields)
    assert (done.path, "Approved: 2 done." in done.words) == ("/new-machines", True)
    assert there.local.get("/nodes/leaf-1-01")["serial"] == "S1"
    assert there.local.get("/nodes/leaf-1-02")["block"] == "leaf-1"
    assert state(there, names[1]) == "registering"
    page = browser.get("/new-machines")
    assert page.tree.xpath("//input[@name='to']/@value") == ["leaf-1-03", "leaf-2-[01-02]"]
    nothing = browser.post("/new-machines", [each for each in fields if each[0] != "node"])
    assert nothing.status == 422
    assert "No machine is chosen" in nothing.words


def test_a_node_is_said_in_a_phrase_and_beside_its_siblings(there: Served) -> None:
    known = [newcomer(there, number, rack=1) for number in (1, 2, 3)]
    system = '<system product="R640" serial="&lt;b&gt;"/>'

    def typed(name: str, mib: int) -> None:
        report = REPORT.format(n=1, rack=1).replace("<system/>", system).replace("4000", f"{mib}")

        def give(tx: Any) -> None:
            made = equal.canonical(report)
            type_ = types.of(tx, made, 0, system=equal.system(made))
            given = update(t.nodes).where(t.nodes.c.name == name)
            tx.execute(given.values(type_id=type_.id, attributes=report))

        there.tx(give)

    for name, mib in zip(known, (8000, 8000, 4000), strict=True):
        typed(name, mib)
    page = signed_in(there).get(f"/nodes/{known[2]}")
    assert "2 CPUs, 4 GiB, 10 Gb/s, serial S3" in page.words
    assert "memory/mib: 4096 MiB; siblings have 8192 MiB" in page.words
    assert "Differs from its siblings" not in signed_in(there).get(f"/nodes/{known[0]}").words
    told = there.local.get(f"/nodes/{known[2]}")
    assert told["phrase"] == "2 CPUs, 4 GiB, 10 Gb/s"
    assert told["siblings"]["nodes"] == 2
    server = f"http://127.0.0.1:{there.server.ports[0]}"
    words = ["--server", server, "--token", ADMIN, "node", "show", known[2]]
    shown = CliRunner().invoke(cod, words)
    assert "siblings have 8192 MiB" in shown.output, shown.output


def test_nodes_return_at_the_time_that_the_page_asks_for(there: Served) -> None:
    asked = chosen(signed_in(there).get("/nodes", where="n"), "quarantine", "node19", "node20")
    wrong = asked.send(DO, reason="lent", until="1970-01-01T00:00")
    assert (wrong.status, "that time is over" in wrong.words) == (422, True)
    done = wrong.send(DO, reason="lent", until="2030-01-01T01:00", timezone="Europe/Berlin")
    assert "2 nodes done" in done.title
    assert there.tx(nodes.by_name, "node19").deadline == 1_893_456_000.0
    page = signed_in(there).get("/nodes/node19")
    assert "Returns to service in" in page.words
    kept = page.send("/nodes/node19/quarantine", until="")
    assert kept.status == 200
    node = there.tx(nodes.by_name, "node19")
    assert (node.reason, node.deadline) == ("lent", None)


def test_nodes_are_burnt_in_and_get_another_type_of_power(there: Served) -> None:
    page = signed_in(there).get("/nodes", where="n")
    done = chosen(page, "burnin", "node19", "node01").send(DO, erase="true")
    assert "1 node done" in done.title
    assert state(there, "node19") in ("burnin", "trampoline")
    done = chosen(page, "change power", "node19", "node20").send(DO, power_driver="ipmi")
    assert "2 nodes done" in done.title
    node = there.tx(nodes.by_name, "node20")
    assert (node.power_driver, node.power_account) == ("ipmi", None)


def test_a_node_that_somebody_got_meanwhile_goes_on(there: Served) -> None:
    asked = chosen(signed_in(there).get("/nodes", where="n"), "quarantine", "node19")
    held = there.tx(nodes.by_name, "node01").vcluster_id
    got = update(t.nodes).where(t.nodes.c.name == "node19")
    there.tx(lambda tx: tx.execute(got.values(state="active", vcluster_id=held)))
    said = asked.send(DO, reason="fan")
    assert "the work of batch on node node19 would stop" in said.words
    assert state(there, "node19") == "active"
