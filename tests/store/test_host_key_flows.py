"""SSH host keys of nodes: made with an order, the same when that is derived again, and gone with
the disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select

from cod.core.nodes import transitions
from cod.flows import views
from cod.flows.agents import orders
from cod.flows.nodes import host_keys as flow
from cod.model import HostKey, HostKeyMaker, Refused, Site, dotted
from cod.orders import Order
from cod.security import hostkeys
from cod.states import Disk, NodeEvent
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, holding, host_keys
from tests.store.agentlab import TEMPLATE, Lab

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

OWN = TEMPLATE.replace('seed="nocloud"', 'seed="nocloud" hostkeys="own"')


def made(salt: str, order_id: str) -> tuple[HostKey, str]:
    """Make the key as the service does, with a secret for the test."""
    public, private = hostkeys.ed25519(f"{salt} {order_id}".encode().ljust(32, b".")[:32])
    return HostKey(hostkeys.ALGORITHM, public), private


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    """Node 1 is held by vcluster vc, and is being primed."""
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    assert lab.node(1).state == "prime"
    return lab


def order(
    lab: Lab, salt: str = "aa", make: Callable[[str, str], tuple[HostKey, str]] = made
) -> Order:
    return orders.current(
        lab.tx, lab.node(1), lab.site, "10.77.1.1", maker=HostKeyMaker(salt, make), now=lab.now
    )


def keys(lab: Lab) -> list[HostKey]:
    return host_keys.of_nodes(lab.tx, [lab.node(1).id]).get(lab.node(1).id, [])


def salts(lab: Lab) -> list[str]:
    return list(lab.tx.scalars(select(t.host_keys.c.salt)))


def test_an_order_that_is_derived_again_is_the_same(lab: Lab) -> None:
    first = order(lab, "aa")
    assert order(lab, "bb") == first, "another server, another moment: the salt is the order's"
    assert salts(lab) == ["aa"]
    assert [key.key for key in keys(lab)] == [made("aa", first.id)[0].key]
    assert first.seed["ssh_host_ed25519_key"] == made("aa", first.id)[1]
    assert "ssh_keys" in first.seed["vendor-data"]


def test_the_private_part_cannot_be_made_again_once_it_is_written(lab: Lab) -> None:
    first = order(lab)
    assert "PRIVATE KEY" not in repr(list(lab.tx.execute(select(t.host_keys))))
    shown = keys(lab)
    primed = lab.node(1)
    transitions.move(
        lab.tx, primed, NodeEvent.PRIMED, now=lab.now, cause="", actor="test", disk=Disk.DIRTY
    )
    assert salts(lab) == [""]
    assert keys(lab) == shown
    assert host_keys.salt(lab.tx, primed.id, first.id) == ""


def test_a_failed_installation_s_key_is_not_used_again(lab: Lab) -> None:
    first = order(lab, "aa")
    transitions.move(lab.tx, lab.node(1), NodeEvent.FAILED, now=lab.now, cause="", actor="test")
    assert salts(lab) == [""]
    transitions.move(
        lab.tx, lab.node(1), NodeEvent.PRIME_ORDERED, now=lab.now, cause="", actor="test"
    )
    assert order(lab, "bb").seed["ssh_host_ed25519_key"] != first.seed["ssh_host_ed25519_key"]
    assert len(keys(lab)) == 1


def test_a_system_that_makes_its_own_keys_is_given_none(lab: Lab) -> None:
    order(lab)
    own = lab.template(document=OWN, revision=2)
    lab.tx.execute(t.nodes.update().values(template_id=own))
    found = order(lab)
    assert "ssh_host_ed25519_key" not in found.seed
    assert "ssh_keys" not in found.seed.get("vendor-data", "")
    assert keys(lab) == [], "what it had before is no longer true"


def test_without_a_seed_there_is_no_key(lab: Lab) -> None:
    order(lab)
    plain = lab.template(document=TEMPLATE.replace('seed="nocloud"', 'seed="none"'), revision=2)
    lab.tx.execute(t.nodes.update().values(template_id=plain))
    assert order(lab).seed == {}
    assert keys(lab) == []


def test_keys_go_with_the_disk(lab: Lab) -> None:
    order(lab)
    holding.give_back(lab.tx, lab.node(1), up_until=0.0)
    assert keys(lab) == []


def test_a_kept_disk_keeps_its_keys_for_those_who_get_it_back(lab: Lab) -> None:
    order(lab)
    shown = keys(lab)
    template = lab.node(1).template_id
    group = lab.tx.scalar(select(t.vclusters.c.group_id))
    assert template is not None
    holding.give_back(lab.tx, lab.node(1), keep_disk=True, up_until=0.0)
    vcluster = lab.vcluster(template, name="again")
    assert vcluster.group_id == group

    def take(template_id: int, at: str) -> None:
        held = lab.vcluster(template, group=at, name=at)
        request = lab.tx.scalar(select(t.node_requests.c.id))
        assert request is not None
        holding.take(
            lab.tx,
            lab.node(1),
            vcluster=held,
            request_id=request,
            template_id=template_id,
            hostname="n1",
            now=lab.now,
        )

    take(template, "physics")
    assert keys(lab) == shown
    holding.give_back(lab.tx, lab.node(1), keep_disk=True, up_until=0.0)
    take(template, "chemistry")
    assert keys(lab) == [], "another group's node is written anew"


def test_people_are_shown_the_key(lab: Lab) -> None:
    order(lab)
    [key] = keys(lab)
    assert views.node_in_full(lab.tx, "node1")[0].host_keys == (key,)
    [address] = [
        dotted(one.address)
        for one in bindings.of_node(lab.tx, lab.node(1).id)
        if one.kind == "vcluster"
    ]
    assert flow.known_hosts(lab.tx, name="vc", site=lab.site) == [
        f"n1.vc.{lab.site.domain},{address} ssh-ed25519 {key.key}"
    ]
    holding.give_back(lab.tx, lab.node(1), keep_disk=True, up_until=0.0)
    assert flow.known_hosts(lab.tx, name="vc", site=lab.site) == []
    with pytest.raises(Refused, match="no vcluster"):
        flow.known_hosts(lab.tx, name="no-such", site=lab.site)
