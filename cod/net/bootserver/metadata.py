"""The metadata service: answers nodes' questions about themselves (docs/metadata). The client's
address decides which node is described.

cloud-init asks for some thirty paths one after the other, and many nodes boot together. The facts
for an address are therefore remembered for `KNOWN` seconds, so that a boot costs a few transactions
and not thirty. That is safe because an address passes to another node only through a priming or a
boot, which takes longer. An answer may be out of date by that time.

Some clients first request a token (IMDSv2), which elsewhere shows that no proxy forwards the
request. Here the address alone decides, so a token is given on request, and never required.
Requests that a proxy has forwarded are refused, and so are those for a foreign Host.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from cod.flows.boot import metadata as flow
from cod.model import Metadata, SiteRef
from cod.pool import Pool
from cod.wire import metadata as wire

KNOWN, UNKNOWN = 10.0, 1.0  # seconds for which an answer is remembered, that somebody has none
MOST = 20_000  # answers
LIFETIME = b"x-aws-ec2-metadata-token-ttl-seconds"
PASSED_ON = (b"x-forwarded-for", b"forwarded", b"via")

Answer = tuple[int, str, tuple[tuple[str, str], ...]]
"""Status, body, headers."""


class MetadataDocs:
    """The metadata that one server serves. `seconds`: a clock that does not jump."""

    def __init__(self, pool: Pool, site: SiteRef, seconds: Callable[[], float]) -> None:
        self._pool, self._site, self._seconds = pool, site, seconds
        # until when, what
        self._known: OrderedDict[str, tuple[float, Metadata | None]] = OrderedDict()
        self._waiting: dict[str, list[Deferred[Metadata | None]]] = {}

    async def answer(
        self, address: str, method: bytes, parts: Sequence[str], headers: Mapping[bytes, bytes]
    ) -> Answer:
        """Return the answer to a request. Raises the database's errors."""
        path = list(parts[:-1] if parts and not parts[-1] else parts)
        if any(name in headers for name in PASSED_ON):
            return 403, "ask without a proxy\n", _PLAIN
        if not self._is_ours(headers.get(b"host", b"")):
            return 421, "ask by this server's address\n", _PLAIN
        if tuple(path) == wire.TOKEN and method == b"PUT":
            return self._token(headers.get(LIFETIME, b"")) if await self._of(address) else _NOTHING
        if method not in (b"GET", b"HEAD"):
            return 405, "only GET and HEAD\n", (("Allow", "GET, HEAD"),)
        metadata = await self._of(address)
        if metadata is None:
            return _NOTHING
        peers = (
            await self._pool.read(flow.peers, vcluster_id=metadata.vcluster_id)
            if wire.wants_peers(path)
            else ()
        )
        found = wire.document(metadata, path, peers)
        if found is None:
            return _NOTHING
        return 200, found[0], (("Content-Type", found[1]), ("Cache-Control", "no-store"))

    def _is_ours(self, host: bytes) -> bool:
        """Return whether a request's Host is an address, a name in the site's domain, or a name
        without a domain. A web page whose author points its name at this server (DNS rebinding) has
        another Host."""
        name = host.decode("latin-1").lower()
        with suppress(ValueError):
            name = urlsplit(f"//{name}").hostname or ""
            ip_address(name)
            return True
        name = name.removesuffix(".")
        return "." not in name or f".{name}".endswith(f".{self._site.current.domain}")

    @staticmethod
    def _token(lifetime: bytes) -> Answer:
        if not (
            lifetime.isdigit() and len(lifetime) < 9 and 1 <= int(lifetime) <= wire.LONGEST_TOKEN
        ):
            return (
                400,
                f"X-aws-ec2-metadata-token-ttl-seconds should be 1 to {wire.LONGEST_TOKEN}\n",
                _PLAIN,
            )
        shown = (LIFETIME.decode(), str(int(lifetime)))
        return 200, os.urandom(24).hex(), (*_PLAIN, ("Cache-Control", "no-store"), shown)

    def _of(self, address: str) -> Deferred[Metadata | None]:
        """Return the facts about the node at the address; None if there is no node. Requests that
        come meanwhile wait for the same result."""
        until, known = self._known.get(address, (0.0, None))
        if until > self._seconds():
            return succeed(known)
        waiting: Deferred[Metadata | None] = Deferred()
        self._waiting.setdefault(address, []).append(waiting)
        if len(self._waiting[address]) == 1:
            self._pool.read(flow.of, address=address, site=self._site.current).addBoth(
                self._answer, address
            )
        return waiting

    def _answer(self, found: Metadata | Failure | None, address: str) -> None:
        if not isinstance(found, Failure):
            self._known.pop(address, None)
            self._known[address] = self._seconds() + (KNOWN if found else UNKNOWN), found
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        for waiting in self._waiting.pop(address):
            waiting.callback(found)


_PLAIN = (("Content-Type", "text/plain"),)
_NOTHING: Answer = (404, "no such document\n", _PLAIN)
