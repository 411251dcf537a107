"""The portal and the command line where machines are in trouble: maintenance, the rack map, nodes
that failed."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from cod.store import tables as t
from cod.store.nodes import blocks, nodes
from tests.net.apiserver import Served, as_json, run
from tests.net.ownersite import engine, furnished_sqlite, there
from tests.net.portalclient import Shown, signed_in

pytestmark = pytest.mark.slow


def check(page: Shown, **fields: str) -> Shown:
    """Press the button that shows what the form would take."""
    filled = page.filled("/maintenance", **fields)
    return page.browser.post("/maintenance/check", filled)


def racked(served: Served) -> list[str]:
    """Put the first two nodes into rack r12; return the names of all."""

    def put(tx: Any) -> list[str]:
        every = nodes.every(tx)
        blocks.put(tx, [one.id for one in every[:2]], blocks.ensure(tx, "r12"))
        return [one.name for one in every if one.state != "retired"]

    return served.tx(put)


def test_an_administrator_sees_what_maintenance_takes_plans_moves_and_cancels_it(
    there: Served,
) -> None:
    racked(there)
    browser = signed_in(there)
    page = browser.get("/maintenance", names="@r12")
    assert "No maintenance is planned." in page.words
    page = check(
        page,
        begins_at="2040-12-14T08:00",
        ends_at="2040-12-14T18:00",
        reason="fans",
    )
    assert "2 nodes: " in page.words, page.words
    assert "No maintenance is planned." in browser.get("/maintenance").words
    page = page.send("/maintenance")
    assert page.path == "/maintenance/1", page.words
    assert "Maintenance of @r12" in page.words
    page = page.send(
        "/maintenance/1/change", begins_at="2040-12-15T08:00", ends_at="2040-12-15T18:00"
    )
    assert "2040-12-15 08:00:00 UTC" in page.words
    page = page.send("/maintenance/1/end")
    assert page.path == "/maintenance"
    assert "The maintenance is cancelled." in page.words
    for path, part in (("/maintenance", "windows"), ("/maintenance/1", "window")):
        assert browser.get(path, part=part).status == 200  # as a live page asks


def test_what_is_wrong_is_said_at_its_field(there: Served) -> None:
    page = signed_in(there).get("/maintenance")
    page = check(page, names="@nowhere", begins_at="soon", reason="fans")
    assert page.tree.xpath("//*[@id='begins_at-wrong']"), page.words
    page = check(page, begins_at="2040-12-14T08:00")
    assert "there is no block 'nowhere'" in page.words


def test_the_map_has_a_square_with_a_text_for_each_node(there: Served) -> None:
    names = racked(there)
    page = signed_in(there).get("/map")
    squares = page.tree.xpath("//p[@class='squares']/a")
    assert sorted(one.text_content().split()[0] for one in squares) == sorted(names)
    assert {one.get("href").partition("/")[0] for one in squares} == {"nodes"}
    assert page.tree.xpath("//h2/a[@href='/blocks/r12']")
    for by in ("type", "group", "state"):
        found = signed_in(there).get("/map", by=by)
        assert len(found.tree.xpath("//p[@class='squares']/a")) == len(names)


def test_nodes_that_failed_are_grouped_and_tried_again_together(there: Served) -> None:
    names = racked(there)[:2]

    def fail(tx: Any) -> None:
        for number, name in enumerate(names):
            tx.execute(
                update(t.nodes)
                .where(t.nodes.c.name == name)
                .values(
                    state="quarantined",
                    reason=f"no sign of progress for {600 + number} s",
                    power_driver="redfish",
                    power_address="https://10.9.0.7/redfish/v1/Systems/1",
                )
            )

    there.tx(fail)
    browser = signed_in(there)
    page = browser.get("/faults")
    assert page.words.count("no sign of progress for … s 2 nodes") == 1
    assert page.tree.xpath("//a[@href='https://10.9.0.7/']")
    racks = browser.get("/faults", by="rack")
    assert "r12 2 nodes" in racks.words
    done = page.send("/node-actions/check")
    assert "Return to service: 2 nodes" in done.words


def test_maintenance_is_planned_moved_and_ended_from_the_command_line(there: Served) -> None:
    racked(there)
    plan = ("maintenance", "plan", "@r12", "--from", "2040-12-14T08:00Z", "--reason", "fans")
    looked = run(there, *plan, "--dry-run").stdout
    assert "2 nodes: " in looked
    assert as_json(there, "maintenance", "list") == []
    made = as_json(there, *plan, "--until", "2040-12-14T18:00Z", "--yes")
    assert (made["state"], made["nodes"], made["what"]) == ("planned", 2, "@r12")
    moved = as_json(there, "maintenance", "set", "1", "--from", "2040-12-14T09:00Z")
    assert moved["begins_at"] == made["begins_at"] + 3600
    assert "fans" in run(there, "maintenance", "list").stdout
    assert "taken from their holders" in run(there, "maintenance", "show", "1").stdout
    assert "1: cancelled" in run(there, "maintenance", "end", "1", "--yes").stdout
    drained = as_json(there, "maintenance", "drain", "@r12", "--reason", "moves", "--yes")
    assert (drained["state"], drained["drain"], drained["begins_at"]) == ("running", True, None)
    assert "say which" in run(there, *plan[:2], *plan[3:], code=2).stderr
    assert (
        "there is no maintenance window 9" in run(there, "maintenance", "end", "9", code=1).stderr
    )


def test_nodes_that_failed_are_listed_by_the_command_line(there: Served) -> None:
    (group,) = as_json(there, "fault", "nodes", "--by", "rack")
    assert group["key"] == "rack4"
    assert group["nodes"][0]["name"] in run(there, "fault", "nodes").stdout
