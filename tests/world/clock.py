"""Virtual time: a heap of what is to happen, reactors of simulated processes, and their threads.

One `Clock` drives a whole world. Each simulated process has a `SimReactor`, which offers what the
server's code uses of Twisted's; when the process is killed, nothing that it has asked for happens
any more. Threads are greenlets: one runs until it waits, so that the same seed gives the same
interleaving.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import pickle
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import greenlet
from twisted.internet.error import AlreadyCalled, AlreadyCancelled, ProcessDone
from twisted.python.failure import Failure

from cod.policy.reservations.starts import predicted

CHILD = 0.2  # seconds that a process takes which reckons starts


class Call:
    """A call that is to happen, as `twisted.internet.interfaces.IDelayedCall`."""

    __slots__ = ("_clock", "args", "at", "function", "kwargs", "owner", "state")

    def __init__(
        self, clock: Clock, at: float, owner: SimReactor | None, function: Any, args: Any, kw: Any
    ) -> None:
        self._clock, self.at, self.owner = clock, at, owner
        self.function, self.args, self.kwargs = function, args, kw
        self.state = "waits"

    def active(self) -> bool:
        return self.state == "waits"

    def getTime(self) -> float:
        return self.at

    def cancel(self) -> None:
        if self.state == "called":
            raise AlreadyCalled
        if self.state == "cancelled":
            raise AlreadyCancelled
        self.state = "cancelled"

    def reset(self, seconds: float) -> None:
        """Have it happen in so many seconds from now."""
        self.at = self._clock.now + seconds
        self._clock.push(self)

    def delay(self, seconds: float) -> None:
        self.at += seconds
        self._clock.push(self)


class Clock:
    """What is to happen, soonest first; `steps` counts what has happened, and `trace` is a digest
    of when each step happened, and to whom."""

    def __init__(self, start: float) -> None:
        self.now = start
        self.steps = 0
        self.trace = hashlib.blake2b(digest_size=8)
        self.running: SimReactor | None = None  # whose code runs
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Call]] = []

    def push(self, call: Call) -> None:
        heapq.heappush(self._heap, (call.at, next(self._order), call))

    def later(
        self,
        seconds: float,
        function: Callable[..., object],
        *args: Any,
        owner: SimReactor | None = None,
        **kwargs: Any,
    ) -> Call:
        """Have `function` called in so many seconds, unless its `owner` was killed by then."""
        call = Call(self, self.now + max(0.0, seconds), owner, function, args, kwargs)
        self.push(call)
        return call

    def step(self, until: float) -> bool:
        """Let the next thing happen; return False if nothing does until then."""
        while self._heap and self._heap[0][0] <= until:
            at, _, call = heapq.heappop(self._heap)
            if call.state != "waits" or at != call.at:  # cancelled, or put off
                continue
            if call.owner is not None and call.owner.still_until > at:
                call.at = call.owner.still_until
                self.push(call)
                continue
            call.state = "called"
            if call.owner is not None and call.owner.killed:
                continue
            self.now, self.running = max(self.now, at), call.owner
            self.steps += 1
            self.trace.update(b"%a %a " % (self.now, call.owner and call.owner.name))
            call.function(*call.args, **call.kwargs)
            return True
        self.now = max(self.now, until)
        return False


# ---------------------------------------------------------------- threads


class SimThreads:
    """Stands for the modules `threading`, `queue` and `time` in code that starts threads: what it
    makes belongs to the process whose code runs."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def monotonic(self) -> float:
        return self.clock.now

    def Thread(self, target: Callable[[], None], **_: object) -> _Thread:
        return _Thread(self._own(), target)

    def PriorityQueue(self) -> _Queue:
        return _Queue(self._own())

    def Event(self) -> _Event:
        return _Event(self._own())

    def _own(self) -> SimReactor:
        assert self.clock.running is not None
        return self.clock.running

    @staticmethod
    def Lock() -> Any:
        return nullcontext()  # greenlets change only where they wait


class _Thread:
    def __init__(self, reactor: SimReactor, target: Callable[[], None]) -> None:
        self._reactor, self._greenlet = reactor, greenlet.greenlet(target)

    def start(self) -> None:
        self._reactor.threads.append(self._greenlet)
        self._reactor.callLater(0, self._greenlet.switch)

    def is_alive(self) -> bool:
        return not self._greenlet.dead

    def join(self, timeout: float | None = None) -> None:
        """Return at once: the reactor goes on without what the thread still does."""


class _Queue:
    def __init__(self, reactor: SimReactor) -> None:
        self._reactor, self._heap = reactor, list[Any]()
        self._waiting: list[greenlet.greenlet] = []

    def put(self, item: Any) -> None:
        heapq.heappush(self._heap, item)
        if self._waiting:
            self._reactor.callLater(0, self._waiting.pop(0).switch)

    def get(self) -> Any:
        while not self._heap:
            self._waiting.append(greenlet.getcurrent())
            self._reactor.hub()
        return heapq.heappop(self._heap)

    def qsize(self) -> int:
        return len(self._heap)


