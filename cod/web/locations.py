"""The thing that a change is about: where it is (`Location`), its tag after the change, and how the document links it.

A route that makes something says where (`Route.makes`); the others change what their own path names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from cod.model import Refused, Result
from cod.pool import Tx
from cod.web.conditions import Tagged, asked_to_see, encoded, tag, twin
from cod.web.resources import ROUTES
from cod.web.routes import Call, Flow, Route, find, unquoted, unquoted_in


def pattern(route: Route) -> str:
    """Return the path of the thing that a change is about, with names in braces; '' where there is none."""
    if route.makes:
        return route.makes
    shown = twin(route)
    if shown is not None:
        return shown.path
    same = route.method in ("PATCH", "PUT") and any(each.method == "GET" and each.path == route.path for each in ROUTES)
    return route.path if same else ""


def place(route: Route, names: Mapping[str, str], reply: BaseModel | Mapping[str, Any] | None) -> str:
    """Return the thing's path below the API's prefix; '' where it has none.

    names  the parameters of the question's path
    reply  the answer's body, which names what was made
    """
    values = dict(names)
    if route.makes:
        told = reply if isinstance(reply, Mapping) else {} if reply is None else dict(reply)
        values |= {key: str(value) for key, value in told.items()}
    wanted = re.findall(r"\{(\w+)\}", path := pattern(route))
    if not path or not all(values.get(name) for name in wanted):
        return ""
    return re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe="@" + unquoted_in(path)), path)


def tagged(route: Route, ask: Call, flow: Flow) -> Flow:
    """Return the route's flow, so that its value comes as a `Tagged`: read in the transaction of the change, because
    a later look might see somebody else's change."""
    def with_tag(tx: Tx) -> Any:
        done = flow(tx)
        value = done.value if isinstance(done, Result) else done
        after = Tagged(value, _tag(tx, route, ask, value))
        return replace(done, value=after) if isinstance(done, Result) else after

    return with_tag


def _tag(tx: Tx, route: Route, ask: Call, value: Any) -> str:
    path = place(route, ask.names.texts(), None if route.work else route.shown(value, ask.who))
    shown, names, _ = find(ROUTES, "GET", unquoted(path))
    if not path or shown is None or shown.shape is None or shown.work or shown.secret or shown.upload:
        return ""
    try:
        found = shown.call(asked_to_see(shown, ask, names))(tx)
    except Refused:  # the change has ended it
        return ""
    return tag(encoded(shown.shown(found, ask.who)))


def links(route: Route, operation_id: Callable[[Route], str]) -> dict[str, Any]:
    """Return OpenAPI's links from the answer to the operation that shows the thing."""
    path = pattern(route)
    shown, _, _ = find(ROUTES, "GET", path)
    if not path or shown is None:
        return {}
    source = "$response.body#/{}" if route.makes else "$request.path.{}"
    parameters = {}
    for given, wanted in zip(path.split("/"), shown.path.split("/"), strict=True):
        if wanted.startswith("{"):  # a value by itself, or, as in NAME@REVISION, several in braces
            single = re.fullmatch(r"\{(\w+)\}", given)
            parameters[wanted[1:-1]] = source.format(single[1]) if single else re.sub(
                r"\{(\w+)\}", lambda found: "{" + source.format(found[1]) + "}", given)
    return {"thing": {"operationId": operation_id(shown), "parameters": parameters,
                      "description": "What was made or changed"}}
