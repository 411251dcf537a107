"""The NMP part alone, as a process: ``python -m tests.nmp_service --url URL --ca FOLDER --address A
--port N``.

Prints "ready" when it listens; a line of JSON with its memory and CPU time for each line that it
reads. For the benchmark, so it tells VCMs apart by what they say alone (one certificate does for
thousands), and has no limits to what one may say.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.stdio import StandardIO
from twisted.protocols.basic import LineOnlyReceiver

from cod.model import Policy, Site, SiteRef, Subnet
from cod.net.nmp import limits, tls
from cod.net.nmp.server import NmpServer
from cod.pool import Pool
from cod.security.ca import Ca
from cod.store.database import connect

reactor: Any = _reactor


class Report(LineOnlyReceiver):
    """Tells how things are when it is asked."""

    delimiter = b"\n"

    def __init__(self, server: NmpServer) -> None:
        self._server = server

    def lineReceived(self, line: bytes) -> None:
        """Whatever it says."""
        gc.collect()
        status = Path("/proc/self/status").read_text()
        resident = (
            int(next(row for row in status.splitlines() if row.startswith("VmRSS")).split()[1])
            * 1024
        )
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(
            json.dumps(
                {
                    "resident": resident,
                    "cpu": used.ru_utime + used.ru_stime,
                    "now": time.monotonic(),
                    "open": len(self._server.sessions),
                }
            ),
            flush=True,
        )

    def connectionLost(self, reason: Any = None) -> None:
        """Nobody asks any more."""
        if reactor.running:
            reactor.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca", required=True, type=Path)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args()
    subnet = Subnet(
        name="bench",
        network="10.0.0.0/8",
        server=options.address,
        boot_pool=("10.1.0.0", "10.1.0.255"),
        block_pool=("10.64.0.0", "10.127.255.255"),
        block_size=64,
        router=None,
        interface=None,
    )
    site = Site("bench", "cod.test", (subnet,), Policy())
    pool = Pool(connect(options.url), reactor)
    listen = tls.listening(reactor, Ca(options.ca, "bench"), [options.address], options.port)
    limits.RATE = limits.BURST = 1e9
    limits.BYTES = 1e12, 1e12
    limits.COSTLY = {}
    limits.HELLOS = 1e9, 1e9
    server = NmpServer(
        reactor,
        pool,
        SiteRef(site),
        "cod1",
        listen,
        lambda peer: tls.PeerIdentity(tls.identity(peer).serial, "", True),
        time.time,
        lambda effects: None,
    )
    server.startService()
    reactor.callWhenRunning(lambda: (StandardIO(Report(server)), print("ready", flush=True)))
    reactor.run()
    pool.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
