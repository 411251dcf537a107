"""Runs a VCM until it is told to stop: command line, reactor, threads, log, metrics, signals."""

from __future__ import annotations

import argparse
import fcntl
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from cod.vcm.pool import Pool
from cod.vcm.renewal import Renewal
from cod.vcm.retry import Options
from cod.vcm.service import VcmService
from cod.vcm.settings import BadSettings, Settings, load
from cod.vcm.state import BadState

WARN_DAYS = 30  # before the end of the certificate
THREADS = 8  # calls of the pool's functions at a time

log = logging.getLogger("cod.vcm")

S = TypeVar("S", bound=Settings)


def main(
    vcm: str, pool: Callable[[S], Pool], kind: type[S], words: Sequence[str] | None = None
) -> int:
    """Run the command line of a VCM written by its users, ``NAME CONFIG [--dry-run]``. Return the
    exit status.

    vcm   its name and version: 'webfarm 1.0'
    pool  makes the pool of the settings in the file, which are of `kind`
    """
    parser = argparse.ArgumentParser(
        description=f"Virtual cluster manager {vcm}; runs until SIGTERM or SIGINT."
    )
    parser.add_argument("config", type=Path, help="as `cod vcm enroll` writes it")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be asked for and given back, and do neither",
    )
    options = parser.parse_args(words)
    try:
        settings = load(options.config, kind)
        return run(settings, options.config.parent, vcm, pool(settings), dry_run=options.dry_run)
    except BadSettings as error:
        print(error, file=sys.stderr)
        return 1


def run(settings: Settings, folder: Path, vcm: str, pool: Pool, *, dry_run: bool = False) -> int:
    """Run `pool` until SIGTERM or SIGINT; return the exit status. `folder` contains the files that
    the settings name."""
    from twisted.internet import reactor as the_reactor
    from twisted.internet.error import CannotListenError
    from twisted.python.threadpool import ThreadPool

    reactor: Any = the_reactor
    _log(settings.log_level.upper())
    threads = ThreadPool(1, THREADS, "pool")
    threads.start()
    try:
        with _alone(folder / settings.state):
            options = Options(
                vcluster=settings.vcluster,
                vcm=vcm,
                state=folder / settings.state,
                interval=settings.interval,
                template=settings.template,
                requires=settings.requires,
                extend=settings.extend,
                dry_run=dry_run,
            )
            connect = _connect(reactor, settings, folder)
            renewal = (
                Renewal(reactor, threads, settings, folder, time.time) if settings.tls else None
            )
            service = VcmService(reactor, threads, options, pool, connect, time.time, renewal)
            _serve_metrics(reactor, settings, folder, service)
            reactor.callWhenRunning(_started, reactor, service)
            reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
            reactor.run()
        return 0 if service.began else 1
    except (BadSettings, CannotListenError) as error:
        log.error("%s", error)
        return 1
    finally:
        threads.stop()


def _log(level: str) -> None:
    from twisted.python.log import PythonLoggingObserver

    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("twisted").setLevel(logging.ERROR)
    PythonLoggingObserver("twisted").start()


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold the lock of the VCM with that state file. Two running VCMs of a vcluster would take the
    connection from each other for ever. Raises `BadSettings`."""
    try:
        lock = state.with_name(state.name + ".lock").open("w")
    except OSError as error:
        raise BadSettings(
            f"{state.parent}: {error.strerror}; the VCM's folder must be writable for it"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadSettings(f"{state} is used by another VCM, which runs already") from None
        yield


def _started(reactor: Any, service: VcmService) -> None:
    try:
        service.startService()
    except (BadState, OSError) as error:
        log.error("%s", error)
        reactor.stop()


def _connect(reactor: Any, settings: Settings, folder: Path) -> Callable[[Any], Any]:
    """Return a function that connects a link. It reads the credentials each time, so a new
    enrolment needs no restart."""
    from twisted.internet.defer import ensureDeferred

    from cod.vcm import connect as reach
    from cod.vcm import credentials, enroll

    servers = [
        (address, int(port))
        for address, _, port in (server.partition(":") for server in settings.servers)
    ]
    if not settings.tls:
        return reach.plainly(reactor, servers)
    turns = cycle(servers)

    def connector() -> Callable[[Any], Any]:
        own = credentials.load(settings, folder)
        return reach.over_tls(reactor, [next(turns)], own.certificate, own.key, own.authority)

    async def connect(link: Any) -> Any:
        if enroll.is_invited(settings, folder):
            try:
                authority = (folder / settings.authority).read_bytes()
                stranger = reach.over_tls(reactor, [next(turns)], b"", b"", authority)
                await enroll.trade(reactor, settings, folder, stranger)
            except Exception as error:
                if not (folder / settings.certificate).exists():
                    raise
                log.warning(
                    "the invitation was not traded: %s; going on with the certificate that is"
                    " there",
                    error,
                )
        return await connector()(link)

    if not enroll.is_invited(settings, folder):
        try:
            connector()
            left = reach.days_left(credentials.load(settings, folder).certificate, time.time())
        except (OSError, ValueError) as error:
            raise BadSettings(
                f"{error}; `cod vcm enroll {settings.vcluster}` makes new ones"
            ) from None
        if left < WARN_DAYS:
            log.warning(
                "the certificate ends in %d days and was not renewed yet: `cod vcm enroll %s` makes"
                " a new one",
                left,
                settings.vcluster,
            )
    return lambda link: ensureDeferred(connect(link))


def _serve_metrics(reactor: Any, settings: Settings, folder: Path, service: VcmService) -> None:
    """Serve a page for Prometheus with the numbers of the pool's nodes and requests."""
    if not settings.metrics:
        return
    from twisted.web.resource import Resource
    from twisted.web.server import Site as WebSite

    class Page(Resource):
        isLeaf = True

        def render_GET(self, request: Any) -> bytes:
            request.setHeader(b"content-type", b"text/plain; version=0.0.4")
            return (service.page() + _expiry(settings, folder)).encode()

    address, _, port = settings.metrics.partition(":")
    reactor.listenTCP(int(port), WebSite(Page()), interface=address)  # type: ignore[no-untyped-call]


def _expiry(settings: Settings, folder: Path) -> str:
    """Return a line of metrics with the days until the certificate expires."""
    from cod.vcm import connect as reach
    from cod.vcm import credentials

    if not settings.tls:
        return ""
    try:
        left = reach.days_left(credentials.load(settings, folder).certificate, time.time())
    except (OSError, ValueError):
        left = 0.0
    name = "cod_vcm_certificate_days"
    return f'# TYPE {name} gauge\n{name}{{vcluster="{settings.vcluster}"}} {left:.1f}\n'
