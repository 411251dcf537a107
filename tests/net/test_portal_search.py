"""The search in the header of the portal: things and pages by their labels, for those who may see
them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from cod.model import Role, Who
from cod.store import tables as t
from cod.store.nodes import nodes
from cod.store.people import groups, people
from tests.conftest import ready
from tests.net.apiserver import NOW, Served
from tests.net.portalclient import Shown, signed_in
from tests.portal_site import furnish

pytestmark = pytest.mark.slow


@pytest.fixture
def site_of(served: Served) -> Served:
    """The server, with the small site that has something of everything."""

    def begin(tx: Any) -> None:
        tx.execute(delete(t.groups))
        furnish(tx, NOW)
        people.add(tx, "olga", NOW)
        labels = {("part", "s39ynx0k500123"), ("reported_bmc", "10.99.0.7")}
        nodes.set_labels(tx, nodes.named(tx, "node01").id, labels)

    ready(served.pool.engine, "a site to search", begin)
    return served


def hits(page: Shown) -> dict[str, list[str]]:
    """Return the links below each heading."""
    return {
        str(section.findtext("h2")): [
            " ".join(text.split()) for text in section.xpath(".//li/a/text()")
        ]
        for section in page.tree.xpath("//main//section")
    }


def test_things_are_found_by_their_labels_and_pages_by_their_titles(site_of: Served) -> None:
    browser = signed_in(site_of)
    front = browser.get("/")
    [form] = front.tree.xpath("//header//form[@role='search']")
    assert (form.get("action"), form.get("method")) == ("/search", None), "it works by GET"
    assert hits(browser.get("/search", q="S39YNX0K")) == {"Nodes": ["node01"]}
    assert hits(browser.get("/search", q="10.99.0.7")) == {"Nodes": ["node01"]}
    found = hits(browser.get("/search", q="batch"))
    assert found["Virtual clusters"] == ["batch"]
    assert "node01" in found["Nodes"]
    assert hits(browser.get("/search", q="#4"))["Request"] == ["Request 4"]
    assert hits(browser.get("/search", q="execution")) == {"Templates": ["physics/execution-host"]}
    assert hits(browser.get("/search", q="execd"))["Images"] == ["physics/execd"]
    assert hits(browser.get("/search", q="calen")) == {"Pages": ["Calendar"]}
    assert hits(browser.get("/search", q="olga"))["People"]
    many = browser.get("/search", q="node")
    assert len(hits(many)["Nodes"]) == 8
    [link] = many.tree.xpath("//section[h2='Nodes']//p/a/@href")
    assert len(browser.get(str(link)).tree.xpath("//tbody/tr")) > 8
    assert "Nothing that you may see has this" in browser.get("/search", q="' or 1=1 --").words
    assert browser.get("/search").status == browser.get("/search", q=' " and (').status == 200


def test_others_find_what_their_groups_have(site_of: Served) -> None:
    physics = site_of.tx(groups.by_name, "physics")
    member = Who("user:olga", user_id=2, roles={physics.id: Role.MEMBER})
    stranger = Who("user:eve", user_id=99, roles={})
    assert hits(signed_in(site_of, member).get("/search", q="s39ynx0k")) == {"Nodes": ["node01"]}
    assert hits(signed_in(site_of, member).get("/search", q="10.99.0.7")) == {}
    assert hits(signed_in(site_of, member).get("/search", q="audit")) == {}
    for text in ("s39ynx0k", "batch", "node", "4", "physics", "olga", "execd", "execution"):
        assert hits(signed_in(site_of, stranger).get("/search", q=text)) == {}, text


def test_what_is_no_word_finds_nothing_and_only_some_words_are_sought(site_of: Served) -> None:
    browser = signed_in(site_of)
    assert hits(browser.get("/search", q="\0")) == hits(browser.get("/search", q="\0none")) == {}
    page = browser.get("/search", q=" ".join("abcdefghijklmnop"))
    assert page.tree.xpath("//header//input[@name='q']/@value") == ["a b c d e f g h"]
