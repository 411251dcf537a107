"""Whose things are, on both databases; and that a refused flow does nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from cod.flows import views
from cod.flows.images import images as image_flows
from cod.flows.people import groups as group_flows
from cod.flows.people.access import RequiredRight, guarded
from cod.model import Owned, Refused, RequestTuple, Right, Role, Who
from cod.policy.people.names import full
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.nodes import nodes
from cod.store.people import access, groups
from cod.store.scheduler import requests, vclusters
from tests.conftest import SUBNET
from tests.rows import add_template, add_vcluster

NOW = 1_000_000.0
DOCUMENT = '<template name="t"><image target="disk" name="none"/></template>'


def furnished(tx: Tx) -> dict[str, int]:
    """Two groups, each with a vcluster of one node, an image and a template; the site has some too.
    Ids by name."""
    ids = {}
    for name in ("red", "blue"):
        group = ids[name] = groups.add(tx, name, NOW).id
        ids[f"{name}-cluster"] = a_vcluster(tx, f"{name}-cluster", group)
        a_node(tx, f"{name}-node", ids[f"{name}-cluster"], group)
        software(tx, name, group)
    software(tx, "site", None)
    return ids


def software(tx: Tx, name: str, group: int | None) -> None:
    owner = "" if group is None else name
    images.add(
        tx,
        name=full(owner, f"{name}-image"),
        group_id=group,
        state="ready",
        format="raw",
        created_at=NOW,
    )
    add_template(tx, full(owner, f"{name}-template"), DOCUMENT, group_id=group, now=NOW)


def a_vcluster(tx: Tx, name: str, group: int) -> int:
    own = full(groups.prefix(tx, group), f"of-{name}")
    template = templates.find(tx, own) or add_template(tx, own, DOCUMENT, group_id=group, now=NOW)
    made = add_vcluster(tx, name, group, template.id, SUBNET, now=NOW)
    requests.add(
        tx,
        vcluster_id=made.id,
        kind="create",
        priority=0,
        now=NOW,
        key=None,
        tuples=[RequestTuple(1, "", template.id)],
    )
    return made.id


def a_node(tx: Tx, name: str, vcluster: int, group: int) -> None:
    mac = f"52:54:00:00:00:{group % 256:02x}"
    node = nodes.add(
        tx,
        name=name,
        boot_mac=mac,
        now=NOW,
        cause="",
        actor="test",
        vcluster_id=vcluster,
        state=NodeState.ACTIVE,
    )
    tx.execute(insert(t.node_permissions).values(node_id=node.id, group_id=group, right="use"))


def member(group: int) -> Who:
    return Who("user:m", roles={group: Role.MEMBER})


def test_each_kind_of_thing_is_found_with_its_group(tx: Tx) -> None:
    ids = furnished(tx)
    reds = Owned(frozenset({ids["red"]}))
    request = requests.every(tx, vcluster_id=ids["red-cluster"])[0].id
    for kind, key in (
        ("group", "red"),
        ("vcluster", "red-cluster"),
        ("node", "red-node"),
        ("image", "red/red-image"),
        ("template", "red/red-template"),
        ("template", "red/red-template@1"),
        ("request", str(request)),
    ):
        assert access.owned(tx, kind, key) == reds, kind
        assert access.owned(tx, kind, "0") is None, kind
    assert access.owned(tx, "image", "site-image") == Owned(shared=True)
    assert access.owned(tx, "template", "site-template@9") == Owned(shared=True)
    assert access.owned(tx, "", "") == Owned()


ODD = ("", "-1", "1e3", "\uff19", "9" * 40, "1 or 1=1", "%", "red-cluster' --")
KINDS = (
    "group",
    "vcluster",
    "node",
    "image",
    "template",
    "request",
    "reclaim",
    "notice",
    "upload",
    "user",
    "invitation",
)


def test_odd_names_are_nobodys(tx: Tx) -> None:
    furnished(tx)
    assert [
        (kind, key) for kind in KINDS for key in ODD if access.owned(tx, kind, key) is not None
    ] == []


def test_a_name_that_is_used_again_is_its_new_owners(tx: Tx) -> None:
    ids = furnished(tx)
    before = vclusters.get(tx, ids["red-cluster"])
    assert before is not None
    vclusters.end(tx, before, NOW)
    # its history is still theirs
    assert access.owned(tx, "vcluster", "red-cluster") == Owned(frozenset({ids["red"]}))
    a_vcluster(tx, "red-cluster", ids["blue"])
    assert access.owned(tx, "vcluster", "red-cluster") == Owned(frozenset({ids["blue"]}))


def test_lists_are_narrowed_to_what_a_group_owns_and_the_site_shares(tx: Tx) -> None:
    ids = furnished(tx)
    only = frozenset({ids["red"]})
    assert [row.node.name for row in views.node_list(tx, groups=only)] == ["red-node"]
    assert [row.vcluster.name for row in views.vcluster_list(tx, groups=only)] == ["red-cluster"]
    assert [row.vcluster for row in views.request_list(tx, groups=only)] == ["red-cluster"]
    assert [row.name for row in image_flows.every(tx, only)] == ["red/red-image", "site-image"]
    assert [row.name for row in templates.newest(tx, only)] == [
        "red/of-red-cluster",
        "red/red-template",
        "site-template",
    ]
    assert [row.name for row in group_flows.every(tx, only)] == ["red"]
    assert views.node_list(tx, groups=frozenset()) == []
    assert len(views.node_list(tx)) == 2


def test_a_flow_runs_only_with_every_right(tx: Tx) -> None:
    ids = furnished(tx)
    ran: list[Any] = []
    wanted = [
        RequiredRight(Right.USE, "vcluster", "red-cluster"),
        RequiredRight(Right.SEE, "template", "blue/blue-template"),
    ]
    with pytest.raises(Refused, match="there is no template 'blue/blue-template'"):
        guarded(tx, flow=ran.append, who=member(ids["red"]), claims=wanted)
    with pytest.raises(Refused, match="there is no vcluster 'red-cluster'"):
        guarded(tx, flow=ran.append, who=member(ids["blue"]), claims=wanted)
    assert ran == []
    both = Who("user:m", roles={ids["red"]: Role.MEMBER, ids["blue"]: Role.VIEWER})
    guarded(tx, flow=ran.append, who=both, claims=wanted)
    assert ran == [tx]


def test_what_is_another_groups_reads_as_what_is_not_there(tx: Tx) -> None:
    ids = furnished(tx)
    sentences = []
    for name in ("blue-image", "no-image"):
        with pytest.raises(Refused) as refused:
            guarded(
                tx,
                flow=lambda tx: None,
                who=member(ids["red"]),
                claims=[RequiredRight(Right.USE, "image", name)],
            )
        sentences.append(
            (refused.value.code, refused.value.field, refused.value.sentence.replace(name, ""))
        )
    assert sentences[0] == sentences[1]
