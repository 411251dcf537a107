"""The driver `ovs`: Open vSwitch, by the OVSDB protocol (RFC 7047) over a UNIX socket, TCP or TLS.

A change is a transaction that sets `Port.tag` and adds one to `Open_vSwitch.next_cfg`. It is in
effect when the switch's daemon has raised `cur_cfg` to the same number (ovs-vswitchd.conf.db(5)).
The database's own answer does not tell whether a daemon runs.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twisted.internet import endpoints, ssl
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from zope.interface import implementer

from cod.model import Switch
from cod.switches.driver import SwitchError, SwitchTarget

FORM = "unix:PATH, tcp:HOST[:PORT] or ssl:HOST[:PORT]"
PORT = 6640  # IANA: ovsdb
CONNECT = 10.0  # seconds
APPLY = 15.0  # seconds in which ovs-vswitchd has to take over a change
LONGEST = 1 << 20  # characters of a message
DATABASE = "Open_vSwitch"
FOREIGN = "what answers does not speak OVSDB"


class OvsDriver:
    """The driver for Open vSwitch."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    async def open(self, target: SwitchTarget) -> OvsSession:
        """Connect to the switch's database, and read its version."""
        endpoint = self._endpoint(target.switch)
        try:
            connection: _Ovsdb = await endpoint.connect(Factory.forProtocol(_Ovsdb))
        except Exception as error:  # of any layer: sockets, names, TLS
            raise SwitchError(
                f"the switch does not answer at {target.switch.address}: {_why(error)}"
            ) from None
        session = OvsSession(self._reactor, connection)
        try:
            await session.begin()
        except BaseException:
            await session.close()
            raise
        return session

    def _endpoint(self, switch: Switch) -> Any:
        kind, _, rest = switch.address.partition(":")
        if kind == "unix" and rest.startswith("/"):
            return endpoints.UNIXClientEndpoint(self._reactor, rest, timeout=CONNECT)
        host, port = _host_and_port(rest, switch.address)
        if kind == "tcp":
            return endpoints.HostnameEndpoint(self._reactor, host, port, timeout=CONNECT)
        if kind == "ssl":
            tcp: Any = endpoints.HostnameEndpoint(self._reactor, host, port, timeout=CONNECT)
            authority: Any = _Authority(switch)
            return endpoints.wrapClientTLS(authority, tcp)
        raise SwitchError(f"{switch.address!r} is not of the form {FORM}", lasting=True)


class OvsSession:
    """A connection to a switch's database."""

    about = ""

    def __init__(self, reactor: Any, connection: _Ovsdb) -> None:
        self._reactor, self._connection = reactor, connection

    async def begin(self) -> None:
        """Read the switch's version, and ask to be told which configuration its daemon has
        applied."""
        root = {"Open_vSwitch": {"columns": ["cur_cfg", "ovs_version"]}}
        first = await self._connection.ask("monitor", [DATABASE, None, root])
        with _in_shape():
            self._connection.update(first)
            rows = first.get("Open_vSwitch", {}).values()
            version = next((row["new"].get("ovs_version") for row in rows), None)
        # none: ["set", []]
        self.about = f"Open vSwitch {version}" if isinstance(version, str) else "Open vSwitch"

    async def read(self, ports: Collection[str]) -> Mapping[str, int | SwitchError]:
        names = list(ports)
        select = {"op": "select", "table": "Port", "columns": ["tag", "trunks", "vlan_mode"]}
        answers = await self._transact(
            [{**select, "where": [["name", "==", name]]} for name in names]
        )
        with _in_shape():
            return {
                name: _access_vlan(name, answer["rows"])
                for name, answer in zip(names, answers, strict=False)
            }

    async def change(self, wanted: Mapping[str, int]) -> Mapping[str, SwitchError]:
        """Set the ports' tags, and wait until the daemon has applied them."""
        changes = [
            {"op": "update", "table": "Port", "where": [["name", "==", name]], "row": {"tag": vlan}}
            for name, vlan in wanted.items()
        ]
        root: dict[str, Any] = {"table": "Open_vSwitch", "where": []}
        answers = await self._transact(
            [
                *changes,
                {**root, "op": "mutate", "mutations": [["next_cfg", "+=", 1]]},
                {**root, "op": "select", "columns": ["next_cfg"]},
            ]
        )
        with _in_shape():
            applied = self._connection.applied(
                int(answers[len(changes) + 1]["rows"][0]["next_cfg"])
            )
        try:
            await applied.addTimeout(APPLY, self._reactor)
        except SwitchError:
            raise
        except Exception:
            raise SwitchError(
                "its database took the change and ovs-vswitchd did not apply it within "
                f"{APPLY:.0f} s: is it running?"
            ) from None
        return {}

    async def close(self) -> None:
        self._connection.transport.loseConnection()

    async def _transact(self, operations: list[dict[str, Any]]) -> list[Any]:
        answers: list[Any] = await self._connection.ask("transact", [DATABASE, *operations])
        with _in_shape():
            for answer in answers:
                if answer and answer.get("error"):
                    raise SwitchError(
                        f"the switch refuses: {answer['error']}: {answer.get('details', '')}"[
                            :300
                        ].rstrip(": ")
                    )
            answers[len(operations) - 1]
        return answers


@contextmanager
def _in_shape() -> Iterator[None]:
    """Raise `SwitchError` where the block finds an answer to have another structure than
    OVSDB's."""
    try:
        yield
    except (LookupError, TypeError, AttributeError):
        raise SwitchError(FOREIGN) from None


