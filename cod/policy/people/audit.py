"""An audit row's account of a change: the values that differ, without secrets. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

SECRET = frozenset(
    {
        "password",
        "old",
        "new",
        "token",
        "secret",
        "key",
        "link",
        "certificate",
        "authority",
        "typed",
    }
)
"""Names of values that are not recorded: secrets, and some values that mean nothing to people."""
NOISE = frozenset(
    {"history", "report", "bindings", "last_seen", "reported_at", "progress_done", "progress_rate"}
)
"""Names of values that change by themselves."""
CLOSED = frozenset({"power_address", "power_account", "error"})
"""Names of values that only administrators may see."""
LONGEST = 300  # characters of one text, items of one list


def changed(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the values that differ, as (old values, new values). None stands for a thing that did
    not exist before, or does not exist afterwards."""
    if before is None or after is None:
        return tidy(before), tidy(after)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return tidy({name: before.get(name) for name in names}), tidy(
        {name: after.get(name) for name in names}
    )


def requested(
    before: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the values that differ between a thing and the values `asked` for it, as (old values,
    new values). Use this for changes that take effect later, such as a larger size, which begins as
    a request. If the thing has none of the values asked for, return ({}, all of them)."""
    known = {name: asked[name] for name in before if asked.get(name) is not None}
    if not known:
        return {}, tidy(asked)
    return changed({name: before[name] for name in known}, known)


def tidy(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return values fit for the audit: without secrets, unimportant fields and long texts."""
    if values is None:
        return None
    return {
        name: _webhook(value) if name == "webhook" else _short(value)
        for name, value in values.items()
        if name not in SECRET | NOISE
    }


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        return tidy(value)
    if isinstance(value, list | tuple):
        items = [
            each["name"] if isinstance(each, Mapping) and "name" in each else _short(each)
            for each in value
        ]
        return items if len(items) <= LONGEST else [*items[:LONGEST], f"… ({len(items)} in all)"]
    return value


def _webhook(url: Any) -> Any:
    """Return a webhook's scheme, host and a short digest. Its path and query are often secret; the
    digest shows that they have changed."""
    if not isinstance(url, str) or not url:
        return url
    digest = hashlib.blake2b(url.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{urlsplit(url).scheme}://{urlsplit(url).hostname}/… ({digest})"


def for_owners(values: Any, inside: str = "") -> Any:
    """Return the part of `values` that a thing's owners may see: without address and account of a
    node's power driver, and without its errors. `inside`: the name of the value that is `values`.
    """
    if isinstance(values, list):
        return [for_owners(each) for each in values]
    if not isinstance(values, Mapping):
        return values
    closed = CLOSED | {"address", "account"} if inside == "power" else CLOSED
    return {name: for_owners(value, name) for name, value in values.items() if name not in closed}


def named(*sources: Mapping[str, Any] | None) -> str:
    """Return a thing's name, or else its number, from the first of `sources` that has one; '': none
    has."""
    for wanted in ("name", "vcluster", "user", "fingerprint", "id"):
        for source in sources:
            if source and source.get(wanted) not in (None, ""):
                return str(source[wanted])
    return ""
