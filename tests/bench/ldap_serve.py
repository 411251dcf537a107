"""The LDAP server alone, for its benchmark: `python -m tests.bench.ldap_serve DATABASE`; prints its
port."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from twisted.internet import reactor as the_reactor

from cod.model import Site, SiteRef
from cod.net.ldap.server import LdapServer
from cod.net.servertls import ServerTls
from cod.pool import Pool
from cod.security.ca import Ca
from cod.store.database import connect


def main() -> None:
    """Serve until killed."""
    reactor: Any = the_reactor
    with tempfile.TemporaryDirectory() as folder:
        tls = ServerTls(Ca(Path(folder) / "ca", "bench"), ["127.0.0.1"], time.time)
        site = SiteRef(Site("bench", "cod.bench", ()))
        server = LdapServer(
            reactor,
            Pool(connect(sys.argv[1]), reactor),
            site,
            ["127.0.0.1"],
            tls,
            port=0,
            tls_port=None,
            rate=1e9,
        )
        reactor.callWhenRunning(server.startService)
        reactor.callWhenRunning(lambda: print(server.ports[0].getHost().port, flush=True))
        reactor.run()


if __name__ == "__main__":
    main()
