"""Addresses of machines as the drivers of BMCs and outlets write them:
``HOST[:PORT][/PATH][?KEY=VALUE&…]``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from cod.power.driver import PowerError


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart. `host` is a name or an address, of IPv6 without brackets; `path` has
    no slash at ends."""

    scheme: str
    host: str
    port: int
    path: str
    options: Mapping[str, str]


def parse(text: str, form: str, ports: Mapping[str, int], options: Collection[str]) -> Address:
    """Return `text` taken apart. `ports`: the default port of each scheme, '' being none;
    `options`: the keys that there are.

    Raises a lasting `PowerError`, which shows `form`.
    """
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        port = parts.port
    except ValueError:
        raise malformed(text, form) from None
    known = parts.scheme in ports and all(key in options for key, _ in pairs)
    if (
        not known
        or not parts.hostname
        or parts.username is not None
        or parts.fragment
        or text != text.strip()
    ):
        raise malformed(text, form)
    return Address(
        parts.scheme,
        parts.hostname,
        port or ports[parts.scheme],
        parts.path.strip("/"),
        dict(pairs),
    )


def malformed(text: str, form: str) -> PowerError:
    """Return the error of an address that cannot be used. A password that somebody put into it is
    not repeated."""
    shown = repr(text) if "@" not in text else "the address"
    return PowerError(f"{shown} is not of the form {form}", lasting=True)
