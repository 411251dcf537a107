"""The REST API as one table: what may be asked, how it is checked, which flow answers, what the answer looks like.

`net.api` serves the table, `net.openapi` describes it. A route's `call` gets the checked question and returns the flow
with its arguments; its `shape` makes the reply from the flow's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cod import states
from cod.flows import groups, nodes, requests, vclusters, views
from cod.model import Site
from cod.net import bodies as b

Flow = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """A checked question.

    names   the path's parameters
    body    the checked JSON body, or None
    query   the checked query string, or None
    upload  the uploaded file, or None
    actor   who asks, as the history shows it
    key     the Idempotency-Key header: the client's id for a request, repeating which is harmless
    """

    site: Site
    now: float
    actor: str
    names: Mapping[str, str]
    body: Any = None
    query: Any = None
    upload: Path | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    call     the flow (a function of tx) for a question
    shape    the reply for the flow's value; None where there is nothing to say (204)
    reply    the model of what `shape` makes, for the document
    status   of success
    local    only for the local administrator on the UNIX socket
    upload   the body is a file, not JSON
    """

    method: str
    path: str
    summary: str
    call: Callable[[Ask], Flow]
    shape: Callable[[Any], BaseModel] | None = None
    reply: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    status: int = 200
    local: bool = False
    upload: bool = False

    @property
    def changes(self) -> bool:
        """Does it change anything (so that a token that may only read is refused)?"""
        return self.method != "GET"


def route(method: str, path: str, summary: str, call: Callable[[Ask], Flow], **rest: Any) -> Route:
    """A route whose `shape` is its reply model's own constructor unless it is given."""
    reply = rest.get("reply")
    if reply is not None and "shape" not in rest:
        rest["shape"] = getattr(reply, "of_parts", None) or getattr(reply, "of", None) or reply.model_validate
    return Route(method, path, summary, call, **rest)


def nothing(value: Any) -> Flow:
    """A flow that asks the database nothing and returns `value`."""
    return lambda tx: value


def listed(reply: type[BaseModel], item: Callable[[Any], BaseModel]) -> Callable[[Any], BaseModel]:
    """The shape of a list reply whose items are shaped by `item`."""
    return lambda values: reply(items=[item(each) for each in values])


# ---------------------------------------------------------------- nodes

def _page(ask: Ask) -> Flow:
    return partial(_one_more, limit=ask.query.limit, **ask.query.model_dump(exclude={"limit"}))


def _one_more(tx: Any, *, limit: int, **filters: Any) -> tuple[list[Any], int]:
    """One row more than asked for tells whether there is a next page."""
    return views.node_list(tx, limit=limit + 1, **filters), limit


def _node_page(found: tuple[list[Any], int]) -> b.NodeList:
    rows, limit = found
    more = len(rows) > limit
    return b.NodeList(items=[b.NodeReply.of(row) for row in rows[:limit]],
                      next=rows[limit - 1].node.name if more else None)


def _on_node(flow: Flow, ask: Ask) -> Flow:
    """An administrator's word about a node: the flow with what every such flow wants."""
    said = {} if ask.body is None else ask.body.model_dump()
    return partial(flow, name=ask.names["name"], site=ask.site, now=ask.now, actor=ask.actor, **said)


def _changes(body: Any) -> dict[str, Any]:
    """What a patch names; the node's new name is `new_name` to the flow."""
    said = body.model_dump(exclude_unset=True)
    return {"new_name" if key == "name" else key: value for key, value in said.items()}


NODES = (
    route("GET", "/nodes", "List nodes", _page, shape=_node_page, reply=b.NodeList, query=b.NodeQuery),
    route("GET", "/nodes/{name}", "Show a node with its report, bindings and history",
          lambda a: partial(views.node_in_full, name=a.names["name"]), reply=b.NodeInFull),
    route("PATCH", "/nodes/{name}", "Rename a node, or change its block or how it is switched",
          lambda a: partial(nodes.change, name=a.names["name"], **_changes(a.body)),
          reply=b.NodeReply, body=b.NodePatch),
    route("POST", "/nodes/{name}/approve", "Accept a new machine: its disks are the site's from now on",
          partial(_on_node, nodes.approve), reply=b.NodeReply),
    route("POST", "/nodes/{name}/power", "Wish a node on, off or power-cycled",
          partial(_on_node, nodes.power), reply=b.NodeReply, body=b.PowerWish, status=202),
    route("POST", "/nodes/{name}/quarantine", "Set a node aside",
          partial(_on_node, nodes.quarantine), reply=b.NodeReply, body=b.Because),
    route("POST", "/nodes/{name}/restore", "Bring a node back from quarantine or retirement",
          partial(_on_node, nodes.restore), reply=b.NodeReply),
    route("POST", "/nodes/{name}/retire", "Take a node out of the site",
          partial(_on_node, nodes.retire), reply=b.NodeReply),
)

# ---------------------------------------------------------------- vclusters, requests, groups

