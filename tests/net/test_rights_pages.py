"""Every page of the portal, looked at by everybody: nobody sees what is not theirs (the API's walk,
by cookies)."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.model import Site
from cod.web.api.routes import ANYBODY
from cod.web.portal.front import Portal
from cod.web.portal.page import Page
from cod.web.portal.registry import ACTIONS, PAGES
from tests.net.apiserver import Served
from tests.net.rights_world import MARK, OURS, Asker, World, standing
from tests.net.test_rights_walk import KINDS, UNKNOWN

PUBLIC = {"/sign-in", "/invitation"}
ADMINS = {
    "/blocks",
    "/blocks/{name}",
    "/energy",
    "/faults",
    "/hold",
    "/machine-list",
    "/map",
    "/new-machines",
    "/node-actions",
    "/people",
    "/people/{name}",
    "/policy",
    "/settings",
    "/settings/{name}",
}
SHARED = {"/types/{name}", "/templates/new", "/images/new", "/vclusters/new", "/maintenance/{id}"}


@dataclass
class Walk:
    """The server, with the world behind it, and one connection."""

    served: Served
    world: World
    line: http.client.HTTPConnection

    def look(self, page: Page, asker: Asker, of: dict[str, str]) -> tuple[int, str]:
        """(status, the page's text, without what is different each time)."""
        headers = {"Cookie": f"__Host-cod={asker.cookie}"} if asker.cookie else {}
        self.line.request("GET", path_of(page, of), headers=headers)
        reply = self.line.getresponse()
        return reply.status, re.sub(r'value="[0-9a-f]{32,}"', "", reply.read().decode())


def path_of(page: Page, of: dict[str, str]) -> str:
    parts, kind = [], ""
    for part in page.path.split("/"):
        parts.append((UNKNOWN | of | {"user": of["user"]})[kind] if part.startswith("{") else part)
        kind = {**KINDS, "people": "user"}.get(part, kind)
    return "/".join(parts)


def faults(walk: Walk, page: Page) -> Iterator[str]:
    """Yield a sentence for each fault in what everybody sees of a page."""
    things = "{" in page.path and page.path not in SHARED
    for who, asker in walk.world.askers.items():
        if asker.token and not asker.cookie:
            continue  # tokens are for the API
        status, text = walk.look(page, asker, walk.world.ours)
        said = f"{page.path}: {who} gets {status}"
        if status >= 500:
            yield f"{said}: the server failed"
        if not asker.cookie:
            if status != (200 if page.path in PUBLIC else 303):
                yield (
                    f"{said}:"
                    f" {'to be seen by all' if page.path in PUBLIC else 'not led to sign in'}"
                )
        elif page.path in ADMINS and not asker.admin:
            if status not in (403, 404):
                yield f"{said}: that is the administrators'"
        elif things and asker.role is None and not asker.admin:
            missing, _ = walk.look(page, asker, dict(walk.world.missing))
            if (status, missing) != (404, 404):
                yield f"{said}, and {missing} of what is not there"
        elif asker.role == "owner" and status in (403, 404) and page.path not in ADMINS:
            yield f"{said}, though it is theirs"
        if asker.role is None and not asker.admin and status == 200 and MARK in text:
            yield f"{said}: a stranger sees what is not theirs"


@pytest.fixture
def walk(
    reactor: Any, engine: Engine, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Walk]:
    with standing(reactor, engine, in_reactor, site) as there:
        yield Walk(*there)


@pytest.mark.slow
def test_nobody_sees_what_is_not_theirs(walk: Walk) -> None:
    found = [fault for page in PAGES for fault in faults(walk, page)]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_a_hole_in_a_page_would_be_seen(walk: Walk) -> None:
    page = next(replace(page, claims=ANYBODY) for page in PAGES if page.path == "/vclusters/{name}")
    api = walk.served.server._apis[1]
    api.portal = Portal(api.context, (page,), ACTIONS)
    assert OURS in walk.look(page, walk.world.askers["stranger"], walk.world.ours)[1]
    assert any("stranger" in fault for fault in faults(walk, page))
