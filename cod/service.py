"""The composition root: `cod serve` puts the server's parts together and runs them.

    edge     DHCP, DNS, TFTP, confd, router advertisements
    images   the HTTP boot and image server, ingest of images
    manager  the resource manager, deadlines, power, consoles, notices
    web      the REST API and the metrics

Each is a list of services (twisted.application) around one pool. Only this module knows all of
them; none of them knows the process that it runs in.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import resource
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cod import logs, supervisor
from cod.images import store
from cod.model import METADATA_ADDRESS, HostKey, Inviter, Site, SiteRef, Subnet
from cod.policy.nodes.subnets import listeners
from cod.security import ca, hostkeys, partusers, secretfile, webcert
from cod.security.ca import Ca
from cod.security.signer import RemoteAuthority
from cod.site import load
from cod.site.load import ConfigError, Settings
from cod.store.engine import connect

if TYPE_CHECKING:
    from cod.net.wake import Wake
    from cod.pool import Pool

METRICS_EVERY = 5.0  # seconds
# A pass makes a hundred thousand records, all of them in use until it ends: with Python's own
# thresholds a quarter of its time would be spent looking for garbage among them.
GARBAGE = (50_000, 20, 100)
MEMORY = Path("/dev/shm")  # a file system in memory

log = logging.getLogger("cod.service")


@dataclass(frozen=True, slots=True)
class PartContext:
    """What the services of a part are made of."""

    reactor: Any
    pool: Pool
    site: SiteRef
    settings: Settings
    wake: Wake
    clock: Callable[[], float] = time.time


def serve(site_file: Path, only: Iterable[str] = (), *, users: bool = False) -> int:
    """Run the server until it is told to stop; the exit status. One part runs in this process,
    several in their own; `users`: each as the user that `security.partusers` says, whose files
    `cod permissions` has made ready."""
    names = list(only) or list(PARTS)
    lacking = _lacking() if users else ""
    split = users and not lacking
    alone = len(names) == 1 and not split
    supervisor.die_with_supervisor()
    if split:
        partusers.join()
    try:
        site, settings = load.load(site_file)
        logs.set_up(settings.log_level, settings.log_format, names[0] if alone else "supervisor")
        if lacking:
            log.warning("all parts run as one user: %s", lacking)
        _check_database(settings)
        if split or _has_own_user():
            _join(settings)
        else:
            prepare(site, settings)
    except ConfigError as error:
        logs.set_up("info", "text", "serve")
        for problem in str(error).splitlines():
            log.error("%s", problem)
        return 1
    except BadService as error:
        log.error("%s", error)
        return 1
    counters = counters_folder(settings)
    try:
        with only_one(settings, names if supervisor.PARENT not in os.environ else []):
            if alone:
                status = run(names[0], site, settings)
            else:
                supervisor.Supervisor(names, site_file, counters, users=split).run()
                status = 0
    except BadService as error:
        log.error("%s", error)
        return 1
    if supervisor.PARENT not in os.environ:
        _forget_ended(counters)
        with suppress(OSError):  # another part counts there
            counters.rmdir()
    return status


def _lacking() -> str:
    """Return what keeps the parts from running as users of their own; '': nothing does."""
    if os.geteuid():
        return "only root can start the parts as users of their own"
    if missing := partusers.missing():
        return f"this host has no {', '.join(missing)} (docs/systemd/cod.sysusers.conf)"
    return "" if shutil.which("setpriv") else "the program setpriv (util-linux) is missing"


class BadService(Exception):
    """The database or the data folder is not fit to be served from; the sentence says what to
    do."""


@contextmanager
def only_one(settings: Settings, names: Iterable[str]) -> Iterator[None]:
    """Hold the locks of those parts of this server. The kernel drops a lock with its process.
    Raises `BadService` where another process holds one: two of them would take ports, agents and
    sockets from each other."""
    with ExitStack() as held:
        for name in names:
            path = settings.lock(name)
            try:
                lock = held.enter_context(open(path, "a+b", buffering=0, opener=_no_link))
            except OSError as error:  # a full disk, say: no reason not to serve
                log.warning("%s cannot be made: %s", path, error.strerror)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                process = (lock.read(20) or b"").decode(errors="replace").strip()
                raise BadService(
                    f"another `cod serve` (process {process or 'unknown'}) runs {name} on"
                    f" {settings.data}: stop it first, or give this one a data folder of its own"
                ) from None
            except OSError as error:  # a file system without locks
                log.warning("%s cannot be locked: %s", path, error.strerror)
                continue
            with suppress(OSError):
                lock.truncate(0)
                lock.write(str(os.getpid()).encode())
        yield


def _no_link(path: str, flags: int) -> int:
    """Open a file of the run folder, where each part may put a link to another's file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o660)


