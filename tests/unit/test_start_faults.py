"""What the log says of a port that is not to be had: which one, and what to do."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
from twisted.internet.error import CannotListenError

from cod.net.socketservice import SocketService, why


class Bound(SocketService):
    """Wants a port that somebody has."""

    def __init__(self, port: int) -> None:
        super().__init__(None, f"dns 127.0.0.1 port {port}")
        self._port = port

    def _open(self) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.bind(("127.0.0.1", self._port))
        except OSError:
            opened.close()
            raise
        return opened

    def doRead(self) -> None:
        raise AssertionError


def test_a_port_that_somebody_has() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="dns") as refused:
            Bound(port).startService()
    said = why(refused.value)
    assert f"dns 127.0.0.1 port {port}" in said
    assert said.endswith(
        "another program has that port, or `cod serve` runs here already: `ss -lnp` shows who"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            CannotListenError("10.7.0.1", 8069, OSError(errno.EADDRNOTAVAIL, "x")),
            (
                "10.7.0.1:8069: Cannot assign requested "
                "address; this host has no such address: see [[subnet]] and [api] in the site file"
            ),
        ),
        (
            CannotListenError("any", b"/run/api.sock", OSError(errno.EADDRINUSE, "x")),
            (
                "/run/api.sock: Address already in use; another program has that port, or `cod"
                " serve` runs here already: `ss -lnp` shows who"
            ),
        ),
        (CannotListenError("::", 1, ValueError("odd")), ":::1: odd"),
        (
            OSError(errno.ENODEV, "No such device", "dhcp lab on eth9"),
            (
                "[Errno 19] No such device: 'dhcp lab on eth9'; this host has no "
                "such interface: see [[subnet]] in the site file"
            ),
        ),
        (
            PermissionError(errno.EPERM, "No"),
            "[Errno 1] No; it wants root, or the capabilities that docs/systemd/cod.service gives",
        ),
        (RuntimeError("a bug"), "a bug"),
    ],
)
def test_what_is_said(error: Any, said: str) -> None:
    assert why(error) == said
