"""Delivery of notices: allowed destinations, the due deliveries to start now, and when a failed
delivery is tried again. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from cod.model import DNS_NAME, NoticeRules, Refused

FIRST_PAUSE = 2.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 3600.0
DAY = 86400.0
GIVEN_UP = DAY  # seconds after a notice was written
SETTLED = 60.0  # seconds after which transactions that began before a daily mail was due have ended
AT_ONCE = 32  # most deliveries at a time
OF_ONE_HOST = 4  # most deliveries to one host at a time
LONGEST_URL = 2000
MOST_ADDRESSES = 20
# RFC 6052: the IPv4 address is in the last four bytes
_NAT64 = bytes.fromhex("0064ff9b") + bytes(8)

_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_DOMAIN = f"(?ai:{DNS_NAME})"
# addresses by RFC 5321, without quoted local parts
_ADDRESS = re.compile(rf"(?=.{{3,254}}\Z)(?=.{{1,64}}@){_LOCAL}@{_DOMAIN}\Z")
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_DOMAIN}\.?\Z")

Target = tuple[str, str]  # channel ('webhook', 'email') and target, as in `notice_sends`

# ---------------------------------------------------------------- where to


def addresses(text: str) -> tuple[str, ...]:
    """Return the e-mail addresses of a comma-separated list. Raises `ValueError` with a message for
    people.

    The addresses are plain ASCII without display names, quotes or comments, so that they cannot
    break out of a header line.
    """
    found = tuple(part.strip(" ") for part in text.split(",")) if text.strip(" ") else ()
    for each in found:
        if not _ADDRESS.match(each):
            raise ValueError(f"{each!r} should be an e-mail address such as ann@example.org")
    if len(found) > MOST_ADDRESSES:
        raise ValueError(
            f"names {len(found)} addresses; at most {MOST_ADDRESSES} (use a mailing list)"
        )
    return found


def without(listed: Iterable[str], left_out: Iterable[str]) -> tuple[str, ...]:
    """Return the listed addresses without those in `left_out`, compared without regard to case."""
    gone = {each.lower() for each in left_out}
    return tuple(each for each in listed if each.lower() not in gone)


def check_email(text: str) -> str:
    """Return a group's `email` in the form in which it is stored. Raises `Refused`."""
    try:
        return ", ".join(addresses(text))
    except ValueError as error:
        raise Refused("invalid", str(error), "email") from None


def check_address(text: str) -> str:
    """Return one person's address, or ''. Raises `Refused`."""
    found = check_email(text)
    if "," in found:
        raise Refused("invalid", "one address, not several", "email")
    return found


def check_webhook(url: str, rules: NoticeRules) -> str:
    """Return a group's `webhook`; '' for none. Raises `Refused`.

    A host name is checked again at each connection (`may_reach`), because its addresses can change.
    """
    problem = url and (_url_problem(url) or _host_problem(url, rules))
    if problem:
        raise Refused("invalid", problem, "webhook")
    return url


def _url_problem(url: str) -> str:
    if len(url) > LONGEST_URL:
        return f"a webhook's URL has at most {LONGEST_URL} characters"
    if not re.fullmatch(r"[\x21-\x7e]+", url):
        return "a webhook's URL is plain ASCII without spaces; encode other characters (%20)"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "this is no URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "a webhook's URL begins with https://HOST or http://HOST"
    if parts.username is not None or parts.password is not None:
        return (
            "a webhook's URL holds no user or password; check the signature of what is posted"
            " instead"
        )
    return "" if port is None or port > 0 else "there is no port 0"


def _host_problem(url: str, rules: NoticeRules) -> str:
    host = urlsplit(url).hostname or ""
    try:
        address = str(ip_address(host))
    except ValueError:
        return "" if _HOST.match(host) else f"{host!r} is no host name"
    return (
        ""
        if may_reach(address, rules.local_webhooks, (), rules.closed_networks)
        else (
            f"a webhook may not be at {address}, which is this server itself, or in a network that"
            " is closed to webhooks, or no host (see [notices] in the site file)"
        )
    )


def may_reach(
    address: str, local: bool, own: Iterable[str] = (), closed: Iterable[str] = ()
) -> bool:
    """Return whether a webhook may be posted to that IP address.

    Addresses in the `closed` networks, which the site names, and multicast and unspecified
    addresses are never allowed. Loopback, link-local (where clouds offer credentials) and reserved
    addresses, and the server's `own` addresses, are allowed only with `local`: otherwise the owner
    of a webhook could make the server send requests to services that trust it.
    """
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        mapped = ip.ipv4_mapped or ip.sixtofour
        if mapped is None and ip.packed[:12] == _NAT64:
            mapped = IPv4Address(ip.packed[12:])
        if mapped is not None:
            return may_reach(str(mapped), local, own, closed)
    if ip.is_multicast or ip.is_unspecified or any(ip in ip_network(network) for network in closed):
        return False
    inside = ip.is_loopback or ip.is_link_local or ip.is_reserved or ip.packed[0] == 0
    return local or not (inside or str(ip) in set(own))


def host(target: Target) -> str:
    """Return the host that a delivery to `target` connects to: the webhook's host, or 'mail server'
    for the site's."""
    channel, url = target
    if channel != "webhook":
        return "mail server"
    try:
        return urlsplit(url).hostname or "?"
    except ValueError:
        return "?"


# ---------------------------------------------------------------- which and when


def pick(due: Iterable[Target], running: Iterable[Target]) -> list[Target]:
    """Return the `due` targets (most urgent first) to start deliveries to now, given the targets of
    `running` deliveries.

    There is one delivery at a time to a target, `OF_ONE_HOST` to a host, and `AT_ONCE` in all, so
    that a host that does not answer delays only its own deliveries.
    """
    busy = set(running)
    hosts = Counter(map(host, busy))
    picked: list[Target] = []
    for target in due:
        if len(busy) >= AT_ONCE:
            break
        if target not in busy and hosts[host(target)] < OF_ONE_HOST:
            busy.add(target)
            hosts[host(target)] += 1
            picked.append(target)
    return picked


def digest_before(now: float, hour: int) -> float:
    """Return the time up to which notices belong to a daily mail that is due: the last `hour`
    o'clock (UTC) that is at least `SETTLED` seconds ago."""
    at = hour * 3600.0
    return (now - SETTLED - at) // DAY * DAY + at


def retry_after(attempts: int, age: float) -> float | None:
    """Return the seconds until the next attempt, after `attempts` failures for a notice that is
    `age` seconds old; None: the notice is given up."""
    if age >= GIVEN_UP:
        return None
    return min(FIRST_PAUSE * 2.0 ** min(attempts - 1, 30), LONGEST_PAUSE)
