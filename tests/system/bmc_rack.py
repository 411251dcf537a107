"""Fifty BMCs in a network namespace, of which some switch machines of a lab:
``python -m tests.system.bmc_rack NETWORK FOLDER SOCKET NUMBER=MACHINE...``

NETWORK is the first three numbers of their addresses, FOLDER is for their certificate, SOCKET is
that of the lab's power switches. Some are slow, some refuse, some lie: tests/net/bmcrack.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from OpenSSL import SSL
from twisted.internet import reactor
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.web.server import Site

from tests.net.bmcrack import COUNT, Rack, RackBmc
from tests.net.redfishbmc import SYSTEM
from tests.system.bmcs import ask, certificate

LATE = 3.0  # seconds, of the slow ones
OPS = {"On": "on", "ForceOff": "off", "GracefulShutdown": "off"}


class SweptRack(Rack):
    """A rack that is swept any number of times."""

    def answered(self) -> None:
        """Count nothing: the slow ones have a time of their own."""

    def hold(self, finish: Callable[[], None]) -> None:
        reactor.callLater(LATE, finish)


class LabBmc(RackBmc):
    """The BMC of a machine of the lab, whose power is QEMU's."""

    def __init__(self, rack: Rack, number: int, switches: Path, machine: str) -> None:
        super().__init__(rack, number)
        self.switches, self.machine = switches, machine

    def render(self, request: Any) -> Any:
        power = ask(self.switches, self.machine, "status")
        self.pages[SYSTEM]["PowerState"] = power.capitalize()
        return super().render(request)

    def _changed(self, request: Any, path: str, body: Any) -> bytes:
        if kind := body.get("ResetType"):
            op = OPS.get(kind, "reset")
            reactor.callInThread(ask, self.switches, self.machine, op)
        return super()._changed(request, path, body)


def main(network: str, folder: str, switches: str, *pairs: str) -> None:
    """Serve until the process is ended; says `ready`."""
    certificate(Path(folder))
    files = f"{folder}/key.pem", f"{folder}/cert.pem"
    context = DefaultOpenSSLContextFactory(*files, sslmethod=SSL.TLS_SERVER_METHOD)
    machines = {int(number): name for number, name in (pair.split("=") for pair in pairs)}
    rack = SweptRack()
    for number in range(1, COUNT + 1):
        name = machines.get(number)
        bmc = LabBmc(rack, number, Path(switches), name) if name else RackBmc(rack, number)
        reactor.listenSSL(443, Site(bmc), context, 50, f"{network}.{number}")
    print("ready", flush=True)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
