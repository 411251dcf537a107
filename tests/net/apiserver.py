"""A real API server on a UNIX socket and on loopback TCP, with a client for each; and the command
line against it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from cod.cli.root import cod
from cod.client import Client
from cod.flows.people import tokens
from cod.model import Effect, Site, SiteRef
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca
from cod.site.changes import SiteChanges
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.web.server import ApiServer

NOW = 1_000_000.0
WEBHOOK_KEY = bytes(range(32))
SITE_FILE = {
    "server": {"database": "mysql+pymysql://cod:s3cret@db/cod"},
    "policy": {"drain_grace": 60},
    "subnet": [
        {
            "name": "lab",
            "network": "10.77.0.0/16",
            "server": "10.77.0.1",
            "interface": "lab0",
            "boot_pool": ["10.77.1.0", "10.77.1.255"],
            "block_pool": ["10.77.128.0", "10.77.255.255"],
        }
    ],
}
"""The tables of the site file whose settings the server shows."""
ADMIN, READER, STALE = "cod_admin", "cod_reader", "cod_stale"


@dataclass
class Clock:
    """Wall time that the test moves."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Served:
    """The server and what it did. `local` is the administrator's client."""

    server: ApiServer
    pool: Pool
    folder: Path
    local: Client
    clock: Clock
    effects: list[Effect] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.folder / "api.sock"

    def remote(self, token: str | None) -> Client:
        return Client(f"http://127.0.0.1:{self.server.ports[0]}", token, timeout=60)

    def tx(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return in_transaction(self.pool.engine, flow, *args, **kwargs)


@contextmanager
def serving(
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
    authority: Ca | None = None,
    with_tokens: bool = True,
    **more: Any,
) -> Iterator[Served]:
    """A server with an administrator's, a reader's and an expired token, and a group 'site'; of
    several on one database the first makes the tokens. `more`: of `ApiServer`."""
    more.setdefault("settings", SiteChanges(Path("site.toml"), SITE_FILE))
    folder = Path(tempfile.mkdtemp(prefix="cod-api-"))  # a socket's path must be short
    clock = Clock()
    effects: list[Effect] = []
    server = ApiServer(
        reactor,
        pool,
        SiteRef(site),
        folder / "api.sock",
        [("127.0.0.1", 0)],
        folder / "images",
        folder / "incoming",
        4 * 2**20,
        effects.extend,
        clock,
        WEBHOOK_KEY,
        authority,
        **more,
    )
    for name, token, scope, lifetime in (
        ("ci", ADMIN, "admin", None),
        ("eye", READER, "read", None),
        ("old", STALE, "admin", 1.0),
    ):
        if not with_tokens:
            break
        in_transaction(pool.engine, tokens.create, name, token, scope, lifetime, NOW - 10)
    in_transaction(pool.engine, groups.ensure, groups.SITE, NOW)
    (folder / "images").mkdir()
    in_reactor(server.startService)
    served = Served(
        server, pool, folder, Client(str(folder / "api.sock"), timeout=60), clock, effects
    )
    try:
        yield served
    finally:
        served.local.close()
        in_reactor(server.stopService)
        shutil.rmtree(folder, ignore_errors=True)  # a thread of an upload may still be at a file


def add_node(served: Served, name: str, number: int, **columns: Any) -> Any:
    """A node, in state new unless `columns` say otherwise."""
    return served.tx(
        nodes.add,
        name=name,
        boot_mac=f"52:54:00:00:00:{number:02x}",
        now=NOW,
        cause="seen",
        actor="test",
        **columns,
    )


def run(served: Served, *words: object, code: int = 0, stdin: str | bytes | None = None) -> Result:
    """A command, as the local administrator; it has to end with the exit code `code`."""
    result = CliRunner().invoke(cod, ["--server", str(served.socket), *map(str, words)], stdin)
    assert result.exit_code == code, result.output
    return result


def said(served: Served, *words: object, code: int = 0) -> str:
    """What a command prints, on standard output or error."""
    return run(served, *words, code=code).output


def as_json(served: Served, *words: object) -> Any:
    """What a command prints with --json."""
    return json.loads(run(served, *words, "--json").stdout)
