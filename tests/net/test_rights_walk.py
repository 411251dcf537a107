"""Every route of the API, asked by everybody: what comes is what its claims say and, beside that,
what the table here says; and nobody learns from it what belongs to others.

A new route wants a row in `LEAST`: the least that somebody has to be.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.model import Site
from cod.web.api import json_body
from cod.web.api.resources import ROUTES
from cod.web.api.routes import ANYBODY, Route, RouteMap
from tests.net.apiserver import Served
from tests.net.rights_world import KEY, MARK, Asker, World, standing

pytestmark = pytest.mark.slow

OPEN, ANY, VIEWER, MEMBER, OWNER, ADMIN, LOCAL = (
    "open",
    "any",
    "viewer",
    "member",
    "owner",
    "admin",
    "local",
)
RANK = [OPEN, ANY, VIEWER, MEMBER, OWNER, ADMIN, LOCAL]
LEAST = {
    # nodes
    "GET /nodes": ANY,
    "GET /nodes/{name}": VIEWER,
    "GET /nodes/{name}/history": VIEWER,
    "GET /nodes/{name}/console": MEMBER,
    "POST /nodes/{name}/console": MEMBER,
    "GET /nodes/{name}/power": ADMIN,
    "POST /nodes": ADMIN,
    "POST /nodes/actions": ADMIN,
    "POST /nodes/actions/check": ADMIN,
    "GET /inventory": ADMIN,
    "POST /inventory": ADMIN,
    "POST /inventory/check": ADMIN,
    "PATCH /nodes/{name}": ADMIN,
    "DELETE /nodes/{name}": ADMIN,
    "POST /nodes/{name}/approve": ADMIN,
    "POST /nodes/{name}/power": MEMBER,
    "POST /nodes/{name}/quarantine": ADMIN,
    "POST /nodes/{name}/restore": ADMIN,
    "POST /nodes/{name}/retire": ADMIN,
    "GET /captures": ANY,
    "GET /nodes/{name}/burnin": VIEWER,
    "GET /nodes/{name}/burnins": VIEWER,
    "POST /nodes/{name}/burnin": ADMIN,
    "DELETE /nodes/{name}/burnin": ADMIN,
    "GET /nodes/{name}/capture": VIEWER,
    "POST /nodes/{name}/capture": MEMBER,
    "DELETE /nodes/{name}/capture": MEMBER,
    "GET /types": ANY,
    "POST /types/refresh": ADMIN,
    "GET /types/{name}": ANY,
    "PATCH /types/{name}": ADMIN,
    "DELETE /types/{name}": ADMIN,
    "GET /blocks": ANY,
    "POST /blocks": ADMIN,
    "GET /blocks/proposal": ADMIN,
    "POST /blocks/proposal": ADMIN,
    "GET /blocks/{name}": ADMIN,
    "DELETE /blocks/{name}": ADMIN,
    "POST /blocks/{name}/add": ADMIN,
    "POST /blocks/{name}/remove": ADMIN,
    "GET /switches": ADMIN,
    "GET /switches/{name}": ADMIN,
    "POST /switches/{name}/check": ADMIN,
    "GET /ports": ADMIN,
    "GET /nodes/{name}/port": ADMIN,
    "PUT /nodes/{name}/port": ADMIN,
    "DELETE /nodes/{name}/port": ADMIN,
    "POST /nodes/{name}/port/retry": ADMIN,
    "POST /nodes/{name}/moved": ADMIN,
    "GET /nodes/{name}/places": ADMIN,
    # software
    "GET /images": ANY,
    "GET /images/{name}": VIEWER,
    "POST /images": LOCAL,
    "POST /images/{name}/verify": MEMBER,
    "DELETE /images/{name}": MEMBER,
    "GET /uploads": ANY,
    "POST /uploads": MEMBER,
    "GET /uploads/{id}": VIEWER,
    "PATCH /uploads/{id}": MEMBER,
    "DELETE /uploads/{id}": MEMBER,
    "GET /templates": ANY,
    "GET /templates/{name}": VIEWER,
    "POST /templates": MEMBER,
    "POST /templates/check": VIEWER,
    "DELETE /templates/{name}": MEMBER,
    # vclusters
    "GET /vclusters": ANY,
    "GET /vclusters/{name}": VIEWER,
    "GET /vclusters/{name}/history": VIEWER,
    "GET /vclusters/{name}/known_hosts": VIEWER,
    "GET /vclusters/{name}/nis": VIEWER,
    "GET /vclusters/{name}/names": VIEWER,
    "GET /vclusters/{name}/names/{label}": VIEWER,
    "PUT /vclusters/{name}/names/{label}": MEMBER,
    "DELETE /vclusters/{name}/names/{label}": MEMBER,
    "POST /vclusters": MEMBER,
    "POST /vclusters/{name}/resize": MEMBER,
    "POST /vclusters/{name}/extend": MEMBER,
    "POST /vclusters/{name}/release": MEMBER,
    "PATCH /vclusters/{name}": MEMBER,
    "GET /vclusters/{name}/reinstall": VIEWER,
    "GET /shares/{name}/use": VIEWER,
    "POST /vclusters/{name}/reinstall": MEMBER,
    "POST /vclusters/{name}/reinstall/check": MEMBER,
    "DELETE /vclusters/{name}/reinstall": MEMBER,
    "DELETE /vclusters/{name}": MEMBER,
    "GET /requests": ANY,
    "GET /requests/{id}": VIEWER,
    "POST /vclusters/{name}/requests": MEMBER,
    "POST /vclusters/{name}/moves": MEMBER,
    "DELETE /requests/{id}": MEMBER,
    "POST /requests/{id}/change": MEMBER,
    "POST /requests/{id}/retry": MEMBER,
    "PUT /requests/{id}/watch": VIEWER,
    "DELETE /requests/{id}/watch": VIEWER,
    "GET /series": ANY,
    "GET /series/{name}": VIEWER,
    "POST /series": MEMBER,
    "DELETE /series/{name}": MEMBER,
    "GET /maintenance": ANY,
    "GET /maintenance/{id}": ANY,
    "POST /maintenance": ADMIN,
    "POST /maintenance/check": ADMIN,
    "PATCH /maintenance/{id}": ADMIN,
    "DELETE /maintenance/{id}": ADMIN,
    "GET /plan": ADMIN,
    "GET /requests/{id}/explain": VIEWER,
    "POST /match": VIEWER,
    "GET /reclaims": ANY,
    "GET /reclaims/{id}": VIEWER,
    "POST /reclaims/{id}/answer": MEMBER,
    "GET /vcms": ANY,
    "GET /vclusters/{name}/vcm": VIEWER,
    "POST /vclusters/{name}/vcm": OWNER,
    "DELETE /vclusters/{name}/vcm": OWNER,
    # volumes
    "GET /volumes": ANY,
    "GET /volumes/{name}": VIEWER,
    "POST /volumes": MEMBER,
    "PATCH /volumes/{name}": OWNER,
    "POST /volumes/{name}/attach": OWNER,
    "POST /volumes/{name}/detach": MEMBER,
    "POST /volumes/{name}/snapshots": MEMBER,
    "DELETE /volumes/{name}/snapshots/{id}": OWNER,
    "DELETE /volumes/{name}": OWNER,
    "POST /volumes/{name}/restore": OWNER,
    "POST /volumes/{name}/remake": OWNER,
    "POST /volumes/{name}/forget": ADMIN,
    "GET /fileservers": ADMIN,
    # groups
    "GET /groups": ANY,
    "GET /groups/{name}": VIEWER,
    "POST /groups": ADMIN,
    "PATCH /groups/{name}": OWNER,
    "DELETE /groups/{name}": ADMIN,
    "GET /groups/{name}/webhook-secret": OWNER,
    "POST /groups/{name}/webhook-secret": OWNER,
    "GET /groups/{name}/deliveries": VIEWER,
    "POST /groups/{name}/deliveries/{id}/resend": OWNER,
    "POST /groups/{name}/test-notice": OWNER,
    "GET /notices": ANY,
    "GET /notices/{id}": VIEWER,
    "GET /energy": ANY,
    "GET /timeline": ANY,
    "GET /calendar": ANY,
    "GET /shares": ANY,
    "GET /shares/{name}": VIEWER,
    "GET /shares/{name}/users": VIEWER,
    "PATCH /shares/{name}": ADMIN,
    "POST /shares/{name}/preview": ADMIN,
    "GET /pool/history": ANY,
    # people
    "GET /users": ANY,
    "GET /users/{name}": VIEWER,
    "POST /users": ADMIN,
    "PATCH /users/{name}": ADMIN,
    "DELETE /users/{name}": ADMIN,
    "DELETE /users/{name}/sessions": ADMIN,
    "POST /users/sync": ADMIN,
    "GET /users/{name}/keys": ADMIN,
    "GET /users/{name}/keys/{id}": ADMIN,
    "POST /users/{name}/keys": ADMIN,
    "DELETE /users/{name}/keys/{id}": ADMIN,
    "POST /users/{name}/password-link": ADMIN,
    "GET /groups/{name}/members": VIEWER,
    "GET /groups/{name}/members/{user}": VIEWER,
    "PUT /groups/{name}/members/{user}": OWNER,
    "DELETE /groups/{name}/members/{user}": OWNER,
    "GET /groups/{name}/keys": VIEWER,
    "GET /invitations": ANY,
    "POST /invitations": ADMIN,
    "POST /groups/{name}/invitations": OWNER,
    "DELETE /invitations/{id}": OWNER,
    "GET /audit": ANY,
    "GET /tokens": ADMIN,
    "POST /tokens": ADMIN,
    "DELETE /tokens/{name}": ADMIN,
    # oneself: whose the thing is, the flow looks at
    "GET /me": ANY,
    "PATCH /me": ANY,
    "PUT /me/password": ANY,
    "GET /me/checklist": ANY,
    "GET /me/notices": ANY,
    "POST /me/notices/read": ANY,
    "GET /me/notices/mail": ANY,
    "PATCH /me/notices/mail": ANY,
    "DELETE /me/checklist": ANY,
    "GET /me/sessions": ANY,
    "DELETE /me/sessions": ANY,
    "DELETE /me/sessions/{id}": ANY,
    "GET /me/keys": ANY,
    "GET /me/keys/{id}": ANY,
    "POST /me/keys": ANY,
    "DELETE /me/keys/{id}": ANY,
    "GET /me/tokens": ANY,
    "POST /me/tokens": ANY,
    "DELETE /me/tokens/{name}": ANY,
    "POST /sign-in": OPEN,
    "POST /invitations/accept": OPEN,
    # the site
    "GET /conflicts": ADMIN,
    "GET /faults": ADMIN,
    "GET /faults/nodes": ADMIN,
    "GET /hold": ADMIN,
    "POST /hold/end": ADMIN,
    "POST /hold/wake": ADMIN,
    "POST /hold/decide": ADMIN,
    "GET /states": ANY,
    "GET /health": OPEN,
    "GET /server": ANY,
    "GET /servers": ADMIN,
    "GET /settings": ADMIN,
    "GET /settings/{name}": ADMIN,
    "PATCH /settings/{name}": ADMIN,
    "POST /settings/{name}/undo": ADMIN,
    "GET /targets": ANY,
    "GET /documents": ADMIN,
    "POST /documents/check": ADMIN,
    "POST /documents/apply": ADMIN,
    "PUT /groups/{name}": OWNER,
    "PUT /types/{name}": ADMIN,
    "PUT /shares/{name}": ADMIN,
    "PUT /blocks/{name}": ADMIN,
    "PUT /templates/{name}": MEMBER,
    "PUT /volumes/{name}": OWNER,
    "PUT /vclusters/{name}/vcm": OWNER,
}
BODIES: dict[str, Callable[[dict[str, str]], Any]] = {
    "POST /nodes": lambda of: {"name": "r1-01", "serial": "B5TN222"},
    "POST /nodes/actions": lambda of: {"names": ["n1"], "action": "approve"},
    "POST /nodes/actions/check": lambda of: {"names": ["n1"], "action": "approve"},
    "POST /inventory": lambda of: {"machines": [{"name": "r1-01"}]},
    "POST /inventory/check": lambda of: {"machines": [{"name": "r1-01"}]},
    "POST /documents/check": lambda of: {"documents": [{"kind": "block", "name": "b1"}]},
    "POST /documents/apply": lambda of: {"documents": [{"kind": "block", "name": "b1"}]},
    "PUT /groups/{name}": lambda of: {"email": "put@example.org"},
    "PUT /types/{name}": lambda of: {"cost": 3.0},
    "PUT /shares/{name}": lambda of: {"shares": 3.0},
    "PUT /blocks/{name}": lambda of: {"nodes": [of["node"]]},
    "PUT /templates/{name}": lambda of: {
        "document": f'<template name="{of["template"].rpartition("/")[2]}">'
        '<image target="disk" name="x"/></template>'
    },
    "PUT /volumes/{name}": lambda of: {"size": 2**32},
    "PUT /vclusters/{name}/vcm": lambda of: {"plain": True, "address": "10.77.0.9"},
    "PATCH /nodes/{name}": lambda of: {"name": "renamed"},
    "PATCH /types/{name}": lambda of: {"cost": 2.0},
    "PATCH /users/{name}": lambda of: {"full_name": "A. N. Other"},
    "POST /nodes/{name}/power": lambda of: {"desired": "on"},
    "POST /nodes/{name}/console": lambda of: {"typed": "x"},
    "POST /nodes/{name}/quarantine": lambda of: {"reason": "smoke"},
    "POST /hold/decide": lambda of: {},
    "PUT /nodes/{name}/port": lambda of: {"switch": "leaf", "port": "p1"},
    "POST /nodes/{name}/capture": lambda of: {"image": "copy"},
    "POST /nodes/{name}/burnin": lambda of: {},
    "POST /types/refresh": lambda of: {"after": 0},
    "POST /blocks": lambda of: {"name": "b1"},
    "POST /blocks/{name}/add": lambda of: {"nodes": [of["node"]]},
    "POST /blocks/{name}/remove": lambda of: {"nodes": [of["node"]]},
    "POST /images": lambda of: {"name": "x", "path": "/nowhere"},
    "POST /uploads": lambda of: {"name": "new", "size": 10, "group": of["group"]},
    "POST /templates": lambda of: {
        "document": '<template name="new"><image target="disk" name="x"/></template>',
        "group": of["group"],
    },
    "POST /templates/check": lambda of: {"document": "<template/>", "group": of["group"]},
    "POST /vclusters": lambda of: {
        "name": "new",
        "size": 1,
        "template": of["template"],
        "group": of["group"],
    },
    "POST /maintenance": lambda of: {"names": "n1", "begins_at": 9e9, "reason": "fans"},
    "POST /maintenance/check": lambda of: {"names": "n1", "begins_at": 9e9, "reason": "fans"},
    "POST /series": lambda of: {
        "name": "new",
        "size": 1,
        "template": of["template"],
        "group": of["group"],
        "starts_at": 9e9,
        "lease": 60.0,
        "zone": "UTC",
    },
    "PUT /vclusters/{name}/names/{label}": lambda of: {"target": "n1"},
    "POST /vclusters/{name}/resize": lambda of: {"size": 2},
    "POST /vclusters/{name}/extend": lambda of: {"lease": 60.0},
    "POST /vclusters/{name}/release": lambda of: {"nodes": ["n1"]},
    "PATCH /vclusters/{name}": lambda of: {"tags": "new"},
    "POST /vclusters/{name}/reinstall": lambda of: {"nodes": ["n1"]},
    "POST /vclusters/{name}/requests": lambda of: {
        "tuples": [{"count": 1, "template": of["template"]}]
    },
    "POST /vclusters/{name}/moves": lambda of: {"to": of["vcluster"], "nodes": 1},
    "POST /requests/{id}/change": lambda of: {"count": 1},
    "POST /match": lambda of: {"count": 1, "template": of["template"], "group": of["group"]},
    "POST /reclaims/{id}/answer": lambda of: {"nodes": ["n1"]},
    "POST /groups": lambda of: {"name": "new"},
    "PATCH /shares/{name}": lambda of: {"shares": 2.0},
    "POST /shares/{name}/preview": lambda of: {"shares": 2.0, "days": 1},
    "PATCH /groups/{name}": lambda of: {"email": "new@example.org"},
    "POST /volumes": lambda of: {"name": "new", "size": 2**30, "group": of["group"]},
    "PATCH /volumes/{name}": lambda of: {"size": 2**31},
    "POST /volumes/{name}/attach": lambda of: {"vcluster": of["vcluster"]},
    "POST /volumes/{name}/detach": lambda of: {"vcluster": of["vcluster"]},
    "POST /volumes/{name}/snapshots": lambda of: {"snapshot": "new"},
    "POST /users": lambda of: {"name": "new"},
    "PUT /groups/{name}/members/{user}": lambda of: {"role": "viewer"},
    "POST /tokens": lambda of: {"name": "new"},
    "PUT /me/password": lambda of: {"old": "x", "new": "y"},
    "POST /me/keys": lambda of: {"key": KEY.format("x").replace("HR4f", "HR4g")},
    "POST /users/{name}/keys": lambda of: {"key": KEY.format("x").replace("HR4f", "HR4h")},
    "POST /me/tokens": lambda of: {"name": "new"},
    "POST /me/notices/read": lambda of: {"until": 1},
    "PATCH /me/notices/mail": lambda of: {"choices": [{"kind": "ready", "mail": "default"}]},
    "POST /sign-in": lambda of: {"name": "none", "password": "x", "token": "t"},
    "POST /invitations/accept": lambda of: {"secret": "none", "password": "x"},
    "PATCH /settings/{name}": lambda of: {"value": 600},
    "POST /settings/{name}/undo": lambda of: {"change": 1},
}
KINDS = {
    "nodes": "node",
    "types": "type",
    "blocks": "block",
    "switches": "switch",
    "images": "image",
    "uploads": "upload",
    "templates": "template",
    "vclusters": "vcluster",
    "names": "label",
    "requests": "request",
    "reclaims": "reclaim",
    "groups": "group",
    "shares": "group",
    "notices": "notice",
    "users": "user",
    "members": "user",
    "invitations": "invitation",
    "tokens": "token",
    "volumes": "volume",
    "series": "series",
    "snapshots": "snapshot",
    "sessions": "session",
    "keys": "key",
    "deliveries": "delivery",
    "maintenance": "window",
    "settings": "setting",
}
# What the world has no own of.
UNKNOWN = {
    "type": "type1",
    "block": "none",
    "switch": "leaf",
    "token": "ci",
    "delivery": "1",
    "window": "1",
    "setting": "policy.inertia",
}


@dataclass
class Walk:
    """The server, with the world behind it, and one connection."""

    served: Served
    world: World
    line: http.client.HTTPConnection

    def ask(self, route: Route, asker: Asker, of: dict[str, str]) -> tuple[int, str]:
        """(status, text of the answer)."""
        headers = {"Content-Type": "application/json", "Tus-Resumable": "1.0.0"}
        if asker.token:
            headers["Authorization"] = f"Bearer {asker.token}"
        body = json.dumps(body_of(route, of)) if route.body is not None else None
        if (route.method, route.path) == ("PATCH", "/uploads/{id}"):
            body, headers = (
                "0123456789",
                headers | {"Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"},
            )
        self.line.request(route.method, "/api/v1" + path_of(route, of), body, headers)
        reply = self.line.getresponse()
        return reply.status, reply.read().decode()


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route, of: dict[str, str]) -> str:
    parts, kind = [], ""
    for part in route.path.split("/"):
        parts.append(
            (of | {k: v for k, v in UNKNOWN.items() if k not in of})[kind]
            if part.startswith("{")
            else part
        )
        kind = KINDS.get(part, kind)
    return "/".join(parts)


def body_of(route: Route, of: dict[str, str]) -> Any:
    body = BODIES.get(name_of(route), lambda of: {})(of)
    assert route.body is not None
    route.body.model_validate(body)  # else nothing is asked at all
    return body


def rank_of(asker: Asker) -> int:
    if not asker.token:
        return RANK.index(OPEN)
    if asker.admin:
        return RANK.index(ADMIN)
    return RANK.index(ANY if asker.role is None else asker.role.value)


def faults(walk: Walk, route: Route) -> Iterator[str]:
    """Yield what is wrong with what everybody is answered, as sentences."""
    least, ours, name = LEAST[name_of(route)], walk.world.ours, name_of(route)
    for who, asker in walk.world.askers.items():
        status, text = walk.ask(route, asker, ours)
        said = f"{name}: {who} gets {status} {text[:200]}"
        if status >= 500:
            yield f"{said}: the server failed"
        if not asker.token and least != OPEN:
            if status != 401:
                yield f"{said}, not 401"
        elif (route.changes or route.secret) and not asker.writes and least != OPEN:
            if status != 403:
                yield f"{said}, not 403: it may only read"
        elif rank_of(asker) < RANK.index(least):
            yield from not_refused(walk, route, asker, status, text, said)
        elif status in (401, 403) and not excused(route, asker):
            yield f"{said}, though {least} is enough"
        if asker.role is None and not asker.admin and status < 300 and MARK in text:
            yield f"{said}: a stranger reads what is not theirs"


def excused(route: Route, asker: Asker) -> bool:
    """Return whether a refusal is right though everybody may ask: a wrong password; a token for one
    group, about its user's account."""
    return route.act is not None or (asker.only and route.path.startswith("/me") and route.changes)