def _check_database(settings: Settings) -> None:
    from sqlalchemy.exc import DBAPIError

    from cod.store import schema

    engine = connect(settings.database)
    try:
        schema.check(engine)
    except schema.SchemaMismatch as error:
        raise BadService(str(error)) from None
    except DBAPIError as error:
        full = settings.data.exists() and not shutil.disk_usage(settings.data).free
        why = f"; the disk that {settings.data} is on is full" if full else ""
        raise BadService(f"the database cannot be used: {error.orig}{why}") from None
    finally:
        engine.dispose()


def prepare(site: Site, settings: Settings) -> None:
    """Make the run folder, the keys and certificates that are missing, and the files that the
    processes of this host count in (before prometheus_client is imported). Raises `BadService`."""
    counters = counters_folder(settings)
    try:
        settings.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        partusers.close(settings.run)
        store.private(settings.images)
        _make_private(counters)
        secretfile.key(settings.webhook_key)  # made once, before several processes want it
        if Ca(settings.authority, site.name).renew(datetime.now(UTC)):
            log.warning(
                "the site's authority for VCMs was about to end: its certificate is renewed"
            )
        if not settings.plain:
            webcert.loaded(_web_certificate(site.subnets, settings))
    except (webcert.BadWebCertificate, ca.BadAuthority) as error:
        raise BadService(str(error)) from None
    except OSError as error:
        folder = error.filename or settings.run
        raise BadService(f"{folder} cannot be made or written to: {error.strerror}") from None
    except secretfile.Unreadable as error:
        raise BadService(str(error)) from None
    _count_in(counters)


def _join(settings: Settings) -> None:
    """Use what `cod permissions` has prepared, which the part of this process could not make.
    Raises `BadService`."""
    os.umask(0o027)  # the parts read each other's files, and write none of them
    counters = counters_folder(settings)
    for folder in (settings.run, counters):
        if not (os.access(folder, os.W_OK) and folder.stat().st_gid in partusers.group_ids()):
            raise BadService(
                f"{folder} is not there or not for the parts' users: run `cod permissions`"
            )
    _count_in(counters)


def _count_in(counters: Path) -> None:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counters)
    if supervisor.PARENT not in os.environ:  # a supervised part continues its predecessor's counts
        _forget_ended(counters)


def counters_folder(settings: Settings) -> Path:
    """Return the folder that the processes of this host count in. It is in memory: a counter is a
    mapped file, and on a full disk a process that counts would be killed by SIGBUS."""
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]  # of a systemd unit
    if runtime:
        return Path(runtime, "metrics")
    if not MEMORY.is_dir():
        return settings.run / "metrics"
    data = blake2b(bytes(settings.data.resolve()), digest_size=8).hexdigest()
    with suppress(FileNotFoundError):  # all parts' is one folder, whichever users they run as
        return MEMORY / f"cod-{settings.data.stat().st_uid}-{data}"
    return MEMORY / f"cod-{os.geteuid()}-{data}"


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone. Raises `BadService` where somebody else has made it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BadService(f"{folder} belongs to another user: remove it")


def _forget_ended(counters: Path) -> None:
    """Remove the counts of this process and of those that are gone."""
    for file in counters.glob("*.db"):
        process = file.stem.rpartition("_")[2]
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            file.unlink(missing_ok=True)


def keep_time(reactor: Any) -> None:
    """Let the reactor's time go on evenly, whatever is done to the clock of the host: by that,
    which is Twisted's own choice, all timers would stand still when it is set back, and nobody
    would see that it was set."""
    ahead = time.time() - time.monotonic()  # it looks like the time of day, and is it at first
    reactor.seconds = lambda: time.monotonic() + ahead


