"""The DNS server alone, for its benchmark: `python -m tests.bench.dns_serve DATABASE ADDRESS
PORT`."""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor as the_reactor

from cod.model import SiteRef
from cod.net.dns.server import DnsServer
from cod.pool import Pool
from cod.store.database import connect
from tests.bench.bench_dns import SITE


def main(database: str, address: str, port: str) -> None:
    """Serve until killed."""
    reactor: Any = the_reactor
    pool = Pool(connect(database), reactor)
    server = DnsServer(reactor, pool, SiteRef(SITE), address, port=int(port))
    reactor.callWhenRunning(server.startService)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
