"""Keeps the server's parts running, each in a process of its own, so that none delays another.

A part is a fork of this process, which has the whole program in memory: four programs that read the
same modules would take three times as long to begin. A part with a user of its own is a program of
its own: a fork would hold the secrets that the supervisor has read. So is a part that is started
after the program's files were replaced: a fork would go on with former modules and load what it
still lacks from the new ones, by a schema that may be a newer one.

A part that ends is started again, after half a second at first. Each end doubles the pause, and
each minute of work halves it: a part that is killed now and then is soon back, and one that always
ends after ten seconds of work comes to half a minute, too. The others go on meanwhile. SIGTERM and
SIGINT stop everything within seconds; SIGHUP is passed on. A part asks the kernel to be killed with
its supervisor, so none is ever left behind holding a port.

A part that hangs is killed and started again: each tells its supervisor all the time that its
reactor goes round, as a service tells systemd (sd_notify(3), WATCHDOG=1); to systemd it is the
supervisor that does.

No Twisted here: a loop around `sigtimedwait`, with nothing in it that could fail in interesting
ways.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cod.security import partusers

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a part is started again
HALVING = 60.0  # seconds of work that make up for one end
PATIENCE = 8.0  # seconds for the parts to end by themselves
HUNG = 120.0  # seconds without a sign of life; a manager's longest pass takes a part of that
STOPPED = 10.0  # seconds between two looks, of which there is one a second
PARENT = "COD_SUPERVISOR"
NOTIFY, WATCHDOG, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"  # systemd's
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # prctl(2)
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}

log = logging.getLogger("cod.supervisor")


def _unnamed() -> socket.socket:
    """Return a socket at an address that the kernel chooses, in no folder (unix(7))."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind("")
    return made


@dataclass(slots=True)
class ServerPart:
    """One part of the server. `pid` 0: not running, to be started at `start_at`. What it tells of
    itself arrives at `signs`; `heard` is when it last did. `ready`: since when it does its work;
    0: not yet."""

    name: str
    pid: int = 0
    ready: float = 0.0
    start_at: float = 0.0
    pause: float = 0.0
    heard: float = 0.0
    signs: socket.socket = field(default_factory=_unnamed)