def run(name: str, site: Site, settings: Settings) -> int:
    """Run one part in this process until SIGTERM or SIGINT."""
    from twisted.internet import reactor as the_reactor

    from cod.net.wake import Wake
    from cod.periodic import Timer
    from cod.pool import Pool
    from cod.web import metrics

    reactor: Any = the_reactor
    keep_time(reactor)
    # Each agent and each download holds a descriptor, and the usual soft limit of 1024 is there for
    # select(2) alone.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    pool = Pool(connect(settings.database), reactor, observe=metrics.observe)
    # nodes get it by the seed
    site = replace(site, authority=ca.certificate(settings.authority).decode())
    context = PartContext(reactor, pool, SiteRef(site), settings, Wake(reactor, settings.run, name))
    queued = Timer(
        reactor, METRICS_EVERY, lambda: metrics.QUEUED.labels(name).set(pool.queued()), at_once=True
    )
    alive = (
        [Timer(reactor, every, lambda: supervisor.tell("WATCHDOG=1"), at_once=True)]
        if (every := supervisor.sign_of_life_every())
        else []
    )
    part = Running(name, context, [*alive, queued, *PARTS[name](context)])
    metrics.UP.labels(name).set(1)
    reactor.callWhenRunning(catch_stops, reactor)
    reactor.callWhenRunning(part.start)
    reactor.addSystemEventTrigger("before", "shutdown", part.stop)
    reactor.run()
    pool.close()
    return part.status


def catch_stops(reactor: Any) -> None:
    """Have SIGTERM and SIGINT stop the running reactor, once. A part may get two: of its
    supervisor, and of systemd or a terminal, which signal all processes; Twisted's own handler logs
    the second as an error (ReactorNotRunning)."""
    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            reactor.callFromThread(_stop, reactor)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _stop(reactor: Any) -> None:
    """Stop the reactor, unless it is stopping."""
    from twisted.internet.error import ReactorNotRunning

    with suppress(ReactorNotRunning):
        reactor.stop()


class Running:
    """The services of a part while they run."""

    def __init__(self, name: str, context: PartContext, services: list[Any]) -> None:
        self.status = 0
        self._name, self._context, self._services = name, context, services
        self._started: list[Any] = []

    def start(self) -> None:
        """Start all; what cannot start ends the process, which its supervisor (or systemd) starts
        again."""
        signal.signal(signal.SIGHUP, lambda *_: self._context.reactor.callFromThread(self.reread))
        from cod.net.socketservice import why

        for service in self._services:
            try:
                service.startService()
            except Exception as error:
                log.error(
                    "%s cannot start: %s",
                    type(service).__name__,
                    why(error),
                    exc_info=not _is_expected(error),
                )
                self.status = 1
                _stop(self._context.reactor)
                return
            self._started.append(service)
        gc.collect()
        # modules stay to the end: to look for garbage among them would take a tenth of a second
        # each time
        gc.freeze()
        supervisor.tell("READY=1")
        log.info("ready")

    def stop(self) -> Any:
        """Stop all, last started first; a Deferred that fires when all have."""
        from twisted.internet.defer import DeferredList, maybeDeferred

        self._context.wake.close()
        return DeferredList(
            [maybeDeferred(s.stopService) for s in reversed(self._started)], consumeErrors=True
        )

    def reread(self) -> None:
        """Read the site file again and take over what can change while running."""
        try:
            site, settings = load.load(self._context.settings.path)
        except ConfigError as error:
            log.error(
                "the site file has changed and cannot be used; the old settings stay: %s", error
            )
            return
        take_over(self._context.site, site)
        logs.set_level(settings.log_level)
        for service in self._started:
            if hasattr(service, "reread"):
                service.reread()
        log.info("read the site file again")


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
    "fileservers",
    "volumes",
)
"""The fields of `Site` that SIGHUP changes: rules and accounts. All others tell services what to
listen on."""


def take_over(site: SiteRef, new: Site) -> None:
    """Change the site, as every service of this process sees it, to the rules and the accounts of
    `new`."""
    site.current = replace(site.current, **{name: getattr(new, name) for name in CHANGING})


def _is_expected(error: Exception) -> bool:
    from twisted.internet.error import CannotListenError

    return isinstance(error, OSError | CannotListenError)


# ---------------------------------------------------------------- the parts


