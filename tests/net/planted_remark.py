"""What a tree in which a node has a remark does: `test_planted_field` runs this in such a tree."""

from __future__ import annotations

from cod.web.api.openapi import document
from tests.net.apiserver import READER, Served, add_node, as_json, run
from tests.net.portalclient import signed_in


def test_every_door_shows_the_remark_and_sets_it(served: Served) -> None:
    add_node(served, "n1", 1)
    assert served.local.get("/nodes/n1")["remark"] == ""
    assert as_json(served, "node", "set", "n1", "--remark", "loud fan")["name"] == "n1"
    assert served.remote(READER).get("/nodes/n1")["remark"] == "loud fan"
    listed = run(served, "node", "list", "-o", "wide").stdout.splitlines()
    assert "REMARK" in listed[0]
    assert "loud fan" in listed[1]
    assert "Remark" in run(served, "node", "show", "n1").stdout
    assert "--remark" in run(served, "node", "set", "n1", code=2).stderr
    assert [one["name"] for one in as_json(served, "node", "list", "--sort", "-remark")] == ["n1"]

    for where, found in (("remark ~ FAN", ["n1"]), ("not remark = none", ["n1"]), ("remark=x", [])):
        listed = as_json(served, "node", "list", "--where", where)
        assert [one["name"] for one in listed] == found

    browser = signed_in(served)
    listed = browser.get("/nodes").tree
    assert listed.xpath("//th[text()='Remark']")
    assert listed.xpath("//td[@data-label='Remark']/text()") == ["loud fan"]
    page = browser.get("/nodes/n1")
    (shown,) = page.tree.xpath("//dt[text()='Remark']/following-sibling::dd[1]")
    assert shown.text == "loud fan"
    assert "is changed" in page.send("/nodes/n1/change", remark="quiet now").words
    assert served.local.get("/nodes/n1")["remark"] == "quiet now"
    assert served.local.patch("/nodes/n1", {"remark": ""})["remark"] == ""


def test_the_document_describes_the_remark() -> None:
    schemas = document()["components"]["schemas"]
    for name in ("NodeReply", "NodeInFull", "NodePatch"):
        about = schemas[name]["properties"]["remark"]
        assert (about["x-label"], about["x-kind"]) == ("Remark", "text"), name
        assert about["description"] == "what administrators note; '': none"
    text, null = schemas["NodePatch"]["properties"]["remark"]["anyOf"]
    assert (text["maxLength"], null) == (200, {"type": "null"})
