"""The composition root: the server's parts, each a list of services around one pool.

    edge     DHCP, DNS, TFTP, confd, router advertisements
    images   the HTTP boot and image server, ingest of images
    manager  the resource manager, deadlines, power, consoles, notices
    web      the REST API and the metrics

Only this module knows all services; no service depends on the process that it runs in.
"""

from __future__ import annotations

import gc
import importlib
import logging
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from cod.model import (
    METADATA_ADDRESS,
    ChunkKeys,
    HostKey,
    Inviter,
    SiteRef,
    Subnet,
    database_urls,
)
from cod.policy.nodes.subnets import listeners
from cod.policy.people import kerberos
from cod.security import ca, hostkeys, secretfile
from cod.security.ca import Ca
from cod.security.sealed import Sealer
from cod.security.signer import RemoteAuthority
from cod.service.preparation import has_own_user, web_certificate
from cod.site.changes import SiteChanges
from cod.site.load import Settings
from cod.wire import chunktoken

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from cod.net.wake import Wake
    from cod.pool import Pool

METRICS_EVERY = 5.0  # seconds
DATABASE_EVERY = 15.0  # seconds between two looks at the database's hosts
STARTS = (sys.executable, "-P", "-m", "cod.service.starts")
"""The process that reckons when waiting requests will start."""
# A pass of the manager makes a hundred thousand records, all in use until it ends. With Python's own
# thresholds, a quarter of its time would go into garbage collections that find nothing.
GARBAGE = (50_000, 20, 100)

log = logging.getLogger("cod.service")


@dataclass(frozen=True, slots=True)
class PartContext:
    """Objects from which the services of a part are made.

    changes  the site file, and the changed settings that override it
    key      of the tokens by which the site's other servers fetch images from this process
    """

    reactor: Any
    pool: Pool
    site: SiteRef
    settings: Settings
    wake: Wake
    clock: Callable[[], float] = time.time
    changes: SiteChanges | None = None
    key: str = field(default_factory=partial(token_hex, 32), repr=False)


def edge(context: PartContext) -> list[Any]:
    """Return DHCP and router advertisements on each subnet's interface, DHCP for relays on the
    server addresses of subnets without an interface, and DNS, TFTP and confd on each server
    address."""
    from cod.net.confd.connection import AgentConnection
    from cod.net.confd.server import ConfdServer
    from cod.net.dhcp.ra import RouterAdvertiser
    from cod.net.dhcp.server import DhcpServer
    from cod.net.dns.notifier import ZoneNotifier
    from cod.net.dns.secondary_watch import SecondaryWatch
    from cod.net.dns.server import DnsServer
    from cod.net.signer import Signer
    from cod.net.tftp.server import TftpServer
    from cod.periodic import Timer
    from cod.power.loading import drivers
    from cod.power.status import PowerStatus
    from cod.switches.loading import mac_tables
    from cod.switches.mac_tables import MacTables
    from cod.web.api import metrics
    from cod.workers.keytabs import KeytabMaker

    g, site = context, context.site.current
    interfaces = sorted({subnet.interface for subnet in site.subnets if subnet.interface})
    by_address = {subnet.server: subnet for subnet in site.subnets}
    authority = Ca(g.settings.authority, site.name)
    sealer = Sealer(authority.keytab_key())

    def host_key(salt: str, order_id: str) -> tuple[HostKey, str]:
        public, private = hostkeys.ed25519(authority.host_key_seed(f"{salt} {order_id}"))
        return HostKey(hostkeys.ALGORITHM, public), private

    confd = ConfdServer(
        AgentConnection,
        g.reactor,
        g.pool,
        g.site,
        g.settings.name,
        by_address,
        site.boot.confd_port,
        g.clock,
        effects=g.wake.effects,
        inviter=Inviter(authority.certificate.decode(), authority.invitation),
        host_key=host_key,
        chunk_keys=ChunkKeys(authority.chunk_key, chunktoken.token),
        unseal=sealer.open,
        power=PowerStatus(g.reactor, drivers(g.reactor), g.site).of,
        ports=MacTables(g.reactor, g.pool, mac_tables(g.reactor), g.site).ports_of,
    )
    g.wake.on("orders", confd.poll)
    services: list[Any] = [
        DhcpServer(g.reactor, g.pool, g.site, subnet, g.clock) for subnet in listeners(site.subnets)
    ]
    services += [RouterAdvertiser(g.reactor, interface) for interface in interfaces]
    if port := site.dns.port:
        dns = partial(DnsServer, g.reactor, g.pool, g.site, port=port, forward=site.dns.forward)
        services += [dns(address, clock=g.clock) for address in by_address]
        services.append(ZoneNotifier(g.reactor, g.pool, g.site, g.clock))
        services.append(SecondaryWatch(g.reactor, g.pool, g.site, g.settings.name, g.clock))
    services += [
        TftpServer(g.reactor, g.pool, g.site, subnet, g.settings.boot, g.clock)
        for subnet in by_address.values()
    ]
    services.append(confd)
    keytabs = partial(KeytabMaker, g.reactor, g.pool, g.settings.name, g.clock, g.site)
    services.append(keytabs(kerberos.keytab_trouble, sealer.seal, g.wake.effects))
    if site.nmp.port:
        services.append(_nmp(g, list(by_address)))
    services += _ldap(g, authority, list(by_address))
    services += _isolated_edge(g, authority, by_address)
    if has_own_user():
        services.append(Signer(g.reactor, g.settings.signer, authority, g.clock))
    counts = metrics.Mirror(metrics.CONFD, confd.counts)
    services.append(Timer(g.reactor, METRICS_EVERY, counts, at_once=True))
    return services


