"""The DHCP part alone, as a process that can be put into a network namespace: ``python -m
tests.dhcp_service``.

Prints "ready" when it listens; ends by SIGTERM, printing its counts as JSON. For system tests and
the benchmark.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from twisted.internet import reactor as _reactor

from cod.model import Policy, Site, SiteRef, Subnet
from cod.net.dhcp.ra import RouterAdvertiser
from cod.net.dhcp.server import DhcpServer
from cod.policy.nodes.subnets import listeners
from cod.pool import Pool
from cod.store import tables
from cod.store.database import connect

reactor: Any = _reactor


def _subnet(values: dict[str, Any]) -> Subnet:
    arguments: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
    }
    return Subnet(**arguments)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--subnet", required=True, action="append", help="Subnet as JSON")
    parser.add_argument("--unknown", default="discover")
    options = parser.parse_args()
    subnets = tuple(_subnet(json.loads(text)) for text in options.subnet)
    site = Site("test", "cod.test", subnets, Policy(unknown=options.unknown))
    engine = connect(options.url)
    tables.metadata.create_all(engine)
    pool = Pool(engine, reactor)
    servers = [DhcpServer(reactor, pool, SiteRef(site), subnet) for subnet in listeners(subnets)]
    advertisers = [
        RouterAdvertiser(reactor, subnet.interface) for subnet in subnets if subnet.interface
    ]
    for service in (*servers, *advertisers):
        service.startService()
    reactor.callWhenRunning(lambda: print("ready", flush=True))
    reactor.run()
    pool.close()
    counted = sum((server.counts for server in servers), Counter[tuple[str, str]]())
    counts = {"/".join(key): count for key, count in counted.items()}
    print(json.dumps(counts | {"advertised": sum(each.count for each in advertisers)}), flush=True)


if __name__ == "__main__":
    main()
