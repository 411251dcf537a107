"""The thing that a route is about: the one that its path names, or that it makes. Found once, from
the table of routes: what shows the thing, where it is, and what the audit calls its change.

A route that makes a thing says where the thing is (`Route.makes`). Other routes change the thing
that their own path names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cod.web.api.resources import ROUTE_MAP, ROUTES
from cod.web.api.routes import Route

_GETS = {each.path: each for each in ROUTES if each.method == "GET"}
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class RouteThing:
    """The thing that a route is about.

    get       the route that shows the thing that the route's own path names; None: there is none
    path      the path of the thing that a change is about, with names in braces; '': there is none
    shown_by  the route that shows the thing after a change; None: there is none
    action    the name of the route's change in the audit, in two words: 'vcluster create',
              'vcluster resize', 'member set'; '': it changes nothing
    """

    get: Route | None
    path: str
    shown_by: Route | None
    action: str


def _thing(route: Route) -> RouteThing:
    parts = route.path.split("/")
    above = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    shown = next((_GETS[path] for path in above if path in _GETS), None)
    get = shown if shown is not None and "{" in shown.path else None
    same = route.method in ("PATCH", "PUT") and route.path in _GETS
    path = route.makes or (get.path if get else route.path if same else "")
    shown_by = ROUTE_MAP.find("GET", path)[0] if path else None
    return RouteThing(get, path, shown_by, _action(route) if route.changes else "")


def _action(route: Route) -> str:
    """Return the name of the route's change in the audit.

    The last fixed part of the path is the verb, unless it is a plural. After a plural the method
    says what is done to one of the things.
    """
    if route.action:
        return route.action
    fixed = [part for part in route.path.strip("/").split("/") if not part.startswith("{")]
    fixed = fixed[1:] if fixed[0] == "me" and len(fixed) > 1 else fixed
    *before, last = fixed
    if route.method == "POST" and before and not last.endswith("s"):
        return f"{before[-1].removesuffix('s')} {last}"
    return f"{last.removesuffix('s')} {_VERBS[route.method]}"


THINGS: Mapping[tuple[str, str], RouteThing] = {
    (each.method, each.path): _thing(each) for each in ROUTES
}
"""The things by their routes' methods and paths."""
