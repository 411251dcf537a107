"""Switches and ports over the API and the command line: seen, entered by hand, forgotten, tried
again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cod.core.networks import switch_ports
from cod.model import Effect, Site, Switch
from cod.pool import Pool
from cod.store.nodes import nodes
from cod.store.nodes import switch_ports as store
from cod.store.nodes import switches as sessions
from tests.net.apiserver import NOW, Served, add_node, as_json, said, serving

pytestmark = pytest.mark.slow
LEAF = Switch("leaf", "ovs", "unix:/run/ovs/db.sock", provisioning_vlan=10)
SPINE = Switch("spine", "netmiko", "spine.example", account="net", platform="cisco_ios")
MAC = "52:54:00:00:00:01"


@pytest.fixture
def here(pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site) -> Iterator[Served]:
    """A server whose site file names two switches, with a node."""
    with serving(pool, reactor, in_reactor, replace(site, switches=(LEAF, SPINE))) as served:
        add_node(served, "n1", 1)
        yield served


def want(here: Served, vlan: int | None) -> None:
    here.tx(lambda tx: switch_ports.want(tx, nodes.named(tx, "n1"), vlan, NOW))


def test_a_port_is_entered_shown_and_forgotten(here: Served) -> None:
    assert "n1" in said(here, "port", "set", "n1", "leaf", "Ethernet1")
    (port,) = as_json(here, "port", "list", "--switch", "leaf")
    assert (port["node"], port["mac"], port["port"], port["source"], port["state"]) == (
        "n1",
        MAC,
        "Ethernet1",
        "manual",
        "untouched",
    )
    assert "no node 'n2'" in said(here, "port", "list", "--node", "n2", code=1)
    assert "no switch 'laef'" in said(here, "port", "list", "--switch", "laef", code=1)
    assert as_json(here, "port", "list", "--switch", "spine") == []
    assert "no NIC 52:54:00:00:00:99" in said(
        here, "port", "set", "n1", "leaf", "p1", "--mac", "52:54:00:00:00:99", code=1
    )
    assert "no switch 'gone'" in said(here, "port", "set", "n1", "gone", "p1", code=1)
    assert as_json(here, "port", "unset", "n1") == {"node": "n1", "state": "forgotten"}
    assert as_json(here, "port", "list") == []


def test_a_port_in_an_isolated_network_is_neither_forgotten_nor_given_away(here: Served) -> None:
    said(here, "port", "set", "n1", "leaf", "p1")
    want(here, 20)
    assert "is not in the provisioning VLAN yet" in said(here, "port", "unset", "n1", code=1)
    add_node(here, "n2", 2)
    assert "holds 52:54:00:00:00:01 in VLAN 20" in said(
        here, "port", "set", "n2", "leaf", "p1", code=1
    )
    (port,) = as_json(here, "port", "list")
    assert (port["wanted_vlan"], port["state"]) == (20, "pending")


def test_what_was_given_up_is_told_and_tried_again(here: Served) -> None:
    assert "no switch port of node n1 is known" in said(here, "port", "retry", "n1", code=1)
    said(here, "port", "set", "n1", "leaf", "p1")
    want(here, 20)

    def give_up(tx: Any) -> None:
        (port,) = store.of_node(tx, nodes.named(tx, "n1").id)
        store.outcome(tx, port, given_up=True, next_at=None, reason="the switch has no port p1")

    here.tx(give_up)
    leaf, spine = as_json(here, "switch", "list")
    assert (leaf["name"], leaf["ports"], leaf["given_up"], spine["ports"]) == ("leaf", 1, 1, 0)
    shown = said(here, "port", "list")
    assert "given up" in shown
    assert "the switch has no port p1" in " ".join(shown.split())
    here.effects.clear()
    (port,) = as_json(here, "port", "retry", "n1")
    assert (port["state"], port["reason"]) == ("pending", "")
    assert here.effects == [switch_ports.WAKE, Effect("wake", "manager")]


def test_a_switch_is_shown_and_a_session_with_it_is_wanted(here: Served) -> None:
    assert as_json(here, "switch", "show", "spine")["platform"] == "cisco_ios"
    assert "there is no switch 'gone'" in said(here, "switch", "show", "gone", code=1)
    value = here.local.post("/switches/leaf/check")
    assert (value["checking"], value["answered_at"]) == (True, None)
    assert switch_ports.WAKE in here.effects
    row = here.tx(sessions.get, "leaf")
    assert row.check_wanted
    here.tx(
        lambda tx: sessions.ended(
            tx, "leaf", row.epoch, tried_at=NOW, reason="it is away", check_wanted=False
        )
    )
    assert "it is away" in said(here, "switch", "show", "leaf")
