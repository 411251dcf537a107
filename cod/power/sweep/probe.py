"""Looks for BMCs at addresses, and asks those that answer which systems they have.

Redfish goes first, then IPMI, which is detected by the RMCP presence ping that each IPMI BMC
answers (IPMI 2.0, 13.2.3). No password is sent before a service of that kind has answered. An
account that several BMCs have refused and none has accepted is not tried further: a directory
behind the BMCs may lock it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import DatagramProtocol, Protocol

from cod.model import BmcSystem
from cod.power.bmcweb import BmcRefusal, Bmcs
from cod.power.driver import PowerError, SignIn, Target
from cod.power.ipmi import IpmiDriver
from cod.power.redfish import ROOT, RedfishDriver
from cod.power.trust import Noting, trust_of

CONNECT = 3.0  # seconds
PING = bytes.fromhex("0600ff06000011be80000000")  # RMCP, ASF: presence ping
PINGS = 2
PONG = 1.5  # seconds after each ping
ENOUGH = 5  # refusals of an account that none has accepted


@dataclass(frozen=True, slots=True)
class Swept:
    """Systems that answer at an address. `trouble`: why nothing is known of the host that answers;
    also '' where nothing answers."""

    host: str
    systems: tuple[BmcSystem, ...] = ()
    trouble: str = ""


class Sweep:
    """A search for BMCs at addresses. `accounts`: those of the site file, by name.

    options  of Redfish addresses: which certificates are trusted, as in {'insecure': 'yes'}
    pin      trust the certificate that a BMC shows now, and no other later
    pinned   fingerprints of certificates by host; each host is trusted with this certificate only
    suite    cipher suite of IPMI, for BMCs that do not tell theirs; '' asks them
    """

    def __init__(
        self,
        reactor: Any,
        accounts: Mapping[str, SignIn],
        options: Mapping[str, str],
        *,
        pin: bool = False,
        pinned: Mapping[str, str] = MappingProxyType({}),
        suite: str = "",
        https: int = 443,
        rmcp: int = 623,
    ) -> None:
        self._reactor = reactor
        self._accounts, self._options, self._pin = accounts, dict(options), pin
        self._pinned = pinned
        self._https, self._rmcp, self._suite = https, rmcp, suite
        self._bmcs = Bmcs(reactor)
        self._redfish, self._ipmi = RedfishDriver(reactor), IpmiDriver(reactor)
        self._refused: Counter[str] = Counter()
        self._accepted: set[str] = set()
        self._turns = {name: DeferredSemaphore(ENOUGH) for name in accounts}

    async def look(self, host: str) -> Swept:
        """Return the systems that answer at an IPv4 address."""
        trouble = ""
        if await self._listens(host):
            try:
                address = await self._service(host)
            except PowerError as error:
                if error.lasting:  # its certificate: a weaker protocol is not asked in its place
                    return Swept(host, trouble=error.sentence)
                address, trouble = "", error.sentence
            if address:
                return await self._ask(host, self._redfish, address)
        if await self._pings(host):
            port = "" if self._rmcp == 623 else f":{self._rmcp}"
            suite = f"?suite={self._suite}" if self._suite else ""
            return await self._ask(host, self._ipmi, f"{host}{port}{suite}")
        return Swept(host, trouble=trouble and f"no BMC is known by its answer: {trouble}")

    async def _listens(self, host: str) -> bool:
        way = TCP4ClientEndpoint(self._reactor, host, self._https, timeout=CONNECT)
        try:
            line: Any = await connectProtocol(way, Protocol())
        except Exception:
            return False
        line.transport.abortConnection()
        return True

    async def _service(self, host: str) -> str:
        """Return the power address of the Redfish service of the host; '' if it has none. Raises
        `PowerError`."""
        port = "" if self._https == 443 else f":{self._https}"
        base = f"https://{host}{port}"
        options = self._options
        if host in self._pinned:
            options = {"fingerprint": self._pinned[host]}
        trust = Noting() if self._pin and not options else trust_of(options)
        try:
            root, _ = await self._bmcs.ask("GET", f"{base}{ROOT}/", None, trust)
        except BmcRefusal as refusal:
            raise PowerError(refusal.sentence) from None
        if not isinstance(root, dict) or not {"RedfishVersion", "Systems"} <= root.keys():
            return ""
        if isinstance(trust, Noting):
            options = {"fingerprint": trust.fingerprint}
        return base + "".join(f"?{key}={value}" for key, value in options.items())

    async def _ask(self, host: str, driver: RedfishDriver | IpmiDriver, address: str) -> Swept:
        """Return the systems of the BMC, read with the first account that it accepts."""
        refused = "no account is left to sign in with"
        for name, sign_in in self._accounts.items():
            # an account that no BMC has accepted yet is tried at a few BMCs at a time only
            turn = None if name in self._accepted else self._turns[name]
            if turn is not None:
                await turn.acquire()
            try:
                if self._refused[name] >= ENOUGH and name not in self._accepted:
                    refused = f"{name} is not tried: {ENOUGH} BMCs refused it, none accepted it"
                    continue
                found = await driver.systems(Target(address, sign_in))
            except PowerError as error:
                if not _is_refusal(error):
                    return Swept(host, trouble=error.sentence)
                self._refused[name] += 1
                refused = f"{error.sentence} ({name})"
                continue
            finally:
                if turn is not None:
                    turn.release()
            self._accepted.add(name)
            return Swept(host, tuple(replace(each, account=name) for each in found))
        return Swept(host, trouble=refused)

    async def _pings(self, host: str) -> bool:
        presence = _Presence(self._reactor)
        port = self._reactor.listenUDP(0, presence)
        try:
            port.connect(host, self._rmcp)
            return await presence.answered()
        finally:
            port.stopListening()


def _is_refusal(error: PowerError) -> bool:
    """Return whether the error means that the BMC refused the account."""
    if isinstance(error, BmcRefusal):
        return error.code in (401, 403)
    return error.lasting and any(
        words in error.sentence for words in ("refuses the password", "does not know the user")
    )


class _Presence(DatagramProtocol):
    """Asks one address whether a BMC answers there."""

    transport: Any

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._heard: Deferred[bool] = Deferred()

    async def answered(self) -> bool:
        """Return whether a BMC that speaks IPMI answers."""
        for number in range(PINGS):
            self._reactor.callLater(number * PONG, self._send)
        self._reactor.callLater(PINGS * PONG, self._end, False)
        return await self._heard

    def _send(self) -> None:
        if not self._heard.called:
            self.transport.write(PING)

    def _end(self, heard: bool) -> None:
        if not self._heard.called:
            self._heard.callback(heard)

    def datagramReceived(self, datagram: bytes, addr: object) -> None:
        """Take a pong of ASF (0x40) whose supported entities have IPMI."""
        if datagram[:3] == PING[:3] and datagram[8:9] == b"\x40" and datagram[20:21] >= b"\x80":
            self._end(True)

    def connectionRefused(self) -> None:
        """Take the port's refusal as the answer: no service listens there."""
        self._end(False)

    def doStop(self) -> None:
        """Take the closed socket as a refusal, too: epoll's reactor closes a socket that was
        refused."""
        super().doStop()  # type: ignore[no-untyped-call]
        self._end(False)