def _access_vlan(name: str, rows: list[dict[str, Any]]) -> int | SwitchError:
    if not rows:
        return SwitchError(f"the switch has no port {name}", lasting=True)
    row = rows[0]
    mode = row.get("vlan_mode")
    trunks = row.get("trunks")
    if trunks not in (None, ["set", []]) or mode not in (None, "access", ["set", []]):
        return SwitchError(f"port {name} is a trunk: only access ports are changed", lasting=True)
    return row["tag"] if isinstance(row.get("tag"), int) else 0  # no tag: ["set", []]


class _Ovsdb(Protocol):
    """One connection: JSON-RPC 1.0 without delimiters between messages."""

    transport: Any

    def __init__(self) -> None:
        self._buffer = ""
        # a character may be cut in two by the end of a segment
        self._text = getincrementaldecoder("utf-8")("replace")
        self._asked: dict[int, Deferred[Any]] = {}
        self._waiting: list[tuple[int, Deferred[None]]] = []
        self._cur_cfg = -1
        self._lost: SwitchError | None = None
        self._decoder = json.JSONDecoder()

    def ask(self, method: str, params: list[Any]) -> Deferred[Any]:
        """Send a request; fires with its result, or fails with `SwitchError`."""
        number = len(self._asked)
        answer: Deferred[Any] = Deferred()
        if self._lost is not None:
            answer.errback(self._lost)
            return answer
        self._asked[number] = answer
        self._send({"method": method, "params": params, "id": number})
        return answer

    def applied(self, configuration: int) -> Deferred[None]:
        """Return a Deferred that fires when the daemon has applied that configuration."""
        done: Deferred[None] = Deferred()
        if self._lost is not None:
            done.errback(self._lost)
            return done
        self._waiting.append((configuration, done))
        self._release()
        return done

    def update(self, tables: Mapping[str, Any]) -> None:
        """Handle the rows that a monitor reports."""
        for row in tables.get("Open_vSwitch", {}).values():
            self._cur_cfg = max(self._cur_cfg, row.get("new", {}).get("cur_cfg", -1))
        self._release()

    def dataReceived(self, data: bytes) -> None:
        """Handle received bytes, message by message."""
        self._buffer += self._text.decode(data)
        while self._buffer and self._lost is None:
            try:
                message, end = self._decoder.raw_decode(self._buffer)
                self._buffer = self._buffer[end:].lstrip()
                self._take(message)
            except ValueError:
                if len(self._buffer) > LONGEST:
                    self._end("the switch's answer is too long")
                return
            except (LookupError, TypeError, AttributeError, RecursionError):
                self._end(FOREIGN)

    def connectionLost(self, reason: Failure = Failure(SwitchError("closed"))) -> None:  # noqa: B008
        """Fail all requests that wait."""
        self._fail(SwitchError(f"the connection was lost: {reason.getErrorMessage()}"))

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "echo":
            self._send({"id": message.get("id"), "result": message.get("params"), "error": None})
        elif message.get("method") == "update":
            self.update(message["params"][1])
        elif (
            isinstance(message.get("id"), int)
            and (answer := self._asked.get(message["id"]))
            and not answer.called
        ):
            if message.get("error"):
                answer.errback(
                    SwitchError(f"the switch refuses: {json.dumps(message['error'])[:200]}")
                )
            else:
                answer.callback(message.get("result"))

    def _send(self, message: dict[str, Any]) -> None:
        self.transport.write(json.dumps(message).encode())

    def _release(self) -> None:
        for configuration, done in self._waiting:
            if self._cur_cfg >= configuration and not done.called:
                done.callback(None)

    def _end(self, why: str) -> None:
        self._fail(SwitchError(why))
        self.transport.abortConnection()

    def _fail(self, error: SwitchError) -> None:
        self._lost = self._lost or error
        for waiting in (*self._asked.values(), *(done for _, done in self._waiting)):
            if not waiting.called:
                waiting.errback(self._lost)


@implementer(IOpenSSLClientConnectionCreator)
class _Authority:
    """TLS as Open vSwitch uses it: each side shows a certificate that the same authority has
    signed. Names are not compared, because these certificates do not name hosts (ovs-pki(8))."""

    def __init__(self, switch: Switch) -> None:
        assert switch.ca_file, "the site file is checked for it"
        assert switch.certificate
        assert switch.key
        try:
            authority = ssl.Certificate.loadPEM(Path(switch.ca_file).read_bytes())
            own = ssl.PrivateCertificate.loadPEM(
                Path(switch.key).read_bytes() + b"\n" + Path(switch.certificate).read_bytes()
            )
        except OSError as error:
            raise SwitchError(f"{error.filename} cannot be read: {error.strerror}") from None
        except Exception as error:
            raise SwitchError(
                f"the switch's ca_file, certificate or key cannot be used: {_why(error)}"
            ) from None
        self._context = own.options(authority).getContext()

    def clientConnectionForTLS(self, protocol: Any) -> Any:
        """Return the TLS of a connection; Twisted calls this method."""
        from OpenSSL import SSL

        return SSL.Connection(self._context, None)


def _host_and_port(text: str, address: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(PORT)
    if not host.strip("[]") or not port.isdigit() or not 0 < int(port) < 65536:
        raise SwitchError(f"{address!r} is not of the form {FORM}", lasting=True)
    return host.strip("[]"), int(port)


def _why(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
