"""Snapshots of machines: QEMU migration files of a trampoline that asks for its address, from which
later machines start.

A boot of firmware and kernel takes a dozen seconds of an emulated processor. A lab whose spec names
a folder of snapshots needs this time once for each machine: while a new machine boots, its
trampoline is held at its first DHCP request, and written to the folder. The machine then goes on.
The next time that an identical machine is switched on, a stand-in for its firmware sends the
requests of a boot to the server (`cod.lab.firmware`: DHCP, boot script, kernel, ramdisk, secret),
and QEMU begins with the snapshot. In the snapshot the trampoline has no address yet, and its agent
has not read its secret. The secret that the server has just issued, of the same length, replaces
the recorded one on the way into the machine's memory. Nothing is entered in the server's database,
and a server accepts a restored machine for the same reason as any other.

A snapshot is used only if everything in its key is the same: the machine's spec and command line
(MACs, UUID, disks' sizes), QEMU's version, the kernel's command line, and the digests of the kernel
and the ramdisk that the server serves. Only new machines are recorded and restored: their disks
hold nothing but zeros and the firmware's variables have never been changed. The kernel in the
snapshot has read the partition tables of empty disks.

A restored machine proves nothing about firmware, loaders, or the start of the kernel and its
drivers. Its wall clock is that of the snapshot, and its random numbers are those of the last
machine restored from the same file.
"""

from __future__ import annotations

import fcntl
import filecmp
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cod.lab import machine
from cod.lab.processes import Process
from cod.lab.spec import LabNode

FORMAT = 1  # part of each key: raised when what a file holds changes
MOST_BYTES = 4 << 30  # of a folder; the files that were used longest ago are removed first
STALE = 3600.0  # seconds after which a file that is not whole is nobody's work any more
IDLE = 0.1  # share of a processor below which a machine is taken to wait
PATIENCE = 20.0  # seconds that a machine without its network is waited for
LOADED, ASKING, ADDRESS = (
    b"trampoline: COD trampoline on",
    b"trampoline: asking for an address",
    b"has address",
)
SECRET = "[0-9a-f]{32} [0-9a-f]{64}"
_STEP = 0.05  # seconds between looks


class NotRestored(Exception):
    """QEMU does not accept the snapshot; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot in a folder; neither need exist. `key`: the digest of the machine, then the digest
    of the booted files."""

    folder: Path
    key: str

    @property
    def file(self) -> Path:
        """Return the path of the compressed migration stream."""
        return self.folder / f"{self.key}.zst"

    @property
    def about(self) -> Path:
        """Return the path of the JSON file beside it: `secret`, and the name of the machine."""
        return self.folder / f"{self.key}.json"

    def exists(self) -> bool:
        return self.file.exists() and self.about.exists()

    def incoming(self, secret: str, script: Path) -> list[str]:
        """Return the QEMU options that start a machine from the snapshot, with the boot's `secret`
        in place of the recorded one. `script` is written for sed, so that no command line shows
        secrets."""
        old = str(json.loads(self.about.read_text())["secret"])
        if len(old) != len(secret) or not re.fullmatch(SECRET, secret):
            raise NotRestored("the server's secrets have another form than the snapshot's")
        script.write_text(f"s/{old}/{secret}/g\n")
        os.utime(self.file)
        return ["-incoming", f"exec:zstd -dcq {self.file} | LC_ALL=C sed -f {script}"]

    def remove(self) -> None:
        for path in (self.file, self.about):
            path.unlink(missing_ok=True)


def machine_key(node: LabNode, argv: Sequence[str], folder: Path) -> str:
    """Return the digest of a machine: of its spec (with its disks' sizes) and of its command line,
    without the lab's folder and the names of taps, which differ between labs."""
    words = [re.sub(r"ifname=\w+", "ifname=", word.replace(str(folder), "")) for word in argv]
    return _digest([FORMAT, _qemu_version(), asdict(node), words])


def system_key(command_line: str, files: Sequence[str]) -> str:
    """Return the digest of the booted system: of the kernel's command line and the files'
    digests."""
    return _digest([command_line, *files])


def is_new(node: LabNode, folder: Path) -> bool:
    """Return whether the machine's disks and firmware variables are unchanged since it was made."""
    variables = machine.variables_path(folder, node)
    # by content: firmware changes its variables, but not the size of their file
    return has_blank_disks(node, folder) and (
        node.firmware != "uefi" or filecmp.cmp(variables, machine.OVMF_VARS, shallow=False)
    )


def has_blank_disks(node: LabNode, folder: Path) -> bool:
    """Return whether all disks of the machine read as zeros."""
    return all(
        is_blank(machine.disk_path(folder, node, position)) for position in range(len(node.disks))
    )


def is_blank(path: Path) -> bool:
    """Return whether a sparse file reads as zeros; its holes are not read."""
    with open(path, "rb", buffering=0) as file:  # a buffer would not know of the seeks below
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole up to the end
                return True
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            file.seek(at)
            while at < hole:
                data = file.read(min(hole - at, 1 << 20))
                if data.strip(b"\0"):
                    return False
                at += len(data)
    return True


