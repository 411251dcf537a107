"""What a tree does in which a vcluster may be `quiet` and a request has a time that it is to be
over by: `test_planted_option` runs this in such a tree."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from cod.web.api.openapi import document
from tests.net.apiserver import Served, as_json, run
from tests.net.ownersite import browse, engine, furnished_sqlite, there

BY = 1_796_112_000.0  # 2026-12-01T08:00Z


def test_every_door_takes_a_vclusters_option_and_shows_it(there: Served) -> None:
    words = "vcluster", "create", "--size", "1", "--template", "debian", "--group", "physics"
    assert as_json(there, *words, "loud")["quiet"] is False
    assert as_json(there, *words, "still", "--quiet")["quiet"] is True
    listed = run(there, "vcluster", "list", "-o", "wide").stdout
    assert "QUIET" in listed.splitlines()[0]
    assert "Quiet" in run(there, "vcluster", "show", "still").stdout

    form = browse(there).get("/vclusters/new")
    assert "Fans turn slowly." in form.words
    form.send("/vclusters", name="fresh", template="debian", size=1, quiet="true")
    page = browse(there).get("/vclusters/fresh")
    (shown,) = page.tree.xpath("//dt[text()='Quiet']/following-sibling::dd[1]")
    assert shown.text == "yes"
    assert there.local.get("/vclusters/fresh")["quiet"] is True
    assert document()["components"]["schemas"]["VclusterCreate"]["properties"]["quiet"] == {
        "default": False,
        "description": "fans turn slowly",
        "title": "Quiet",
        "type": "boolean",
        "x-kind": "flag",
        "x-label": "Quiet",
        "x-order": 5,
    }


def test_every_door_takes_a_requests_option_and_shows_it(there: Served) -> None:
    made = as_json(there, "request", "submit", "batch", "1", "--over-by", "2026-12-01T08:00Z")
    assert made["over_by"] == BY
    assert as_json(there, "request", "submit", "batch", "1")["over_by"] is None
    listed = run(there, "request", "list", "--vcluster", "batch", "-o", "wide").stdout
    assert "OVER BY" in listed.splitlines()[0]

    form = browse(there).get("/vclusters/batch/ask")
    sent = {"tuples.0.count": 1, "over_by": "2026-12-01T08:00"}
    assert "requested" in form.send("/vclusters/batch/requests", **sent).words
    newest = there.local.get("/requests", vcluster="batch")["items"][0]
    assert newest["over_by"] == BY
    page = browse(there).get(f"/requests/{newest['id']}")
    (shown,) = page.tree.xpath("//dt[text()='Over by']/following-sibling::dd[1]")
    assert "2026" in shown.text_content() or shown.xpath(".//time")
