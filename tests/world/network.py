"""A network in memory: datagrams that are delayed, lost, doubled and overtaken; connections that
are delayed, cut off, and half open when a host goes away without a word."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.error import (
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    TimeoutError,
)
from twisted.python.failure import Failure

from tests.world.clock import Clock, SimReactor

Address = tuple[str, int]
RETRANSMIT = 1.0  # seconds until TCP tries a cut network again
GIVES_UP = 120.0  # seconds that TCP tries


@dataclass
class Weather:
    """How bad the network is: shares of datagrams that are lost and doubled, seconds of delay."""

    lost: float = 0.0
    doubled: float = 0.0
    delay: float = 0.002
    jitter: float = 0.0


class Network:
    """All hosts' network. `down`: hosts that are off or cut off; `seen` counts what happened."""

    def __init__(self, clock: Clock, rng: random.Random, seen: Counter[str]) -> None:
        self.clock, self.seen = clock, seen
        self.weather = Weather()
        self.down: set[str] = set()
        self._rng = rng
        self._ports: dict[Address, _Port] = {}
        self._datagrams: dict[Address, Callable[[bytes], None]] = {}
        self._next_port = 40_000

    def delay(self) -> float:
        """Return how long the next packet takes."""
        return self.weather.delay + self._rng.random() * self.weather.jitter

    # ------------------------------------------------------------ datagrams

    def bind(self, address: Address, receive: Callable[[bytes], None]) -> None:
        self._datagrams[address] = receive

    def unbind(self, address: Address, receive: Callable[[bytes], None]) -> None:
        if self._datagrams.get(address) == receive:
            del self._datagrams[address]

    def send(self, data: bytes, to: Address) -> None:
        """Send a datagram."""
        if self._rng.random() < self.weather.lost:
            self.seen["datagram lost"] += 1
            return
        copies = 1 + (self._rng.random() < self.weather.doubled)
        self.seen["datagram doubled"] += copies - 1
        for _ in range(copies):
            self.clock.later(self.delay(), self._arrive, data, to)

    def _arrive(self, data: bytes, to: Address) -> None:
        receive = self._datagrams.get(to)
        if receive is not None and to[0] not in self.down:
            receive(data)

    # ------------------------------------------------------------ connections

    def listen(self, reactor: SimReactor, address: Address, factory: Any) -> _Port:
        if address in self._ports:
            raise OSError(f"{address} is taken")
        port = self._ports[address] = _Port(self, reactor, address, factory)
        reactor.open.append(port)
        return port

    def forget(self, port: _Port) -> None:
        if self._ports.get(port.address) is port:
            del self._ports[port.address]

    def connect(
        self, reactor: SimReactor, address: Address, factory: Any, timeout: float
    ) -> _Connector:
        connector = _Connector(self, reactor, address, factory, timeout)
        self.clock.later(self.delay(), connector.arrives, owner=reactor)
        return connector

    def port(self, address: Address) -> _Port | None:
        return self._ports.get(address)

    def own_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def is_cut(self, one: str, other: str) -> bool:
        return one in self.down or other in self.down


class _Port:
    """A listening socket."""

    def __init__(self, network: Network, reactor: SimReactor, address: Address, factory: Any):
        self.network, self.reactor, self.address, self.factory = network, reactor, address, factory

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", *self.address)

    def stopListening(self) -> None:
        self.network.forget(self)

    process_ended = stopListening


