"""Which consoles are followed and whose they are: the flows, as nodes change hands."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from cod.core.nodes import transitions
from cod.flows.nodes import consoles
from cod.model import ConsoleRules, Node, Refused, Site, Vcluster
from cod.policy.nodes.console import FREE
from cod.states import NodeEvent, NodeState
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import holding, nodes
from cod.store.people import groups
from tests.rows import add_vcluster

NOW = 1_000_000.0
ON = ConsoleRules(record=True)


def add(tx: Tx, number: int, **columns: Any) -> Node:
    return nodes.add(
        tx,
        name=f"n{number}",
        boot_mac=f"52:54:00:00:00:{number:02x}",
        now=NOW,
        cause="",
        actor="test",
        **{"state": NodeState.INACTIVE, "power_driver": "ipmi", "power_address": f"bmc{number}"}
        | columns,
    )


def readable(
    tx: Tx, name: str = "n1", everything: bool = False, now: float = NOW
) -> consoles.Readable:
    return consoles.readable(tx, name=name, rules=ON, everything=everything, now=now)


def test_those_with_a_console_are_followed(tx: Tx) -> None:
    one = add(tx, 1, power_account="rack")
    add(tx, 2, power_driver="wol")
    add(tx, 3, power_driver="none")
    four = add(tx, 4, power_driver="lab")
    add(tx, 5, state=NodeState.RETIRED)
    assert consoles.followed(tx, ON) == [
        consoles.Followed(one.id, "n1", "ipmi", "bmc1", "rack", FREE),
        consoles.Followed(four.id, "n4", "lab", "bmc4", None, FREE),
    ]
    assert [
        each.node for each in consoles.followed(tx, ConsoleRules(record=True, match="n4*"))
    ] == ["n4"]


def test_who_follows_them_is_told(tx: Tx) -> None:
    add(tx, 1)
    assert readable(tx, everything=True).server == ""
    claims.hold(tx, consoles.CLAIM, "here", NOW, 30.0)
    assert readable(tx, everything=True).server == "here"
    assert readable(tx, everything=True, now=NOW + 31).server == "", (
        "it has died, or does not record any more"
    )
    assert claims.owner(tx, "another", NOW) == ""


def holder(tx: Tx, site: Site, name: str) -> tuple[Vcluster, int]:
    """A vcluster of a group of its own, and the request that made it."""
    template = new_id(
        tx.execute(
            insert(t.config_templates).values(
                name=name, revision=1, document="<template/>", digest="", created_at=NOW
            )
        )
    )
    made = add_vcluster(
        tx, name, groups.ensure(tx, f"{name}s", NOW).id, template, site.subnets[0], now=NOW
    )
    return made, new_id(
        tx.execute(
            insert(t.node_requests).values(
                vcluster_id=made.id, kind="create", state="granted", priority=0, submitted_at=NOW
            )
        )
    )


def test_the_stretch_changes_with_the_holder(tx: Tx, site: Site) -> None:
    node, tenures = add(tx, 1), []
    first, second = holder(tx, site, "web"), holder(tx, site, "farm")
    for number, (vcluster, request) in enumerate((first, second, first), 1):
        at = NOW + 100 * number
        held = holding.take(
            tx,
            node,
            vcluster=vcluster,
            request_id=request,
            template_id=vcluster.template_id,
            hostname="h",
            now=at,
        )
        tenures.append(consoles.followed(tx, ON)[0].tenure)
        assert readable(tx).tenure == tenures[-1]
        assert readable(tx, everything=True).tenure is None
        moved = transitions.move(tx, held, NodeEvent.PRIME_ORDERED, now=at, cause="", actor="test")
        assert consoles.followed(tx, ON)[0].tenure == tenures[-1], (
            "whatever else happens to the node, its holder's goes on"
        )
        given = holding.give_back(tx, moved, up_until=0.0)
        assert consoles.followed(tx, ON)[0].tenure == FREE
        with pytest.raises(Refused, match="no node"):
            readable(tx)
        tx.execute(
            update(t.nodes).values(state=NodeState.INACTIVE, generation=given.generation + 9)
        )
        node = nodes.named(tx, "n1")
    assert len(set(tenures)) == 3, "not even the vcluster that had it before goes on where it was"


def test_why_nothing_is_recorded_is_said(tx: Tx) -> None:
    add(tx, 1, power_driver="pdu")
    add(tx, 2)
    assert "outlet" in readable(tx, everything=True).about
    assert readable(tx, "n2", everything=True).about == ""
    off = consoles.readable(tx, name="n2", rules=ConsoleRules(), everything=True, now=NOW)
    assert "records no consoles" in off.about
    with pytest.raises(Refused, match="no node 'n9'"):
        readable(tx, "n9", everything=True)
