"""Tests the network: each link's speed, duplex and error counters, and the throughput to a
neighbour that is tested at the same time, or from the server."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cod.orders import BurninPlan, TestResult
from trampoline.burnin.pace import ENDLESS, Pace, Worker, watch
from trampoline.errors import PrimeError
from trampoline.fetch import Download, Patience
from trampoline.inventory import Nic
from trampoline.pipeline import Progress

PORT = 8073  # of the neighbour's agent
_BLOCK = 1 << 20
_WAIT = 15.0  # seconds for a neighbour that has stopped answering
_SECRET = 64  # hex digits that open the port
ERRORS = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")
_DROPS = ("rx_dropped", "tx_dropped")


class ThroughputListener:
    """The port at which a neighbour measures the throughput to this machine. The bytes after the
    secret are counted and dropped, and their number is the answer. One neighbour at a time."""

    def __init__(self, secret: str, address: str = "", port: int = PORT) -> None:
        self._secret, self._socket = secret.encode(), None
        if not secret:
            return
        with suppress(OSError):  # another program has the port: nobody can measure this machine
            self._socket = socket.create_server((address, port))
            self.port = self._socket.getsockname()[1]
            threading.Thread(
                target=self._serve, args=(self._socket,), name="listener", daemon=True
            ).start()

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # wakes the thread that accepts
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(_WAIT)
                self._count(connection)

    def _count(self, connection: socket.socket) -> None:
        received = b""
        while len(received) < _SECRET and (data := connection.recv(_SECRET - len(received))):
            received += data
        if not hmac.compare_digest(received, self._secret):
            return
        buffer, count = bytearray(_BLOCK), 0
        while got := connection.recv_into(buffer):
            count += got
        connection.sendall(count.to_bytes(8, "big"))


def run(
    plan: BurninPlan,
    nics: Callable[[], Sequence[Nic]],
    seconds: float,
    root: Path,
    progress: Progress,
    port: int = PORT,
) -> list[TestResult]:
    """Test the links that are up, and the throughput for so many seconds."""
    before = {nic.name: _counters(root, nic.name) for nic in nics()}
    throughput = _throughput(plan, seconds, progress, port)
    links = [_link(nic, root, before.get(nic.name, {})) for nic in nics() if nic.link == "up"]
    return [*links, throughput]


def _link(nic: Nic, root: Path, before: dict[str, int]) -> TestResult:
    after = _counters(root, nic.name)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    faults = [
        f"{grown[name]} {name.replace('_', ' ')} during the test"
        for name in ERRORS
        if grown.get(name, 0) > 0
    ]
    if _text(root, nic.name, "duplex") == "half":
        faults.append("the link is half duplex: see the switch port's settings and the cable")
    figures = {
        "errors": float(sum(max(grown.get(name, 0), 0) for name in ERRORS)),
        "drops": float(sum(max(grown.get(name, 0), 0) for name in _DROPS)),
    }
    if nic.speed:
        figures["link_mbit_s"] = float(nic.speed)
    return TestResult(
        "network", nic.name, "", "failed" if faults else "passed", "; ".join(faults), figures
    )


def _counters(root: Path, nic: str) -> dict[str, int]:
    texts = {name: _text(root, nic, f"statistics/{name}") for name in (*ERRORS, *_DROPS)}
    return {name: int(text) for name, text in texts.items() if text.isdecimal()}


def _text(root: Path, nic: str, file: str) -> str:
    try:
        return (root / "sys/class/net" / nic / file).read_text().strip()
    except OSError:
        return ""


def _throughput(plan: BurninPlan, seconds: float, progress: Progress, port: int) -> TestResult:
    pace = Pace("network", ENDLESS, seconds)
    about = ""
    if plan.peer:
        sending = _Sending(plan, pace, port)
        worker = Worker("throughput", sending.run)
        watch([worker], pace, progress)
        if not worker.error and sending.count:
            return _measured(f"to the neighbour {plan.peer}", "", sending.count, sending.seconds)
        about = (
            f"the neighbour {plan.peer} could not be measured"
            f" ({worker.error or 'it took nothing'}); "
        )
        pace = Pace("network", ENDLESS, seconds)
    if not plan.url:
        return TestResult(
            "network", "throughput", "", "skipped", about + "there is nobody to measure it with"
        )
    fetching = _Fetching(plan.url, pace)
    worker = Worker("throughput", fetching.run)
    watch([worker], pace, progress)
    # the server is the likely cause, as the result itself has to reach it
    if worker.error or not fetching.count:
        return TestResult(
            "network", "from the server", "", "skipped", about + (worker.error or "nothing came")
        )
    return _measured("from the server", about.rstrip("; "), fetching.count, fetching.seconds)


def _measured(part: str, about: str, count: int, seconds: float) -> TestResult:
    figures = {
        "throughput_mbit_s": count * 8 / 1e6 / max(seconds, 1e-3),
        "bytes": float(count),
        "seconds": seconds,
    }
    return TestResult("network", part, "", "passed", about, figures)


class _Sending:
    """Sends to the neighbour's listener. `count`: the bytes that the listener has received."""

    def __init__(self, plan: BurninPlan, pace: Pace, port: int) -> None:
        self.count, self.seconds = 0, 0.0
        self._plan, self._pace, self._port = plan, pace, port

    def run(self, step: Callable[[], None]) -> None:
        """Send until the time is over."""
        block = memoryview(bytearray(_BLOCK))
        with socket.create_connection((self._plan.peer, self._port), _WAIT) as connection:
            connection.sendall(self._plan.peer_secret.encode())
            began = time.monotonic()
            while not self._pace.over():
                connection.sendall(block)
                self._pace.add(_BLOCK)
                step()
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while len(answer) < 8 and (data := connection.recv(8 - len(answer))):
                answer += data
            self.seconds = time.monotonic() - began
        if len(answer) == 8:
            self.count = int.from_bytes(answer, "big")


class _Fetching:
    """Fetches a file of the server again and again."""

    def __init__(self, url: str, pace: Pace) -> None:
        self.count, self.seconds = 0, 0.0
        self._url, self._pace = url, pace

    def run(self, step: Callable[[], None]) -> None:
        """Fetch until the time is over. Raises OSError when the server serves nothing."""
        buffer = bytearray(_BLOCK)
        began = time.monotonic()
        while not self._pace.over():
            download = Download(self._url, Patience(stall=10.0, tries=3))
            try:
                while not self._pace.over() and (got := download.fill(memoryview(buffer))):
                    self.count += got
                    self._pace.add(got)
                    step()
            except PrimeError as error:
                raise OSError(str(error)) from None
            finally:
                download.close()
            if not download.at:
                raise OSError(f"{self._url} is empty")
        self.seconds = time.monotonic() - began