VCLUSTERS = (
    route("GET", "/vclusters", "List vclusters", lambda a: partial(views.vcluster_list, ended=a.query.ended),
          shape=listed(b.VclusterList, b.VclusterReply.of), reply=b.VclusterList, query=b.VclusterQuery),
    route("GET", "/vclusters/{name}", "Show a vcluster with its nodes",
          lambda a: partial(views.vcluster, name=a.names["name"]), reply=b.VclusterInFull),
    route("POST", "/vclusters", "Create a vcluster; its nodes come when the manager grants them",
          lambda a: partial(vclusters.create, key=a.key, site=a.site, now=a.now, **a.body.model_dump()),
          reply=b.VclusterInFull, body=b.VclusterCreate, status=202),
    route("POST", "/vclusters/{name}/resize", "Ask for more nodes, or give some back",
          lambda a: partial(vclusters.resize, name=a.names["name"], size=a.body.size, key=a.key, site=a.site, now=a.now,
                            actor=a.actor),
          reply=b.VclusterInFull, body=b.Resize, status=202),
    route("POST", "/vclusters/{name}/extend", "Extend the lease",
          lambda a: partial(vclusters.extend, name=a.names["name"], lease=a.body.lease, now=a.now),
          reply=b.VclusterInFull, body=b.Extend),
    route("POST", "/vclusters/{name}/release", "Give back some nodes",
          lambda a: partial(vclusters.release, name=a.names["name"], nodes_=a.body.nodes, site=a.site, now=a.now,
                            actor=a.actor),
          reply=b.VclusterInFull, body=b.Release, status=202),
    route("DELETE", "/vclusters/{name}", "Give back all nodes and end the vcluster",
          lambda a: partial(vclusters.delete, name=a.names["name"], site=a.site, now=a.now, actor=a.actor),
          reply=b.VclusterInFull, status=202),
)
REQUESTS = (
    route("GET", "/requests", "List requests for nodes",
          lambda a: partial(views.request_list, **a.query.model_dump()),
          shape=listed(b.RequestList, b.RequestReply.of), reply=b.RequestList, query=b.RequestQuery),
    route("GET", "/requests/{id}", "Show a request and why it waits",
          lambda a: partial(views.request, request_id=number(a.names["id"])), reply=b.RequestReply),
    route("POST", "/vclusters/{name}/requests", "Ask for more nodes: all of the tuples, or nothing",
          lambda a: partial(requests.submit, vcluster=a.names["name"], key=a.key, now=a.now,
                            wanted=[requests.Wanted(**each.model_dump()) for each in a.body.tuples]),
          reply=b.RequestReply, body=b.RequestSubmit, status=202),
    route("DELETE", "/requests/{id}", "Withdraw a request that waits",
          lambda a: partial(requests.withdraw, request_id=number(a.names["id"]), reason=f"withdrawn by {a.actor}",
                            now=a.now),
          reply=b.RequestReply),
)
GROUPS = (
    route("GET", "/groups", "List groups", lambda a: groups.every,
          shape=listed(b.GroupList, b.GroupReply.model_validate), reply=b.GroupList),
    route("POST", "/groups", "Create a group",
          lambda a: partial(groups.create, now=a.now, **a.body.model_dump()),
          reply=b.GroupReply, body=b.GroupCreate, status=201),
)

# ---------------------------------------------------------------- the server itself


def _health(counts: list[tuple[str, str, int]]) -> b.Health:
    by_thing: dict[str, dict[str, int]] = {}
    for thing, label, count in counts:
        by_thing.setdefault(thing, {})[label] = count
    return b.Health(ok=True, counts=by_thing)


def lifecycle() -> b.Lifecycle:
    """The lifecycle's table as a reply."""
    rules = [b.StateReply(name=state, kind=rule.kind, about=rule.about, deadline=rule.deadline, retries=rule.retries)
             for state, rule in states.NODE_RULES.items()]
    arrows = [b.Arrow(state=state, event=event, to=to) for (state, event), to in states.NODE_TRANSITIONS.items()]
    return b.Lifecycle(states=rules, arrows=arrows)


def _info(site: Site) -> b.ServerInfo:
    return b.ServerInfo(
        name=site.name, domain=site.domain, version=version("cod"), subnets=[each.name for each in site.subnets],
        http_port=site.http_port, confd_port=site.confd_port)


SERVER = (
    route("GET", "/conflicts", "List address and identity conflicts, newest first", lambda a: views.conflict_list,
          shape=listed(b.ConflictList, b.ConflictReply.of), reply=b.ConflictList),
    route("GET", "/states", "Show the nodes' lifecycle", lambda a: nothing(lifecycle()), reply=b.Lifecycle),
    route("GET", "/health", "Does the server answer, and its database?", lambda a: views.counts, shape=_health,
          reply=b.Health),
    route("GET", "/server", "Show what this server is", lambda a: nothing(_info(a.site)), reply=b.ServerInfo),
)

ROUTES: tuple[Route, ...] = (*NODES, *VCLUSTERS, *REQUESTS, *GROUPS, *SERVER)


def number(text: str) -> int:
    """A row's id from a path; what is none is the id of nothing."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


# ---------------------------------------------------------------- finding a route


def find(method: str, path: str) -> tuple[Route | None, dict[str, str], list[str]]:
    """The route for a request, the path's parameters, and the methods that the path has (none: no such path)."""
    methods: list[str] = []
    for each in ROUTES:
        names = matched(each.path, path)
        if names is None:
            continue
        if each.method == method:
            return each, names, [method]
        methods.append(each.method)
    return None, {}, methods


def matched(pattern: str, path: str) -> dict[str, str] | None:
    """The parameters of `path` (already unquoted by segment) under `pattern`, or None where it does not fit."""
    wanted, given = pattern.split("/"), path.split("/")
    if len(wanted) != len(given):
        return None
    names = {}
    for part, value in zip(wanted, given, strict=True):
        if part.startswith("{") and value:
            names[part[1:-1]] = value
        elif part != value:
            return None
    return names