def edge(context: PartContext) -> list[Any]:
    """DHCP and router advertisements on each subnet's interface, DHCP for relays on the server
    addresses of subnets without one; DNS, TFTP and confd on each server address."""
    from cod.net.confd.connection import AgentConnection
    from cod.net.confd.server import ConfdServer
    from cod.net.dhcp.ra import RouterAdvertiser
    from cod.net.dhcp.server import DhcpServer
    from cod.net.dns.notifier import Notifier
    from cod.net.dns.server import DnsServer
    from cod.net.signer import Signer
    from cod.net.tftp.server import TftpServer
    from cod.periodic import Timer
    from cod.power.drivers import drivers
    from cod.power.status import PowerStatus
    from cod.switches.drivers import mac_tables
    from cod.switches.mac_tables import MacTables
    from cod.web import metrics

    g, site = context, context.site.current
    interfaces = sorted({subnet.interface for subnet in site.subnets if subnet.interface})
    by_address = {subnet.server: subnet for subnet in site.subnets}
    authority = Ca(g.settings.authority, site.name)
    confd = ConfdServer(
        AgentConnection,
        g.reactor,
        g.pool,
        g.site,
        g.settings.name,
        by_address,
        site.confd_port,
        g.clock,
        effects=g.wake.effects,
        inviter=Inviter(authority.certificate.decode(), authority.invitation),
        host_key=partial(_host_key, authority),
        power=PowerStatus(g.reactor, g.pool, drivers(g.reactor), g.site).of,
        ports=MacTables(g.reactor, g.pool, mac_tables(g.reactor), g.site).ports_of,
    )
    g.wake.on("orders", confd.poll)
    nmp = [_nmp(g, list(by_address))] if site.nmp_port else []
    return [
        *(
            DhcpServer(g.reactor, g.pool, g.site, subnet, g.clock)
            for subnet in listeners(site.subnets)
        ),
        *(RouterAdvertiser(g.reactor, interface) for interface in interfaces),
        *(
            DnsServer(
                g.reactor,
                g.pool,
                g.site,
                address,
                port=site.dns.port,
                forward=site.dns.forward,
                clock=g.clock,
            )
            for address in by_address
            if site.dns.port
        ),
        *([Notifier(g.reactor, g.pool, g.site, g.clock)] if site.dns.port else []),
        *(
            TftpServer(g.reactor, g.pool, g.site, subnet, g.settings.boot, g.clock)
            for subnet in by_address.values()
        ),
        confd,
        *nmp,
        *_ldap(g, authority, list(by_address)),
        *_isolated_edge(g, authority, by_address),
        *([Signer(g.reactor, g.settings.signer, authority, g.clock)] if _has_own_user() else []),
        Timer(g.reactor, METRICS_EVERY, metrics.Mirror(metrics.CONFD, confd.counts), at_once=True),
    ]


def _host_key(authority: Ca, salt: str, order_id: str) -> tuple[HostKey, str]:
    """Return the SSH host key that a node is installed with: its public part, and the private one
    as a file."""
    public, private = hostkeys.ed25519(authority.host_key_seed(f"{salt} {order_id}"))
    return HostKey(hostkeys.ALGORITHM, public), private


def _isolated_edge(g: PartContext, authority: Ca, addresses: Iterable[str]) -> list[Any]:
    """Return DHCP, DNS, TFTP and LDAP of isolated vclusters' networks; behind a relay, where all of
    them are reached at one address, nothing if they are there for the site's subnets already."""
    from cod.net.dhcp.ra import RouterAdvertiser
    from cod.net.dhcp.server import DhcpServer
    from cod.net.dns.server import DnsServer
    from cod.net.isolated import tagged
    from cod.net.isolated.services import NetworkServices
    from cod.net.tftp.server import TftpServer

    site = g.site.current
    rules, dns = site.isolation, site.dns
    if rules is None:
        return []
    if rules.server is not None:
        relayed = Subnet(
            "relayed", rules.networks, rules.server, ("0.0.0.0", "0.0.0.0"), ("0.0.0.0", "0.0.0.0")
        )
        return (
            []
            if rules.server in addresses
            else [
                DhcpServer(g.reactor, g.pool, g.site, relayed, g.clock),
                *(
                    [
                        DnsServer(
                            g.reactor,
                            g.pool,
                            g.site,
                            rules.server,
                            port=dns.port,
                            forward=dns.forward,
                            clock=g.clock,
                        )
                    ]
                    if dns.port
                    else []
                ),
                TftpServer(g.reactor, g.pool, g.site, relayed, g.settings.boot, g.clock),
                *_ldap(g, authority, [rules.server]),
            ]
        )

    def made(subnet: Subnet) -> list[Any]:
        named = [
            DnsServer(
                g.reactor,
                g.pool,
                g.site,
                subnet.server,
                port=dns.port,
                forward=dns.forward,
                clock=g.clock,
            )
        ]
        return [
            DhcpServer(g.reactor, g.pool, g.site, subnet, g.clock),
            RouterAdvertiser(g.reactor, subnet.interface or ""),
            TftpServer(g.reactor, g.pool, g.site, subnet, g.settings.boot, g.clock),
            *(named if dns.port else []),
            *_ldap(g, authority, [subnet.server]),
        ]

    return [
        NetworkServices(g.reactor, g.pool, g.site, made, tagged.join, partial(tagged.leave, rules))
    ]


