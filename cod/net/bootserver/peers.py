"""Images on the site's other servers. This host fetches the images that it lacks, one at a time.
Meanwhile, nodes that request such an image are redirected to a host that has it.

Each host records in the database the files that it has, and the key of the tokens by which other
hosts fetch images here. A token is for one image and one client address, and is valid for a few
minutes (`wire.chunktoken`). Only the addresses that the site file lists as servers may use tokens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from cod.flows.images import holders
from cod.images import pull, store
from cod.images.pull import ImagePeer, PullFailed
from cod.model import HostPart, SiteRef, Subnet
from cod.periodic import Claimer
from cod.pool import Pool
from cod.wire import chunktoken

PERIOD = 5.0  # seconds between looks
AGAIN = 30.0  # seconds until an image whose fetch failed is tried again
NOTED = 60.0  # seconds until this host says again what it has: the database may have lost it
VALID = 300.0  # seconds that a token holds: more than hosts' clocks are apart

log = logging.getLogger("cod.images")


class FetchEnded(Exception):
    """The fetch is given up, because the server stops."""


class Peers(Claimer):
    """The exchange of images between this host and the others.

    name, key  of this host, as its images part reports itself
    root       the image store; incoming  the folder of files that are still to be ingested
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        name: str,
        key: str,
        root: Path,
        incoming: Path,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(reactor, pool, log, "images of other servers", PERIOD)
        self._reactor, self._site, self._name, self._key = reactor, site, name, key
        self._root, self._incoming, self._clock = root, incoming, clock
        self._stopping = threading.Event()
        self._asked: dict[str, None] = {}  # digests that nodes wait for
        self._later: dict[str, float] = {}  # when failed fetches are tried again; reactor's clock
        self._noted: frozenset[str] = frozenset()
        self._noted_at = -NOTED  # by the reactor
        self._pulling = ""

    def startService(self) -> None:
        """Start fetching."""
        self._stopping = threading.Event()
        super().startService()

    def stopService(self) -> Deferred[Any]:
        """Stop. The next server of this host continues with the fetched part."""
        self._stopping.set()
        return super().stopService()

    # ------------------------------------------------------------ what the image server asks

    def admits(self, headers: Mapping[bytes, bytes], address: str, digest: str) -> bool:
        """Return whether a request is from another server that may have the image."""
        kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not any(
            address in each.others for each in self._site.current.subnets
        ):
            return False
        return chunktoken.allows(token, self._key, digest, address, self._clock())

    async def instead(self, digest: str, address: str) -> str:
        """Return the server (ADDRESS:PORT) from which the client at `address` can get an image that
        is missing here, and fetch the image soon; '' if no running server has it."""
        hosts: tuple[HostPart, ...] = await self._pool.read(
            holders.of, digest=digest, server=self._name, now=self._clock()
        )
        site = self._site.current
        # on the client's own subnet first
        asker = IPv4Address(address)
        for subnet in sorted(site.subnets, key=lambda one: asker not in IPv4Network(one.network)):
            for host in hosts:
                if common := _common(subnet, host):
                    self._asked[digest] = None
                    self.wake()
                    return f"{common}:{site.boot.http_port}"
        return ""

    # ------------------------------------------------------------ fetching

    async def look(self) -> None:
        """Record which images are here, and begin to fetch a missing one."""
        present = store.digests(self._root) if self._root.is_dir() else frozenset()
        await self._note(present)
        if self._pulling:
            return
        found = await self._pool.read(
            holders.lacking, server=self._name, present=present, now=self._clock()
        )
        pull.forget(self._root, found.needed)
        self._asked = {each: None for each in self._asked if each in found.holders}
        self._later = {each: at for each, at in self._later.items() if each in found.holders}
        order = dict.fromkeys((*self._asked, *sorted(found.holders)))
        now = self._reactor.seconds()
        ready = (each for each in order if self._later.get(each, now) <= now)
        digest = next(ready, "")
        if digest and not self._stopping.is_set():
            self._pulling = digest
            self.begin(self._pull(digest, found.holders[digest]))

    async def _note(self, present: Collection[str]) -> None:
        incoming = self._incoming
        files = {each.name for each in incoming.iterdir()} if incoming.is_dir() else set()
        names = frozenset(present) | {name for name in files if len(name) <= 64}
        now = self._reactor.seconds()
        if names != self._noted or now >= self._noted_at + NOTED:
            await self._pool.run(holders.note, server=self._name, names=names)
            self._noted, self._noted_at = names, now

    async def _pull(self, digest: str, hosts: Collection[HostPart]) -> None:
        try:
            for peer in self._ways(digest, hosts):
                try:
                    await self._in_thread(partial(pull.pull, self._root, digest, peer, self._go_on))
                except PullFailed as error:
                    log.warning("the image %s was not fetched: %s", digest, error)
                else:
                    log.info("the image %s was fetched from %s", digest, peer.address)
                    return
            self._later[digest] = self._reactor.seconds() + AGAIN
        except FetchEnded:
            pass
        except Exception:
            log.exception("the image %s was not fetched", digest)
            self._later[digest] = self._reactor.seconds() + AGAIN
        finally:
            self._pulling = ""
            self.wake()

    def _ways(self, digest: str, hosts: Collection[HostPart]) -> list[ImagePeer]:
        site, until = self._site.current, int(self._clock() + VALID)
        ways = [
            ImagePeer(
                common,
                site.boot.http_port,
                subnet.server,
                chunktoken.token(host.key, digest, subnet.server, until),
            )
            for host in hosts
            for subnet in site.subnets
            if host.key and (common := _common(subnet, host))
        ]
        return list(dict.fromkeys(ways))  # several subnets may have the same servers

    def _in_thread(self, work: Callable[[], None]) -> Deferred[None]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise FetchEnded


def _common(subnet: Subnet, host: HostPart) -> str:
    """Return the host's address on a subnet of this host; '' if it has none."""
    return next((each for each in subnet.others if each in host.addresses), "")
