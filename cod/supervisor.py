"""Keeps the server's parts running, each in a process of its own, so that none delays another.

A part is a fork of this process, which has the whole program in memory: starting four programs that
read the same modules would take three times as long. A part with a user of its own is a program of
its own, because a fork would hold the secrets that the supervisor has read. So is a part that is
started after the program's files were replaced: a fork would keep the former modules and load the
others from the new files, whose database schema may be newer.

A part that ends is started again, after half a second at first. Each end doubles the pause, and
each minute of work halves it: a part that is killed now and then is soon back, and for a part that
always ends after ten seconds of work the pause grows to half a minute. The other parts go on
meanwhile. SIGTERM and SIGINT stop everything within seconds; SIGHUP is passed on. A part asks the
kernel to be killed with its supervisor, so none is ever left behind holding a port.

A part that hangs is killed and started again: each part regularly tells its supervisor that its
reactor runs, as a service tells systemd (sd_notify(3), WATCHDOG=1). The supervisor itself tells
systemd.

There is no Twisted here: a loop around `sigtimedwait`, which is simple enough not to fail.
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
    """Return a socket at an abstract address, which the kernel chooses and which is no file
    (unix(7))."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind("")
    return made


@dataclass(slots=True)
class ServerPart:
    """One part of the server. `pid` 0: not running, to be started at `start_at`. Its signs of life
    arrive at `signs`; `heard` is the time of the last. `ready`: since when the part does its work;
    0: not yet."""

    name: str
    pid: int = 0
    ready: float = 0.0
    start_at: float = 0.0
    pause: float = 0.0
    heard: float = 0.0
    signs: socket.socket = field(default_factory=_unnamed)


class Supervisor:
    """The parent of a process for each of the parts `names`."""

    def __init__(
        self,
        names: list[str],
        site_file: Path,
        counters: Path,
        *,
        serve: Callable[[str], int] | None = None,
    ) -> None:
        """`counters` is the folder of the parts' metrics: when a part has ended, its gauges are
        removed. `serve` runs a part to its end in a fork of this process; it returns the exit
        status. None: each part is `cod serve --only PART` as its own user, by setpriv(1)."""
        self._parts = [ServerPart(name) for name in names]
        self._program = program_files() if serve else frozenset()
        self._site_file, self._counters, self._serve = site_file, counters, serve
        self._stopping = False
        self._kill_at = self._watched = 0.0

    def run(self) -> None:
        """Run the parts until a signal stops them."""
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
        """Start a part as a program of its own; return its process id."""
        environment = os.environ | added
        environment |= {} if self._serve else partusers.environment(part.name)
        environment.pop(WATCHDOG_PID, None)
        argv = self._command(part.name)
        return os.posix_spawnp(argv[0], argv, environment, setsigmask=[])

    def _fork(self, part: ServerPart, added: dict[str, str]) -> int:
        """Start a part as a fork of this process; return its process id."""
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
        end. After a pause of the supervisor itself (a suspended host, for example) every part gets
        that time anew."""
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
    """Return the program's files, each with its name, inode and modification time, one of which
    changes when the file is replaced."""
    found = ((str(file), file.stat()) for file in Path(__file__).parent.rglob("*.py"))
    return frozenset((name, seen.st_ino, seen.st_mtime_ns) for name, seen in found)


def tell(state: str) -> None:
    """Tell systemd, or the supervisor in its place, the state of this process. Does nothing where
    neither has started it."""
    address = os.environ.get(NOTIFY, "")
    if address:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line,
            suppress(OSError),  # nobody listens
        ):
            line.sendto(state.encode(), re.sub("^@", "\0", address))


def sign_of_life_every() -> float | None:
    """Return the seconds between the signs of life that this process has to give; None: nobody
    waits for any."""
    period = os.environ.get(WATCHDOG, "")
    return int(period) / 4e6 if period.isdigit() and int(period) else None


def ending(code: int) -> str:
    """Return a text on how a process ended, by the status that `waitstatus_to_exitcode` returns."""
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
        if os.getppid() != parent:  # it ended before the call
            raise SystemExit(1)
