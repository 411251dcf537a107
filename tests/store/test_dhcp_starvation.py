"""Machines that do not exist ask for addresses: what that costs, and who boots all the same. The
clock is moved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import func, select

from cod.core.networks import dhcp_batch
from cod.core.nodes import enrolment
from cod.flows import pruning
from cod.flows.boot import dhcp as flow
from cod.model import DhcpAnswer, DhcpQuery, Site, dotted, ipv4
from cod.policy.nodes.newcomers import Newcomers
from cod.policy.nodes.subnets import Subnets
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, blocks, conflicts, nodes

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
# seconds at which PXE firmware asks before it gives up (PXE 2.1, section 2.2.3)
RETRIES = (0, 4, 12, 28)
SERVER = "10.77.0.1"


@dataclass
class Wire:
    """A DHCP server and everybody who asks it, at one moment."""

    tx: Tx
    site: Site
    now: float = NOW
    newcomers: Newcomers = field(default_factory=Newcomers)
    invented: int = 0

    def knows(self, count: int, first: int = 0) -> None:
        """Let so many machines of the reserve be known."""
        for number in range(first, first + count):
            nodes.add(
                self.tx,
                name=f"known{number}",
                boot_mac=mac(number),
                now=0.0,
                cause="t",
                actor="t",
                state=NodeState.INACTIVE,
            )

    def ask(self, *queries: DhcpQuery) -> list[DhcpAnswer | None]:
        return flow.answer(self.tx, queries, self.site, self.newcomers, self.now)

    def boots(self, mac: str, stage: str = "firmware") -> str | None:
        """One DISCOVER with the REQUEST that follows an offer; the address."""
        [offer] = self.ask(discover(mac, stage=stage))
        return self.takes(mac, offer, stage)

    def takes(self, mac: str, offer: DhcpAnswer | None, stage: str = "firmware") -> str | None:
        if offer is None:
            return None
        [ack] = self.ask(request(mac, offer, stage))
        assert ack is not None
        assert (ack.kind, ack.yiaddr) == ("ACK", offer.yiaddr)
        return ack.yiaddr

    def flood(
        self, seconds: int, rate: int = 17, circuit: str | None = None, *, take: bool = True
    ) -> None:
        """Invented MACs ask, and take what they are offered."""
        for _ in range(seconds):
            self.now += 1
            asked = [discover(self.invent(), circuit=circuit) for _ in range(rate)]
            offers = zip(asked, self.ask(*asked), strict=True)
            self.ask(*(request(query.mac, offer) for query, offer in offers if offer and take))

    def invent(self) -> str:
        self.invented += 1
        return "66:" + self.invented.to_bytes(5, "big").hex(":")

    def count(self, *states: NodeState) -> int:
        return len(nodes.every(self.tx, states))


def discover(mac: str, **more: object) -> DhcpQuery:
    return replace(DhcpQuery("DISCOVER", mac, 7, "lab", "firmware"), **more)


def request(mac: str, offer: DhcpAnswer, stage: str = "firmware") -> DhcpQuery:
    return DhcpQuery("REQUEST", mac, 7, "lab", stage, requested=offer.yiaddr, server_id=SERVER)


def mac(number: int) -> str:
    return f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"


def told(wire: Wire) -> list[str]:
    """The subjects of the administrators' notices."""
    return list(wire.tx.scalars(select(t.notices.c.subject).where(t.notices.c.group_id.is_(None))))


@pytest.fixture
def wire(tx: Tx, site: Site) -> Wire:
    """A site with the pool and the limits that `cod init` proposes."""
    return Wire(tx, site)


