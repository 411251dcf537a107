"""Reads for people, tokens and groups, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from cod.core.nodes import transitions
from cod.flows import views
from cod.flows.people import access, tokens
from cod.flows.people import groups as group_flows
from cod.model import Binding, Node, Page, Refused, RequestTuple, Subnet, Who, ipv4
from cod.states import NodeEvent, NodeState
from cod.store import claims
from cod.store import tables as t
from cod.store.claims import Progress
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import bindings, nodes
from cod.store.notices import events
from cod.store.people import audit, groups
from cod.store.scheduler import requests, vclusters
from tests.conftest import SUBNET
from tests.rows import add_template, add_vcluster

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


def add_node(tx: Tx, number: int, **columns: object) -> Node:
    return nodes.add(
        tx,
        name=f"n{number:02d}",
        boot_mac=f"52:54:00:00:00:{number:02x}",
        now=NOW,
        cause="seen",
        actor="test",
        **columns,
    )


def add_waiting(tx: Tx, name: str, subnet: Subnet = SUBNET) -> int:
    group = groups.ensure(tx, "site", NOW)
    template = templates.find(tx, "web") or add_template(tx, "web", now=NOW)
    made = add_vcluster(tx, name, group.id, template.id, subnet, now=NOW, size=2)
    requests.add(
        tx,
        vcluster_id=made.id,
        kind="create",
        priority=3,
        now=NOW,
        key=None,
        tuples=[RequestTuple(1, "<requires/>", template.id), RequestTuple(2, "", template.id)],
    )
    return made.id


def bind(tx: Tx, node: Node, address: str, kind: str, state: str = "bound") -> None:
    bindings.add(
        tx, [Binding(ipv4(address), node.boot_mac, kind, node.id, "lab", None, state, NOW + 60)]
    )


def test_a_node_has_its_names_macs_and_present_address(tx: Tx) -> None:
    vcluster_id = add_waiting(tx, "blue")
    template = templates.find(tx, "web")
    assert template is not None
    node = add_node(tx, 1, vcluster_id=vcluster_id, template_id=template.id, hostname="a")
    nodes.set_macs(tx, node.id, [node.boot_mac, "52:54:00:00:01:01"])
    bind(tx, node, "10.77.1.5", "boot")
    bind(tx, node, "10.77.128.0", "vcluster", "reserved")
    view = views.node(tx, "n01")
    assert view.macs == ("52:54:00:00:00:01", "52:54:00:00:01:01")
    assert (view.vcluster, view.template, view.address, view.type) == (
        "blue",
        "web@1",
        "10.77.1.5",
        None,
    )
    transitions.move(
        tx, node, NodeEvent.REGISTERED, now=NOW, cause="", actor="test", state=NodeState.ACTIVE
    )
    assert views.node(tx, "n01").address == "10.77.128.0"
    _, bound, history, _ = views.node_in_full(tx, "n01")
    assert [row.kind for row in bound] == ["boot", "vcluster"]
    assert [row["event"] for row in history] == ["seen", "registered"]


def test_a_free_node_has_no_names(tx: Tx) -> None:
    assert views.node_list(tx) == []
    add_node(tx, 1)
    (view,) = views.node_list(tx)
    assert (view.vcluster, view.template, view.address, view.type) == (None, None, None, None)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=st.integers(1, 12))
def test_pages_together_are_the_list(engine: Engine, limit: int) -> None:
    with engine.connect() as tx, tx.begin() as transaction:
        for number in range(10):
            add_node(tx, number, state="inactive" if number % 3 else "new")
        found: list[str] = []
        after: str | None = ""
        while len(found) < 10 and after is not None:
            page = views.node_list(tx, state="inactive", page=Page(limit, after=after))
            found += [view.node.name for view in page]
            after = page.next
            assert page.total == 6
        assert found == ["n01", "n02", "n04", "n05", "n07", "n08"]
        transaction.rollback()


def test_more_nodes_than_a_statement_has_variables_are_listed(tx: Tx) -> None:
    for number in range(600):
        nodes.add(
            tx,
            name=f"n{number:04d}",
            boot_mac=f"52:54:00:00:{number // 256:02x}:{number % 256:02x}",
            now=NOW,
            cause="",
            actor="",
        )
    found = views.node_list(tx, page=Page(1000))
    assert len(found) == 600
    assert all(len(view.macs) == 1 for view in found)


def test_vclusters_count_their_nodes_by_state_and_vanish_when_ended(tx: Tx) -> None:
    blue, red = add_waiting(tx, "blue"), add_waiting(tx, "red")
    add_node(tx, 1, vcluster_id=blue, state="active")
    add_node(tx, 2, vcluster_id=blue, state="active")
    add_node(tx, 3, vcluster_id=blue, state="prime")
    view, members = views.vcluster(tx, "blue")
    assert (view.states, view.group, view.template) == (
        {"active": 2, "prime": 1},
        "site",
        "web@1",
    )
    assert [member.node.name for member in members] == ["n01", "n02", "n03"]
    ended = vclusters.get(tx, red)
    assert ended is not None
    vclusters.end(tx, ended, NOW)
    assert [v.vcluster.name for v in views.vcluster_list(tx)] == ["blue"]
    assert [v.vcluster.name for v in views.vcluster_list(tx, ended=True)] == ["blue", "red"]
    add_waiting(tx, "red")
    assert views.vcluster(tx, "red")[0].vcluster.ended_at is None


def test_requests_come_with_their_tuples_in_order(tx: Tx) -> None:
    add_waiting(tx, "blue")
    add_waiting(tx, "red")
    two, one = views.request_list(tx)
    assert (one.vcluster, two.vcluster) == ("blue", "red")
    assert [(t.count, t.attributes) for t in one.request.tuples] == [(1, "<requires/>"), (2, "")]
    assert one.templates == ("web@1", "web@1")
    assert views.request_list(tx, page=Page(1)) == [two]
    assert views.request_list(tx, vcluster="blue") == [one]
    assert views.request_list(tx, state="granted") == []
    assert views.request(tx, two.request.id) == two


@pytest.mark.parametrize(
    "ask",
    [
        lambda tx: views.node(tx, "none"),
        lambda tx: views.node_in_full(tx, "none"),
        lambda tx: views.vcluster(tx, "none"),
        lambda tx: views.request(tx, 999),
        lambda tx: tokens.revoke(tx, "none"),
    ],
)
def test_what_is_not_there_is_refused(tx: Tx, ask: Callable[[Tx], object]) -> None:
    with pytest.raises(Refused) as refused:
        ask(tx)
    assert refused.value.code == "not_found"


def test_events_continue_where_the_last_look_ended(tx: Tx) -> None:
    assert views.last_event(tx) == 0
    node = add_node(tx, 1)
    readers = tuple(views.Following(max(ids, default=0)) for _, ids in views.recent(tx)[0])
    transitions.move(tx, node, NodeEvent.REGISTERED, now=NOW, cause="reported", actor="agent")
    found = views.happened(tx, readers[0], readers[1])
    assert [(row["node"], row["from_state"], row["to_state"]) for row in found.rows] == [
        ("n01", "new", "registering")
    ]
    assert found.ids == [views.last_event(tx)]
    assert found.progress == []
    readers[0].see(found.ids, 0.5, 0.5)
    nodes.change(tx, node, progress_done=1, progress_total=4)
    found = views.happened(tx, readers[0], readers[1])
    assert (found.rows, found.ids, found.progress[0]["done"]) == ([], [], 1)


def test_a_client_of_an_earlier_epoch_goes_on_before_the_loss(tx: Tx) -> None:
    for number in range(1, 5):
        add_node(tx, number)
    newest, most = views.last_event(tx), 1000
    first = Progress("a 1.0", 0, 1, 1)
    second, third = replace(first, losses=1), replace(first, losses=2)
    claims.name_database(tx, first.database)
    assert views.resume(tx, (newest, 0, first.epoch), most) == ((newest, 0), first.epoch)
    assert views.resume(tx, (newest + 1, 0, first.epoch), most) == (None, first.epoch)
    assert views.resume(tx, None, most) == (None, first.epoch)

    tx.execute(t.node_history.update().values(at=NOW))
    tx.execute(t.node_history.update().where(t.node_history.c.id > newest - 2).values(at=NOW + 9))
    claims.count_loss(tx, first)
    events.note_loss(tx, first.epoch, NOW + 5)
    for named, found in ((newest, newest - 2), (newest + 9, newest - 2), (newest - 3, newest - 3)):
        assert views.resume(tx, (named, 0, first.epoch), most) == ((found, 0), second.epoch)
    assert views.resume(tx, (newest, 0, ""), most) == ((newest, 0), second.epoch)
    assert views.resume(tx, (newest, None, first.epoch), 1) == ((newest - 1, 0), second.epoch)

    claims.count_loss(tx, second)
    events.note_loss(tx, second.epoch, NOW + 5)
    assert views.resume(tx, (newest, 0, first.epoch), 3) == ((newest - 3, 0), third.epoch)
    events.note_loss(tx, "")  # it was restored
    assert views.resume(tx, (newest + 9, 0, "00000000"), most) == ((newest, 0), third.epoch)


def test_counts_are_those_of_the_rows(tx: Tx) -> None:
    node = add_node(tx, 1, power_driver="lab")
    add_node(tx, 2)
    add_node(tx, 3, state="prime", progress_total=9, progress_rate=2.0**33)
    add_waiting(tx, "blue")
    bind(tx, node, "10.77.1.5", "boot")
    nodes.wish_power(tx, node, "on", NOW)
    counted = {(what, label): count for what, label, count in views.counts(tx)}
    assert counted == {
        ("nodes", "new"): 2,
        ("nodes", "prime"): 1,
        ("bindings", "boot"): 1,
        ("requests", "pending"): 1,
        ("vclusters", "pending"): 1,
        ("power_actions", "open"): 1,
        ("sessions", "open"): 0,
        ("disk_bytes_per_second", "prime"): 2**33,
    }


def test_a_tokens_digest_is_kept_not_the_token(tx: Tx) -> None:
    tokens.create(tx, "ci", "cod_secret", "admin", 60.0, NOW)
    assert tokens.every(tx)[0].expires_at == NOW + 60
    assert access.caller(tx, "cod_secret", "192.0.2.1", NOW + 59) == Who(
        "token:ci", admin=True, address="192.0.2.1"
    )
    assert access.caller(tx, "cod_secret", "", NOW + 60) is None
    assert access.caller(tx, str(tx.scalar(select(t.api_tokens.c.digest))), "", NOW) is None
    with pytest.raises(Refused, match="already"):
        tokens.create(tx, "ci", "cod_other", "read", None, NOW)
    tokens.revoke(tx, "ci")
    assert access.caller(tx, "cod_secret", "", NOW) is None
    assert tokens.every(tx) == []


def test_tokens_that_are_made_and_revoked_past_the_api_are_in_the_audit(tx: Tx) -> None:
    tokens.create(tx, "ci", "cod_secret", "admin", 60.0, NOW, actor="local:root")
    tokens.revoke(tx, "ci", NOW + 1, actor="local:root")
    assert [(row.at, row.actor, row.action, row.thing) for row in audit.every(tx)] == [
        (NOW + 1, "local:root", "token revoke", "ci"),
        (NOW, "local:root", "token create", "ci"),
    ]


def test_groups(tx: Tx) -> None:
    made = group_flows.create(tx, "lab", priority=5, default_lease=None, max_lease=60.0, now=NOW)
    assert groups.get(tx, made.id) == made
    with pytest.raises(Refused, match="already"):
        group_flows.create(tx, "lab", priority=5, default_lease=None, max_lease=None, now=NOW)
    assert groups.ensure(tx, "lab", NOW + 1) == made
    assert [group.name for group in group_flows.every(tx)] == ["lab"]
