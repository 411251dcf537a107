"""Delivery of notices: allowed destinations, the due ones that go now, and the time at which a
failed delivery is tried again. Pure."""

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
SETTLED = 60.0  # seconds in which transactions that began before a daily mail was due are over
AT_ONCE = 32  # deliveries
OF_ONE_HOST = 4  # of these
LONGEST_URL = 2000
MOST_ADDRESSES = 20
# RFC 6052: the IPv4 address is in the last four bytes
_NAT64 = bytes.fromhex("0064ff9b") + bytes(8)

_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_DOMAIN = f"(?ai:{DNS_NAME})"
# RFC 5321, no quoted ones
_ADDRESS = re.compile(rf"(?=.{{3,254}}\Z)(?=.{{1,64}}@){_LOCAL}@{_DOMAIN}\Z")
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_DOMAIN}\.?\Z")

Target = tuple[str, str]  # channel ('webhook', 'email') and target, as in `notice_sends`

# ---------------------------------------------------------------- where to


def addresses(text: str) -> tuple[str, ...]:
    """Return the e-mail addresses of a comma-separated list. Raises ValueError with a sentence.

    Plain ASCII addresses without display names, quotes or comments: nothing in them can end a
    header line.
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
    """Return the listed addresses but those `left_out`, however their letters are written."""
    gone = {each.lower() for each in left_out}
    return tuple(each for each in listed if each.lower() not in gone)


def check_email(text: str) -> str:
    """Return a group's `email` as it is kept. Raises `Refused`."""
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

    A name is looked at again each time that it is connected to (`may_reach`): what it means can
    change.
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
    """Return whether a webhook may be posted to that IP address. Never in one of the `closed`
    networks, which the site names.

    Not to loopback, link-local (where clouds keep their credentials), unspecified, multicast and
    reserved ones, nor to the server's `own`, unless `local`: who names a webhook must not speak
    with the server's voice to what trusts it. Multicast and unspecified ones never.
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
    """Return what a delivery to `target` keeps busy: the webhook's host, or the site's mail
    server."""
    channel, url = target
    if channel != "webhook":
        return "mail server"
    try:
        return urlsplit(url).hostname or "?"
    except ValueError:
        return "?"


# ---------------------------------------------------------------- which and when


def pick(due: Iterable[Target], running: Iterable[Target]) -> list[Target]:
    """Return those of the `due` targets (most urgent first) that are sent to now, while `running`
    are.

    One at a time to a target, `OF_ONE_HOST` to a host, `AT_ONCE` altogether: who does not answer
    keeps up nobody but himself.
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
    """Return the time up to which notices belong into a daily mail that is due: the last `hour` of
    a day (UTC) that is `SETTLED` seconds past."""
    at = hour * 3600.0
    return (now - SETTLED - at) // DAY * DAY + at


def retry_after(attempts: int, age: float) -> float | None:
    """Return seconds until the next attempt, after `attempts` for a notice that is `age` seconds
    old; None: it is given up."""
    if age >= GIVEN_UP:
        return None
    return min(FIRST_PAUSE * 2.0 ** min(attempts - 1, 30), LONGEST_PAUSE)
