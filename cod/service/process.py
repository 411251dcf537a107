"""A part of the server as a process: runs its services until it is told to stop."""

from __future__ import annotations

import gc
import logging
import resource
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from cod import logs, supervisor
from cod.core.database.writer import connect
from cod.flows import site_settings
from cod.model import HostPart, SettingChange, Site, SiteRef
from cod.security import ca
from cod.service.parts import METRICS_EVERY, PARTS, PartContext
from cod.site import load
from cod.site.changes import SiteChanges
from cod.site.load import ConfigError, Settings
from cod.store import schema

log = logging.getLogger("cod.service")


def keep_time(reactor: Any) -> None:
    """Make the reactor's time independent of changes of the host's clock. With Twisted's default,
    all timers stand still while the clock catches up after it was set back, and nothing shows
    why."""
    ahead = time.time() - time.monotonic()  # so that it starts at the time of day
    reactor.seconds = lambda: time.monotonic() + ahead


def run(name: str, site: Site, settings: Settings) -> int:
    """Run one part in this process until SIGTERM or SIGINT."""
    from twisted.internet import reactor as the_reactor

    from cod.net.wake import Wake
    from cod.periodic import Timer
    from cod.pool import Pool
    from cod.web.api import metrics
    from cod.workers import lost_commits
    from cod.workers.presence import Presence
    from cod.workers.settings import SettingsWatch, newest

    reactor: Any = the_reactor
    keep_time(reactor)
    # Each agent and each download holds a descriptor, and the usual soft limit of 1024 is there for
    # select(2) alone.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    engine = connect(settings.database)
    pool = Pool(engine, reactor, observe=metrics.observe)
    # nodes get it with their seed
    site = replace(site, authority=ca.certificate(settings.authority).decode())
    changes = SiteChanges(settings.path, load.tables(settings.path))
    wake = Wake(reactor, settings.run, name)
    context = PartContext(reactor, pool, SiteRef(site), settings, wake, changes=changes)
    queued = Timer(
        reactor, METRICS_EVERY, lambda: metrics.QUEUED.labels(name).set(pool.queued()), at_once=True
    )
    alive = (
        [Timer(reactor, every, lambda: supervisor.tell("WATCHDOG=1"), at_once=True)]
        if (every := supervisor.sign_of_life_every())
        else []
    )
    presence = Presence(reactor, pool, said_of(name, context), context.clock, lambda: part.fail())
    with engine.connect() as tx:
        changed = site_settings.current(tx)
    watch = SettingsWatch(reactor, pool, newest(changed), lambda found: part.obey(found))
    wake.on("settings", watch.wake)
    part = Running(name, context, [*alive, queued, *PARTS[name](context), watch, presence])
    lost_commits.look_first(engine, settings.memory, context.clock())
    part.obey(changed)  # before any service acts by what the site file alone says
    metrics.UP.labels(name).set(1)
    reactor.callWhenRunning(catch_stops, reactor)
    reactor.callWhenRunning(part.start)
    reactor.addSystemEventTrigger("before", "shutdown", part.stop)
    reactor.run()
    pool.close()
    return part.status


def said_of(name: str, context: PartContext) -> HostPart:
    """Return the report of a part for the site's other servers."""
    addresses = dict.fromkeys(subnet.server for subnet in context.site.current.subnets)
    now = context.clock()
    return HostPart(
        context.settings.name,
        name,
        tuple(addresses),
        version("cod"),
        schema.head(),
        now,
        now,
        context.key if name == "images" else "",
    )


def catch_stops(reactor: Any) -> None:
    """Have SIGTERM and SIGINT stop the running reactor, once. A part may get two signals: one from
    its supervisor, and one from systemd or a terminal, which signal all processes. Twisted's own
    handler logs the second as an error (ReactorNotRunning)."""
    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            reactor.callFromThread(_stop, reactor)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _stop(reactor: Any) -> None:
    """Stop the reactor, unless it is stopping already."""
    from twisted.internet.error import ReactorNotRunning

    with suppress(ReactorNotRunning):
        reactor.stop()


class Running:
    """The services of a part while they run."""

    def __init__(self, name: str, context: PartContext, services: list[Any]) -> None:
        self.status = 0
        self._name, self._context, self._services = name, context, services
        self._started: list[Any] = []
        self._changed: Sequence[SettingChange] = ()

    def start(self) -> None:
        """Start all services. If one cannot start, the process ends, and its supervisor (or
        systemd) starts it again."""
        signal.signal(signal.SIGHUP, lambda *_: self._context.reactor.callFromThread(self.reread))
        from twisted.internet.error import CannotListenError

        from cod.net.socketservice import why

        for service in self._services:
            try:
                service.startService()
            except Exception as error:
                log.error(
                    "%s cannot start: %s",
                    type(service).__name__,
                    why(error),
                    exc_info=not isinstance(error, OSError | CannotListenError),
                )
                self.fail()
                return
            self._started.append(service)
        gc.collect()
        # modules stay in use to the end: each garbage collection would spend a tenth of a second
        # on them
        gc.freeze()
        gc.enable()  # `cod serve` loaded them without
        supervisor.tell("READY=1")
        log.info("ready")

    def fail(self) -> None:
        """End the process with an error."""
        self.status = 1
        _stop(self._context.reactor)

    def stop(self) -> Any:
        """Stop all services, the last started first; return a Deferred that fires when all have
        stopped."""
        from twisted.internet.defer import DeferredList, maybeDeferred

        self._context.wake.close()
        return DeferredList(
            [maybeDeferred(s.stopService) for s in reversed(self._started)], consumeErrors=True
        )

    def reread(self) -> None:
        """Read the site file again, and use those of its settings that may change in a running
        server."""
        assert self._context.changes
        try:
            settings = self._context.changes.reread()
        except ConfigError as error:
            log.error(
                "the site file has changed and cannot be used; the old settings stay: %s", error
            )
            return
        logs.set_level(settings.server.log_level)
        log.info("read the site file again")
        self.obey(self._changed)

    def obey(self, changes: Sequence[SettingChange]) -> None:
        """Use settings that were changed; `changes` has the newest change of each."""
        assert self._context.changes
        self._changed = changes
        site, refused = self._context.changes.site(changes)
        for name, why in refused.items():
            log.error("the change of the setting %s is not in effect: %s", name, why)
        take_over(self._context.site, site)
        names = {one.name for one in changes if one.value is not None} - refused.keys()
        if changes:
            log.info("takes over changed settings: %s", ", ".join(sorted(names)) or "none")
        for service in self._started:
            if hasattr(service, "reread"):
                service.reread()


CHANGING = (
    "policy",
    "power",
    "energy",
    "mail",
    "notices",
    "accounts",
    "types",
    "signin",
    "images",
    "keep",
    "consoles",
    "switches",
    "posix",
    "groups",
    "burnin",
    "fileservers",
    "volumes",
    "mirrors",
    "kerberos",
)
"""The fields of `Site` that SIGHUP changes: rules and accounts. All others tell services what to
listen on."""


def take_over(site: SiteRef, new: Site) -> None:
    """Give all services of this process the rules and accounts of the site `new`."""
    site.current = replace(site.current, **{name: getattr(new, name) for name in CHANGING})