class Supervisor:
    """Runs each of the parts `names`."""

    def __init__(
        self,
        names: list[str],
        site_file: Path,
        counters: Path,
        *,
        serve: Callable[[str], int] | None = None,
    ) -> None:
        """`counters` is where the parts count for the metrics: the gauges of one that has ended are
        removed. `serve` runs a part to its end in a fork of this process; it returns the exit
        status. None: each part is `cod serve --only PART` as its own user, by setpriv(1)."""
        self._parts = [ServerPart(name) for name in names]
        self._program = program_files() if serve else frozenset()
        self._site_file, self._counters, self._serve = site_file, counters, serve
        self._stopping = False
        self._kill_at = self._watched = 0.0

    def run(self) -> None:
        """Run the parts until a signal says stop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        tell("READY=1")
        while not self._stopping or any(part.pid for part in self._parts):
            now = time.monotonic()
            for part in self._parts:
                if not self._stopping and not part.pid and part.start_at <= now:
                    self._start(part, now)
            got = signal.sigtimedwait(_SIGNALS, self._timeout(now))
            if got is not None:
                self._signal(got.si_signo)
            self._reap()
            self._watch(time.monotonic())
            tell("WATCHDOG=1")
            if self._stopping and time.monotonic() > self._kill_at:
                self._send(signal.SIGKILL)
        log.info("stopped")

    def _timeout(self, now: float) -> float:
        waits = [part.start_at - now for part in self._parts if not part.pid]
        return max(0.0, min([1.0, *waits])) if not self._stopping else 0.2

    def _command(self, name: str) -> list[str]:
        program = [sys.executable, "-P", "-m", "cod", "--site", str(self._site_file)]
        program += ["serve", "--only", name]
        return program if self._serve else partusers.command(name, program, partusers.held())

    def _start(self, part: ServerPart, now: float) -> None:
        address = part.signs.getsockname().decode().replace("\0", "@")
        added = {PARENT: str(os.getpid()), NOTIFY: address, WATCHDOG: f"{HUNG * 1e6:.0f}"}
        part.ready, part.heard = 0.0, now
        try:
            forks = self._serve and self._program == program_files()
            part.pid = self._fork(part, added) if forks else self._spawn(part, added)
        except OSError as error:  # no memory or no process left: the other parts go on
            part.start_at = now + LONGEST_PAUSE
            log.error(
                "%s cannot be started: %s; trying again in %.0f s",
                part.name,
                error.strerror,
                LONGEST_PAUSE,
            )
            return
        log.info("started %s, process %d", part.name, part.pid)

    def _spawn(self, part: ServerPart, added: dict[str, str]) -> int:
        """Start a part as a program of its own; its process id."""
        environment = os.environ | added
        environment |= {} if self._serve else partusers.environment(part.name)
        environment.pop(WATCHDOG_PID, None)
        argv = self._command(part.name)
        return os.posix_spawnp(argv[0], argv, environment, setsigmask=[])

    def _fork(self, part: ServerPart, added: dict[str, str]) -> int:
        """Start a part as a fork of this process; its process id."""
        assert self._serve
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            for each in self._parts:
                each.signs.close()
            os.environ.update(added)
            os.environ.pop(WATCHDOG_PID, None)
            ctypes.CDLL(None).prctl(PR_SET_NAME, f"cod-{part.name}".encode())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            status = self._serve(part.name)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            log.exception("%s has failed", part.name)
        finally:
            logging.shutdown()
            os._exit(status)

    def _signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._send(signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            log.info("stopping")
            self._stopping = True
            self._kill_at = time.monotonic() + PATIENCE
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for part in self._parts:
            if part.pid:
                os.kill(part.pid, number)

    def _reap(self) -> None:
        for part in self._parts:
            if part.pid:
                pid, status = os.waitpid(part.pid, os.WNOHANG)
                if pid:
                    self._ended(part, os.waitstatus_to_exitcode(status))

    def _watch(self, now: float) -> None:
        """Kill each part that has given no sign of life for `HUNG` seconds; `_reap` then sees its
        end. After a pause of the supervisor itself, such as a suspended host, every part gets that
        time again."""
        awake, self._watched = now - self._watched < STOPPED, now
        for part in self._parts:
            with suppress(BlockingIOError):
                while sign := part.signs.recv(4096):
                    part.heard = now
                    part.ready = now if sign == b"READY=1" else part.ready
            part.heard = part.heard if awake else now
            if part.pid and now - part.heard > HUNG:
                log.error("%s has hung for %.0f s: it is killed", part.name, now - part.heard)
                os.kill(part.pid, signal.SIGKILL)
                part.heard = now

    def _ended(self, part: ServerPart, code: int) -> None:
        for gauge in self._counters.glob(f"gauge_*_{part.pid}.db"):
            gauge.unlink(missing_ok=True)
        now = time.monotonic()
        worked = now - part.ready if part.ready else 0.0
        pause = 2 * part.pause * 0.5 ** (worked / HALVING)
        part.pause = min(max(pause, FIRST_PAUSE), LONGEST_PAUSE)
        part.pid, part.start_at = 0, now + part.pause
        if self._stopping and code == -signal.SIGKILL:
            log.error("%s did not end within %.0f s and was killed", part.name, PATIENCE)
        elif not self._stopping:
            log.error(
                "%s ended with %s; starting it again in %.1f s", part.name, ending(code), part.pause
            )


def program_files() -> frozenset[tuple[str, int, int]]:
    """Return the names of the program's files, with what changes when they are replaced."""
    found = ((str(file), file.stat()) for file in Path(__file__).parent.rglob("*.py"))
    return frozenset((name, seen.st_ino, seen.st_mtime_ns) for name, seen in found)


def tell(state: str) -> None:
    """Tell systemd, or the supervisor in its place, how this process is; nobody where neither has
    started it."""
    address = os.environ.get(NOTIFY, "")
    if address:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line,
            suppress(OSError),  # who does not listen does not want to know
        ):
            line.sendto(state.encode(), re.sub("^@", "\0", address))


def sign_of_life_every() -> float | None:
    """Return after how many seconds this process has to tell that it goes on; None: nobody waits
    for it."""
    period = os.environ.get(WATCHDOG, "")
    return int(period) / 4e6 if period.isdigit() and int(period) else None


def ending(code: int) -> str:
    """Return how a process ended, in words, by the status that `waitstatus_to_exitcode` gives."""
    if code >= 0:
        return f"status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def die_with_supervisor() -> None:
    """Have this part killed when the supervisor is gone, even by kill -9."""
    parent = int(os.environ.get(PARENT, "0"))
    if parent:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # gone before we could ask
            raise SystemExit(1)
