"""Checks of the database: whether each of its hosts can be reached, has this program's schema, and
has the same time as this host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from cod.core.database.hosts import DatabaseHosts
from cod.core.database.writer import connect
from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.model import database_urls
from cod.quantity import span
from cod.store import database as store
from cod.store import schema, watermarks
from cod.store.mariadb import writer
from cod.store.servers import SILENT

APART = 2.0  # seconds between the clocks of database and host that harm nobody
SLOW = 0.1  # seconds for the answer to a question
REMEDY = (
    "`[server] database` in the site file names it; is the database server up, and may COD's user"
    " sign in?"
)

FILE_REMEDY = (
    "see to its disk and its owner: the checks `room`, `permissions` and `users` say more; a"
    " damaged file is brought back by `cod restore`"
)


def findings(context: Context) -> Iterator[Finding]:
    urls = database_urls(context.settings.database)
    url = make_url(next(iter(urls.values())))
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if not path.exists():
            yield Finding(
                BAD, f"{path} is not there", "`cod init` makes it, `cod restore` brings it back"
            )
            return
        if not (context.root or os.access(path, os.R_OK | os.W_OK)):
            yield Finding(
                UNSEEN,
                f"{path} is for its owner alone",
                "run `cod doctor` as root, or as the user that the server runs as",
            )
            return
    else:
        yield from _hosts(urls)
    engine = connect(context.settings.database)
    try:
        newer = schema.check(engine)
        begin = time.monotonic()
        database_time = store.clock(engine)
        took = time.monotonic() - begin
        with engine.connect() as tx:
            writer_host = writer.host(tx) if len(urls) > 1 else ""
            held = watermarks.at(tx, watermarks.HOLD) is not None
            why = watermarks.about(tx, watermarks.HOLD)
    except schema.SchemaMismatch as error:
        yield Finding(
            BAD, str(error), "`cod db upgrade`, or the version of COD that made the database"
        )
        return
    except DBAPIError as error:
        where = ", ".join(urls) if len(urls) > 1 else url.render_as_string()
        is_file = url.get_backend_name() == "sqlite"
        yield Finding(BAD, f"{where}: {error.orig}", FILE_REMEDY if is_file else REMEDY)
        return
    finally:
        engine.dispose()
    if held:
        yield Finding(
            WARNING,
            f"the site is held: {why}; nothing is granted or erased",
            "`cod db reconcile` compares it with its machines, `cod db hold --end` ends the hold",
        )
    summary = f"{url.get_backend_name()}, schema {schema.head()}, answers in {took * 1000:.1f} ms"
    summary += f", its writer is {writer_host}" if writer_host else ""
    drift = None if database_time is None else database_time - time.time()
    if drift is not None and abs(drift) > APART:
        yield Finding(
            WARNING,
            f"{summary}; its clock is {drift:+.0f} s from this host's",
            "synchronise both hosts' clocks (chrony)",
        )
    elif newer:
        yield Finding(WARNING, newer, "install the newer version of COD on this host, too")
    elif took > SLOW:
        yield Finding(
            WARNING,
            f"{summary}: slow",
            "every DHCP answer waits for a commit: look at the disk, "
            "or at the network between the two",
        )
    else:
        yield Finding(GOOD, summary)


def _hosts(urls: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings for hosts of the database with a fault. If there is only one host, and it does
    not answer, the next check reports that."""
    for host in DatabaseHosts(urls).look():
        if host.reason:
            if len(urls) > 1:
                yield Finding(WARNING, f"{host.name} does not answer: {host.reason}", REMEDY)
            continue
        if host.lossy:
            yield Finding(
                WARNING,
                f"{host.name} has {', '.join(host.lossy)}: a power cut may undo what COD has"
                " promised",
                "set innodb_flush_log_at_trx_commit=1 and sync_binlog=1 there",
            )
        if host.cluster_size and host.node_state != "Synced":
            yield Finding(
                WARNING,
                f"{host.name} is {host.node_state}, not Synced: it serves nobody",
                "can it reach the other nodes? Its error log says what it waits for",
            )
        if 0 < host.cluster_size < len(urls):
            yield Finding(
                WARNING,
                f"{host.name} is in a cluster of {host.cluster_size}, `[server] database` names"
                f" {len(urls)} hosts",
                "start the nodes that are missing; `wsrep_cluster_address` names all?",
            )
        if host.behind is not None and host.behind > SILENT:
            yield Finding(
                WARNING,
                f"{host.name} is {span(host.behind)} behind the newest of the other hosts",
                "does replication run there (SHOW REPLICA STATUS)? It must not become the writer"
                " before it has caught up",
            )