@pytest.mark.slow
def test_known_and_new_machines_boot_while_invented_ones_ask(wire: Wire) -> None:
    wire.knows(50)
    wire.site = replace(wire.site, policy=replace(wire.site.policy, new_burst=100))
    wire.flood(120)
    pool = len(Subnets(wire.site.subnets).of(discover(mac(0))).pool)
    assert pool == 1024
    assert wire.count(NodeState.NEW) < 100 + 120 * 2.5
    for number in range(50):
        assert wire.boots(mac(number)), f"known{number} is refused"
    waiting, reported = {mac(1000 + number): wire.now for number in range(20)}, 0
    for _ in range(max(RETRIES) + 1):
        for one in [one for one, since in waiting.items() if wire.now - since in RETRIES]:
            if wire.boots(one):
                del waiting[one]
        wire.flood(1)
    assert not waiting, "new machines that are refused until their firmware gives up"
    # the loaders' way takes its time, and nothing is taken from the machine
    for stage in ("ipxe", "trampoline"):
        wire.flood(15)
        for number in range(20):
            reported += wire.boots(mac(1000 + number), stage) is not None
    assert reported == 40
    assert told(wire) == ["new machines on subnet lab are refused"]
    assert [row["kind"] for row in conflicts.every(wire.tx)] == ["limited"]
    assert wire.newcomers.refused > 17 * 180 - 100 - 180 * 2.5


def test_known_machines_boot_when_a_small_pool_is_taken(wire: Wire) -> None:
    """A pool of 40 addresses: new machines take 30 of them, known ones need more than the other
    10."""
    [subnet] = wire.site.subnets
    wire.site = replace(
        wire.site, subnets=(replace(subnet, boot_pool=("10.77.1.1", "10.77.1.40")),)
    )
    wire.knows(35)
    wire.flood(20)
    assert {wire.boots(mac(number)) for number in range(10)} >= {
        dotted(ipv4("10.77.1.31") + n) for n in range(5)
    }
    addresses = {wire.boots(mac(number)) for number in range(35)}
    assert len(addresses) == 35
    assert None not in addresses


def test_offers_give_way_to_the_next_new_machine(wire: Wire) -> None:
    [subnet] = wire.site.subnets
    wire.site = replace(wire.site, subnets=(replace(subnet, boot_pool=("10.77.1.1", "10.77.1.8")),))
    wire.flood(1, 6, take=False)
    assert wire.boots(mac(1)), "an offer that nobody took"
    wire.flood(1, 20)
    assert wire.boots(mac(1), "ipxe"), "what a machine has it keeps"
    assert wire.boots(mac(2)) is None, "others have what they were given a second ago"
    assert nodes.by_mac(wire.tx, mac(2)) is None
    wire.now += dhcp_batch.GIVES_WAY + 1
    assert wire.boots(mac(2))


def test_a_flood_behind_one_port_leaves_the_others_alone(wire: Wire) -> None:
    wire.flood(60, circuit="01")
    assert wire.count(NodeState.NEW) < 500 / 8 + 60 * 0.3
    [offer] = wire.ask(discover(mac(1), circuit="02"))
    assert offer is not None


def test_a_flood_behind_one_relay_leaves_the_others_alone(wire: Wire) -> None:
    [lab] = wire.site.subnets
    far = replace(
        lab,
        name="far",
        network="10.88.0.0/16",
        server=SERVER,
        interface=None,
        relay="10.88.0.1",
        router="10.88.0.1",
        boot_pool=("10.88.1.0", "10.88.4.255"),
        block_pool=("10.88.128.0", "10.88.255.255"),
    )
    wire.site = replace(
        wire.site, subnets=(lab, far), policy=replace(wire.site.policy, new_burst=60)
    )
    wire.flood(15, 20)
    answers = wire.ask(*(discover(mac(number), giaddr="10.88.0.1") for number in range(40)))
    assert None not in answers


def test_new_machines_are_limited_in_number(wire: Wire) -> None:
    wire.site = replace(wire.site, policy=replace(wire.site.policy, new_machines=50))
    wire.flood(3, 20)
    assert wire.count(NodeState.NEW) == 50
    assert [row["kind"] for row in conflicts.every(wire.tx)] == ["limited"]
    wire.now += dhcp_batch.GIVES_WAY + 1
    assert wire.boots(mac(1)), "the oldest that never reported gives way"
    assert wire.count(NodeState.NEW) == 50
    oldest = wire.tx.scalar(select(func.min(t.nodes.c.since)))
    wire.flood(1, 20)
    assert wire.count(NodeState.NEW) == 50
    assert wire.tx.scalar(select(func.min(t.nodes.c.since))) > oldest
    assert nodes.by_mac(wire.tx, mac(1)) is not None


