"""The rows that a batch of DHCP messages needs: its clients, and bindings that are read together,
changed in memory and written together.

Boot addresses are chosen by hashing the MAC into the pool and probing from there, so a machine
tends to get the same address again without a scan of the pool. An expired binding counts as free,
but stays its old client's until another client needs the address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import null, select, type_coerce, union_all

from cod.model import Binding, DhcpClient
from cod.store import tables as t
from cod.store.engine import Among, Prepared, Tx
from cod.store.nodes import bindings
from cod.store.rows import RowChange, Rows, remove_all, update_all, upsert

# Each statement is made once: making it anew for each batch was half of a small batch's cost.
_n, _b = t.nodes.c, t.bindings.c
_ROWS = Rows(
    DhcpClient,
    t.nodes,
    elsewhere={
        "vcluster": t.vclusters.c.name,
        "vlan": t.vcluster_networks.c.vlan,
        "held_at": t.sessions.c.last_seen,
        "reported": t.sessions.c.reported,
        "story": t.node_stories.c.verdict,
    },
    without=("sent_to_disk", "cycled"),
)
_OWNERS = (
    select(t.nics.c.mac, *_ROWS.columns)
    .join_from(t.nics, t.nodes)
    .outerjoin(t.vclusters, t.vclusters.c.id == _n.vcluster_id)
    .outerjoin(t.vcluster_networks, t.vcluster_networks.c.vcluster_id == _n.vcluster_id)
    .outerjoin(t.sessions, t.sessions.c.node_id == _n.id)
    .outerjoin(t.node_stories, t.node_stories.c.node_id == _n.id)
    .where(Among(t.nics.c.mac, "macs"))
)
_BINDINGS = bindings.ROWS.columns
_OF_CLIENTS = Among(_b.mac, "macs")
_CLIENTS = Prepared(_OWNERS)
_OF_MACS = Prepared(bindings.ROWS.select.where(_OF_CLIENTS).with_for_update())
# Clients and bindings are rows of one statement, each with nulls in the columns of the other.
# FOR UPDATE locks the rows of a union's last part, so those of nodes are not locked.
_PLACE = 1 + _ROWS.width  # of the first column of a binding
_BOTH = Prepared(
    union_all(
        _OWNERS.add_columns(*(type_coerce(null(), each.type) for each in _BINDINGS)),
        select(*(null() for _ in range(_PLACE)), *_BINDINGS).where(_OF_CLIENTS).with_for_update(),
    )
)
_AT = Prepared(bindings.ROWS.select.where(Among(_b.address, "addresses")).with_for_update())
# columns without an index: a renewal is one small write
_RENEW = upsert(t.bindings, "hostname", "state", "expires_at", "client_id", "xid", "acked_at")

# probes: read for the whole batch, then for one client in a crowded pool
FIRST_LOOK, SECOND_LOOK = 4, 128


def clients(tx: Tx, macs: Collection[str]) -> dict[str, DhcpClient]:
    """Return the nodes that own these MACs, by MAC, with the facts that a boot decision needs."""
    return {row[0]: DhcpClient(*row[1:]) for row in _CLIENTS.rows(tx, {"macs": list(macs)})}


def newcomer(columns: Mapping[str, Any]) -> DhcpClient:
    """Return the client of a node that was just inserted with these columns; its other columns are
    null, and no other table has a row about it."""
    known: dict[str, Any] = {name: columns.get(name) for name in _ROWS.names}
    return DhcpClient(**known)


def read(tx: Tx, macs: Collection[str]) -> tuple[dict[str, DhcpClient], BindingBatch]:
    """Return the clients with these MACs, as `clients` does, and the batch of their bindings."""
    if len(macs) > 1:  # two statements are shared by many, and rows of both are long
        return clients(tx, macs), BindingBatch(tx, _held(tx, macs))
    rows = _BOTH.rows(tx, {"macs": list(macs)})
    found = {row[0]: DhcpClient(*row[1:_PLACE]) for row in rows if row[0] is not None}
    return found, BindingBatch(tx, [Binding(*row[_PLACE:]) for row in rows if row[0] is None])


def _held(tx: Tx, macs: Collection[str]) -> list[Binding]:
    return [Binding(*row) for row in _OF_MACS.rows(tx, {"macs": list(macs)})]


def write_locations(tx: Tx, heard: Sequence[DhcpClient]) -> None:
    """Record the relay and the switch port through which those clients' messages came."""
    heard_in_order = sorted(heard, key=attrgetter("id"))  # one order for all: no deadlocks
    changes = (
        RowChange(
            {"id": each.id},
            {"relay": each.relay, "circuit": each.circuit, "remote": each.remote},
        )
        for each in heard_in_order
    )
    update_all(tx, t.nodes, changes)


def probes(mac: str, pool: range, count: int) -> list[int]:
    """Return the first addresses of `pool` to try for `mac`."""
    number = int.from_bytes(hashlib.blake2b(mac.encode(), digest_size=8).digest(), "big")
    size = len(pool)
    start, stride = number % size, 1 + (number >> 32) % max(size - 1, 1)
    return [pool[(start + turn * stride) % size] for turn in range(min(count, size))]


