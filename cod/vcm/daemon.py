"""Runs a VCM until it is told to stop: reactor, threads, log, metrics, signals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cod.vcm.keeper import Keeper, Terms
from cod.vcm.memory import Forgetful
from cod.vcm.pool import Pool
from cod.vcm.settings import Settings, Unusable

THREADS = 8  # calls of the pool's functions at a time

log = logging.getLogger("cod.vcm")


def run(settings: Settings, folder: Path, vcm: str, pool: Pool, *, dry_run: bool = False) -> int:
    """Keep `pool` until SIGTERM or SIGINT; the exit status. `folder`: where the settings' files are."""
    from twisted.internet import reactor as the_reactor
    from twisted.python.threadpool import ThreadPool

    reactor: Any = the_reactor
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    threads = ThreadPool(1, THREADS, "pool")
    threads.start()
    try:
        terms, connect = _terms(settings, folder, vcm, dry_run), _connect(reactor, settings, folder)
        keeper = Keeper(reactor, threads, terms, pool, connect, time.time)
        _serve_metrics(reactor, settings, keeper)
        reactor.callWhenRunning(_started, reactor, keeper)
        reactor.addSystemEventTrigger("before", "shutdown", keeper.stopService)
        reactor.run()
        return 0 if keeper.began else 1
    except Unusable as error:
        log.error("%s", error)
        return 1
    finally:
        threads.stop()


def _started(reactor: Any, keeper: Keeper) -> None:
    try:
        keeper.startService()
    except (Forgetful, OSError) as error:
        log.error("%s", error)
        reactor.stop()


def _terms(settings: Settings, folder: Path, vcm: str, dry_run: bool) -> Terms:
    return Terms(settings.vcluster, vcm, folder / settings.state, settings.interval, settings.template,
                 settings.requires, settings.extend, dry_run)


def _connect(reactor: Any, settings: Settings, folder: Path) -> Callable[[Any], Any]:
    from cod.vcm import reach

    servers = [(address, int(port)) for address, _, port in (server.partition(":") for server in settings.servers)]
    if not settings.tls:
        return reach.plainly(reactor, servers)
    try:
        files = [(folder / name).read_bytes() for name in (settings.certificate, settings.key, settings.authority)]
        return reach.over_tls(reactor, servers, *files)
    except (OSError, ValueError) as error:
        raise Unusable(f"{error}; `cod vcm enroll {settings.vcluster}` makes new ones") from None


def _serve_metrics(reactor: Any, settings: Settings, keeper: Keeper) -> None:
    """A page for Prometheus: what the pool has, and what it waits for."""
    if not settings.metrics:
        return
    from twisted.web.resource import Resource
    from twisted.web.server import Site as WebSite

    class Page(Resource):
        isLeaf = True

        def render_GET(self, request: Any) -> bytes:
            request.setHeader(b"content-type", b"text/plain; version=0.0.4")
            return keeper.page().encode()

    address, _, port = settings.metrics.partition(":")
    reactor.listenTCP(int(port), WebSite(Page()), interface=address)  # type: ignore[no-untyped-call]