def record(
    snapshot: Snapshot,
    node: LabNode,
    lab: Path,
    process: Process,
    hold: Callable[[bool], None],
) -> bool:
    """Write the snapshot of a machine that is starting; return whether it was written. Waits until
    the machine's trampoline asks for an address, or the machine's process has ended.

    lab   the lab's folder
    hold  cuts the boot NIC off its network (True) and connects it again, unseen by the machine
    """
    console = machine.console_path(lab, node.name)
    offset = console.stat().st_size if console.exists() else 0

    def has_said(words: bytes) -> bool:
        return words in _tail(console, offset)

    if not _until(process, lambda: has_said(LOADED)):
        return False
    hold(True)
    try:
        asks = _until(process, lambda: has_said(ASKING)) and _waits(process)
        if not asks or has_said(ADDRESS):
            return False
        snapshot.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = snapshot.folder / f"{snapshot.key}.{os.getpid()}.part"
        try:
            with Monitor(machine.qmp_path(lab, node.name)) as monitor:
                if not _migrate(monitor, part, lambda: has_blank_disks(node, lab)):
                    return False
            hold(False)
            return _keep(part, snapshot, node.name)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, NotRestored):  # the machine has been switched off, or cannot migrate
        return False
    finally:
        hold(False)


def resume(path: Path) -> None:
    """Wait until QEMU with the control socket `path` has read its snapshot, and let the machine go
    on. Raises NotRestored."""
    try:
        with Monitor(path) as monitor:
            while (status := monitor.ask("query-status")["status"]) == "inmigrate":
                time.sleep(_STEP)
            if status == "paused":  # the machine was paused while it was recorded
                monitor.ask("cont")
                status = monitor.ask("query-status")["status"]
    except OSError as error:
        raise NotRestored(f"QEMU has ended: {error}") from None
    if status != "running":
        raise NotRestored(f"QEMU is in state {status}")


def write_ledger(event: str, name: str) -> None:
    """Append a line of JSON about a machine that was switched on to the file that the environment
    variable COD_LAB_LEDGER names, if it is set. `event`: 'cold' or 'restored'."""
    if path := os.environ.get("COD_LAB_LEDGER"):
        with open(path, "a") as file:
            file.write(json.dumps({"event": event, "machine": name}) + "\n")


class Monitor:
    """QEMU's control socket (QMP). Errors are OSError and NotRestored."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(120)
        self._path = path

    def __enter__(self) -> Monitor:
        self._socket.connect(str(self._path))
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self.ask("qmp_capabilities")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: str, **arguments: Any) -> Mapping[str, Any]:
        """Send a command to QEMU and return the answer."""
        self._socket.sendall(
            json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        )
        while line := self._lines.readline():
            reply = json.loads(line)
            if "error" in reply:
                raise NotRestored(str(reply["error"]["desc"]))
            if "return" in reply:
                return dict(reply["return"])
        raise ConnectionError("QEMU has closed its control socket")


def _migrate(monitor: Monitor, part: Path, holds: Callable[[], bool]) -> bool:
    """Pause the machine and write it to `part`, if `holds()`; return whether it was written."""
    monitor.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
    monitor.ask("stop")
    try:
        if not holds():
            return False
        monitor.ask("migrate", uri=f"exec:zstd -1 -q > {part}")
        while (status := monitor.ask("query-migrate").get("status")) in ("setup", "active"):
            time.sleep(_STEP)
        return status == "completed"
    finally:
        monitor.ask("cont")


def _keep(part: Path, snapshot: Snapshot, name: str) -> bool:
    """Make a written file the snapshot; return False where the file is incomplete or has not
    exactly one secret."""
    secrets = _secrets(part)
    if len(secrets) != 1:
        return False
    draft = part.with_suffix(".about.part")
    draft.write_text(json.dumps({"secret": secrets[0], "machine": name}) + "\n")
    folder = os.open(snapshot.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if snapshot.exists():  # another lab's: the two files of a snapshot belong together
            draft.unlink()
            return True
        draft.replace(snapshot.about)
        part.replace(snapshot.file)
        _tidy(snapshot.folder)
    finally:
        os.close(folder)
    return True


def _secrets(file: Path) -> list[str]:
    """Return all secrets of boots in a migration stream; [] if the stream is incomplete."""
    done = subprocess.run(
        ["sh", "-c", f'zstd -dcq "$0" | LC_ALL=C grep -aoE "{SECRET}"', str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    whole = subprocess.run(["zstd", "-tq", str(file)], capture_output=True, check=False)
    return sorted(set(done.stdout.split("\n")) - {""}) if whole.returncode == 0 else []


def _tidy(folder: Path) -> None:
    """Remove incomplete files that killed processes have left, and the least recently used
    snapshots above the folder's limit."""
    for path in folder.glob("*.part"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - STALE:
                path.unlink()
    known = []
    for path in folder.glob("*.zst"):
        with suppress(FileNotFoundError):  # another lab may tidy at the same time
            known.append((path.stat().st_mtime, path.stat().st_size, path.stem))
    total = 0
    for _, size, key in sorted(known, reverse=True):
        total += size
        if total > MOST_BYTES:
            Snapshot(folder, key).remove()


def _until(process: Process, truth: Callable[[], bool]) -> bool:
    """Wait for `truth()` while the process lives; return whether it became true."""
    while process.alive():
        if truth():
            return True
        time.sleep(_STEP)
    return False


def _waits(process: Process) -> bool:
    """Wait until the machine is nearly idle for a second, or PATIENCE is over; return whether its
    process still lives. A snapshot of a busy machine works too: the machine finishes its work when
    it goes on."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / ticks

    def is_idle() -> bool:
        before, since = used(), time.monotonic()
        time.sleep(1.0)
        return used() - before < IDLE * (time.monotonic() - since)

    end = time.monotonic() + PATIENCE
    return _until(process, lambda: is_idle() or time.monotonic() > end)


def _tail(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@cache
def _qemu_version() -> str:
    return subprocess.run(
        [machine.QEMU, "--version"], capture_output=True, text=True, check=True
    ).stdout


def available() -> bool:
    """Return whether this host has the programs that snapshots need."""
    return all(shutil.which(program) for program in ("zstd", "sed", "grep", "busybox"))
