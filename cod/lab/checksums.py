"""Have the kernel finish checksums itself: ``python -m cod.lab.checksums INTERFACE…``, inside a
network namespace.

A pair of virtual interfaces passes packets on with unfinished checksums, which the hardware would
finish, if there were any. A switch in user space does not finish them, and the receiver drops the
packets.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys
from collections.abc import Iterable

_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM = 0x17  # linux/ethtool.h


def finish(interfaces: Iterable[str]) -> None:
    """Switch off checksum offload for sent packets, and segmentation offload with it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in interfaces:
            value = array.array("B", struct.pack("II", _ETHTOOL_STXCSUM, 0))
            request = struct.pack("16sP", name.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket.fileno(), _SIOCETHTOOL, request)


if __name__ == "__main__":
    finish(sys.argv[1:])