def _nmp(g: PartContext, addresses: list[str]) -> Any:
    """Return the server that VCMs connect to."""
    from cod.net.nmp import tls
    from cod.net.nmp.server import NmpServer

    authority = Ca(g.settings.authority, g.site.current.name)
    listen = tls.listening(
        g.reactor, authority, addresses, g.site.current.nmp_port, g.site.current.nmp_plain_port
    )
    server = NmpServer(
        g.reactor,
        g.pool,
        g.site,
        g.settings.name,
        listen,
        tls.identity,
        g.clock,
        g.wake.effects,
        authority,
    )
    g.wake.on("vcms", server.poll)
    return server


def _ldap(g: PartContext, authority: Ca, addresses: list[str]) -> list[Any]:
    """Return the server that nodes look people up in, where the site has one."""
    from cod.net.ldap.server import LdapServer
    from cod.net.servertls import ServerTls

    rules = g.site.current.posix
    if not (rules.port or rules.tls_port):
        return []
    tls = ServerTls(authority, addresses, g.clock)
    return [
        LdapServer(
            g.reactor,
            g.pool,
            g.site,
            addresses,
            tls,
            port=rules.port or None,
            tls_port=rules.tls_port or None,
        )
    ]


def images(context: PartContext) -> list[Any]:
    """Return the HTTP boot, image and metadata server, and what takes new images and captured disks
    in."""
    from cod.net.bootserver.captures import Captures
    from cod.net.bootserver.server import HttpServer
    from cod.net.isolated.services import NetworkServices
    from cod.workers.ingest import Ingester

    g, settings, site = context, context.settings, context.site.current
    addresses = sorted({subnet.server for subnet in site.subnets})
    captures = Captures(g.reactor, g.pool, g.site, settings.images, g.clock, g.wake.effects)
    rules = site.isolation

    def isolated(subnet: Subnet) -> list[Any]:
        return [
            HttpServer(
                g.reactor,
                g.pool,
                g.site,
                settings.boot,
                settings.images,
                [subnet.server],
                site.http_port,
                g.clock,
            )
        ]

    if rules is not None and rules.server is not None:
        addresses = sorted({*addresses, rules.server})
    return [
        captures,
        HttpServer(
            g.reactor,
            g.pool,
            g.site,
            settings.boot,
            settings.images,
            addresses,
            site.http_port,
            g.clock,
            captures=captures,
        ),
        *(
            [
                HttpServer(
                    g.reactor,
                    g.pool,
                    g.site,
                    settings.boot,
                    settings.images,
                    [METADATA_ADDRESS],
                    80,
                    g.clock,
                    kinds=("metadata",),
                    later=True,
                )
            ]
            if site.metadata_link_local
            else []
        ),
        *(
            [NetworkServices(g.reactor, g.pool, g.site, isolated)]
            if rules is not None and rules.interface
            else []
        ),
        Ingester(
            g.reactor,
            g.pool,
            settings.images,
            settings.incoming,
            settings.name,
            g.clock,
            lambda: g.site.current.images,
        ),
    ]


