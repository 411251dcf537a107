"""The manager's pass on a real database: submit -> snapshot -> plan -> apply."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select, update

from cod.flows import plan as flow
from cod.model import Node, RequestTuple, Site, Subnet, Vcluster
from cod.states import Disk, NodeEvent, NodeState, RequestState
from cod.store import bindings, groups, nodes, requests, types, vclusters
from cod.store import tables as t
from cod.store.engine import Tx

REPORT = '<node><firmware kind="bios" /><memory mib="{mib}" /></node>'
DOCUMENT = '<template><image target="disk" name="debian"/></template>'


def add_template(tx: Tx, name: str = "debian", document: str = DOCUMENT, revision: int = 1) -> int:
    row = {"name": name, "revision": revision, "document": document, "digest": "0" * 64, "created_at": 0.0}
    return int(tx.execute(insert(t.config_templates).values(**row)).inserted_primary_key[0])


def add_node(tx: Tx, number: int, state: str = "inactive", mib: int = 4096, **columns: Any) -> Node:
    kind = types.of(tx, REPORT.format(mib=mib), 0.0)
    values = {"disk": Disk.CLEAN, "power_driver": "lab", "type_id": kind.id} | columns
    return nodes.add(tx, name=f"node{number}", boot_mac=f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}", now=0.0,
                     cause="test", actor="test", state=state, **values)


def add_vcluster(tx: Tx, subnet: Subnet, template_id: int, size: int, name: str = "one", group: str = "site") -> Vcluster:
    owner = groups.ensure(tx, group, 0.0)
    vcluster = vclusters.add(tx, name=name, group_id=owner.id, template_id=template_id, size=size, attributes="",
                             lease_time=100.0, subnet=subnet, now=1.0)
    assert vcluster is not None
    requests.add(tx, vcluster_id=vcluster.id, kind="create", priority=0, tuples=[RequestTuple(size, "", template_id)],
                 now=1.0)
    return vcluster


def run_pass(tx: Tx, site: Site, now: float, owner: str = "a") -> int:
    """One whole pass in one transaction; how many acts it had."""
    claim = flow.hold(tx, owner, now, 10.0)
    assert claim is not None
    acts = flow.acts(flow.decide(flow.snapshot(tx, site), now), site)
    for act in acts:
        act.flow(tx, claim=claim, now=now)
    return len(acts)


def test_a_request_gets_its_nodes(tx: Tx, site: Site) -> None:
    template_id = add_template(tx)
    for number in range(3):
        add_node(tx, number)
    vcluster = add_vcluster(tx, site.subnets[0], template_id, 2)
    assert run_pass(tx, site, 5.0) == 1
    held = nodes.every(tx, vcluster_id=vcluster.id)
    assert [(n.name, n.state, n.hostname, n.assigned_at) for n in held] == [
        ("node0", "prime", "n1", 5.0), ("node1", "prime", "n2", 5.0)]
    now = vclusters.get(tx, vcluster.id)
    assert now is not None
    assert (now.state, now.expires_at) == ("active", 105.0)
    assert requests.every(tx)[0].state == RequestState.GRANTED
    block = range(now.first_address or 0, (now.last_address or 0) + 1)
    assert all(one.address in block for n in held for one in bindings.of_node(tx, n.id))
    assert run_pass(tx, site, 6.0) == 0
