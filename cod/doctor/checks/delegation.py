"""Check of the site's domain in DNS: whether this host's resolver gets its answers about the domain
from COD, as every other resolver should."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import TimeoutError
from twisted.names import client, dns, error

from cod.doctor.asking import answers
from cod.doctor.finding import GOOD, UNSEEN, WARNING, Context, Finding
from cod.policy import dns as policy

RESOLV_CONF = Path("/etc/resolv.conf")
PATIENCE = (1, 3)  # seconds for an answer, and for one to the question repeated


def findings(
    context: Context, resolv_conf: Path = RESOLV_CONF, port: int = 53
) -> Iterator[Finding]:
    """Yield one finding. `port` is that of the name servers in `resolv_conf`."""
    site = context.site
    if not site.dns.port:
        yield Finding(
            UNSEEN,
            "COD answers no DNS questions here ([dns] port = 0): who answers for "
            f"{site.domain} is not looked at",
        )
        return
    try:
        lines = [line.split() for line in resolv_conf.read_text().splitlines()]
    except OSError as failure:
        yield Finding(UNSEEN, f"{resolv_conf}: {failure.strerror}")
        return
    servers = [(words[1], port) for words in lines if len(words) > 1 and words[0] == "nameserver"]
    if not servers:
        yield Finding(
            UNSEEN,
            f"{resolv_conf} names no name server: this host asks nobody for names",
            "add a nameserver line, or look from a host that has one",
        )
        return
    first, addresses = policy.name_servers(site)[0]
    where = ", ".join(addresses) or first
    remedy = (
        f"have the owner of the domain above delegate {site.domain} to {first} ({where}), or the"
        f" site's resolver forward it to {where}"
        + (
            ""
            if site.dns.port == 53
            else f", port {site.dns.port}; a delegation always leads to port 53"
        )
        + ': see docs/names, "Delegate the domain"'
    )
    (found,) = answers([partial(_authority, site.domain, servers)])
    asked = f"this host's resolver ({', '.join(server for server, _ in servers)})"
    if isinstance(found, TimeoutError):
        yield Finding(
            UNSEEN, f"{asked} does not answer", "is the resolver up, and does it reach COD?"
        )
    elif isinstance(found, Exception):
        text = (
            "does not know it"
            if isinstance(found, error.DNSNameError)
            else f"fails ({type(found).__name__})"
        )
        yield Finding(
            WARNING,
            f"{site.domain}: {asked} {text}: names of nodes are known to clients of "
            "COD's own name server only",
            remedy,
        )
    elif found.lower() != first.lower():
        yield Finding(
            WARNING,
            f"{site.domain}: {asked} answers from {found or 'elsewhere'}, not from {first}",
            remedy,
        )
    else:
        yield Finding(GOOD, f"{site.domain}: {asked} answers from {first}")


async def _authority(domain: str, servers: list[tuple[str, int]], reactor: Any) -> str:
    """Return the primary name server in the SOA of the zone `domain`; '' if there is no such
    zone."""
    resolver = client.Resolver(servers=servers, timeout=PATIENCE, reactor=reactor)
    found, _authority, _additional = await resolver.lookupAuthority(domain)
    return next(
        (
            str(each.payload.mname)
            for each in found
            if each.type == dns.SOA and str(each.name).lower() == domain.lower()
        ),
        "",
    )
