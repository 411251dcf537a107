"""What the audit says of a route's change: its name, the thing, and where to look at the thing before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cod.flows.people.access import Change, Claim
from cod.model import Right
from cod.web.conditions import asked_to_see, twin
from cod.web.routes import Call, Route

_VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}


def action(route: Route) -> str:
    """What the route does, in two words: 'vcluster create', 'vcluster resize', 'member set'.

    The last fixed part of the path is the verb, unless it is a plural: then it is what the method does to one of them.
    """
    if route.action:
        return route.action
    fixed = [part for part in route.path.strip("/").split("/") if not part.startswith("{")]
    fixed = fixed[1:] if fixed[0] == "me" and len(fixed) > 1 else fixed
    *before, last = fixed
    if route.method == "POST" and before and not last.endswith("s"):
        return f"{before[-1].removesuffix('s')} {last}"
    return f"{last.removesuffix('s')} {_VERBS[route.method]}"


def change(route: Route, ask: Call) -> Change:
    """What to put down when the route's flow has run."""
    claims = [each for each in route.claims(ask) if each.kind]
    return Change(action(route), " ".join(ask.names.texts().values()), claims[0] if claims else Claim(Right.ANY),
                  _look(route, ask), _values(ask.body or ask.query), _told(route))


def _look(route: Route, ask: Call) -> Callable[[Any], Mapping[str, Any]] | None:
    shown = twin(route)
    if shown is None or shown.shape is None:
        return None
    if shown.sketch is not None:
        sketch = shown.sketch(ask)
        return lambda tx: _values(sketch(tx))
    shape, flow = shown.shape, shown.call(asked_to_see(shown, ask))
    return lambda tx: _values(shape(flow(tx)))


def _told(route: Route) -> Callable[[Any], Mapping[str, Any]]:
    shape = route.shape
    return lambda value: {} if shape is None else _values(shape(value))


def _values(model: Any) -> Mapping[str, Any]:
    return {} if model is None else dict(model.model_dump(mode="json"))