def manager(context: PartContext) -> list[Any]:
    """Return the resource manager, deadlines, readiness checks, power, switch ports, consoles,
    delivery of notices, accounts, pruning."""
    from cod.fileservers.drivers import drivers as file_servers
    from cod.fileservers.edge import FileServerEdge
    from cod.net.notify.delivery import Post
    from cod.power.drivers import consoles, drivers
    from cod.power.edge import PowerEdge
    from cod.power.meters import Meters
    from cod.power.poll import PowerPoll
    from cod.power.recorder import Recorder
    from cod.switches import drivers as switch_drivers
    from cod.switches.edge import SwitchEdge
    from cod.web.signin.directory_sync import DirectorySync
    from cod.workers.certificates import CertificateWatch
    from cod.workers.energy import Accountant
    from cod.workers.keeps import KeepWatch
    from cod.workers.manager import Manager
    from cod.workers.pruning import Pruner
    from cod.workers.readiness import Prober

    g = context
    gc.set_threshold(*GARBAGE)
    planner = Manager(g.reactor, g.pool, g.site, g.settings.name, g.clock, g.wake.effects)
    power_drivers = drivers(g.reactor)
    power = PowerEdge(g.reactor, g.pool, power_drivers, g.settings.name, g.clock, g.site)
    meters = Meters(g.reactor, g.pool, power_drivers, g.settings.name, g.clock, g.site)
    switches = SwitchEdge(
        g.reactor,
        g.pool,
        switch_drivers.drivers(g.reactor),
        g.settings.name,
        g.clock,
        g.site,
        g.wake.effects,
    )
    recorder = Recorder(
        g.reactor,
        g.pool,
        consoles(g.reactor),
        g.settings.name,
        g.clock,
        g.site,
        g.settings.consoles,
    )
    g.wake.on("manager", planner.wake)
    g.wake.on("power", power.wake)
    g.wake.on("switches", switches.wake)
    post = Post(
        g.reactor, g.pool, g.site, g.settings.name, secretfile.key(g.settings.webhook_key), g.clock
    )
    g.wake.on("notices", post.wake)
    return [
        planner,
        power,
        meters,
        PowerPoll(g.reactor, g.pool, power_drivers, g.settings.name, g.clock, g.site),
        switches,
        recorder,
        Prober(g.reactor, g.pool, g.site, g.clock, g.wake.effects),
        post,
        Accountant(g.reactor, g.pool, g.site, g.clock),
        CertificateWatch(g.reactor, g.pool, partial(ca.ends_at, g.settings.authority), g.clock),
        DirectorySync(g.reactor, g.pool, g.site, g.clock),
        FileServerEdge(
            g.reactor,
            g.pool,
            file_servers(g.reactor),
            g.settings.name,
            g.clock,
            g.site,
            g.wake.effects,
        ),
        KeepWatch(g.pool, g.site, g.clock, g.wake.effects),
        Pruner(g.reactor, g.pool, g.site, g.settings.keep_history, g.clock),
    ]


def web(context: PartContext) -> list[Any]:
    """Return the portal and the REST API: the UNIX socket, and TLS where the site file says so."""
    from cod.web.server import ApiServer
    from cod.web.tls import WebTls

    g, settings, site = context, context.settings, context.site.current
    tls = None if settings.plain else WebTls(partial(_web_certificate, site.subnets, settings))
    return [
        ApiServer(
            g.reactor,
            g.pool,
            g.site,
            settings.socket,
            settings.listen,
            settings.images,
            settings.incoming,
            settings.upload_limit,
            g.wake.effects,
            g.clock,
            secretfile.key(settings.webhook_key),
            (
                RemoteAuthority(settings.authority, settings.signer)
                if _has_own_user()
                else Ca(settings.authority, site.name)
            ),
            tls,
            settings.names,
            settings.consoles,
        )
    ]


def _has_own_user() -> bool:
    """Return whether this process is a part that runs as its own user, and so without other parts'
    secrets."""
    return partusers.part_of(os.geteuid()) is not None


def _web_certificate(subnets: Iterable[Subnet], settings: Settings) -> webcert.WebCertificate:
    """Return the site's own, or the one that COD has made, made anew if need be."""
    listening = [
        address for address, _ in settings.listen if not ip_address(address).is_unspecified
    ]
    names = [*settings.names, "localhost", *(subnet.server for subnet in subnets), *listening]
    return settings.certificate or webcert.self_signed(settings.web, names)


PARTS: dict[str, Callable[[PartContext], list[Any]]] = {
    "edge": edge,
    "images": images,
    "manager": manager,
    "web": web,
}
