"""Has a disk erase itself by NVMe's Format with a secure erase of user data, which also reaches
blocks that overwriting cannot reach, such as those that the disk has set aside.

The disk is first asked for its abilities (Identify). It is left alone if it cannot format, or if
its format would erase more than this namespace, because other namespaces may be marked keep. After
a format, a disk may read as anything, so it is then wiped like any other disk. Formats:
NVM Express Base 1.4, 5.15 (Identify), 5.23 (Format NVM); linux/nvme_ioctl.h.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Protocol

NVME_ID, NVME_ADMIN = 0x4E40, 0xC0484E41  # linux/nvme_ioctl.h
_FORMAT, _IDENTIFY = 0x80, 0x06  # opcodes
NAMESPACE, CONTROLLER, ACTIVE = 0, 1, 2  # what Identify tells of
_USER_DATA = 1  # secure erase settings
# bytes of Identify Controller, and bits
_CMIC, _OACS, _FNA = 76, 256, 524
_MANY_CONTROLLERS, _FORMATS, _ALL_NAMESPACES = 1 << 1, 1 << 1, 0b11
_FLBAS, _DPS = 26, 29  # bytes of Identify Namespace
_PAGE = 4096
SHORT, _LONG = 10_000, 240_000  # ms; shorter than the deadline of a node that shows no progress


class Device(Protocol):
    """An open disk that takes ioctls."""

    def command(self, request: int, argument: bytearray) -> int:
        """Carry out an ioctl; return its result; `argument` is as the kernel left it. Raises
        OSError."""


def purge(device: Device) -> bool:
    """Have an NVMe disk erase itself; return False if it cannot, or fails."""
    try:
        namespace = device.command(NVME_ID, bytearray(4))
        controller = identify(device, CONTROLLER, 0)
        if not int.from_bytes(controller[_OACS : _OACS + 2], "little") & _FORMATS:
            return False
        if controller[_FNA] & _ALL_NAMESPACES and not is_alone(device, namespace, controller):
            return False
        setting = _setting(identify(device, NAMESPACE, namespace))
        return admin(device, _FORMAT, namespace, cdw10=setting, timeout=_LONG) == 0
    except OSError:  # no NVMe disk, or one that does not answer
        return False


def is_alone(device: Device, namespace: int, controller: bytes) -> bool:
    """Return whether the disk has no other namespace, on any of its controllers."""
    active = struct.unpack(f"<{_PAGE // 4}I", identify(device, ACTIVE, 0))
    return active[:2] == (namespace, 0) and not controller[_CMIC] & _MANY_CONTROLLERS


def _setting(namespace: bytes) -> int:
    """Return the dword of Format that keeps the namespace's sectors and protection, and erases user
    data."""
    sectors, protection = namespace[_FLBAS], namespace[_DPS]
    return (
        sectors & 0b11111  # which format, and where its metadata is
        | (protection & 0b1111) << 5
        | _USER_DATA << 9
        | (sectors >> 5 & 0b11) << 12  # the format's upper bits
    )


def identify(device: Device, what: int, namespace: int) -> bytes:
    """Return the disk's Identify page about its controller, a namespace or the active namespaces
    (`what`). Raises OSError."""
    page = ctypes.create_string_buffer(_PAGE)
    status = admin(device, _IDENTIFY, namespace, cdw10=what, timeout=SHORT, page=page)
    if status:
        raise OSError(status, "the disk does not say what it is")
    return page.raw


def admin(
    device: Device,
    opcode: int,
    namespace: int,
    *,
    cdw10: int,
    timeout: int,
    page: ctypes.Array[ctypes.c_char] | None = None,
) -> int:
    """Return the status of an admin command; 0 is success."""
    address, length = (ctypes.addressof(page), len(page)) if page is not None else (0, 0)
    # struct nvme_passthru_cmd
    argument = struct.pack(
        "=BBHIIIQQIIIIIIIIII",
        opcode,
        0,
        0,
        namespace,
        0,
        0,
        0,
        address,
        0,
        length,
        cdw10,
        *(0,) * 5,
        timeout,
        0,
    )
    return device.command(NVME_ADMIN, bytearray(argument))
