"""The portal's shell: pages, forms, what it refuses."""

from __future__ import annotations

from tests.net.apiserver import Served
from tests.net.portalclient import Browser, signed_in


def test_overview(served: Served) -> None:
    page = signed_in(served).get("/")
    assert page.status == 200, page.words
    assert page.title.startswith("Overview")
    assert "No virtual clusters yet" in page.words


def test_a_part_of_a_page(served: Served) -> None:
    part = signed_in(served).get("/", part="waiting")
    assert part.status == 200
    assert "<html" not in part.text
    assert "Nothing waits" in part.text


def test_several_parts_at_once(served: Served) -> None:
    part = signed_in(served).get("/", part="waiting,notices")
    assert part.status == 200
    assert [each.get("data-of") for each in part.tree.iter("template")] == ["waiting", "notices"]
    assert float(part.headers["X-Live-Apart"]) >= 1
    assert signed_in(served).get("/", part="waiting,nothing").status == 404


def test_who_is_not_signed_in_is_sent_to_sign_in(served: Served) -> None:
    reply = Browser(served.server.ports[0]).ask("GET", "/vclusters")
    assert (reply.status) in (303, 404)


def test_no_such_page(served: Served) -> None:
    page = signed_in(served).get("/nowhere")
    assert page.status == 404
    assert "No such page" in page.words
