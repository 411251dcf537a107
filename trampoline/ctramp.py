"""ctramp: the agent that runs on a node in the trampoline. This is its shell: options, sockets, the
clock, the console.

    python3 -m trampoline.ctramp [--confd HOST:PORT[,HOST:PORT]...] [--mac MAC] [--secret FILE]
                                 [--root DIR] [--disk FILE]...
                                 [--reboot-command CMD] [--poweroff-command CMD] [--once]
                                 [--memory BYTES]

With several addresses, each attempt to connect is made to the next of them. Missing options are
taken from the kernel's command line (`cod.confd=`, `cod.mac=`). With `--disk`, the given files are
the machine's only disks, so that a test can run whole agents beside each other. The program ends
when it has rebooted or switched off the machine, or, with `--once`, when its first connection ends.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from cod.orders import Order, TestResult
from cod.wire.confd import protocol
from cod.wire.confd.messages import Done
from trampoline import bmc, inventory, lldp
from trampoline.agent import Agent, Disconnect, Tell
from trampoline.disks import erasable
from trampoline.errors import PrimeError

CONNECT_TIMEOUT = 10.0  # seconds
STAND_IN_MEMORY = 32 << 20  # bytes that an agent tests, or keeps, whose disks are files
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0  # seconds between attempts to connect


class BadOptions(Exception):
    """The machine's command line or secret is not usable for an agent."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the program; see the module's head. '': the value in the kernel's command line."""

    confd: str = ""
    mac: str = ""
    secret: Path = Path("/cod/secret")
    root: Path = Path("/")
    disks: tuple[Path, ...] = ()
    reboot_command: str = "reboot -f"
    poweroff_command: str = "poweroff -f"
    once: bool = False
    memory: int = 0


def main(options: Options) -> int:
    """Run the program; return its exit status."""
    try:
        return run(options)
    except BadOptions as error:
        log(f"cannot start: {error}")
        return 2


def run(options: Options) -> int:
    """Connect again and again until the machine is to leave."""
    words = command_line(options.root)
    mac = (options.mac or words.get("cod.mac", "")).lower()
    addresses = options.confd or words.get("cod.confd", "")
    servers = cycle([_address(each) for each in addresses.split(",")])
    shell = Shell(options, mac)
    failures = 0
    while not shell.agent.leave:
        log_end(shell.converse(*next(servers)))
        failures = 1 if shell.was_welcomed else failures + 1
        if options.once:
            return 0
        if not shell.agent.leave:
            shell.wait(pause(failures, os.urandom(1)[0] / 255))
    if shell.agent.ordered:
        restore_boot_order(options)
    leave(shell.agent.leave, options)
    return 0


def log(line: str) -> None:
    """Print one line on the console. It must never contain a secret, because consoles are
    recorded."""
    print(f"trampoline: {line}", flush=True)


def log_end(reason: str) -> None:
    """Log why a connection ended."""
    if reason:
        log(reason)


def restore_boot_order(options: Options) -> None:
    """Restore the machine's boot order if a system has changed it; best effort."""
    if options.disks and options.root == Path("/"):
        return  # an agent of a test: the variables are the test host's
    from trampoline import efiboot  # late: a machine that only reports need not load it

    log_end(efiboot.restore(options.root / efiboot.EFIVARS.relative_to("/")))


def pause(failures: int, chance: float) -> float:
    """Return the seconds until the next attempt: doubling, and spread by `chance` (0..1), so that a
    thousand nodes whose server comes back do not connect at the same moment."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE) * (0.25 + 0.75 * chance)


def command_line(root: Path) -> dict[str, str]:
    """Return the kernel's command line as a mapping; words without a value map to ''."""
    try:
        words = (root / "proc/cmdline").read_text().split()
    except OSError:
        return {}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        socket.inet_aton(host)  # a literal address only: there is no resolver in the ramdisk
        return host, int(port)
    except (OSError, ValueError):
        raise BadOptions(f"cod.confd={text!r} is not ADDRESS:PORT") from None


