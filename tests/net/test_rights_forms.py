"""Every form of the portal, sent by a stranger to what is another group's: nothing is done, and
nothing is learnt."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from cod.web.portal.page import Action
from cod.web.portal.registry import ACTIONS
from tests.net.test_rights_walk import BODIES, KINDS, UNKNOWN, Walk, name_of, walk

FORMS = [each for each in ACTIONS if isinstance(each, Action) and "{" in each.path]


def path_of(path: str, of: dict[str, str]) -> str:
    parts, kind = [], ""
    for part in path.split("/"):
        parts.append((UNKNOWN | of)[kind] if part.startswith("{") else part)
        kind = {**KINDS, "people": "user", "links": "invitation"}.get(part, kind)
    return "/".join(parts)


def fields_of(action: Action, of: dict[str, str]) -> dict[str, str]:
    """What the API is asked with, as a form's fields where that is simple."""
    body = BODIES.get(name_of(action.route), lambda names: {})(of)
    return {
        name: str(value) for name, value in body.items() if isinstance(value, str | int | float)
    }


def sent(walk: Walk, who: str, action: Action, of: dict[str, str]) -> tuple[int, str]:
    """(status, the answer's text without what is different each time)."""
    cookie = {"Cookie": f"__Host-cod={walk.world.askers[who].cookie}"}
    walk.line.request("GET", "/account", headers=cookie)
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', walk.line.getresponse().read().decode())
    assert found is not None
    host = f"127.0.0.1:{walk.line.port}"
    walk.line.request(
        "POST",
        path_of(action.path, of),
        urlencode(fields_of(action, of) | {"csrf": found[1]}),
        {
            **cookie,
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"https://{host}",
            "Host": host,
        },
    )
    reply = walk.line.getresponse()
    text = re.sub(r"[0-9a-f]{32,}", "", reply.read().decode())
    return reply.status, text


def nameless(text: str, *names: dict[str, str]) -> str:
    """An answer without what was asked for, which answers repeat in paths, queries and
    sentences."""
    for name in sorted({each for of in names for each in of.values()}, key=len, reverse=True):
        text = (
            re.sub(rf"(?<=[/';]){name}\b", "…", text) if name.isdigit() else text.replace(name, "…")
        )
    return text


@pytest.mark.slow
def test_a_strangers_form_does_nothing_and_tells_nothing(walk: Walk) -> None:
    assert len(FORMS) > 40
    for action in FORMS:
        ours, missing = walk.world.ours, dict(walk.world.missing)
        status, text = sent(walk, "stranger", action, ours)
        other, about = sent(walk, "stranger", action, missing)
        text, about = nameless(text, ours, missing), nameless(about, ours, missing)
        assert status in (403, 404, 422), (action.path, status)
        assert status == other, (action.path, status, other)
        if status != 422:  # such a page shows what was typed, and that is what differs
            assert text == about, action.path


@pytest.mark.slow
def test_the_same_forms_do_something_for_who_may(walk: Walk) -> None:
    """Else they would prove nothing."""
    done = [
        action.path
        for action in FORMS
        if sent(walk, "admin", action, walk.world.ours)[0] in (200, 303)
    ]
    assert len(done) > len(FORMS) // 3, done