class _Event:
    def __init__(self, reactor: SimReactor) -> None:
        self._reactor, self._set = reactor, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        self._reactor.pause(seconds)
        return self._set


class _ThreadPool:
    """Runs each thing that is given to it in a thread of its own."""

    def __init__(self, reactor: SimReactor) -> None:
        self._reactor = reactor

    def callInThreadWithCallback(
        self, done: Callable[[bool, Any], object], work: Any, *args: Any, **kwargs: Any
    ) -> None:
        def run() -> None:
            try:
                value = work(*args, **kwargs)
            except Exception:
                done(False, Failure())
            else:
                done(True, value)
            self._reactor.threads.remove(greenlet.getcurrent())

        _Thread(self._reactor, run).start()


# ---------------------------------------------------------------- a process


class SimReactor:
    """The reactor of one simulated process on `host`; `network` carries what it sends."""

    def __init__(self, clock: Clock, network: Any, host: str, name: str) -> None:
        self.clock, self.network, self.host, self.name = clock, network, host, name
        self.killed = False
        self.still_until = 0.0  # until when it is stopped, as by SIGSTOP
        self.threads: list[greenlet.greenlet] = []
        self.open: list[Any] = []  # what the kernel closes when the process ends
        self._readers: dict[Any, None] = {}
        self._pool = _ThreadPool(self)

    def seconds(self) -> float:
        return self.clock.now

    def callLater(self, seconds: float, function: Any, *args: Any, **kwargs: Any) -> Call:
        return self.clock.later(seconds, function, *args, owner=self, **kwargs)

    def callFromThread(self, function: Any, *args: Any, **kwargs: Any) -> None:
        self.callLater(0, function, *args, **kwargs)

    def callWhenRunning(self, function: Any, *args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    def addSystemEventTrigger(self, *_: Any) -> None:
        """Remember nothing: simulated processes are killed."""

    def getThreadPool(self) -> _ThreadPool:
        return self._pool

    def hub(self) -> None:
        """Let other things happen until this greenlet is switched to."""
        if self.killed:
            raise greenlet.GreenletExit
        parent = greenlet.getcurrent().parent
        assert parent is not None
        parent.switch()
        self.clock.running = self

    def pause(self, seconds: float) -> None:
        """Have this thread wait."""
        self.callLater(seconds, greenlet.getcurrent().switch)
        self.hub()

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        self.killed = True
        self._readers.clear()
        for each in list(self.open):
            each.process_ended()
        for thread in self.threads:
            with suppress(greenlet.GreenletExit):
                thread.throw()
        self.threads.clear()

    # ------------------------------------------------------------ sockets

    def addReader(self, reader: Any) -> None:
        self._readers[reader] = None
        self.readable(reader)

    def removeReader(self, reader: Any) -> None:
        self._readers.pop(reader, None)

    def readable(self, reader: Any) -> None:
        """Have the reader read at the next turn, if its socket has something by then."""
        self.callLater(0, self._read, reader)

    def _read(self, reader: Any) -> None:
        if reader in self._readers and reader._socket.has_data():
            reader.doRead()

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        return self.network.listen(self, (interface or self.host, port), factory)

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30.0, bindAddress: Any = None
    ) -> Any:
        return self.network.connect(self, (host, port), factory, timeout)

    def connectUNIX(self, address: str, factory: Any, timeout: float = 30.0, **_: Any) -> Any:
        return self.network.connect(self, (address, 0), factory, timeout)

    def listenUDP(self, port: int, protocol: Any, interface: str = "", **_: Any) -> Any:
        raise NotImplementedError("no simulated part listens by it")

    def spawnProcess(self, protocol: Any, *_: Any) -> None:
        """Run what reckons starts, the one program that the server runs."""
        self.callLater(0, protocol.makeConnection, _Child(self, protocol))


class _Child:
    """The process that reckons starts, as its parent's transport."""

    def __init__(self, reactor: SimReactor, protocol: Any) -> None:
        self._reactor, self._protocol = reactor, protocol
        self._asked = b""

    def write(self, data: bytes) -> None:
        self._asked += data

    def closeStdin(self) -> None:
        self._reactor.callLater(CHILD, self._answer)

    def signalProcess(self, _: str) -> None:
        """Let it go on: nobody listens any more."""

    def _answer(self) -> None:
        snapshot, policy, now, groups = pickle.loads(self._asked)
        found = predicted(snapshot, policy, now, groups, go_on=lambda: True)
        self._protocol.outReceived(pickle.dumps(found))
        done = ProcessDone(0)
        done.exitCode = 0
        self._protocol.processEnded(Failure(done))
