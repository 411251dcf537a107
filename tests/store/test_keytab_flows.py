"""Keytabs of nodes: made for an installation, for it alone, and gone when it is written or over."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from cod.core.nodes import outages, transitions
from cod.flows.agents import orders
from cod.flows.nodes import faults, keytabs
from cod.model import KerberosRules, KeytabTask, Refused, Site
from cod.security.sealed import Sealer
from cod.states import KERBEROS, Disk, NodeEvent
from cod.store import stories
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import holding, host_keys, nodes, sessions
from tests.store.agentlab import TEMPLATE, Lab

KEYED = TEMPLATE.replace('seed="nocloud"', 'seed="nocloud" kerberos="yes"')
HOST = "n1.vc.cod.test"
HOSTS = (HOST, "n1.new.cod.test")
SEALER = Sealer(b"k" * 32)
KEYTAB = b"\x05\x02 the keys of n1"


@pytest.fixture
def site(site: Site) -> Site:
    """A site whose command makes keytabs."""
    command = "/etc/cod/keytab"
    rules = KerberosRules("EXAMPLE.ORG", keytab_command=command)
    return replace(site, kerberos=rules, authority="PEM")


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    """Node 1 is held by vcluster vc, and is being primed with a template that asks for Kerberos."""
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template(document=KEYED)))
    assert lab.node(1).state == "prime"
    return lab


def due(lab: Lab) -> list[KeytabTask]:
    return keytabs.due(lab.tx, lab.site, lab.now)


def make(lab: Lab, keytab: bytes = KEYTAB) -> KeytabTask:
    (task,) = due(lab)
    assert keytabs.made(lab.tx, task, SEALER.seal(keytab, task.order_id), lab.site, lab.now).value
    return task


def sent(lab: Lab) -> list[Any]:
    return [
        order
        for _, _, order in orders.waiting(lab.tx, "a", lab.site, lab.now, unseal=SEALER.open).value
    ]


def move(lab: Lab, event: NodeEvent, **columns: Any) -> None:
    transitions.move(lab.tx, lab.node(1), event, now=lab.now, cause="", actor="test", **columns)


def rows(lab: Lab) -> list[tuple[str, bool]]:
    return [(one.host, one.sealed is not None) for one in host_keys.keytabs(lab.tx, HOSTS)]


def test_a_node_waits_for_its_keytab_and_gets_it_with_its_order(lab: Lab) -> None:
    assert sent(lab) == []
    (task,) = due(lab)
    assert (task.host, task.removal) == (HOST, False)
    make(lab)
    assert KEYTAB not in (host_keys.keytabs(lab.tx, HOSTS)[0].sealed or b"")
    assert "the keys" not in repr(host_keys.keytabs(lab.tx, HOSTS))
    (order,) = sent(lab)
    assert b64decode(order.seed["krb5.keytab.base64"]) == KEYTAB
    assert "default_realm = EXAMPLE.ORG" in order.seed["krb5.conf"]
    assert "krb5_realm = EXAMPLE.ORG" in order.seed["vendor-data"]
    assert "/etc/krb5.keytab" in order.seed["vendor-data"]
    assert due(lab) == [], "nothing more is due"
    assert sent(lab) == [], "it is sent once"


def test_the_keytab_is_dropped_once_it_is_written(lab: Lab) -> None:
    make(lab)
    assert rows(lab) == [(HOST, True)]
    move(lab, NodeEvent.PRIMED, disk=Disk.DIRTY)
    assert rows(lab) == [(HOST, False)]
    assert due(lab) == [], "the node has it"


def test_another_installation_gets_other_keys(lab: Lab) -> None:
    first = make(lab)
    move(lab, NodeEvent.FAILED)
    move(lab, NodeEvent.PRIME_ORDERED)
    (task,) = due(lab)
    assert task.order_id != first.order_id
    assert not keytabs.made(lab.tx, first, b"late", lab.site, lab.now).value, (
        "the first order is over"
    )
    assert b"late" not in [one.sealed for one in host_keys.keytabs(lab.tx, HOSTS)]
    make(lab, KEYTAB + b"2")
    (order,) = sent(lab)
    assert b64decode(order.seed["krb5.keytab.base64"]) == KEYTAB + b"2"


def test_principals_are_removed_when_the_node_leaves(lab: Lab) -> None:
    make(lab)
    move(lab, NodeEvent.PRIMED, disk=Disk.DIRTY)
    holding.give_back(lab.tx, lab.node(1), up_until=0.0)
    (task,) = due(lab)
    assert (task.host, task.removal) == (HOST, True)
    keytabs.failed(lab.tx, task, "kadmin: no KDC", lab.now)
    assert due(lab) == [], "not at once again"
    lab.now += 10
    (task,) = due(lab)
    keytabs.removed(lab.tx, task)
    assert (rows(lab), due(lab)) == ([], [])


def test_a_host_that_another_node_becomes_keeps_its_principals(lab: Lab) -> None:
    make(lab)
    move(lab, NodeEvent.PRIMED, disk=Disk.DIRTY)
    vcluster = lab.node(1).vcluster_id
    holding.give_back(lab.tx, lab.node(1), up_until=0.0)
    lab.machine(2, "trampoline")
    lab.boots(2)
    assert lab.node(1).vcluster_id is None
    lab.tx.execute(
        t.nodes.update()
        .where(t.nodes.c.id == lab.node(2).id)
        .values(
            vcluster_id=vcluster,
            hostname="n1",
            state="prime",
            template_id=lab.tx.scalar(select(t.config_templates.c.id)),
        )
    )
    (task,) = due(lab)
    assert (task.host, task.node_id, task.removal) == (HOST, lab.node(2).id, False)


def test_a_command_that_fails_keeps_its_node_waiting_and_administrators_are_told(lab: Lab) -> None:
    (task,) = due(lab)
    keytabs.failed(lab.tx, task, "kadmin: cannot contact any KDC", lab.now)
    node = lab.node(1)
    assert (node.waits_for, sent(lab)) == (KERBEROS, [])
    assert "cannot contact any KDC" in node.reason
    lab.now += 61.0
    assert outages.look(lab.tx, lab.now)
    kinds = list(lab.tx.scalars(select(t.notices.c.kind).where(t.notices.c.group_id.is_(None))))
    assert kinds.count("kerberos") == 1
    (fault,) = [one for one in faults.every(lab.tx, now=lab.now) if one.kind == "kerberos"]
    assert fault.affects == ("node1",)
    for _ in range(20):  # the deadline of priming does not count meanwhile
        lab.tick(3600.0)
        assert lab.node(1).state == "prime"
    make(lab)
    assert lab.node(1).waits_for == ""
    assert len(sent(lab)) == 1
    outages.look(lab.tx, lab.now)
    assert "keytabs-made" in list(lab.tx.scalars(select(t.notices.c.kind)))


def test_other_templates_wait_for_nothing(lab: Lab) -> None:
    plain = lab.template(revision=2)
    lab.tx.execute(t.nodes.update().values(template_id=plain))
    assert due(lab) == []
    (order,) = sent(lab)
    assert "krb5.conf" not in order.seed
    assert "auth_provider = krb5" not in order.seed.get("vendor-data", "")


def test_a_keytab_that_another_authority_sealed_is_not_sent(lab: Lab) -> None:
    (task,) = due(lab)
    sealed = Sealer(b"o" * 32).seal(KEYTAB, task.order_id)
    keytabs.made(lab.tx, task, sealed, lab.site, lab.now)
    with pytest.raises(Refused, match="sealed by another authority"):
        orders.current(lab.tx, lab.node(1), lab.site, unseal=SEALER.open)


def test_a_deleted_node_s_principals_are_removed(lab: Lab) -> None:
    make(lab)
    move(lab, NodeEvent.PRIMED, disk=Disk.DIRTY)
    lab.tx.execute(t.keytabs.update().values(node_id=4711))
    assert nodes.get(lab.tx, 4711) is None
    assert [task.removal for task in due(lab)] == [True]


def fail(lab: Lab) -> None:
    (task,) = due(lab)
    keytabs.failed(lab.tx, task, "kadmin: no KDC", lab.now)


def another(lab: Lab, number: int, template_id: int) -> None:
    lab.machine(number, "trampoline")
    lab.boots(number)
    lab.assign(number, lab.vcluster(template_id, name=f"vc{number}"))


def keyed(lab: Lab) -> int:
    return int(lab.tx.scalar(select(t.config_templates.c.id)) or 0)


def test_nodes_that_await_keytabs_do_not_keep_others_from_their_orders(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(lab)  # what node 1 was told before
    assert not orders.any_waiting(lab.tx, "a", lab.site), "nothing can be sent to it"
    another(lab, 2, lab.template(revision=2))
    assert orders.any_waiting(lab.tx, "a", lab.site)
    monkeypatch.setattr(sessions, "waiting", partial(sessions.waiting, limit=1))
    assert [order.action for order in sent(lab)] == ["prime"]


def test_a_node_whose_turn_has_not_come_waits_and_that_is_said(lab: Lab) -> None:
    for _ in range(3):
        lab.tick(3600.0)
    assert (lab.node(1).state, lab.node(1).waits_for) == ("prime", KERBEROS)
    outages.look(lab.tx, lab.now)
    c = t.notices.c
    (said,) = lab.tx.scalars(select(c.about).where(c.kind == "kerberos"))
    assert "no server has run the site's command" in said


def test_a_node_has_a_whole_deadline_for_its_order_after_its_keytab(lab: Lab) -> None:
    deadline = lab.node(1).deadline or 0.0
    lab.tick(deadline - lab.now - 1.0)
    make(lab)
    sent(lab)
    lab.tick(10.0)
    assert lab.node(1).state == "prime", "its order is ten seconds old"


def test_a_node_of_a_site_that_makes_no_keytabs_any_more_does_not_wait_for_ever(lab: Lab) -> None:
    fail(lab)
    lab.site = replace(lab.site, kerberos=KerberosRules())
    lab.tick(3600.0)
    assert lab.node(1).waits_for == ""
    lab.tick(3600.0)
    assert lab.node(1).state != "prime", "its deadline counts"


def test_a_node_that_gets_another_order_waits_no_more(lab: Lab) -> None:
    fail(lab)
    move(lab, NodeEvent.FAILED)
    assert lab.node(1).waits_for == ""


def test_hosts_that_have_not_been_tried_come_first(lab: Lab) -> None:
    fail(lab)
    lab.now += 3600.0
    another(lab, 2, keyed(lab))
    assert [task.node_id for task in due(lab)] == [lab.node(2).id, lab.node(1).id]


def test_a_vcluster_that_is_renamed_during_priming_keeps_the_principals_on_the_disk(
    lab: Lab,
) -> None:
    make(lab)
    assert len(sent(lab)) == 1
    lab.tx.execute(t.vclusters.update().values(name="new"))
    (task,) = due(lab)
    assert task.host == "n1.new.cod.test", "for an agent that asks once more"
    lab.now += 1.0
    keytabs.made(lab.tx, task, SEALER.seal(b"new", task.order_id), lab.site, lab.now)
    again = orders.current(lab.tx, lab.node(1), lab.site, unseal=SEALER.open)
    assert b64decode(again.seed["krb5.keytab.base64"]) == b"new", "its keytab has its name"
    move(lab, NodeEvent.PRIMED, disk=Disk.DIRTY)
    assert due(lab) == [], "the disk may hold either"


def test_while_the_site_is_held_no_principal_is_removed(lab: Lab) -> None:
    make(lab)
    move(lab, NodeEvent.PRIMED, disk=Disk.DIRTY)
    holding.give_back(lab.tx, lab.node(1), up_until=0.0)
    stories.begin_hold(lab.tx, "it was restored from a backup", lab.now)
    assert due(lab) == [], "a host of that name may have been installed since the backup"


def test_a_template_that_cannot_be_read_does_not_stop_other_keytabs(lab: Lab) -> None:
    another(lab, 2, lab.template(document=KEYED, revision=2))
    c = t.config_templates.c
    broken = KEYED.replace("nocloud", "none").format(cache="no", more="")
    lab.tx.execute(t.config_templates.update().where(c.revision == 1).values(document=broken))
    assert [task.node_id for task in due(lab)] == [lab.node(2).id]
