"""The bindings that a batch of DHCP messages touches: read at once, changed in memory, written at once.

Boot addresses are chosen by hashing the MAC into the pool and probing from there, so a machine tends to get the same
address again without anything being scanned; an expired binding counts as free, but is its old client's until somebody
else needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

from cod.model import Binding
from cod.store.engine import Tx
from cod.store.nodes import bindings

FIRST_LOOK, SECOND_LOOK = 4, 128  # probes: read for the whole batch, then for one client in a crowded pool


def probes(mac: str, pool: range, count: int) -> list[int]:
    """The first addresses of `pool` to try for `mac`."""
    number = int.from_bytes(hashlib.blake2b(mac.encode(), digest_size=8).digest(), "big")
    size = len(pool)
    start, stride = number % size, 1 + (number >> 32) % max(size - 1, 1)
    return [pool[(start + turn * stride) % size] for turn in range(min(count, size))]


class Ledger:
    """Bindings of the clients with `macs`, and of whatever addresses are looked at for them."""

    def __init__(self, tx: Tx, macs: Collection[str]) -> None:
        self._tx = tx
        self._of = bindings.of_macs(tx, macs)
        self._at: dict[int, Binding | None] = {row.address: row for row in self._of.values()}
        self._stored = {row.address: _key(row) for row in self._of.values()}
        self._changed: set[int] = set()

    def reread(self, macs: Collection[str]) -> None:
        """Take up what the transaction has done to those clients' bindings behind the ledger's back (after `write`)."""
        for key in [key for key in self._of if key[0] in macs]:
            del self._of[key]
        found = bindings.of_macs(self._tx, macs)
        self._of.update(found)
        self._at.update({row.address: row for row in found.values()})
        self._stored.update((row.address, _key(row)) for row in found.values())

    def get(self, mac: str, kind: str, subnet: str) -> Binding | None:
        """The client's binding, also when it has expired."""
        return self._of.get((mac, kind, subnet))

    def look(self, addresses: Iterable[int]) -> None:
        """Read what is recorded at those addresses, unless it has been read."""
        unseen = [address for address in addresses if address not in self._at]
        if unseen:
            found = bindings.at(self._tx, unseen)
            self._stored.update((row.address, _key(row)) for row in found.values())
            self._at.update(dict.fromkeys(unseen))
            self._at.update(found)

    def free(self, mac: str, pool: range, avoid: frozenset[int], now: float, yielding: float) -> int | None:
        """An address of `pool` that may be lent to `mac` now; None when there is none.

        yielding  where none is free, the binding of a machine that never reported gives way if it ends before this
                  time; then an address that was declined
        """
        for count in (FIRST_LOOK, SECOND_LOOK):
            tries = probes(mac, pool, count)
            self.look(tries)
            for address in tries:
                if address not in avoid and self._is_free(address, now):
                    return address
        return self._any_free(pool, avoid, now, yielding)

    def _any_free(self, pool: range, avoid: frozenset[int], now: float, yielding: float) -> int | None:
        taken = bindings.taken(self._tx, pool[0], pool[-1], now) | avoid
        for address in pool:
            if address not in taken:
                self.look([address])  # and with it, keep it: another server may have given it away since `taken`
                if self._is_free(address, now):
                    return address
        for row in bindings.giving_way(self._tx, pool[0], pool[-1], yielding, len(self._changed) + 1):
            self.look([row.address])
            if self._at[row.address] == row:  # neither this batch nor another server has changed it meanwhile
                return row.address
        return None

    def _is_free(self, address: int, now: float) -> bool:
        row = self._at[address]
        return row is None or row.expires_at <= now

    def put(self, row: Binding) -> None:
        """Record `row` at its address, instead of what was there and of the client's other binding of that kind."""
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
        """Nothing is recorded at that address any more."""
        self._unlink(row)
        self._at[row.address] = None
        self._changed.add(row.address)

    def lost(self, rows: Iterable[Binding]) -> None:
        """Take up that the transaction has deleted those rows behind the ledger's back (after `write`)."""
        for row in rows:
            self._unlink(row)
            self._at[row.address] = None
            self._stored.pop(row.address, None)

    def _unlink(self, row: Binding | None) -> None:
        if row is not None and row.mac is not None:
            self._of.pop((row.mac, row.kind, row.subnet), None)

    def write(self) -> None:
        """Write what has changed. An address that passes from one client to another is deleted and inserted: two
        clients may have swapped theirs, and neither may have two for a moment."""
        rows = {address: self._at[address] for address in sorted(self._changed)}
        old = self._stored
        now = {address: row for address, row in rows.items() if row is not None}
        same = [row for address, row in now.items() if old.get(address) == _key(row)]
        bindings.forget(self._tx, [a for a, row in rows.items() if a in old and (row is None or old[a] != _key(row))])
        bindings.put(self._tx, same)
        bindings.add(self._tx, [row for address, row in now.items() if old.get(address) != _key(row)])
        for address in rows:
            old.pop(address, None)
        old.update((address, _key(row)) for address, row in now.items())
        self._changed.clear()


def _key(row: Binding) -> tuple[str | None, str, str, int | None]:
    return row.mac, row.kind, row.subnet, row.node_id