def _isolated_edge(g: PartContext, authority: Ca, addresses: Iterable[str]) -> list[Any]:
    """Return DHCP, DNS, TFTP and LDAP for the networks of isolated vclusters. Behind a relay, all
    networks use one server address: return nothing if the services for the site's subnets are at
    this address already."""
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

    def served(subnet: Subnet) -> list[Any]:
        """Return the services at the server's address in a subnet."""
        named = partial(DnsServer, g.reactor, g.pool, g.site, subnet.server, clock=g.clock)
        return [
            DhcpServer(g.reactor, g.pool, g.site, subnet, g.clock),
            TftpServer(g.reactor, g.pool, g.site, subnet, g.settings.boot, g.clock),
            *([named(port=dns.port, forward=dns.forward)] if dns.port else []),
            *_ldap(g, authority, [subnet.server]),
        ]

    if rules.server is not None:
        relayed = Subnet(
            "relayed", rules.networks, rules.server, ("0.0.0.0", "0.0.0.0"), ("0.0.0.0", "0.0.0.0")
        )
        return [] if rules.server in addresses else served(relayed)

    def made(subnet: Subnet) -> list[Any]:
        return [RouterAdvertiser(g.reactor, subnet.interface or ""), *served(subnet)]

    return [
        NetworkServices(g.reactor, g.pool, g.site, made, tagged.join, partial(tagged.leave, rules))
    ]


def _nmp(g: PartContext, addresses: list[str]) -> Any:
    """Return the server that VCMs connect to."""
    from cod.net.nmp import tls
    from cod.net.nmp.server import NmpServer

    site, name, effects = g.site.current, g.settings.name, g.wake.effects
    authority = Ca(g.settings.authority, site.name)
    listen = tls.listening(g.reactor, authority, addresses, site.nmp.port, site.nmp.plain_port)
    server = NmpServer(
        g.reactor, g.pool, g.site, name, listen, tls.identity, g.clock, effects, authority
    )
    g.wake.on("vcms", server.poll)
    return server


def _ldap(g: PartContext, authority: Ca, addresses: list[str]) -> list[Any]:
    """Return the LDAP server that nodes look up users in, if the site has one."""
    from cod.net.ldap.server import LdapServer
    from cod.net.servertls import ServerTls

    rules = g.site.current.posix
    if not (rules.port or rules.tls_port):
        return []
    server = partial(LdapServer, g.reactor, g.pool, g.site, addresses)
    tls = ServerTls(authority, addresses, g.clock)
    return [server(tls, port=rules.port or None, tls_port=rules.tls_port or None)]


def images(context: PartContext) -> list[Any]:
    """Return the HTTP boot, image and metadata server, and the services that receive new images and
    captured disks."""
    from cod.net.bootserver.captures import Captures
    from cod.net.bootserver.peers import Peers
    from cod.net.bootserver.server import HttpServer
    from cod.net.isolated.services import NetworkServices
    from cod.workers.ingest import Ingester

    g, settings, site = context, context.settings, context.site.current
    addresses = sorted({subnet.server for subnet in site.subnets})
    captures = Captures(g.reactor, g.pool, g.site, settings.images, g.clock, g.wake.effects)
    rules, several = site.isolation, any(subnet.others for subnet in site.subnets)
    store = settings.images, settings.incoming
    http = partial(HttpServer, g.reactor, g.pool, g.site, settings.boot, settings.images)

    def isolated(subnet: Subnet) -> list[Any]:
        return [http([subnet.server], site.boot.http_port, g.clock)]

    if rules is not None and rules.server is not None:
        addresses = sorted({*addresses, rules.server})
    services: list[Any] = [captures]
    peers = None
    if several:
        peers = Peers(g.reactor, g.pool, g.site, settings.name, g.key, *store, g.clock)
        services.append(peers)
    services.append(http(addresses, site.boot.http_port, g.clock, captures=captures, peers=peers))
    if site.boot.metadata_link_local:
        services.append(http([METADATA_ADDRESS], 80, g.clock, kinds=("metadata",), later=True))
    if rules is not None and rules.interface:
        services.append(NetworkServices(g.reactor, g.pool, g.site, isolated))
    ingester = partial(Ingester, g.reactor, g.pool, *store, settings.name, g.clock)
    services.append(ingester(lambda: g.site.current.images, several=several))
    return services