def test_who_reported_and_waits_for_approval_never_gives_way(wire: Wire) -> None:
    wire.site = replace(wire.site, policy=replace(wire.site.policy, new_machines=20))
    for number in range(20):
        nodes.add(
            wire.tx,
            name=f"waits{number}",
            boot_mac=mac(number),
            now=0.0,
            cause="t",
            actor="t",
            state=NodeState.REGISTERING,
            reported_at=1.0,
        )
    assert wire.boots(mac(100)) is None
    assert wire.count(NodeState.REGISTERING) == 20
    assert told(wire) == ["new machines on subnet lab are refused"]
    assert "20 machines are not approved yet" in conflicts.every(wire.tx)[0]["about"]


def test_one_uuid_takes_no_end_of_network_cards(wire: Wire) -> None:
    uuid = "6b1d3a52-0c6e-4a8e-9a56-2f0e6f1b7a11"
    wire.ask(*(discover(wire.invent(), uuid=uuid) for _ in range(40)))
    assert (
        max(nodes.count_macs(wire.tx, node.id) for node in nodes.every(wire.tx))
        == enrolment.MOST_NICS
    )
    assert len(conflicts.every(wire.tx)) == 1


def test_one_machine_cannot_decline_the_whole_pool(wire: Wire) -> None:
    [subnet] = wire.site.subnets
    wire.site = replace(
        wire.site, subnets=(replace(subnet, boot_pool=("10.77.1.1", "10.77.1.40")),)
    )
    wire.knows(1, 1)
    for one in (mac(66), mac(1)) * 50:
        wire.now += 0.1
        address = wire.boots(one)
        assert address
        wire.ask(
            DhcpQuery("DECLINE", one, 7, "lab", "firmware", requested=address, server_id=SERVER)
        )
    assert len(conflicts.every(wire.tx)) == 2, "one record a minute and machine"
    assert wire.boots(mac(2)), (
        "addresses that were declined are given, the oldest first, when no other is left"
    )


@pytest.mark.parametrize("said", [{"keep": "serial:B2"}, {"name": "rack1-7"}, {"block_id": 1}])
def test_a_new_machine_of_which_something_was_said_is_not_forgotten(
    wire: Wire, said: dict[str, Any]
) -> None:
    wire.boots(mac(1))
    wire.boots(mac(2))
    if "block_id" in said:
        said = {"block_id": blocks.ensure(wire.tx, "rack1")}
    nodes.change(wire.tx, nodes.every(wire.tx)[0], **said)
    wire.now += 2 * 86_400
    assert len(nodes.never_reported(wire.tx, wire.now, 10)) == 1
    assert pruning.forget_machines(wire.tx, wire.now - 3600.0, 100) == 1
    assert [node.boot_mac for node in nodes.every(wire.tx)] == [mac(1)]


def test_machines_that_never_reported_are_forgotten_after_a_day(wire: Wire) -> None:
    wire.flood(10)
    wire.knows(1, 1)
    wire.now += 80_000
    assert wire.boots("66:00:00:00:00:01"), "it asks again and again: somebody should see it"
    assert pruning.forget_machines(wire.tx, wire.now + 7_500 - 86_400.0, 100) == 100
    assert pruning.forget_machines(wire.tx, wire.now + 7_500 - 86_400.0, 100) == 69
    assert {node.name for node in nodes.every(wire.tx)} == {"known1", "node-660000000001"}
    for table in (t.nics, t.node_history, t.bindings):
        assert wire.tx.scalars(select(func.count()).select_from(table)).one() <= 2
    assert bindings.of_node(wire.tx, nodes.named(wire.tx, "node-660000000001").id)
