"""Asks this machine's BMC over the system interface, by Linux's /dev/ipmi0.

Formats: Linux, include/uapi/linux/ipmi.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 2000  # milliseconds for an answer
_SYSTEM_INTERFACE, _BMC_CHANNEL = 0x0C, 0x0F  # IPMI_SYSTEM_INTERFACE_ADDR_TYPE, IPMI_BMC_CHANNEL
_SEND, _RECEIVE = 0x8028690D, 0xC030690B  # IPMICTL_SEND_COMMAND, IPMICTL_RECEIVE_MSG_TRUNC


class _Address(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("channel", ctypes.c_short), ("lun", ctypes.c_ubyte))


class _Message(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_ubyte),
        ("command", ctypes.c_ubyte),
        ("length", ctypes.c_ushort),
        ("data", ctypes.c_void_p),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("address_length", ctypes.c_uint),
        ("id", ctypes.c_long),
        ("message", _Message),
    )


class _Received(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), *_Request._fields_)


@contextmanager
def opened(path: Path) -> Iterator[Callable[[int, int, bytes], bytes]]:
    """Open the device, and provide the function that sends messages by it (see `bmc.Ask`). Raises
    OSError."""
    device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    numbers = iter(range(1, 1 << 30))
    try:
        yield lambda function, command, data: _ask(device, next(numbers), function, command, data)
    finally:
        os.close(device)


def _ask(device: int, number: int, function: int, command: int, data: bytes) -> bytes:
    """Return the BMC's answer to a message. Raises OSError."""
    address = _Address(_SYSTEM_INTERFACE, _BMC_CHANNEL, 0)
    place, length = ctypes.addressof(address), ctypes.sizeof(address)
    sent = ctypes.create_string_buffer(data, len(data))
    message = _Message(function, command, len(data), ctypes.addressof(sent))
    fcntl.ioctl(device, _SEND, _Request(place, length, number, message))
    ready = select.poll()
    ready.register(device, select.POLLIN)
    while ready.poll(PATIENCE):
        content = ctypes.create_string_buffer(256)
        message = _Message(0, 0, len(content), ctypes.addressof(content))
        received = _Received(0, place, length, 0, message)
        fcntl.ioctl(device, _RECEIVE, received)
        if received.id == number:  # an earlier question's answer may come late
            return content.raw[: received.message.length]
    raise TimeoutError("the BMC does not answer")
