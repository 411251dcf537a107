"""The REST API as one table: what may be asked, how it is checked, which flow answers, what the answer looks like.

`net.api` serves the table, `net.openapi` describes it. A route's `call` gets the checked question and returns the flow
with its arguments; its `shape` makes the reply from the flow's value.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

from cod import model, states
from cod.flows import groups, images, nodes, requests, templates, vclusters, views
from cod.images.verify import verify
from cod.model import Site
from cod.net import bodies as b
from cod.net.routes import Ask, Flow, Route, listed, nothing, number, route
from cod.wire import xmldoc

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

# ---------------------------------------------------------------- images and templates


def _uploaded(ask: Ask) -> Flow:
    return partial(images.add, name=ask.names["name"], source=str(ask.upload), sha256=ask.query.sha256 or "",
                   plain=ask.query.plain, now=ask.now)


def _read_again(ask: Ask, image: model.Image) -> b.Verified:
    """In a thread of its own: reads the whole image."""
    found = verify(ask.images, image.digest)
    return b.Verified(ok=not found.bad, chunks=found.chunks, bad=list(found.bad))


def _check_template(tx: Any, document: str) -> list[b.TemplateFault]:
    try:
        xmldoc.parse(document.encode(), "template")
        templates.check(tx, document=document)
    except xmldoc.Refused as fault:
        return [b.TemplateFault(line=fault.line, sentence=fault.reason)]
    except model.Refused as fault:
        return [b.TemplateFault(line=0, sentence=fault.sentence)]
    return []


def checked(document: str, schema: str, field: str) -> str:
    """An XML document from outside, safe and valid against `schema`; '' stays. Raises `Refused` with the line."""
    if document:
        try:
            xmldoc.parse(document.encode(), schema)
        except xmldoc.Refused as fault:
            raise model.Refused("invalid", str(fault), field) from None
    return document


IMAGES = (
    route("GET", "/images", "List images", lambda a: images.every,
          shape=listed(b.ImageList, b.ImageReply.model_validate), reply=b.ImageList),
    route("GET", "/images/{name}", "Show an image", lambda a: partial(images.show, name=a.names["name"]),
          reply=b.ImageReply),
    route("POST", "/images", "Take in a file of the server as an image",
          lambda a: partial(images.add, name=a.body.name, source=a.body.path, sha256=a.body.sha256 or "",
                            plain=a.body.plain, now=a.now),
          reply=b.ImageReply, body=b.ImageAdd, status=202, local=True),
    route("PUT", "/images/{name}/content", "Upload a file and take it in as an image", _uploaded,
          reply=b.ImageReply, query=b.ImageUpload, status=202, upload=True),
    route("POST", "/images/{name}/verify", "Read an image again and compare every chunk with its digest",
          lambda a: partial(images.show, name=a.names["name"]), work=_read_again, reply=b.Verified),
    route("DELETE", "/images/{name}", "Delete an image that no template names",
          lambda a: partial(images.delete, name=a.names["name"]), status=204),
)
TEMPLATES = (
    route("GET", "/templates", "List templates: the newest revision of each, or all of one",
          lambda a: partial(templates.every, name=a.query.name),
          shape=listed(b.TemplateList, b.TemplateReply.model_validate), reply=b.TemplateList, query=b.TemplateQuery),
    route("GET", "/templates/{name}", "Show a template: 'name' or 'name@revision'",
          lambda a: partial(templates.resolve, name=a.names["name"]), reply=b.TemplateInFull),
    route("POST", "/templates", "Add a template; a changed document becomes a new revision",
          lambda a: partial(templates.add, document=checked(a.body.document, "template", "document"), now=a.now),
          reply=b.TemplateReply, body=b.TemplateDocument, status=201),
    route("POST", "/templates/check", "Say what is wrong with a template's document; nothing is stored",
          lambda a: partial(_check_template, document=a.body.document),
          shape=lambda faults: b.TemplateCheck(ok=not faults, faults=faults), reply=b.TemplateCheck,
          body=b.TemplateDocument),
    route("DELETE", "/templates/{name}", "Retire a revision, or all of a template's, that nothing uses",
          lambda a: partial(templates.retire, name=a.names["name"], now=a.now),
          shape=listed(b.TemplateList, b.TemplateReply.model_validate), reply=b.TemplateList),
)

# ---------------------------------------------------------------- vclusters, requests, groups


def _vcluster_wanted(ask: Ask) -> Flow:
    checked(ask.body.attributes, "requires", "attributes")
    return partial(vclusters.create, key=ask.key, site=ask.site, now=ask.now, **ask.body.model_dump())


def _nodes_wanted(ask: Ask) -> Flow:
    wanted = [requests.Asked(each.count, checked(each.attributes, "requires", "attributes"), each.template)
              for each in ask.body.tuples]
    return partial(requests.submit, vcluster=ask.names["name"], key=ask.key, now=ask.now, wanted=wanted)


VCLUSTERS = (
    route("GET", "/vclusters", "List vclusters", lambda a: partial(views.vcluster_list, ended=a.query.ended),
          shape=listed(b.VclusterList, b.VclusterReply.of), reply=b.VclusterList, query=b.VclusterQuery),
    route("GET", "/vclusters/{name}", "Show a vcluster with its nodes",
          lambda a: partial(views.vcluster, name=a.names["name"]), reply=b.VclusterInFull),
    route("POST", "/vclusters", "Create a vcluster; its nodes come when the manager grants them",
          _vcluster_wanted, reply=b.VclusterInFull, body=b.VclusterCreate, status=202),
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
          _nodes_wanted, reply=b.RequestReply, body=b.RequestSubmit, status=202),
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

ROUTES: tuple[Route, ...] = (*NODES, *IMAGES, *TEMPLATES, *VCLUSTERS, *REQUESTS, *GROUPS, *SERVER)
