"""Idempotency keys and entity tags: a question that is repeated, a thing that is not as it was."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from cod.flows import replies as flow
from cod.store import replies
from cod.web.api.resources import ROUTES
from cod.web.api.things import THINGS
from cod.web.http.request import fits, tag, tags
from tests.net.apiserver import ADMIN, NOW, Served, add_node
from tests.net.rawhttp import ask


@pytest.fixture
def say(served: Served) -> Callable[..., tuple[int, dict[str, str], Any]]:
    """(status, headers, JSON) of a request by the local administrator or another."""

    def said(
        method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> Any:
        return ask(
            served,
            method,
            "/api/v1" + path,
            None if body is None else json.dumps(body).encode(),
            token,
            {name.replace("_", "-"): value for name, value in headers.items()},
        )

    return said


def test_a_creation_that_is_repeated_with_its_key_is_answered_the_same(
    served: Served, say: Any
) -> None:
    first = say("POST", "/groups", {"name": "physics"}, Idempotency_Key="a")
    again = say("POST", "/groups", {"name": "physics"}, Idempotency_Key="a")
    assert (first[0], again[0]) == (201, 201)
    assert first[2] == again[2]
    assert ("Idempotency-Replayed" in first[1], again[1]["Idempotency-Replayed"]) == (False, "true")
    assert say("POST", "/groups", {"name": "physics"}, Idempotency_Key="b")[0] == 409
    assert len(served.local.get("/groups")["items"]) == 2


def test_a_key_is_for_one_question(say: Any) -> None:
    assert say("POST", "/groups", {"name": "physics"}, Idempotency_Key="a")[0] == 201
    status, _, problem = say("POST", "/groups", {"name": "chemistry"}, Idempotency_Key="a")
    assert (status, problem["code"], problem["field"]) == (422, "invalid", "Idempotency-Key")
    assert say("POST", "/blocks", {"name": "physics"}, Idempotency_Key="a")[0] == 422


def test_a_key_is_its_askers_own(say: Any) -> None:
    assert say("POST", "/groups", {"name": "physics"}, Idempotency_Key="a")[0] == 201
    assert say("POST", "/groups", {"name": "physics"}, ADMIN, Idempotency_Key="a")[0] == 409


def test_what_was_refused_may_be_asked_again_under_its_key(served: Served, say: Any) -> None:
    assert say("POST", "/nodes/n1/quarantine", {"reason": "x"}, Idempotency_Key="a")[0] == 404
    add_node(served, "n1", 1)
    assert say("POST", "/nodes/n1/quarantine", {"reason": "x"}, Idempotency_Key="a")[0] == 200


def test_of_two_at_once_one_is_done(served: Served, say: Any) -> None:
    with ThreadPoolExecutor(4) as threads:
        asked = threads.map(
            lambda _: say("POST", "/groups", {"name": "physics"}, Idempotency_Key="a"), range(4)
        )
        answers = list(asked)
    assert {status for status, _, _ in answers} == {201}
    assert sum("Idempotency-Replayed" not in headers for _, headers, _ in answers) == 1


def test_a_secret_is_not_kept(served: Served) -> None:
    once = partial(
        flow.once,
        flow=lambda tx: "value",
        key="k",
        question="q",
        status=201,
        body=lambda value: "",
        now=1,
    )
    assert served.tx(once) == "value"
    assert served.tx(replies.begin, "k", "q", 2.0) == replies.Kept("q", 201, "")


def test_answers_with_secrets_in_them_are_marked() -> None:
    for route in ROUTES:
        fields = set(getattr(route.reply, "model_fields", {}))
        # of keys that are no secret; of notices, whose links are pages
        public = {"fingerprint", "subject"}
        if (
            route.is_keyed
            and fields & {"secret", "token", "key", "link", "password"}
            and not fields & public
        ):
            assert route.secret, f"{route.method} {route.path}: its answer would be kept"


def test_what_made_a_secret_is_not_done_again(served: Served, say: Any) -> None:
    assert say("POST", "/groups/site/webhook-secret", {}, Idempotency_Key="a")[0] == 200
    secret = served.local.get("/groups/site/webhook-secret")["secret"]
    status, headers, problem = say("POST", "/groups/site/webhook-secret", {}, Idempotency_Key="a")
    assert (status, problem["code"], headers["Idempotency-Replayed"]) == (409, "shown_once", "true")
    assert served.local.get("/groups/site/webhook-secret")["secret"] == secret


def test_what_has_not_changed_is_not_sent_again(say: Any) -> None:
    status, headers, _ = say("GET", "/groups/site")
    assert status == 200
    assert say("GET", "/groups/site", If_None_Match=headers["ETag"])[0] == 304
    assert say("GET", "/groups/site", If_None_Match=f'"x", W/{headers["ETag"]}')[0] == 304
    assert say("GET", "/groups/site", If_None_Match='"x"')[0] == 200


def test_a_thing_is_changed_only_as_it_was_seen(say: Any) -> None:
    seen = say("GET", "/groups/site")[1]["ETag"]
    assert say("PATCH", "/groups/site", {"priority": 1}, If_Match=seen)[0] == 200
    status, _, problem = say("PATCH", "/groups/site", {"priority": 2}, If_Match=seen)
    assert (status, problem["code"]) == (412, "changed")
    assert say("PATCH", "/groups/site", {"priority": 2}, If_Match="*")[0] == 200
    assert say("GET", "/groups/site")[2]["priority"] == 2


def test_a_verb_and_a_deletion_look_at_the_thing_that_they_are_about(
    served: Served, say: Any
) -> None:
    add_node(served, "n1", 1, reported_at=NOW)
    seen = say("GET", "/nodes/n1")[1]["ETag"]
    assert say("POST", "/nodes/n1/quarantine", {"reason": "smoke"}, If_Match='"x"')[0] == 412
    assert say("POST", "/nodes/n1/quarantine", {"reason": "smoke"}, If_Match=seen)[0] == 200
    assert say("POST", "/nodes/n1/restore", {}, If_Match=seen)[0] == 412
    assert say("POST", "/blocks", {"name": "b1"}, If_Match='"x"')[0] == 412
    say("POST", "/blocks", {"name": "b1"})
    assert say("DELETE", "/blocks/b1", If_Match='"x"')[0] == 412
    assert say("DELETE", "/blocks/b1", If_Match=say("GET", "/blocks/b1")[1]["ETag"])[0] == 204


def test_every_change_of_a_thing_that_can_be_seen_has_its_twin() -> None:
    shown = {route.path for route in ROUTES if route.method == "GET"}
    for route in ROUTES:
        if route.changes and route.path in shown and "{" in route.path:
            found = THINGS[route.method, route.path].get
            assert found is not None
            assert found.path == route.path
    verb = THINGS["POST", "/vclusters/{name}/extend"]
    assert verb.get is not None
    assert (verb.get.method, verb.get.path, verb.action) == (
        "GET",
        "/vclusters/{name}",
        "vcluster extend",
    )
    assert THINGS["POST", "/groups"].get is None


def test_headers_may_be_any_bytes(served: Served) -> None:
    for header in (b"If-Match", b"If-None-Match", b"Idempotency-Key", b"Content-Type", b"Accept"):
        with socket.create_connection(("127.0.0.1", served.server.ports[0]), timeout=60) as line:
            line.sendall(
                b"GET /api/v1/groups/site HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer"
                b" cod_admin\r\n" + header + b": \x9a\xff\r\n\r\n"
            )
            reply = http.client.HTTPResponse(line)
            reply.begin()
            assert reply.status == 200, header


def test_tags() -> None:
    body = b"{}"
    assert tags(f'{tag(body)} , W/"b"') == {tag(body), 'W/"b"'}
    assert tags(" * ") == {"*"}
    assert fits("*", body)
    assert not fits(None, body)
    assert fits(tag(body), body)
    assert not fits(tag(b"[]"), body)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"nonsense\r\n\r\n",
        b"GET /api/v1/nodes HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_gets_a_problem_document(served: Served, rubbish: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), timeout=60) as line:
        line.sendall(rubbish)
        reply = http.client.HTTPResponse(line)
        reply.begin()
        assert (reply.status, reply.getheader("Content-Type")) == (400, "application/problem+json")
        assert json.loads(reply.read())["code"] == "bad_request"