class Shell:
    """The agent's surroundings: its secrets' files, its disks, and one connection at a time."""

    def __init__(self, options: Options, mac: str) -> None:
        self._options = options
        self._mac = mac
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self.was_welcomed = False
        self._address = ""  # of the connection
        self._session_file = Path(f"{options.secret}.session")
        real = options.root == Path("/") and not options.disks  # otherwise it imitates a machine
        self._heard = lldp.LldpListener().neighbours if options.root == Path("/") else lldp.deaf
        self._bmcs = bmc.Remembered() if real else bmc.none
        # The boot's secret, and the session's if an agent before this one already had one.
        try:
            secrets = protocol.Secrets(protocol.Secret.read(self._options.secret.read_text()))
        except (OSError, ValueError) as error:
            raise BadOptions(
                f"no usable secret in {self._options.secret}: {type(error).__name__}"
            ) from None
        if self._session_file.exists():
            secrets.learned(protocol.Secret.read(self._session_file.read_text()))
        self.agent = Agent(mac, secrets, self._scan, self._act, self._wake, log, self._keep)

    # ------------------------------------------------------------ secrets

    def _keep(self, session: protocol.Secret) -> None:
        """Store the session's secret in RAM for an agent that is started again in this boot,
        because the server forgets the boot's secret once it knows the session's."""
        partial = self._session_file.with_suffix(".partial")
        partial.write_text(str(session))
        partial.chmod(0o600)
        partial.replace(self._session_file)

    # ------------------------------------------------------------ the machine

    def _disks(self) -> tuple[inventory.Disk, ...]:
        if self._options.disks:
            return tuple(inventory.file_disk(path) for path in self._options.disks)
        same_wwn = command_line(self._options.root).get("cod.same_wwn", "refuse")
        return inventory.disks(self._options.root, same_wwn)

    def _scan(self) -> str:
        disks = self._disks()
        node = inventory.report(self._options.root, self._mac, disks, self._heard, self._bmcs)
        return ET.tostring(node, "unicode")

    def _act(self, order: Order, tell: Tell) -> Mapping[str, float] | tuple[TestResult, ...] | Done:
        if order.action == "look":
            from trampoline import disk_contents

            disks = erasable(self._disks(), order.keep)
            return Done(order.id, disks=disk_contents.newest_mark(disks, order.installation))
        from trampoline import cprime  # late: a machine that only reports need not load it

        if order.action == "wipe":
            restore_boot_order(self._options)  # at once: it may be reset before it leaves
            erased = cprime.wipe(order, self._disks(), tell)
            count = float(sum(each.checked if order.tables else each.size for each in erased))
            return Done(order.id, {"bytes_written": count}, erased=erased)
        if order.action == "prime":
            bios = not (self._options.root / "sys/firmware/efi").is_dir()
            room = cprime.ChunkRoom(self._spare_memory(), self._address)
            written = cprime.prime(
                order, self._disks(), tell, bios=bios, room=room, took=self._took(order)
            )
            return Done(
                order.id,
                _figures(written),
                erased=written.erased,
                namesakes=written.namesakes,
            )
        if order.action == "capture":
            from trampoline import capture

            return _figures(capture.capture(order, self._disks(), tell))
        if order.action == "burnin":
            from trampoline.burnin import run

            # a test's agent, whose disks are files, leaves its host's memory alone
            root = self._options.root
            return run.burnin(
                order,
                self._disks(),
                lambda: inventory.nics(root, self._mac),
                root,
                tell,
                STAND_IN_MEMORY if self._options.disks else None,
            )
        raise PrimeError(f"this trampoline cannot {order.action}")

    def _took(self, order: Order) -> Callable[[str], None]:
        """Return a function that records an image's source. The server is told only if the order
        has chunks passed on: servers of older releases do not know the field."""

        def took(name: str) -> None:
            source = name or "the server"
            log(f"order {order.id}: the image comes from {source}")
            self.agent.source = source if order.pass_on else ""

        return took

    def _spare_memory(self) -> int:
        """Return the bytes of memory for chunks that are kept for other nodes: the option's value,
        or a third of the available memory."""
        if self._options.memory or self._options.disks:
            return self._options.memory or STAND_IN_MEMORY
        try:
            lines = (self._options.root / "proc/meminfo").read_text().splitlines()
            available = next(line for line in lines if line.startswith("MemAvailable:"))
            return int(available.split()[1]) * 1024 // 3
        except (OSError, ValueError, StopIteration):
            return STAND_IN_MEMORY

    # ------------------------------------------------------------ connections

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it has been woken often enough
            self._waker.send(b"\0")

    def converse(self, host: str, port: int) -> str:
        """Serve one connection from connect to its end; return why it ended, '' if the machine is
        to leave."""
        self.was_welcomed = False
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.settimeout(CONNECT_TIMEOUT)
                connection.connect((host, port))
                self._address = connection.getsockname()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.agent.connected(time.monotonic())
                while not self.agent.leave:
                    connection.sendall(self.agent.to_send())
                    timeout = max(self.agent.due() - time.monotonic(), 0.0)
                    ready, _, _ = select.select([connection, self._woken], [], [], timeout)
                    if self._woken in ready:
                        self._woken.recv(4096)
                    if connection not in ready:
                        self.agent.tick(time.monotonic())
                        continue
                    data = connection.recv(65536)
                    if not data:
                        raise Disconnect("the server closed the connection")
                    self.agent.receive(data, time.monotonic())
                    self.was_welcomed = self.was_welcomed or self.agent.welcomed
            return ""
        except (OSError, Disconnect, protocol.ProtocolError) as error:
            return f"{host}:{port}: {error}"
        finally:
            self.agent.lost()

    def wait(self, seconds: float) -> None:
        """Wait between two connections."""
        time.sleep(seconds)


def _figures(done: Any) -> dict[str, float]:
    return {
        name: float(value) for name, value in asdict(done).items() if isinstance(value, int | float)
    }


def leave(action: str, options: Options) -> None:
    """Reboot or switch off the machine. Jobs have synced their own writes; other data are synced
    here."""
    log("rebooting" if action == "reboot" else "switching off")
    os.sync()
    command = options.reboot_command if action == "reboot" else options.poweroff_command
    if os.system(command):
        raise BadOptions(f"{command!r} failed")


if __name__ == "__main__":
    from trampoline.options import parse

    sys.exit(main(Options(**parse())))
