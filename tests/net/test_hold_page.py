"""A held site in the portal: administrators see it on each page, and decide."""

from __future__ import annotations

from cod.flows.nodes import hold
from cod.store import stories
from tests.net.apiserver import NOW, Served, add_node
from tests.net.portalclient import signed_in

BANNER = "Compare the database with its machines"
SAID = "its disk was installed as n1.web.example.org, generation 7"


def test_an_administrator_compares_and_decides(served: Served) -> None:
    one, _, three = (add_node(served, f"n{n}", n, state="trampoline") for n in (1, 2, 3))
    browser = signed_in(served)
    assert BANNER not in browser.get("/").words
    served.tx(hold.start, NOW)
    served.tx(stories.ROWS.set, one.id, verdict="differs", source="agent", said=SAID, at=NOW)
    served.tx(stories.ROWS.set, three.id, verdict="agrees", source="agent", said="blank", at=NOW)
    assert "1 silent, 1 differ, 1 agree." in browser.get("/nodes").words
    page = browser.get("/hold")
    assert SAID in page.text
    assert "by its agent" in page.words
    served.tx(stories.ROWS.set, one.id, source="switch")
    assert "by its switch" in browser.get("/hold").words
    assert "installed in generation" in page.text
    assert BANNER not in page.words
    assert "Decided." in page.send("/hold/decide", keep="n1").text
    assert [node.name for node, _ in served.tx(hold.show).nodes] == ["n2", "n3"]
    page = browser.get("/hold")
    assert "Silent nodes are being switched on" in page.send("/hold/wake").text
    assert "The hold of the site is over" in page.send("/hold/end").text
    assert served.tx(hold.counts) == {"silent": 1}
    assert BANNER in browser.get("/").words, "one node is held still"