class _Connector:
    """A connection that is being opened, as `twisted.internet.interfaces.IConnector`."""

    def __init__(
        self, network: Network, reactor: SimReactor, address: Address, factory: Any, timeout: float
    ) -> None:
        self._network, self._reactor, self._address = network, reactor, address
        self._factory = factory
        self._until = network.clock.now + timeout
        self._ended = False
        self.transport: Transport | None = None
        factory.doStart()
        factory.startedConnecting(self)

    def stopConnecting(self) -> None:
        self.fail(ConnectionRefusedError())

    def disconnect(self) -> None:
        if self.transport is None:
            self.stopConnecting()
        else:
            self.transport.loseConnection()

    def getDestination(self) -> Any:
        return _address(self._address)

    def fail(self, error: Exception) -> None:
        if not self._ended:
            self._ended = True
            self._factory.clientConnectionFailed(self, Failure(error))

    def arrives(self) -> None:
        """Knock at the other host."""
        network, host = self._network, self._reactor.host
        if self._ended:
            return
        if network.is_cut(host, self._address[0]):
            if network.clock.now >= self._until:
                self.fail(TimeoutError())
            else:
                network.clock.later(RETRANSMIT, self.arrives, owner=self._reactor)
            return
        port = network.port(self._address)
        peer = IPv4Address("TCP", host, network.own_port())
        protocol = None if port is None else port.factory.buildProtocol(peer)
        if port is None or protocol is None:
            network.clock.later(
                network.delay(), self.fail, ConnectionRefusedError(), owner=self._reactor
            )
            return
        own = self._factory.buildProtocol(_address(self._address))
        if own is None:
            return
        near = Transport(network, self._reactor, own, peer, _address(self._address), self)
        far = Transport(network, port.reactor, protocol, _address(self._address), peer, None)
        near.other, far.other, self.transport = far, near, near
        network.clock.later(0, far.made, owner=port.reactor)
        network.clock.later(network.delay(), near.made, owner=self._reactor)

    def opened(self) -> bool:
        """Note that the connection is open; return whether it is still wanted."""
        wanted, self._ended = not self._ended, True
        return wanted

    def lost(self, reason: Failure) -> None:
        self._factory.clientConnectionLost(self, reason)


def _address(address: Address) -> Any:
    return IPv4Address("TCP", *address) if address[1] else UNIXAddress(address[0])