def not_refused(
    walk: Walk, route: Route, asker: Asker, status: int, text: str, said: str
) -> Iterator[str]:
    if status not in (403, 404):
        yield f"{said}: neither forbidden nor not found"
    if asker.role is not None:
        return
    ours = walk.world.ours
    missing = {  # of a group that is not there, where ours have their group's name
        kind: f"{walk.world.missing['group']}/{name}" if "/" in ours.get(kind, "") else name
        for kind, name in walk.world.missing.items()
    }
    other, about = walk.ask(route, asker, missing)
    # the answers repeat the names that were asked for, and nothing else
    for kind in ours:
        text, about = (
            each.replace(f"'{names[kind]}'", "'…'")
            for each, names in ((text, ours), (about, missing))
        )
    if (status, text) != (other, about):
        yield f"{said}: but of what is not there, {other} {about[:200]}"


# ---------------------------------------------------------------- the walk


@pytest.fixture
def walk(
    reactor: Any, engine: Engine, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Walk]:
    with standing(reactor, engine, in_reactor, site) as there:
        yield Walk(*there)


def test_every_route_has_a_row() -> None:
    """Say in `LEAST` what somebody has to be at least to ask a new route, and in `BODIES` what to
    ask it."""
    assert sorted(map(name_of, ROUTES)) == sorted(LEAST)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_nobody_gets_what_is_not_theirs(walk: Walk, part: int) -> None:
    found = [
        fault
        for route in ROUTES[part::3]
        if name_of(route) in LEAST
        for fault in faults(walk, route)
    ]
    assert not found, "\n".join(found)


