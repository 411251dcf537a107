"""Addresses of pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from cod.web.api.routes import unquoted_in

_NAME = re.compile(r"\{(\w+)\}")


def fill(path: str, names: Mapping[str, str]) -> str:
    """Return the path with its {names} filled in, quoted, as in `url`."""
    return _NAME.sub(lambda found: quote(names[found[1]], safe=unquoted_in(path)), path)


def url(*parts: str | int, **query: Any) -> str:
    """Return a path of quoted parts, with a query of those values in `query` that are not None:
    url('vclusters', 'v1', sort='name'). Full names of images and templates stay two segments:
    /images/physics/debian."""
    safe = unquoted_in(f"/{parts[0]}/") if parts else ""
    path = "".join(f"/{quote(str(part), safe=safe)}" for part in parts) or "/"
    return path + _query(query)


def changed(path: str, query: str, **changes: Any) -> str:
    """Return the address of the same page with some of its query changed. A name whose value is
    None or '' is left out."""
    return quote(path) + _query(dict(parse_qsl(query, keep_blank_values=True)) | changes)


def _query(values: Mapping[str, Any]) -> str:
    given = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in values.items()
        if value is not None and value != "" and key != "part"
    }
    return f"?{urlencode(given)}" if given else ""


def is_local(path: str) -> bool:
    """Return whether `path` is a path of this site, and not the address of another (as `//host` and
    `/\\host` are)."""
    return re.fullmatch(r"/(?![/\\])[^\x00-\x20\\]*", path) is not None
