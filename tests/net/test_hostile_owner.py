"""An owner of one group who wants what is another's, with a token and a browser that is signed in.

Walks through all routes and pages are elsewhere (`test_rights_walk`, `test_rights_pages`): here is
what they do not ask, names of others' things in bodies and queries among it.
"""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from cod.client import ApiError, Client
from cod.flows.people import invitations, signin, tokens
from cod.model import Identity, Refused, SignInRules, Who
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import people as rows
from cod.web.portal.registry import ACTIONS, PAGES
from tests.net.apiserver import NOW, Served
from tests.net.credentials import as_user
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import Browser

pytestmark = pytest.mark.slow

MISSING = "nothing-like-it"
RULES = SignInRules()


def template(name: str, image: str) -> str:
    return f'<template name="{name}"><image target="disk" name="{image}"/></template>'


def vcluster(**given: str) -> dict[str, Any]:
    return {"name": "mine", "size": 1, "template": "web-server", "group": "web"} | given


# (method, path, body) by the name of something that is another group's, and that name. The owner is
# of group web.
BODIES: list[tuple[str, str, Callable[[str], Any], str]] = [
    ("POST", "/vclusters", lambda x: vcluster(template=x), "physics/execution-host"),
    ("POST", "/vclusters", lambda x: vcluster(template=f"{x}@1"), "physics/execution-host"),
    ("POST", "/vclusters", lambda x: vcluster(group=x), "physics"),
    (
        "POST",
        "/vclusters/farm/requests",
        lambda x: {"tuples": [{"count": 1, "template": x}]},
        "physics/execution-host",
    ),
    ("POST", "/vclusters/farm/release", lambda x: {"nodes": [x]}, "{node}"),
    (
        "POST",
        "/match",
        lambda x: {"count": 1, "template": x, "group": "web"},
        "physics/execution-host",
    ),
    ("POST", "/match", lambda x: {"count": 1, "template": "web-server", "group": x}, "physics"),
    (
        "POST",
        "/templates/check",
        lambda x: {"document": template("t", x), "group": "web"},
        "physics/execd",
    ),
    (
        "POST",
        "/templates",
        lambda x: {"document": template("t", x), "group": "web"},
        "physics/execd",
    ),
    ("POST", "/templates", lambda x: {"document": template("t", "nginx"), "group": x}, "physics"),
    ("POST", "/uploads", lambda x: {"name": "n", "size": 5, "group": x}, "physics"),
    ("POST", "/me/tokens", lambda x: {"name": "t9", "group": x}, "physics"),
    ("POST", "/nodes/{own}/capture", lambda x: {"image": "cap", "group": x}, "physics"),
]
QUERIES = [
    ("/timeline?group={}", "physics"),
    ("/timeline?vcluster={}", "batch"),
    ("/energy?group={}", "physics"),
    ("/audit?group={}", "physics"),
    ("/nodes?group={}", "physics"),
    ("/nodes?vcluster={}", "batch"),
    ("/nodes?q={}", "batch"),
    ("/requests?vcluster={}", "batch"),
    ("/requests?group={}", "physics"),
    ("/vclusters?group={}&ended=true", "physics"),
    ("/reclaims?vcluster={}", "batch"),
    ("/users?q={}", "victim"),
    ("/notices?group={}", "physics"),
    ("/notices?vcluster={}", "batch"),
    ("/images?q={}", "execd"),
    ("/templates?name={}", "physics/execution-host"),
    ("/groups?q={}", "physics"),
    ("/captures?q={}", "cap"),
    ("/audit?actor={}", "user:victim"),
    ("/audit?thing={}", "physics"),
    ("/audit?q={}", "physics"),
]