class BindingBatch:
    """Bindings of the batch's clients, and of the addresses that are probed for them.

    `held`: all bindings of the clients, also expired ones, read for update.
    """

    def __init__(self, tx: Tx, held: Collection[Binding]) -> None:
        self._tx = tx
        self._of: dict[tuple[str, str, str], Binding] = {}
        self._at: dict[int, Binding | None] = {}
        self._stored: dict[int, tuple[str | None, str, str, int | None]] = {}
        self._changed: set[int] = set()
        self._hold(held)

    def _hold(self, held: Collection[Binding]) -> None:
        self._of.update({(row.mac or "", row.kind, row.subnet): row for row in held})
        self._at.update({row.address: row for row in held})
        self._stored.update((row.address, _key(row)) for row in held)

    def reread(self, macs: Collection[str]) -> None:
        """Read those clients' bindings again after `write`, because the transaction has changed
        them without the batch."""
        for key in [key for key in self._of if key[0] in macs]:
            del self._of[key]
        self._hold(_held(self._tx, macs))

    def get(self, mac: str, kind: str, subnet: str) -> Binding | None:
        """Return the client's binding, even if it has expired; None if there is none."""
        return self._of.get((mac, kind, subnet))

    def at(self, address: int) -> Binding | None:
        """Return the binding at that address; None if there is none."""
        self.look([address])
        return self._at[address]

    def look(self, addresses: Iterable[int]) -> None:
        """Read the bindings at those addresses, unless the batch has them already."""
        unseen = [address for address in addresses if address not in self._at]
        if unseen:
            found = [Binding(*row) for row in _AT.rows(self._tx, {"addresses": unseen})]
            self._stored.update((row.address, _key(row)) for row in found)
            self._at.update(dict.fromkeys(unseen))
            self._at.update((row.address, row) for row in found)

    def free(
        self, mac: str, pool: range, avoid: frozenset[int], now: float, yielding: float
    ) -> int | None:
        """Return an address of `pool` that may be lent to `mac` now; None when there is none.

        yielding  if no address is free, the binding of a machine that never reported gives way if
                  it ends before this time; then an address that was declined
        """
        for count in (FIRST_LOOK, SECOND_LOOK):
            tries = probes(mac, pool, count)
            self.look(tries)
            for address in tries:
                if address not in avoid and self._is_free(address, now):
                    return address
        return self._any_free(pool, avoid, now, yielding)

    def _any_free(
        self, pool: range, avoid: frozenset[int], now: float, yielding: float
    ) -> int | None:
        taken = bindings.taken(self._tx, pool[0], pool[-1], now) | avoid
        for address in pool:
            if address not in taken:
                # read and lock it: another server may have assigned it since `taken`
                self.look([address])
                if self._is_free(address, now):
                    return address
        most = len(self._changed) + len(avoid) + 1
        for row in bindings.giving_way(self._tx, pool[0], pool[-1], yielding, most):
            self.look([row.address])
            # the binding has not been changed by this batch or another server since it was read
            if self._at[row.address] == row and row.address not in avoid:
                return row.address
        return None

    def _is_free(self, address: int, now: float) -> bool:
        row = self._at[address]
        return row is None or row.expires_at <= now

    def put(self, row: Binding) -> None:
        """Put `row` at its address. It replaces the binding at the address, and the client's other
        binding of that kind in the subnet."""
        self.look([row.address])
        self._unlink(self._at[row.address])
        if row.mac is not None:
            other = self._of.get((row.mac, row.kind, row.subnet))
            if other is not None:
                self.drop(other)
            self._of[row.mac, row.kind, row.subnet] = row
        self._at[row.address] = row
        self._changed.add(row.address)

    def drop(self, row: Binding) -> None:
        """Remove the binding from its address."""
        self._unlink(row)
        self._at[row.address] = None
        self._changed.add(row.address)

    def lost(self, rows: Iterable[Binding]) -> None:
        """Remove rows from the batch after `write`, because the transaction has deleted them
        without it."""
        for row in rows:
            self._unlink(row)
            self._at[row.address] = None
            self._stored.pop(row.address, None)

    def _unlink(self, row: Binding | None) -> None:
        if row is not None and row.mac is not None:
            self._of.pop((row.mac, row.kind, row.subnet), None)

    def write(self) -> None:
        """Write the changes. An address that passes from one client to another is deleted and
        inserted: two clients may have swapped addresses, and neither may have two for a moment."""
        rows = {address: self._at[address] for address in sorted(self._changed)}
        old = self._stored
        now = {address: row for address, row in rows.items() if row is not None}
        renewed = [
            dict(zip(bindings.ROWS.names, bindings.ROWS.values(row), strict=True))
            for address, row in now.items()
            if old.get(address) == _key(row)
        ]
        new = [row for address, row in now.items() if old.get(address) != _key(row)]
        gone = [a for a, row in rows.items() if a in old and (row is None or old[a] != _key(row))]
        if gone:
            remove_all(self._tx, _b.address, gone)
        if renewed:
            _RENEW[self._tx.dialect.name].write_all(self._tx, renewed)
        if new:
            bindings.add(self._tx, new)
        for address in rows:
            old.pop(address, None)
        old.update((address, _key(row)) for address, row in now.items())
        self._changed.clear()


def _key(row: Binding) -> tuple[str | None, str, str, int | None]:
    return row.mac, row.kind, row.subnet, row.node_id