def test_what_is_ours_is_there_for_us(walk: Walk) -> None:
    """Else the walk would prove nothing: each of our things is found by who may see it."""
    for route in ROUTES:
        newest = route.path.endswith(("/capture", "/burnin"))  # there is none
        if route.method == "GET" and LEAST.get(name_of(route)) == VIEWER and not newest:
            status, text = walk.ask(route, walk.world.askers["viewer"], walk.world.ours)
            assert status == 200, (name_of(route), text)


@pytest.mark.parametrize(
    "path",
    [
        "/vclusters/{name}",
        "/images/{name}",
        "/requests/{id}",
        "/groups/{name}/members",
        "/users/{name}",
        "/uploads/{id}",
    ],
)
def test_a_hole_would_be_seen(walk: Walk, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A route that asks nothing of anybody."""
    hole = next(
        replace(route, claims=ANYBODY)
        for route in ROUTES
        if (route.method, route.path) == ("GET", path)
    )
    monkeypatch.setattr(json_body, "ROUTE_MAP", RouteMap((hole,)))
    assert any("stranger" in fault for fault in faults(walk, hole))


def test_a_route_that_is_closed_too_far_would_be_seen(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cod.web.api.routes import ADMINS

    hole = next(
        replace(route, claims=ADMINS)
        for route in ROUTES
        if name_of(route) == "GET /vclusters/{name}"
    )
    monkeypatch.setattr(json_body, "ROUTE_MAP", RouteMap((hole,)))
    assert any("is enough" in fault for fault in faults(walk, hole))
