"""Orders to prime say from which nodes an image comes, and how it is passed on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cod.flows.agents import orders, progress
from cod.model import ChunkKeys, Site
from cod.orders import Order
from cod.states import Disk
from cod.store.engine import Tx
from cod.store.images import images
from cod.wire import chunktoken
from tests.store.agentlab import TEMPLATE, Lab

DIGEST = "ab" * 32
DOCUMENT = (
    '<template cache="{cache}"><image target="disk" name="debian"/>{more}<personalise'
    ' seed="nocloud"><user-data>#cloud-config</user-data></personalise></template>'
)


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    lab = Lab(tx, site)
    images.add(
        tx,
        name="debian",
        group_id=None,
        state="ready",
        format="raw",
        created_at=0.0,
        digest=DIGEST,
        size=1 << 20,
        content="disk",
    )
    return lab


def key(order_id: str) -> str:
    return order_id.encode().hex().ljust(64, "0")


def given(lab: Lab) -> dict[str, Order]:
    """The orders that are sent now, by their nodes' names."""
    keys = ChunkKeys(key, chunktoken.token)
    found = orders.waiting(lab.tx, "a", lab.site, lab.now, chunk_keys=keys).value
    return {
        each.name: order
        for node_id, _, order in found
        if (each := next(n for n in map(lab.node, range(1, 9)) if n.id == node_id))
    }


def comes_in(lab: Lab, *numbers: int) -> None:
    for number in numbers:
        lab.machine(number, "inactive")
        lab.boots(number)
    given(lab)


def primes(lab: Lab, *numbers: int, document: str = DOCUMENT) -> None:
    comes_in(lab, *numbers)
    template = lab.template(document=document)
    for number in numbers:
        lab.assign(number, lab.vcluster(template, name=f"vc{number}"))


def test_each_node_is_told_of_those_before_it(lab: Lab) -> None:
    primes(lab, 1, 2, 3)
    sent = given(lab)
    assert [each.action for each in sent.values()] == ["prime"] * 3
    first, second, third = (sent[f"node{number}"] for number in (1, 2, 3))
    assert [each.name for each in first.images[0].sources] == []
    assert [each.name for each in second.images[0].sources] == ["node1"]
    assert [each.name for each in third.images[0].sources] == ["node2", "node1"]
    source = second.images[0].sources[0]
    assert source.url == "http://10.77.1.1:8074"
    assert first.pass_on
    assert (first.pass_on.rate, first.pass_on.key) == (125_000_000, key(first.id))
    assert chunktoken.allows(source.token, first.pass_on.key, DIGEST, "10.77.1.1", lab.now)


def test_nodes_that_were_left_to_their_own_group_are_told_of_each_other(lab: Lab) -> None:
    """Show it of nodes whose disks are written without erasing, unlike those of another group."""
    lab.site = replace(lab.site, policy=replace(lab.site.policy, wipe="tables"))
    template = lab.template(document=DOCUMENT)
    owners = [lab.vcluster(template, group, f"vc{group}") for group in ("own", "other")]
    for number, owner in ((1, 0), (2, 0), (3, 1), (4, 0)):
        group = owners[owner].group_id
        lab.machine(number, "inactive", disk=Disk.TABLES, cached_group_id=group)
        lab.boots(number)
    given(lab)
    for number in range(1, 5):
        lab.assign(number, owners[0])
    sent = given(lab)
    assert [sent[f"node{number}"].wipe for number in range(1, 5)] == [False, False, True, False]
    assert [each.name for each in sent["node4"].images[0].sources] == ["node2", "node1"]


def test_progress_says_where_the_image_comes_from_until_it_is_written(lab: Lab) -> None:
    primes(lab, 1)
    order, peer = given(lab)["node1"], lab.again(1)
    progress.progress(lab.tx, peer, order.id, "write", 1, 9, 1.0, lab.site, lab.now, "n7")
    assert lab.node(1).progress_source == "n7"
    lab.done(peer, order.id)
    assert lab.node(1).progress_source == ""


def test_a_late_one_joins_at_the_end_of_those_that_still_receive(lab: Lab) -> None:
    primes(lab, 1, 2)
    sent = given(lab)
    lab.done(lab.again(1), sent["node1"].id)
    lab.tick(5.0)
    comes_in(lab, 3)
    lab.assign(3, lab.vcluster(lab.node(2).template_id or 0, name="late"))
    sent = given(lab)
    assert [each.name for each in sent["node3"].images[0].sources] == ["node2"]


def test_a_site_may_have_its_server_send_all(lab: Lab) -> None:
    lab.site = replace(lab.site, images=replace(lab.site.images, pass_on=False))
    primes(lab, 1, 2)
    for order in given(lab).values():
        assert order.pass_on is None
        assert order.images[0].sources == ()


def test_nothing_is_passed_on_of_images_from_elsewhere(lab: Lab) -> None:
    primes(lab, 1, 2, document=TEMPLATE)
    for order in given(lab).values():
        assert (order.action, order.pass_on) == ("prime", None)
