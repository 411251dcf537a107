"""Checks of services on other hosts: file servers, the directory, the OpenID Connect provider, the
mail server, webhooks, KDCs and secondary name servers. Each is checked by one TCP connection, with
TLS if the site file says so. Further checks are whether browsers elsewhere can look up the name in
links, and whether the groups exist in which the directory gives roles.

Only a TLS handshake is sent: no account is tried, and no mail or notice is sent. The check `faults`
reports what the running server knows of such services.
"""

from __future__ import annotations

import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.doctor.rows import rows
from cod.model import Group, Site
from cod.quantity import first_few
from cod.store.people import groups

PATIENCE = 5.0  # seconds for a connection
AT_ONCE = 16
DEFAULT_PORTS = {"ldap": 389, "ldaps": 636, "http": 80, "https": 443}
NFS, SSH, KDC = 2049, 22, 88
FEW = 5  # groups that a finding names

Resolve = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class OutsideServer:
    """A server on another host.

    what     the site's use of it, with its table of the site file
    tls      whether to make a handshake; `ca_file`: the authorities it trusts, None: the system's
    banner   the server's first bytes, b'' if it sends none
    told_in  where its address can be corrected
    """

    what: str
    host: str
    port: int
    tls: bool = False
    ca_file: str | None = None
    banner: bytes = b""
    told_in: str = "the site file"


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each server that the site file or a group names, for each missing group
    in which the directory gives roles, and for the name in links."""
    known = rows(context.settings, groups.every)
    peers = [*named(context.site), *webhooks(context.site, known or ())]
    if known is None:
        yield Finding(
            UNSEEN,
            "the database does not tell which groups and webhooks there are",
            "mend what the check `database` finds",
        )
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for peer, why in zip(peers, threads.map(fault, peers), strict=True):
            where = f"{peer.what} at {peer.host}, TCP port {peer.port}"
            if why:
                remedy = (
                    "is the server up, and does a firewall between let this host pass? Correct the"
                    f" address in {peer.told_in} if it is another"
                )
                yield Finding(BAD, f"{where}: {why}", remedy)
            else:
                yield Finding(GOOD, f"{where}: answers")
    if known is not None:
        yield from _given_roles(context.site, {group.name for group in known})
    yield from links(context.site, _addresses)


def named(site: Site) -> list[OutsideServer]:
    peers = []
    for server in site.fileservers:
        label = f"[[fileserver]] {server.name}"
        peers.append(OutsideServer(f"{label}, NFS", server.address, NFS))
        if server.ssh:
            host, _, port = server.ssh.rpartition("@")[2].partition(":")
            peers.append(OutsideServer(f"{label}, SSH", host, int(port or SSH), banner=b"SSH-"))
    ldap, oidc = site.signin.ldap, site.signin.oidc
    if ldap.url:
        peers.append(_by_url("[ldap], the directory", ldap.url, ldap.ca_file))
    if oidc.issuer:
        peers.append(_by_url("[oidc], the OpenID Connect provider", oidc.issuer, None))
    if site.mail.host:
        tls = site.mail.tls == "tls"
        ca_file = site.notices.ca_file
        peers.append(
            OutsideServer(
                "[smtp], the mail server", site.mail.host, site.mail.at, tls, ca_file, b"220"
            )
        )
    for kdc in site.kerberos.kdcs:
        host, _, port = kdc.partition(":")
        peers.append(OutsideServer("[kerberos] kdcs, the KDC", host, int(port or KDC)))
    peers += [
        OutsideServer("[dns] secondaries, the name server", host, port)
        for host, port in site.dns.secondaries
    ]
    return peers


def _by_url(what: str, url: str, ca_file: str | None) -> OutsideServer:
    parts = urlsplit(url)
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    return OutsideServer(
        what, parts.hostname or "", port, parts.scheme in ("https", "ldaps"), ca_file
    )


def webhooks(site: Site, known: Iterable[Group]) -> list[OutsideServer]:
    """Return the servers of the groups' webhooks, each host and port once."""
    users: defaultdict[OutsideServer, list[str]] = defaultdict(list)
    for group in sorted(known, key=lambda group: group.name):
        if group.webhook:
            users[_by_url("", group.webhook, site.notices.ca_file)].append(group.name)
    return [
        replace(server, what=f"the webhook of {first_few(names, FEW)}", told_in="the group")
        for server, names in users.items()
    ]


def _given_roles(site: Site, known: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each group in which the directory gives roles, but which does not
    exist."""
    for rule in site.signin.ldap.groups:
        if rule.group and rule.group not in known:
            yield Finding(
                WARNING,
                f"[[ldap_group]] {rule.dn} gives roles in group {rule.group}, which does not exist",
                f"cod group create {rule.group}, or correct `group`",
            )


def fault(peer: OutsideServer) -> str:
    """Return why the server cannot be used; '' if it answers."""
    try:
        with socket.create_connection((peer.host, peer.port), PATIENCE) as line:
            if peer.tls:
                trust = ssl.create_default_context(cafile=peer.ca_file)
                with trust.wrap_socket(line, server_hostname=peer.host) as secured:
                    return _wrong_banner(secured, peer.banner)
            return _wrong_banner(line, peer.banner)
    except TimeoutError:
        return f"no answer within {PATIENCE:.0f} s"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted: {error.verify_message}"
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:  # a label of its name is longer than DNS has them
        return "this is no name of a host"


def _wrong_banner(line: socket.socket, banner: bytes) -> str:
    got = line.recv(512) if banner else b""
    return "" if got.startswith(banner) else f"it says {got[:60]!r}, which is no such service"


def links(site: Site, resolve: Resolve) -> Iterator[Finding]:
    """Yield a finding about the host name in links, such as those of invitations."""
    url = site.signin.url
    host = urlsplit(url).hostname if url else None
    if host is None:
        return
    addresses = resolve(host)
    remedy = (
        "set `url` in [signin] to what browsers elsewhere can reach, such as"
        ' "https://cod.example.org"'
    )
    if not addresses:
        yield Finding(BAD, f"links begin with {url}: {host} cannot be looked up", remedy)
    elif all(ip_address(address).is_loopback for address in addresses):
        yield Finding(
            BAD if site.signin.named else WARNING,
            f"links begin with {url}: {host} leads to {addresses[0]}, this host itself, so that"
            " invitations cannot be opened elsewhere",
            remedy,
        )
    elif not site.signin.named:
        yield Finding(
            WARNING,
            f"links begin with {url}, this host's own name, which browsers elsewhere may not be"
            " able to look up",
            remedy,
        )
    else:
        yield Finding(GOOD, f"links begin with {url}: {host} is {addresses[0]}")


def _addresses(host: str) -> list[str]:
    """Return the addresses of a name, by this host's resolver."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
