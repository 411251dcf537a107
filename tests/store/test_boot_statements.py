"""How many statements each message of one machine takes that boots while no other does. A limit
that is exceeded is a cost for each machine of a site that is switched on as a whole (decision
0107)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, update

from cod.flows.agents import orders, sessions
from cod.flows.boot import dhcp, metadata, script
from cod.model import DhcpQuery, Site
from cod.orders import Erasure
from cod.policy.nodes.newcomers import Newcomers
from cod.states import Disk, NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import dhcp_batch, nodes
from tests.store.agentlab import KEY, Lab, mac

RELAY = "10.77.0.254"
ERASED = Erasure("vda", "", "", "", 4 << 30, "overwrite", 1.0, 4 << 30)
# In a storm, the connections of known machines are as fresh as if their agents still ran: the first
# message of each loader is noted as a conflict, once, and the proof shows that they were reset.
UNKNOWN = {
    "firmware DISCOVER": 7,
    "firmware REQUEST": 2,
    "ipxe DISCOVER": 1,
    "ipxe REQUEST": 2,
    "script": 1,
    "secret": 2,
    "trampoline DISCOVER": 1,
    "trampoline REQUEST": 2,
    "hello": 1,
    "proof": 4,
    "report": 6,
}
KNOWN = UNKNOWN | {"firmware DISCOVER": 2, "ipxe DISCOVER": 2, "proof": 8, "report": 7}
DIRTY = KNOWN | {"progress": 2, "done": 9}
IN_A_CLUSTER = {
    "firmware DISCOVER": 1,
    "firmware REQUEST": 2,
    "ipxe DISCOVER": 1,
    "ipxe REQUEST": 2,
    "script": 5,
    "os DISCOVER": 1,
    "os REQUEST": 2,
    "metadata": 3,
}


class Machine:
    """A machine whose messages are counted. `taken`: the statements of each message's flow."""

    def __init__(self, lab: Lab, number: int) -> None:
        self._lab, self._number, self._mac = lab, number, mac(number)
        self._address, self._newcomers = "", Newcomers()
        self.taken: dict[str, list[str]] = {}

    def _counts(self, message: str, flow: Callable[..., Any], *args: Any) -> Any:
        found = self.taken.setdefault(message, [])

        def count(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
            found.append(text)

        event.listen(self._lab.tx, "before_cursor_execute", count)
        try:
            return flow(self._lab.tx, *args)
        finally:
            event.remove(self._lab.tx, "before_cursor_execute", count)

    def _lease(self, stage: str) -> None:
        """Ask DHCP for an address."""
        self._lab.minted += 1
        asked: dict[str, Any] = {"giaddr": RELAY, "arch": 0}
        for kind in ("DISCOVER", "REQUEST"):
            query = DhcpQuery(kind, self._mac, self._lab.minted, "lab", stage, **asked)
            how = [query], self._lab.site, self._newcomers, self._lab.now
            [answer] = self._counts(f"{stage} {kind}", dhcp.answer, *how)
            self._address = answer.yiaddr
            asked |= {"requested": answer.yiaddr, "server_id": "10.77.0.1"}

    def boot(self) -> None:
        """Boot the trampoline, connect and report; carry out an order to erase the disks."""
        lab = self._lab
        self._lease("firmware")
        self._lease("ipxe")
        at, secret = (self._mac, self._address), f"boot{lab.minted}"
        self._counts("script", script.unchanged, *at, lab.site, lab.now)
        self._counts("secret", script.mint, *at, secret, KEY, KEY, KEY, lab.site, lab.now)
        self._lease("trampoline")
        self._counts("hello", sessions.lookup, secret, *at, lab.now)
        peer = self._counts("proof", lambda _: lab.open(self._number, secret))
        order = self._counts("report", lambda _: lab.report(peer)).value.order
        if order.action == "wipe":
            self._counts("progress", lambda _: lab.progress(peer, order.id, 1))
            order = self._counts("done", lambda _: lab.erased(peer, order.id, ERASED)).value
        assert order.action == "wait"
        assert not orders.any_waiting(lab.tx, "a", lab.site)

    def boot_system(self) -> None:
        """Boot the system of the machine's vcluster, which asks for its metadata."""
        lab = self._lab
        self._lease("firmware")
        self._lease("ipxe")
        at = self._mac, self._address
        assert self._counts("script", script.script, *at, lab.site, lab.now).action == "local"
        self._lease("os")

        def of(tx: Tx) -> Any:
            return metadata.of(tx, address=self._address, site=lab.site)

        assert self._counts("metadata", of) is not None


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("unknown", UNKNOWN),
        ("known", KNOWN),
        ("to be erased", DIRTY),
        ("in a cluster", IN_A_CLUSTER),
    ],
)
def test_each_message_of_a_boot_takes_few_statements(
    tx: Tx, site: Site, kind: str, limits: dict[str, int]
) -> None:
    lab = Lab(tx, site)
    Machine(lab, 2).boot()  # types are made once, of the first machine that has them
    machine = Machine(lab, 1)
    if kind != "unknown":
        machine.boot()
        lab.now += 20
        machine.taken.clear()
    if kind == "to be erased":
        nodes.change(tx, lab.node(1), disk=Disk.DIRTY)
    if kind == "in a cluster":
        lab.assign(1, lab.vcluster(lab.template()))
        tx.execute(update(t.nodes).values(state=NodeState.ACTIVE))
        machine.boot_system()
    else:
        machine.boot()
    more = {
        message: found for message, found in machine.taken.items() if len(found) > limits[message]
    }
    assert more == {}
    assert {message: len(found) for message, found in machine.taken.items()} == limits


@pytest.mark.parametrize("count", [1, 2])
def test_a_new_machines_client_is_as_if_it_were_read(tx: Tx, count: int) -> None:
    found = [
        ({"name": f"new{n}", "boot_mac": mac(n), "relay": RELAY, "circuit": "ab"}, "it asked")
        for n in range(count)
    ]
    rows = nodes.add_all(tx, found, now=5.0, actor="dhcp")
    made = {row["boot_mac"]: dhcp_batch.newcomer(row) for row in rows}
    assert made == dhcp_batch.clients(tx, list(made))
    assert len(made) == count
