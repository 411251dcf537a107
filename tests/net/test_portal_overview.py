"""The overview: what owners see, and what administrators see besides."""

from __future__ import annotations

import pytest

from cod.states import NodeState
from cod.store import tables
from cod.store.engine import Tx
from cod.store.people import groups
from cod.web.portal.pages.overview import sorts
from tests.net.apiserver import NOW, Served, add_node
from tests.net.portalclient import Browser, member, signed_in
from tests.net.test_event_streams import _vcluster, held


def _site(tx: Tx) -> None:
    """Two groups with a vcluster each; of physics a node is being primed and a request waits."""
    for name in ("physics", "web"):
        groups.ensure(tx, name, NOW)
    held(tx, "p1", 1, "physics")
    held(tx, "w1", 2, "web")
    node = tables.nodes.c
    tx.execute(
        tables.nodes.update()
        .where(node.name == "p1")
        .values(state="prime", hostname="n1", progress_done=30, progress_total=120)
    )
    tx.execute(tables.nodes.update().where(node.name == "w1").values(state="boot"))
    tx.execute(
        tables.node_requests.insert().values(
            vcluster_id=_vcluster(tx, "physics"),
            kind="grow",
            state="pending",
            reason="waits for nodes of type <huge>",
            priority=0,
            submitted_at=NOW - 600,
        )
    )
    for name in ("physics", "web"):
        tx.execute(
            tables.notices.insert().values(
                at=NOW,
                kind="test",
                group_id=groups.by_name(tx, name).id,
                subject=f"news of {name}",
                about="",
            )
        )


@pytest.fixture
def owner(served: Served) -> Browser:
    """An owner of physics."""
    served.tx(_site)
    group = served.tx(groups.by_name, "physics")
    return signed_in(served, member("olga", **{f"g{group.id}": "owner"}))


def test_an_owner_sees_what_their_group_has_and_waits_for(owner: Browser) -> None:
    page = owner.get("/")
    assert page.status == 200
    for words in (
        "of-physics",
        "n1",
        "installing",
        "25 %",
        "waits for nodes of type <huge>",
        "news of physics",
    ):
        assert words in page.words, words
    for words in ("of-web", "w1", "news of web", "The pool", "resource manager"):
        assert words not in page.words, words
    assert page.tree.xpath("//*[@data-progress='p1']//progress/@value") == ["25"]


def test_a_viewer_is_offered_nothing_to_do(served: Served) -> None:
    served.tx(_site)
    group = served.tx(groups.by_name, "physics")
    page = signed_in(served, member("vera", **{f"g{group.id}": "viewer"})).get("/")
    assert "of-physics" in page.words


def test_an_administrator_sees_how_the_site_stands(served: Served, owner: Browser) -> None:
    add_node(served, "odd", 9, state=NodeState.QUARANTINED, reason="its disk did not read back")
    add_node(served, "guest", 10, state=NodeState.REGISTERING)
    page = signed_in(served).get("/")
    for words in (
        "The pool: 4 nodes",
        "1 installing",
        "1 out of service",
        "its disk did not read back",
        "guest",
        "of-web",
        "No resource manager runs",
    ):
        assert words in page.words, words
    served.tx(
        lambda tx: tx.execute(
            tables.claims.insert().values(
                name="manager", owner="head1", generation=1, expires_at=NOW + 30
            )
        )
    )
    page = signed_in(served).get("/")
    assert "managed by head1" in page.words
    served.clock.now += 60
    page = signed_in(served).get("/", part="site")
    assert "last contact 30 s ago" in page.words


def test_the_pools_bar_is_whole() -> None:
    parts = sorts(
        {"active": 5, "prime": 2, "boot": 1, "inactive": 1, "off": 10, "new": 1, "retired": 99}
    )
    assert [(what, count) for what, _, count, _ in parts] == [
        ("in use", 5),
        ("installing", 2),
        ("starting", 1),
        ("free", 1),
        ("asleep", 10),
        ("new", 1),
    ]
    assert [begin for *_, begin in parts] == [0, 25, 35, 40, 45, 95]
    assert sorts({}) == []


def test_every_state_has_its_part_of_the_bar_but_those_that_are_gone() -> None:
    assert {state for state in NodeState if sorts({state: 1})} == set(NodeState) - {
        NodeState.RETIRED
    }
