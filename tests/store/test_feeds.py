"""What happened to nodes and vclusters, posted to the webhooks of groups that want it; and the log
of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from cod.core import notices as core_notices
from cod.flows.nodes import nodes as node_flows
from cod.flows.notices import notices, webhook_feed
from cod.flows.people import groups as group_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Effect, Refused, Site
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.notices import notices as notice_rows
from cod.store.notices import webhook_feed as rows
from cod.store.people import groups
from tests.contexts import flow_context
from tests.store.manager_world import arrive, furnish, run_pass

HOOK = "https://hooks.example.org/x"
Posted = Callable[[], list[tuple[str, list[Any]]]]


@pytest.fixture
def posted(tx: Tx) -> Posted:
    """(kind, events) of the posts since the last call."""
    seen = [0]

    def since() -> list[tuple[str, list[Any]]]:
        n = t.notices.c
        found = tx.execute(
            select(n.id, n.kind, n.events)
            .where(n.events.is_not(None), n.id > seen[0])
            .order_by(n.id)
        )
        posts = list(found)
        seen[0] = max([seen[0], *(row[0] for row in posts)])
        return [(row[1], json.loads(row[2])) for row in posts]

    return since


def wants(tx: Tx, *events: str, group: str = "site") -> None:
    groups.ensure(tx, group, 0.0)
    group_flows.change(tx, group, {"webhook": HOOK, "events": list(events)}, now=1.0)


def gather(tx: Tx, now: float) -> int:
    """Gather all that is there."""
    feeds = webhook_feed.look(tx, {})
    until = {kind: max([feed.mark or 0, *feed.ids]) for kind, feed in feeds.items()}
    return webhook_feed.gather(tx, until, now)


def create(
    tx: Tx, site: Site, name: str = "web", size: int = 2, group: str = "site", now: float = 2.0
) -> None:
    owner_flows.create(
        tx,
        flow_context(site, now),
        AskedVcluster(name=name, size=size, template="debian", group=group),
    )


def test_nobody_is_told_who_does_not_want_it(tx: Tx, site: Site, posted: Posted) -> None:
    furnish(tx, 2)
    wants(tx, "notices")
    create(tx, site)
    run_pass(tx, site, 3.0)
    feeds = webhook_feed.look(tx, {})
    assert set(map(str, feeds.values())) == {str(webhook_feed.PostedEvents(None, False, None, []))}
    assert gather(tx, 100.0) == 0
    assert posted() == []


def test_a_vclusters_story(tx: Tx, site: Site, posted: Posted) -> None:
    furnish(tx, 3)
    wants(tx, "vclusters")
    assert gather(tx, 1.0) == 0
    create(tx, site)
    run_pass(tx, site, 3.0)
    arrive(tx, 4.0)
    owner_flows.extend(tx, flow_context(site, 5.0), name="web", lease=9e5)
    owner_flows.resize(tx, flow_context(site, 6.0, "user:ann"), name="web", size=1)
    owner_flows.delete(tx, flow_context(site, 7.0, "user:ann"), name="web")
    assert gather(tx, 10.0) == 1
    ((kind, events),) = posted()
    assert kind == "vcluster-events"
    assert [(one["event"], one["state"], one["size"]) for one in events] == [
        ("created", "pending", 2),
        ("state", "active", 2),
        ("lease", "active", 2),
        ("size", "active", 1),
        ("ready", "active", 1),
        ("state", "releasing", 1),
    ]
    assert {one["vcluster"] for one in events} == {"web"}
    assert gather(tx, 20.0) == 0


def test_nodes_come_and_go(tx: Tx, site: Site, posted: Posted) -> None:
    furnish(tx, 2)
    wants(tx, "nodes")
    gather(tx, 1.0)
    create(tx, site, size=1)
    run_pass(tx, site, 3.0)
    assert gather(tx, 4.0) == 1
    ((kind, events),) = posted()
    assert (kind, [(one["node"], one["vcluster"], one["left"]) for one in events]) == (
        "node-events",
        [("node0", "web", None)],
    )
    owner_flows.delete(tx, flow_context(site, 7.0, "user:ann"), name="web")
    gather(tx, 10.0)
    ((_, events),) = posted()
    assert [(one["vcluster"], one["left"]) for one in events if one["left"]] == [(None, "web")]
    node_flows.quarantine(tx, flow_context(site, 11.0, "user:ann"), name="node1", reason="smoke")
    gather(tx, 20.0)
    assert "node1" not in json.dumps(posted())


def test_groups_are_told_of_their_own(tx: Tx, site: Site, posted: Posted) -> None:
    furnish(tx, 2)
    wants(tx, "vclusters", "nodes")
    wants(tx, "nodes", group="other")
    gather(tx, 1.0)
    create(tx, site, size=1)
    create(tx, site, "blue", 1, "other")
    run_pass(tx, site, 3.0)
    assert gather(tx, 10.0) == 3
    names = {kind: {one["vcluster"] for one in events} for kind, events in posted()}
    assert names["vcluster-events"] == {"web"}
    told = tx.execute(
        select(t.notices.c.group_id, t.notices.c.events).where(t.notices.c.kind == "node-events")
    ).all()
    other = groups.by_name(tx, "other")
    assert other is not None
    for group_id, events in told:
        assert ("blue" in events) == (group_id == other.id)
        assert ("web" in events) == (group_id != other.id)


def test_a_node_that_changes_hands_tells_neither_of_the_other(tx: Tx) -> None:
    row: Any = (
        1,
        7,
        5,
        9.0,
        "n1",
        "assigned",
        "active",
        "prime",
        "blue",
        "primed for vcluster blue",
        8,
    )
    told = rows._events_by_group(row, 2, "red")
    assert told[1]["left"] is None
    assert (told[2]["left"], told[2]["vcluster"]) == ("red", None)
    assert "blue" not in json.dumps(told[2])
    assert "red" not in json.dumps(told[1])
    own = rows._events_by_group((2, *row[1:]), 2, "red")
    assert (own[2]["vcluster"], own[2]["left"]) == ("blue", "red")


def test_what_is_past_is_not_posted_to_who_comes_later(tx: Tx, site: Site, posted: Posted) -> None:
    furnish(tx, 2)
    groups.ensure(tx, "site", 0.0)
    create(tx, site)
    wants(tx, "vclusters")
    gather(tx, 50.0)
    assert gather(tx, 60.0) == 0
    wants(tx, "notices")
    gather(tx, 70.0)
    owner_flows.delete(tx, flow_context(site, 71.0, "user:ann"), name="web")
    wants(tx, "vclusters")
    gather(tx, 80.0)
    assert gather(tx, 90.0) == 0
    assert posted() == []


def test_of_two_servers_one_posts(tx: Tx, site: Site, posted: Posted) -> None:
    furnish(tx, 2)
    wants(tx, "vclusters")
    gather(tx, 1.0)
    create(tx, site)
    mark = rows.mark(tx, "vclusters")
    assert mark is not None
    assert rows.move(tx, "vclusters", mark, mark + 1)
    assert not rows.move(tx, "vclusters", mark, mark + 1)


def test_people_are_not_shown_posts(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    wants(tx, "vclusters")
    gather(tx, 1.0)
    create(tx, site)
    assert gather(tx, 10.0) == 1
    assert notices.every(tx) == []
    assert notice_rows.every(tx, after=0) == []
    (claimed,) = notices.claim(tx, "a", (), 10.0, 60.0)
    assert (claimed.group, claimed.turn, json.loads(claimed.notice.events or "")[0]["event"]) == (
        "site",
        0,
        "created",
    )


# ---------------------------------------------------------------- the log, and sending again


def test_the_log_of_deliveries_and_sending_again(tx: Tx, site: Site) -> None:
    wants(tx, "notices")
    groups.ensure(tx, "other", 0.0)
    notices.test(tx, "site", "user:ann", 5.0)
    ((send, notice),) = notices.deliveries(tx, group="site")
    assert (send.channel, notice.kind, send.done_at) == ("webhook", "test", None)
    with pytest.raises(Refused, match="still tried"):
        notices.again(tx, group="site", send_id=send.id, now=6.0)
    (claimed,) = notices.claim(tx, "a", (), 6.0, 60.0)
    notices.failed(tx, claimed, "answered 404", True, False, 7.0)
    assert [row[0].error for row in notices.deliveries(tx, group="site", state="given up")] == [
        "answered 404"
    ]
    again = notices.again(tx, group="site", send_id=send.id, now=8.0)
    assert again.effects == (Effect("wake", "notices"),)
    assert (again.value[0].attempts, again.value[1]) == (0, notice)
    assert [row[0].id for row in notices.deliveries(tx, group="site")] == [
        again.value[0].id,
        send.id,
    ]
    (claimed,) = notices.claim(tx, "a", (), 9.0, 60.0)
    assert claimed.notice == notice
    notices.succeeded(tx, claimed, "", 9.0)
    assert len(notices.deliveries(tx, group="site", state="delivered")) == 1
    assert notices.deliveries(tx, group="site", channel="email") == []
    assert notices.deliveries(tx, group="other") == []
    for group, number in (("other", send.id), ("site", 999), ("none", 1)):
        with pytest.raises(Refused, match="there is no"):
            notices.again(tx, group=group, send_id=number, now=9.0)


def test_a_group_without_the_channel_is_not_sent_to(tx: Tx) -> None:
    wants(tx, "notices")
    notices.test(tx, "site", "user:ann", 5.0)
    ((send, _),) = notices.deliveries(tx, group="site")
    group_flows.change(tx, "site", {"webhook": ""}, now=6.0)
    with pytest.raises(Refused, match="has no webhook now"):
        notices.again(tx, group="site", send_id=send.id, now=7.0)


def test_a_test_comes_by_the_webhook_whatever_else_is_wanted(tx: Tx) -> None:
    wants(tx, "nodes")
    site = groups.by_name(tx, "site")
    assert site is not None
    core_notices.add(tx, kind="ready", group_id=site.id, subject="s", about="a", now=5.0)
    assert notices.deliveries(tx, group="site") == []
    notices.test(tx, "site", "user:ann", 5.0)
    assert len(notices.deliveries(tx, group="site")) == 1


def test_a_new_secret_is_another(tx: Tx) -> None:
    wants(tx, "notices")
    assert group_flows.new_secret(tx, "site").webhook_turn == 1
    assert group_flows.new_secret(tx, "site").webhook_turn == 2
    notices.test(tx, "site", "user:ann", 5.0)
    (claimed,) = notices.claim(tx, "a", (), 6.0, 60.0)
    assert claimed.turn == 2
    with pytest.raises(Refused, match="no group"):
        group_flows.new_secret(tx, "none")


def test_events_are_kept_in_order(tx: Tx) -> None:
    wants(tx, "nodes", "notices", "nodes")
    group = groups.by_name(tx, "site")
    assert group is not None
    assert (group.webhook_events, group.events) == ("notices nodes", ("notices", "nodes"))
    assert replace(group, webhook_events="").events == ()
