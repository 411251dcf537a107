"""Documents made for one node when it asks: its boot script and its boot's secret. Both the TFTP
and the HTTP edge serve them, and also the program that starts a BIOS machine's disk, which is for
everybody and named by the disk's signature.

A node's document is for one machine: the flow refuses (`model.Refused`) unless `address`, the
client's own, is bound to `mac`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from twisted.internet.defer import Deferred

from cod.flows.boot import script
from cod.model import BootPlan, SiteRef
from cod.pool import NODES, Pool
from cod.wire import bootscript, diskloader
from cod.wire.confd import protocol

_DISK = re.compile(r"([0-9a-f]{8})(-or-first)?")  # as `policy.nodes.boot` names it


def disk_loader(name: str) -> bytes | None:
    """Return the program that starts the disk of `name`, below /boot/disk/; None for another name."""
    match = _DISK.fullmatch(name)
    return diskloader.loader(int(match[1], 16), lenient=match[2] is not None) if match else None


class BootDocs:
    """Maker of the documents. Each costs one flow, and a script that changes its node another."""

    def __init__(self, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._site = site
        self._clock = clock

    def ipxe(self, mac: str, address: str) -> Deferred[bytes]:
        return self._plan(mac, address).addCallback(lambda plan: bootscript.ipxe(plan).encode())

    def pxelinux(self, mac: str, address: str) -> Deferred[bytes]:
        return self._plan(mac, address).addCallback(lambda plan: bootscript.pxelinux(plan).encode())

    def secret(self, mac: str, address: str) -> Deferred[bytes]:
        """Return a new secret for the boot that is under way, as an initrd. The server stores only
        its verifier."""
        secret = protocol.Secret(os.urandom(16).hex(), os.urandom(32))
        verifier = protocol.verifier(secret.key, os.urandom(16))
        minted = self._pool.run_together(
            script.mint,
            mac,
            address,
            secret.id,
            verifier.salt,
            verifier.stored_key,
            verifier.server_key,
            self._site.current,
            self._clock(),
        )
        return minted.addCallback(
            lambda _: bootscript.cpio_newc({"cod/secret": str(secret).encode()})
        )

    def bring(self, nonce: str, address: str) -> Deferred[None]:
        """Record the nonce with which the firmware at `address` fetches its loader."""
        return self._pool.run_at(
            NODES, script.bring, nonce, address, self._site.current, self._clock()
        )

    def _plan(self, mac: str, address: str) -> Deferred[BootPlan]:
        asked = mac, address, self._site.current, self._clock()
        return self._pool.read_at(NODES, script.unchanged, *asked).addCallback(
            lambda plan: plan or self._pool.run_together(script.script, *asked)
        )
