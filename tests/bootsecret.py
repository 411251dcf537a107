"""The secret of a machine that boots at loopback."""

from __future__ import annotations

import os
import time

from sqlalchemy import Engine

from cod.flows.boot import script
from cod.model import Binding, Site, ipv4
from cod.pool import in_transaction
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes
from cod.wire.confd import protocol


def boot_secret(engine: Engine, site: Site, mac: str, *, disk: str) -> protocol.Secret:
    """Return the secret of the node n1, which is added, and boots from 127.0.0.1."""
    secret = protocol.Secret(os.urandom(8).hex(), os.urandom(32))
    made = protocol.verifier(secret.key, os.urandom(16))
    keys = made.salt, made.stored_key, made.server_key

    def boots(tx: Tx) -> None:
        now = time.time()
        nodes.add(tx, name="n1", boot_mac=mac, now=now, cause="test", actor="test", disk=disk)
        bindings.add(
            tx, [Binding(ipv4("127.0.0.1"), mac, "boot", None, "lab", None, "bound", now + 900)]
        )
        script.mint(tx, mac, "127.0.0.1", secret.id, *keys, now=now, site=site)

    in_transaction(engine, boots)
    return secret
