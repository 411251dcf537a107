"""Addresses of machines as the drivers of BMCs and outlets write them:
``HOST[:PORT][/PATH][?KEY=VALUE&…]``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from cod.power.driver import PowerError


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. `host` is a name or an address (IPv6 without brackets); `path` has no slash
    at its ends."""

    scheme: str
    host: str
    port: int
    path: str
    options: Mapping[str, str]


def parse(text: str, form: str, ports: Mapping[str, int], options: Collection[str]) -> Address:
    """Return the parsed `text`. `ports`: the default port of each scheme ('': text without a
    scheme); `options`: the keys that are allowed.

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
    """Return the error for an address that cannot be used. An address that may contain a password
    is not shown."""
    shown = repr(text) if "@" not in text else "the address"
    return PowerError(f"{shown} is not of the form {form}", lasting=True)
