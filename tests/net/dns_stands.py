"""DNS servers on loopback, and secondaries of others that follow them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cod.model import Site, SiteRef
from cod.net.dns.notifier import ZoneNotifier
from cod.net.dns.server import DnsServer
from cod.pool import Pool

Start = Callable[..., DnsServer]


@contextmanager
def dns_servers(
    reactor: Any, in_reactor: Any, pool: Pool, site: Site | None = None, **always: Any
) -> Iterator[Start]:
    """Give what starts servers, of `site` where no other is said; they end together."""
    servers: list[DnsServer] = []

    def start(site: Any = site, address: str = "127.0.0.1", **options: Any) -> DnsServer:
        given = {"port": 0} | always | options
        server = DnsServer(reactor, pool, SiteRef(site), address, **given)
        in_reactor(server.startService)
        servers.append(server)
        return server

    yield start
    for server in servers:
        in_reactor(server.stopService)


@contextmanager
def secondary_running(
    command: Sequence[str], text: str, folder: Path, notifier: ZoneNotifier, in_reactor: Any
) -> Iterator[None]:
    """Run another's name server with that configuration, told of changes by `notifier`."""
    file = folder / "secondary.conf"
    file.write_text(text)
    with open(folder / "log", "wb") as log:
        program = subprocess.Popen([*command, str(file)], stderr=log, stdout=log)
    in_reactor(notifier.startService)
    try:
        yield
    finally:
        in_reactor(notifier.stopService)
        program.terminate()
        program.wait()
