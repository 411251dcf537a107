"""The tables of the site file with the settings of the server itself. Tables that flows see are in
`cod.model`, and rules within a table in `cod.site.coherence`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from cod.model.keys import DAY, AbsolutePath, HostName, NotNegativeDays, Read, SiteTable, site_key
from cod.model.site.database import database_urls

DIALECTS = ("sqlite", "mysql", "mariadb")


def address_and_port(pair: str) -> tuple[str, int]:
    """Split 'ADDRESS:PORT' ('[::1]:80' for IPv6). Raises ValueError with a sentence."""
    address, colon, port = pair.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535 or not address:
        raise ValueError(f"{pair!r} should be ADDRESS:PORT, such as 127.0.0.1:8080")
    return address.strip("[]"), int(port)


def _known_database(url: str) -> str:
    if not url:
        return url
    try:
        dialect = make_url(next(iter(database_urls(url).values()))).get_backend_name()
    except ArgumentError:
        raise ValueError("should be a URL such as sqlite:////var/lib/cod/cod.db") from None
    if dialect not in DIALECTS:
        raise ValueError(f"should be a sqlite, mysql or mariadb URL, not {dialect}")
    return url


def _pairs(listen: tuple[str, ...]) -> tuple[str, ...]:
    for pair in listen:
        address_and_port(pair)
    return listen


@dataclass(frozen=True, slots=True)
class ServerTable(SiteTable):
    """The server itself."""

    name: str = site_key(
        "",
        "this server's name among those that share its database; empty: the host's",
        max_length=64,
    )
    data_dir: Path = site_key(
        Path("/var/lib/cod"),
        "everything COD keeps: boot/, images/, run/ and the SQLite file live below it",
    )
    database: Annotated[str, Read(_known_database)] = site_key(
        "",
        "database URL; empty: SQLite in the data folder. "
        "MariaDB: mysql+pymysql://cod:PASSWORD@localhost/cod; "
        "a cluster: mysql+pymysql://cod:PASSWORD@db1,db2,db3/cod",
        secret=True,
    )
    log_level: Literal["debug", "info", "warning", "error"] = site_key(
        "info", "debug, info, warning or error (re-read on SIGHUP)"
    )
    log_format: Literal["text", "json"] = site_key(
        "text", "text for people, json for programs; one line each"
    )
    keep_history: NotNegativeDays = site_key(
        365 * DAY,
        "days after which the nodes' history, decided requests, "
        "reclaims, notices, conflicts and the audit are deleted; 0: never",
    )


@dataclass(frozen=True, slots=True)
class ApiTable(SiteTable):
    """The portal and the REST API. A UNIX socket for the local administrator (run/api.sock) is
    always there."""

    listen: Annotated[tuple[str, ...], Read(_pairs)] = site_key(
        (),
        "ADDRESS:PORT pairs for the portal and for programs, over TLS; "
        "people sign in, programs show a token (`cod token create`)",
    )
    names: tuple[HostName, ...] = site_key(
        (),
        "the server's names as browsers know it (not its addresses); "
        "the first goes into links. None: the host's",
    )
    certificate: AbsolutePath | None = site_key(
        None,
        "PEM file of the site's own certificate with those that "
        "sign it; re-read on SIGHUP. Not set: COD makes one, DATA_DIR/web/web.crt",
    )
    key: AbsolutePath | None = site_key(None, "PEM file of its key")
    plain: bool = site_key(
        False, "without TLS; for loopback alone, behind a proxy on the same host that has TLS"
    )
    upload_limit: int = site_key(256 * 2**30, "largest image upload, bytes", gt=0, unit="bytes")


def api_problems(table: ApiTable) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if (table.certificate is None) != (table.key is None):
        yield "certificate and key should be set both, or neither"
    if table.plain and not all(
        ip_address(address_and_port(pair)[0]).is_loopback for pair in table.listen
    ):
        yield "plain should be true only where every address in listen is a loopback address"