def answer(client: Client, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """(status, text) of an answer."""
    try:
        return 200, json.dumps(client.call(method, path, body))
    except ApiError as error:
        return error.status, str(error)


def held(served: Served, name: str) -> str:
    """A node that the vcluster of that name holds."""
    return str(served.local.get(f"/nodes?vcluster={name}&limit=1")["items"][0]["name"])


@pytest.fixture
def mallory(there: Served) -> Client:
    as_user(there, "victim", "physics")
    return as_user(there, "mallory", "web")


def test_what_is_anothers_is_as_if_it_were_not_there_wherever_it_is_named(
    there: Served, mallory: Client
) -> None:
    own, node = held(there, "farm"), held(there, "batch")
    for method, path, body, theirs in BODIES:
        theirs, path = theirs.replace("{node}", node), path.replace("{own}", own)
        found, missing = (answer(mallory, method, path, body(name)) for name in (theirs, MISSING))
        assert (found[0], found[1].replace(theirs, MISSING)) == missing, (method, path)
        assert found[0] == (200 if path == "/templates/check" else 404), (method, path, found)


def test_what_is_anothers_is_found_by_no_filter(mallory: Client) -> None:
    for path, theirs in QUERIES:
        found, missing = (answer(mallory, "GET", path.format(name)) for name in (theirs, MISSING))
        assert (found[0], found[1].replace(theirs, MISSING)) == missing, path


def test_nobody_adds_a_revision_to_anothers_template_nor_learns_of_it(
    there: Served, mallory: Client
) -> None:
    """Take a bare name for one's own template; refuse a full name with another group's prefix,
    there or not."""
    before = there.local.get("/templates/physics/execution-host")["revision"]
    assert (
        mallory.post(
            "/templates", {"document": template("execution-host", "nginx"), "group": "web"}
        )["name"]
        == "web/execution-host"
    )
    node = held(there, "farm")
    there.tx(
        lambda tx: tx.execute(update(t.nodes).where(t.nodes.c.name == node).values(state="active"))
    )
    capture = f"/nodes/{node}/capture"
    for path, body in (
        ("/templates", lambda name: {"document": template(name, "nginx"), "group": "web"}),
        ("/templates/check", lambda name: {"document": template(name, "nginx"), "group": "web"}),
        ("/uploads", lambda name: {"name": name, "size": 5, "group": "web"}),
        (capture, lambda name: {"image": "cap", "template": name}),
        (capture, lambda name: {"image": name}),
    ):
        told = []
        for owner, name in (
            ("physics", "execution-host"),
            ("physics", "execd"),
            ("nobody", "nothing"),
        ):
            status, text = answer(mallory, "POST", path, body(f"{owner}/{name}"))
            told.append((status, text.replace(owner, "*").replace(name, "*")))
        assert set(told) == {told[0]}, path
        assert told[0][0] == (200 if path == "/templates/check" else 422), told
        assert "is no name for a thing of group web" in told[0][1]
    assert (
        mallory.post(capture, {"image": "cap", "template": "execution-host"})["template"]
        == "web/execution-host"
    )
    assert there.local.get("/templates/physics/execution-host")["revision"] == before


# ---------------------------------------------------------------- names of others


@pytest.mark.parametrize("name", ["root", "uid", "uid0", "uid1000"])
def test_nobody_is_called_as_the_server_calls_its_own_administrator(tx: Tx, name: str) -> None:
    """The audit shows who asks on the server's own socket as user:root, or by number."""
    invitations.invite(tx, digest="link", rules=RULES, who="user:ann", now=NOW)
    with pytest.raises(Refused, match="choose another name"):
        invitations.accept(tx, digest="link", name=name, password="hash", address="", now=NOW)
    assert rows.by_name(tx, name) is None
    came = signin.vouched(
        tx, identity=Identity("oidc:1", "oidc", name), create=True, address="", now=NOW
    )
    assert came.name == f"user-{name}"


# ---------------------------------------------------------------- letters, links, tokens


def test_a_letter_goes_to_one_address(mallory: Client) -> None:
    for email in (
        "a@example.org, b@example.org",
        "a@example.org\r\nBcc: b@example.org",
        "a@example.org\n",
    ):
        assert answer(mallory, "POST", "/groups/web/invitations", {"email": email})[0] == 422
    assert answer(mallory, "PATCH", "/me", {"email": "a@example.org,b@example.org"})[0] == 422
    assert (
        answer(mallory, "PATCH", "/groups/web", {"email": "a@example.org,b@example.org"})[0] == 200
    ), "a group's may"


def test_links_and_tokens_have_an_end(
    there: Served, mallory: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitations, "MOST", 3)
    monkeypatch.setattr(tokens, "MOST", 3)
    links = [answer(mallory, "POST", "/groups/web/invitations", {})[0] for _ in range(4)]
    assert links == [200, 200, 200, 409]
    made = [answer(mallory, "POST", "/me/tokens", {"name": f"t{number}"})[0] for number in range(3)]
    assert made == [200, 200, 409], "the one that is used counts"


# ---------------------------------------------------------------- headers


def test_nothing_that_is_asked_gets_into_a_header(there: Served) -> None:
    browser = browse(there, group="web")
    paths = [
        f"{start}%0d%0aX-Evil:%201{end}"
        for start in ("/groups/web", "/vclusters/farm", "/", "/nodes/x")
        for end in ("", "/leave", "/change", "?back=/%0d%0aX-Evil:%201")
    ]
    for path in paths:
        for method in ("GET", "POST"):
            shown = browser.ask(method, path, b"csrf=x" if method == "POST" else None, browser.form)
            assert "X-Evil" not in shown.headers, path
            assert shown.status in (303, 403, 404, 405, 422), (path, shown.status)


def test_who_is_led_to_sign_in_comes_back_to_this_site(there: Served) -> None:
    stranger = Browser(there.server.ports[0])
    for path in ("//evil.example/x", "/%5cevil.example", "/\\evil.example", "/%2f%2fevil.example"):
        shown = stranger.ask("GET", path)
        location = shown.headers.get("Location", "")
        assert location.startswith("/sign-in") or shown.status == 404, path
        page = stranger.get(location) if location else shown
        assert "evil" not in "".join(page.tree.xpath("//form//input[@name='back']/@value")), path


def test_nothing_that_is_somebodys_is_kept_by_a_cache(there: Served, mallory: Client) -> None:
    browser = browse(there, group="web")
    for page in PAGES:
        shown = browser.ask("GET", page.path.replace("{name}", "farm"))
        assert shown.headers["Cache-Control"] == "no-store", page.path
    line = http.client.HTTPConnection("127.0.0.1", there.server.ports[0], timeout=30)
    for path in (
        "/vclusters",
        "/nodes",
        "/me",
        "/groups/web/webhook-secret",
        "/vclusters/none",
        "/openapi.json",
    ):
        line.request("GET", f"/api/v1{path}", headers={"Authorization": "Bearer cod_mallory"})
        reply = line.getresponse()
        reply.read()
        assert reply.headers["Cache-Control"] == "no-store", path
        assert "Access-Control-Allow-Origin" not in reply.headers
    line.close()


# ---------------------------------------------------------------- forms


def test_a_token_of_ones_own_page_opens_nobody_elses_form(there: Served) -> None:
    """Somebody lures an owner of another group to a page with their own form's token in it."""
    ours, theirs = browse(there, group="web"), browse(there)
    (token,) = {
        value for name, value in ours.get("/account").fields("/account/profile") if name == "csrf"
    }
    shown = theirs.ask(
        "POST", "/account/profile", theirs.body({"csrf": token, "full_name": "Eve"}), theirs.form
    )
    assert shown.status == 403
    foreign = theirs.form | {"Origin": "https://evil.example"}
    (own,) = {
        value for name, value in theirs.get("/account").fields("/account/profile") if name == "csrf"
    }
    for headers in (foreign, theirs.form | {"Origin": "null"}):
        assert (
            theirs.ask("POST", "/account/profile", theirs.body({"csrf": own}), headers).status
            == 403
        )


def test_administrators_forms_are_nobody_elses(there: Served) -> None:
    """Every form of the portal that an owner cannot reach on a page, sent all the same."""
    browser = browse(there, group="web")
    (token,) = {
        value
        for name, value in browser.get("/account").fields("/account/profile")
        if name == "csrf"
    }
    closed = [
        each
        for each in ACTIONS
        if each.path.startswith(("/people", "/blocks", "/types", "/nodes/{name}/"))
        and not each.path.endswith(("/power", "/capture", "/capture/cancel"))
    ]
    assert len(closed) > 10
    for action in closed:
        path = action.path.replace("{name}", "node1").replace("{id}", "1")
        shown = browser.ask(
            "POST", path, browser.body({"csrf": token, "name": "x", "reason": "x"}), browser.form
        )
        assert shown.status in (403, 404, 422), (path, shown.status)
    assert there.local.get("/users?q=x")["items"] == []


def test_the_browser_of_somebody_who_is_taken_out_sees_no_more(there: Served) -> None:
    browser = browse(there, "member", "web")
    assert browser.get("/vclusters/farm").status == 200
    there.local.delete("/groups/web/members/member-web")
    assert browser.get("/vclusters/farm").status == 404
    assert answer(there.remote("cod_x"), "GET", "/me")[0] == 401


def test_secret_user_data_are_read_by_the_people_of_their_group_alone(
    there: Served, mallory: Client
) -> None:
    secret = "MUNGE_KEY=c2VjcmV0"
    document = template("node", "execd").replace(
        "/></template>",
        '/><personalise seed="nocloud"><user-data '
        f'secret="yes">{secret}</user-data></personalise></template>',
    )
    with pytest.raises(ApiError, match="every user reads the site's templates"):
        there.local.post("/templates", {"document": document.replace("execd", "debian-12")})
    assert not there.local.post(
        "/templates/check", {"document": document.replace("execd", "debian-12")}
    )["ok"]
    there.local.post("/templates", {"document": document, "group": "physics"})
    there.local.post(
        "/vclusters", {"name": "slurm", "size": 1, "template": "node", "group": "physics"}
    )
    assert secret in as_user(there, "member", "physics").get("/templates/physics/node")["document"]
    for path in (
        "/templates/physics/node",
        "/templates/physics/node@1",
        "/templates?name=physics/node",
        "/vclusters/slurm",
    ):
        assert answer(mallory, "GET", path)[0] == 404, path
    for path in (
        "/templates",
        "/vclusters",
        "/audit",
        "/requests",
        "/nodes",
        "/timeline",
        "/images",
    ):
        assert secret not in answer(mallory, "GET", path)[1], path
        assert secret not in answer(there.local, "GET", path)[1], (
            f"{path}: nor does an administrator stumble over it"
        )
    assert browse(there, group="web").get("/templates/physics/node").status == 404
