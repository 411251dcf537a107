"""Has a disk sanitize itself, by NVMe's Sanitize or ATA's SANITIZE DEVICE: all data that it ever
held are erased, also in caches and in blocks that it has set aside.

A disk that has begun continues after a reset or a loss of power, and neither reads nor writes until
it has ended. Each disk is therefore first asked whether it is sanitizing, and is waited for. A
block erase is preferred to a new encryption key. Overwriting by the disk itself is not used, as it
takes as long as overwriting by the kernel. Formats: NVM Express Base 1.4, 5.24 (Sanitize) and
5.14.1.9.2 (its log page); ACS-3, 7.36 (SANITIZE DEVICE); SAT-3, 12.2.2 (ATA PASS-THROUGH).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from trampoline import nvme, scsi
from trampoline.nvme import Device

POLL = 2.0  # seconds
BLOCK, CRYPTO = "block erase", "crypto erase"


@dataclass(frozen=True, slots=True)
class SanitizeState:
    """Progress of a disk's sanitize operation: `share` of 1. `good`: the last operation that ended
    was successful."""

    running: bool
    good: bool
    share: float


class Sanitizer(Protocol):
    """A disk that can sanitize itself. Every method raises OSError if the disk does not answer."""

    def state(self) -> SanitizeState:
        """Return the progress of the operation."""

    def start(self) -> bool:
        """Start the sanitize operation. Return False if the disk cannot do it, or would erase other
        disks, too."""

    def leave(self) -> None:
        """Let a disk whose operation has failed accept reads and writes again."""

    def how(self) -> str:
        """Return the last used method, for people."""


def sanitize(
    device: Device,
    tell: Callable[[float], None],
    *,
    start: bool,
    ata: bool,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Wait for a disk that is sanitizing itself; with `start`, have it begin if it is not. Return
    the method, '' if the disk was not sanitized. `tell` is called with the completed share. `ata`:
    it may be an ATA disk."""
    for kind in (Nvme, Ata) if ata else (Nvme,):
        with suppress(OSError):  # another kind of disk, or one that cannot
            return _run(kind(device), tell, start, wait)
    return ""


def _run(
    disk: Sanitizer, tell: Callable[[float], None], start: bool, wait: Callable[[float], None]
) -> str:
    state = disk.state()
    if not state.running:
        if not (start and disk.start()):
            return ""
        state = disk.state()
    while state.running:
        tell(state.share)
        wait(POLL)
        state = disk.state()
    if not state.good:
        disk.leave()
        return ""
    tell(1.0)
    return disk.how()


class Nvme:
    """An NVMe disk whose controller supports Sanitize."""

    _SANITIZE, _GET_LOG = 0x84, 0x02  # opcodes
    _SANICAP = slice(328, 332)  # bytes of Identify Controller
    _LOG, _LENGTH, _ALL = 0x81, 512, 0xFFFFFFFF
    _LEAVE, _EXIT_ALLOWED = 1, 1 << 3
    _ACTIONS = ((1 << 1, 2, BLOCK), (1 << 0, 4, CRYPTO))  # bit of SANICAP, action
    _RUNNING, _GOOD = 2, (1, 4)

    def __init__(self, device: Device) -> None:
        self._device = device
        self._namespace = device.command(nvme.NVME_ID, bytearray(4))
        self._controller = nvme.identify(device, nvme.CONTROLLER, 0)
        able = int.from_bytes(self._controller[self._SANICAP], "little")
        self._actions = [(action, name) for bit, action, name in self._ACTIONS if able & bit]
        if not self._actions:
            raise OSError(95, "the disk does not sanitize itself")

    def state(self) -> SanitizeState:
        log = self._log()
        status = log[2] & 0b111
        share = int.from_bytes(log[:2], "little") / 65536
        return SanitizeState(status == self._RUNNING, status in self._GOOD, share)

    def start(self) -> bool:
        if not nvme.is_alone(self._device, self._namespace, self._controller):
            return False
        return self._order(self._actions[0][0] | self._EXIT_ALLOWED) == 0

    def leave(self) -> None:
        self._order(self._LEAVE)

    def how(self) -> str:
        done = self._log()[4] & 0b111
        names = {action: f" ({name})" for action, name in self._actions}
        return f"NVMe Sanitize{names.get(done, '')}"

    def _order(self, cdw10: int) -> int:
        return nvme.admin(self._device, self._SANITIZE, 0, cdw10=cdw10, timeout=nvme.SHORT)

    def _log(self) -> bytes:
        page = ctypes.create_string_buffer(self._LENGTH)
        words = self._LOG | (self._LENGTH // 4 - 1) << 16
        status = nvme.admin(
            self._device, self._GET_LOG, self._ALL, cdw10=words, timeout=nvme.SHORT, page=page
        )
        if status:
            raise OSError(status, "the disk does not say how far it is")
        return page.raw


class Ata:
    """An ATA disk that supports the sanitize feature set."""

    _IDENTIFY, _SANITIZE = 0xEC, 0xB4  # commands
    _NO_DATA, _READ = 3, 4  # protocols
    _WORD = slice(118, 120)  # of IDENTIFY DEVICE: word 59
    _ABLE = 1 << 12
    # bit of word 59, feature, key
    _ACTIONS = ((1 << 15, 0x12, 0x426B4572, BLOCK), (1 << 13, 0x11, 0x43727970, CRYPTO))
    _EXIT_ALLOWED, _CLEAR = 1 << 4, 1  # of the count
    _GOOD, _RUNNING, _FROZEN = 1 << 7, 1 << 6, 1 << 5  # of the count's upper byte that is returned
    _ERROR = 1

    def __init__(self, device: Device) -> None:
        self._device = device
        identify = [0x85, self._READ << 1, 0x0E, 0, 0, 0, 1, *[0] * 7, self._IDENTIFY, 0]
        _, data = scsi.exchange(device.command, bytes(identify), 512)
        word = int.from_bytes(data[self._WORD], "little")
        self._actions = [each[1:] for each in self._ACTIONS if word & each[0]]
        if not (word & self._ABLE and self._actions):
            raise OSError(95, "the disk does not sanitize itself")
        self._began = ""

    def state(self) -> SanitizeState:
        back = self._order(0, 0, 0)
        share = int.from_bytes(bytes([back[7], back[9]]), "little") / 65536
        return SanitizeState(bool(back[4] & self._RUNNING), bool(back[4] & self._GOOD), share)

    def start(self) -> bool:
        if self._order(0, 0, 0)[4] & self._FROZEN:
            return False
        feature, key, name = self._actions[0]
        self._began = f" ({name})"
        return not self._order(feature, key, self._EXIT_ALLOWED)[13] & self._ERROR

    def leave(self) -> None:
        self._order(0, 0, self._CLEAR)

    def how(self) -> str:
        return f"ATA Sanitize{self._began}"

    def _order(self, feature: int, key: int, count: int) -> bytes:
        """Return the registers after SANITIZE DEVICE."""
        lba = key.to_bytes(6, "little")
        command = [0x85, self._NO_DATA << 1 | 1, 0x20, 0, feature, 0, count]
        command += [lba[3], lba[0], lba[4], lba[1], lba[5], lba[2], 0x40, self._SANITIZE, 0]
        sense, _ = scsi.exchange(self._device.command, bytes(command), 0)
        back = scsi.registers(sense)
        if back is None:
            raise OSError(5, "the disk does not say how far it is")
        return back
