"""Routes about the server itself."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

from cod import states
from cod.flows import views
from cod.model import Site
from cod.web import bodies as b
from cod.web.routes import ADMINS, ANYBODY, listed, nothing, route


def _health(counts: list[tuple[str, str, int]]) -> b.Health:
    by_thing: dict[str, dict[str, int]] = {}
    for thing, label, count in counts:
        by_thing.setdefault(thing, {})[label] = count
    return b.Health(ok=True, counts=by_thing)


def lifecycle() -> b.Lifecycle:
    """The lifecycle's table as a reply."""
    rules = [b.StateReply.model_validate({
                 "name": state, "kind": rule.kind, "about": rule.about, "deadline": rule.deadline,
                 "retries": rule.retries})
             for state, rule in states.NODE_RULES.items()]
    arrows = [b.Arrow(state=state, event=event, to=to) for (state, event), to in states.NODE_TRANSITIONS.items()]
    return b.Lifecycle(states=rules, arrows=arrows)


def _info(site: Site) -> b.ServerInfo:
    return b.ServerInfo(
        name=site.name, domain=site.domain, version=version("cod"), subnets=[each.name for each in site.subnets],
        http_port=site.http_port, confd_port=site.confd_port)


SERVER = (
    route("GET", "/conflicts", ADMINS,
          "List address and identity conflicts, newest first",
          lambda a: partial(views.conflict_list, page=a.query.page, **a.query.filters),
          shape=listed(b.ConflictList, b.ConflictReply.of), reply=b.ConflictList, query=b.ConflictQuery),
    route("GET", "/states", ANYBODY, "Show the nodes' lifecycle", lambda a: nothing(lifecycle()), reply=b.Lifecycle),
    route("GET", "/health", ANYBODY, "Does the server answer, and its database?",
          lambda a: views.alive if a.is_stranger else views.counts, shape=_health, reply=b.Health, open=True),
    route("GET", "/server", ANYBODY, "Show what this server is", lambda a: nothing(_info(a.site)), reply=b.ServerInfo),
)
