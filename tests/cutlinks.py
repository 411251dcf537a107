"""Links that are cut without a word: packets are dropped before TCP sees them, and none is
acknowledged (socket(7), SO_ATTACH_FILTER)."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: RET 0
_PIDFD_GETFD = 438  # its number on all architectures


def cut(line: socket.socket) -> None:
    """Drop all that comes to a socket. One that listens passes this on to what it accepts."""
    program = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
    line.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def mend(line: socket.socket) -> None:
    """Undo `cut`."""
    line.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def sockets_of(pid: int) -> list[socket.socket]:
    """Return the TCP sockets of another process, as this process's own; only root may."""
    found = []
    process = os.pidfd_open(pid)
    for name in os.listdir(f"/proc/{pid}/fd"):
        number = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, int(name), 0)
        if number < 0:  # closed meanwhile
            continue
        try:
            line = socket.socket(fileno=number)
        except OSError:  # a file
            os.close(number)
            continue
        if line.family in (socket.AF_INET, socket.AF_INET6) and line.type == socket.SOCK_STREAM:
            found.append(line)
        else:
            line.close()
    os.close(process)
    return found
