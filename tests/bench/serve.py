"""Runs one of the file servers alone, for a benchmark: ``python -m tests.bench.serve tftp|http ROOT
ADDRESS PORT``."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from twisted.internet import reactor

from cod.model import ImageRules, Site, SiteRef, Subnet
from cod.net.bootserver.connection import HttpLimits
from cod.net.bootserver.server import HttpServer
from cod.net.tftp.server import TftpServer, TransferLimits


def main(kind: str, root: str, address: str, port: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    subnet = Subnet("bench", f"{address}/24", address, (address, address), (address, address))
    site = Site("bench", "bench.test", (subnet,), images=ImageRules(open=True))
    pool: Any = None  # only static files are asked for
    if kind == "tftp":
        limits = TransferLimits(in_all=4096, per_peer=4096)
        TftpServer(
            reactor, pool, SiteRef(site), subnet, Path(root), port=int(port), transfer_limits=limits
        ).startService()
    else:
        HttpServer(
            reactor,
            pool,
            SiteRef(site),
            Path(root),
            Path(root),
            [address],
            int(port),
            limits=HttpLimits(per_peer=4096),
        ).startService()
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
