"""Verifiers of the secrets that machines boot with, and of the sessions that agents get for them
(see wire/confd)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete

from cod.model import BootSecret
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.prepared import Among, Prepared
from cod.store.rows import Rows, remove_all

_s = t.boot_secrets.c
ROWS = Rows(BootSecret, t.boot_secrets)
get, spend = ROWS.get, ROWS.remove
_OF_MACS = Prepared(ROWS.select.where(Among(_s.mac, "macs")).order_by(_s.expires_at.desc(), _s.id))


def of_mac(tx: Tx, mac: str) -> list[BootSecret]:
    """Return all verifiers of a machine, the last to expire first."""
    return of_macs(tx, [mac])


def of_macs(tx: Tx, macs: Collection[str]) -> list[BootSecret]:
    """Return all verifiers of those MACs, the last to expire first."""
    return ROWS.all(tx, _OF_MACS, {"macs": list(macs)})


def add(tx: Tx, secret: BootSecret) -> None:
    """Store a verifier."""
    ROWS.insert(tx, [secret])


def spend_all(tx: Tx, ids: Collection[str]) -> None:
    """Delete verifiers by their ids."""
    remove_all(tx, _s.id, list(ids))


def purge(tx: Tx, now: float) -> None:
    """Delete the expired verifiers of all machines."""
    tx.execute(delete(t.boot_secrets).where(_s.expires_at <= now))