def manager(context: PartContext) -> list[Any]:
    """Return the resource manager, deadlines, readiness checks, power, switch ports, consoles,
    delivery of notices, accounts, pruning."""
    from cod.fileservers.edge import FileServerEdge
    from cod.fileservers.loading import drivers as file_servers
    from cod.net.energy_curve import CurveReader
    from cod.net.notify.delivery import Post
    from cod.power.edge import PowerEdge
    from cod.power.loading import consoles, drivers
    from cod.power.meters import Meters
    from cod.power.poll import PowerPoll
    from cod.power.recorder import Recorder
    from cod.switches.edge import SwitchEdge
    from cod.switches.loading import drivers as switch_drivers
    from cod.web.signin.directory_sync import DirectorySync
    from cod.workers.certificates import CertificateWatch
    from cod.workers.energy import Accountant
    from cod.workers.kept_disks import KeepWatch
    from cod.workers.manager import Manager
    from cod.workers.pruning import Pruner
    from cod.workers.readiness import Prober
    from cod.workers.series import SeriesKeeper
    from cod.workers.starts import StartForecasts

    reactor, pool, site, clock = context.reactor, context.pool, context.site, context.clock
    settings, wake, name = context.settings, context.wake, context.settings.name
    gc.set_threshold(*GARBAGE)
    planner = Manager(reactor, pool, site, name, clock, wake.effects, settings.memory)
    switchable, switch_kinds = drivers(reactor), switch_drivers(reactor)
    power = PowerEdge(reactor, pool, switchable, name, clock, site)
    switches = SwitchEdge(reactor, pool, switch_kinds, name, clock, site, wake.effects)
    recorder = Recorder(reactor, pool, consoles(reactor), name, clock, site, settings.consoles)
    post = Post(reactor, pool, site, name, secretfile.key(settings.webhook_key), clock)
    wake.on("manager", planner.wake)
    wake.on("power", power.wake)
    wake.on("switches", switches.wake)
    wake.on("notices", post.wake)
    wake.on("consoles", recorder.wake)
    return [
        planner,
        power,
        Meters(reactor, pool, switchable, name, clock, site),
        PowerPoll(reactor, pool, switchable, name, clock, site),
        switches,
        recorder,
        Prober(reactor, pool, site, clock, wake.effects),
        post,
        Accountant(reactor, pool, site, clock),
        CurveReader(reactor, pool, site, clock),
        CertificateWatch(reactor, pool, partial(ca.ends_at, settings.authority), clock),
        DirectorySync(reactor, pool, site, clock),
        FileServerEdge(reactor, pool, file_servers(reactor), name, clock, site, wake.effects),
        KeepWatch(pool, site, clock, wake.effects),
        Pruner(reactor, pool, site, settings.server.keep_history, clock),
        StartForecasts(reactor, pool, site, name, clock, STARTS),
        SeriesKeeper(reactor, pool, site, clock),
    ]


def web(context: PartContext) -> list[Any]:
    """Return the portal and the REST API: the UNIX socket, and TLS where the site file says so."""
    from twisted.internet.threads import deferToThreadPool

    from cod.core.database.hosts import DatabaseHosts
    from cod.periodic import Timer
    from cod.web.http.tls import WebTls
    from cod.web.server import ApiServer

    g, settings, site = context, context.settings, context.site.current
    database = DatabaseHosts(database_urls(settings.database))

    def look() -> Deferred[Any]:
        return deferToThreadPool(g.reactor, g.reactor.getThreadPool(), database.look)

    tls = None if settings.api.plain else WebTls(partial(web_certificate, site.subnets, settings))
    return [
        ApiServer(
            g.reactor,
            g.pool,
            g.site,
            settings.socket,
            settings.listen,
            settings.images,
            settings.incoming,
            settings.api.upload_limit,
            g.wake.effects,
            g.clock,
            secretfile.key(settings.webhook_key),
            (
                RemoteAuthority(settings.authority, settings.signer)
                if has_own_user()
                else Ca(settings.authority, site.name)
            ),
            tls,
            settings.names,
            settings.consoles,
            g.changes,
            lambda: database.seen,
        ),
        Timer(g.reactor, DATABASE_EVERY, look, at_once=True),
    ]


PARTS: dict[str, Callable[[PartContext], list[Any]]] = {
    "edge": edge,
    "images": images,
    "manager": manager,
    "web": web,
}


def load_program() -> None:
    """Import all modules of the parts, for forks of this process. No reactor is installed: each
    fork installs its own."""
    for room in ("cod.net", "cod.web", "cod.workers"):
        for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            importlib.import_module(module.name)
    assert "twisted.internet.reactor" not in sys.modules  # its epoll(7) would be all forks' own