class Transport:
    """One end of a connection. What is written arrives in order; it waits while the network is
    cut, and a host that went away without a word leaves the other end half open."""

    disconnecting = False

    def __init__(
        self,
        network: Network,
        reactor: SimReactor,
        protocol: Any,
        host: Any,
        peer: Any,
        connector: _Connector | None,
    ) -> None:
        self._network, self._reactor, self.protocol = network, reactor, protocol
        self._host, self._peer, self._connector = host, peer, connector
        self.other: Transport = self
        self.connected = self._made = self._paused = self.gone = False
        self._closing = False
        self._inbox: deque[bytes | None] = deque()
        self._outbox: deque[tuple[float, bytes | None]] = deque()
        self._after = 0.0  # when the last thing sent arrives
        self.closed = False

    def made(self) -> None:
        """Begin: the connection is open."""
        if self.gone or self.closed:
            return
        if self._connector is not None and not self._connector.opened():
            self.abortConnection()
            return
        self._made = self.connected = True
        self._network.clock.running = self._reactor
        self._reactor.open.append(self)
        self.protocol.makeConnection(self)
        self._deliver()

    # ------------------------------------------------------------ as the protocol sees it

    def getPeer(self) -> Any:
        return self._peer

    def getHost(self) -> Any:
        return self._host

    def setTcpNoDelay(self, _: bool) -> None:
        """Change nothing: all is sent at once."""

    setTcpKeepAlive = setTcpNoDelay

    def registerProducer(self, *_: object) -> None:
        """Never tell the producer to pause: there is room for all that is written."""

    unregisterProducer = registerProducer

    def write(self, data: bytes) -> None:
        if not self._closing and not self.closed and data:
            self._send(bytes(data))

    def writeSequence(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def loseConnection(self, *_: object) -> None:
        if self._closing or self.closed:
            return
        self._closing = self.disconnecting = True
        self._send(None)
        self._reactor.callLater(0, self._close, ConnectionDone())

    def abortConnection(self) -> None:
        if self.closed:
            return
        self._closing = True
        self._tell(ConnectionLost())
        self._reactor.callLater(0, self._close, ConnectionLost())

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        if self._inbox:
            self._reactor.callLater(0, self._deliver)

    stopProducing = loseConnection

    # ------------------------------------------------------------ between the ends

    def _send(self, data: bytes | None) -> None:
        clock = self._network.clock
        self._after = max(self._after, clock.now + self._network.delay())
        self._outbox.append((self._after, data))
        if len(self._outbox) == 1:
            clock.later(self._after - clock.now, self._carry)

    def _carry(self) -> None:
        """Bring the next of what was sent to the other end."""
        other, network = self.other, self._network
        arrives, data = self._outbox[0]
        if other._is_away() or self._is_away():
            if self.gone:
                return  # nobody is there to send it again
            if network.clock.now < arrives + GIVES_UP:
                network.clock.later(RETRANSMIT, self._carry)
            else:
                self._close(TimeoutError())
            return
        if other.gone:  # its host has forgotten the connection, and says so
            network.seen["half-open connection reset"] += 1
            network.clock.later(network.delay(), self._close, ConnectionLost())
            return
        self._outbox.popleft()
        if self._outbox:
            network.clock.later(self._outbox[0][0] - network.clock.now, self._carry)
        if not other.closed:
            other._inbox.append(data)
            other._deliver()

    def _is_away(self) -> bool:
        return self._reactor.host in self._network.down

    def _tell(self, error: Exception) -> None:
        """Have the other end hear that the connection is broken, if the network carries it."""

        def arrives() -> None:
            if not self._network.is_cut(self._reactor.host, self.other._reactor.host):
                self.other._close(error)

        self._network.clock.later(self._network.delay(), arrives)

    def _deliver(self) -> None:
        if self._reactor.still_until > self._network.clock.now:  # its kernel keeps it
            self._reactor.callLater(0, self._deliver)
            return
        while self._made and self._inbox and not self._paused and not self.closed:
            data = self._inbox.popleft()
            self._network.clock.running = self._reactor
            if data is None:
                self._close(ConnectionDone())
            else:
                self.protocol.dataReceived(data)

    def _close(self, error: Exception) -> None:
        if self.closed or self.gone:
            return
        if self._reactor.still_until > self._network.clock.now:
            self._reactor.callLater(0, self._close, error)
            return
        self.closed, self.connected = True, False
        if self in self._reactor.open:
            self._reactor.open.remove(self)
        if self._reactor.killed:
            return
        self._network.clock.running = self._reactor
        if not self._made:
            if self._connector is not None:
                self._connector.fail(error)
            return
        reason = Failure(error)
        self.protocol.connectionLost(reason)
        if self._connector is not None:
            self._connector.lost(reason)

    def process_ended(self) -> None:
        """Close the connection as a kernel does whose process was killed."""
        self.closed, self.connected = True, False
        self._tell(ConnectionLost())

    def vanish(self) -> None:
        """Forget the connection without a word: the host has lost its power."""
        self.gone, self.connected = True, False
        if self in self._reactor.open:
            self._reactor.open.remove(self)


class DatagramSocket:
    """A socket of datagrams for services that read from their own: `net.socketservice`."""

    def __init__(self, network: Network, reactor: SimReactor, address: Address, reader: Any):
        self._network, self._reactor, self._reader = network, reactor, reader
        self._address, self._waiting = address, deque[bytes]()
        network.bind(address, self._arrive)
        reactor.open.append(self)

    def _arrive(self, data: bytes) -> None:
        if not self._reactor.killed:
            self._waiting.append(data)
            self._reactor.readable(self._reader)

    def has_data(self) -> bool:
        return bool(self._waiting)

    def recv(self, _: int) -> bytes:
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft()

    def sendto(self, data: bytes, to: Address) -> None:
        self._network.send(data, to)

    def close(self) -> None:
        self._network.unbind(self._address, self._arrive)

    process_ended = close
