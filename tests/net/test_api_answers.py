"""What answers say beside their bodies: where a thing is, its tag, what is allowed, all that is
wrong."""

from __future__ import annotations

import gzip
import http.client
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from cod.model import SlowDown
from cod.states import CaptureState, NodeState, ReclaimState, RequestState, VclusterState
from cod.store.images import images
from cod.store.people import groups
from cod.store.scheduler import vclusters
from cod.web.api import openapi
from cod.web.api.models import OneOrSeveral
from cod.web.api.resources import ROUTE_MAP, ROUTES
from cod.web.api.routes import Route
from cod.web.api.things import THINGS
from cod.web.http import request
from cod.web.http.errors import problem_of
from cod.web.http.request import PREFIX, gzips, unquoted
from tests.net.apiserver import ADMIN, NOW, READER, Served, add_node, run
from tests.net.portalclient import signed_in
from tests.net.rawhttp import ask
from tests.net.test_api_conditions import say  # noqa: F401 - a fixture
from tests.store import manager_world as world

Say = Callable[..., tuple[int, dict[str, str], Any]]
P = PREFIX


# ---------------------------------------------------------------- Location and tags


MAKING = [one for one in ROUTES if one.status in (201, 202)]


@pytest.mark.parametrize("route", MAKING, ids=lambda route: f"{route.method} {route.path}")
def test_whatever_is_made_or_will_be_has_a_place(route: Route) -> None:
    path = THINGS[route.method, route.path].path
    assert path
    told = set(getattr(route.reply, "model_fields", {}))
    assert set(re.findall(r"\{(\w+)\}", route.makes)) <= told, "its reply names it"
    known = {re.sub(r"\{\w+\}", "{}", each.path) for each in ROUTES}
    assert re.sub(r"\{\w+\}", "{}", path).replace("{}@{}", "{}") in known
    success = openapi.document()["paths"][P + route.path][route.method.lower()]["responses"][
        str(route.status)
    ]
    assert "Location" in success["headers"]


def follow(served: Served, location: str) -> tuple[int, dict[str, str], Any]:
    return ask(served, "GET", location)


def test_a_creation_says_where_it_is_and_by_which_tag(served: Served, say: Say) -> None:  # noqa: F811
    for path, body in (("/groups", {"name": "physics"}), ("/blocks", {"name": "rack1"})):
        status, headers, _ = say("POST", path, body, Idempotency_Key=path)
        assert (status, headers["Location"]) == (201, f"{P}{path}/{body['name']}")
        there = follow(served, headers["Location"])
        assert (there[0], there[1]["ETag"]) == (200, headers["ETag"])
        again = say("POST", path, body, Idempotency_Key=path)
        assert (again[1]["Idempotency-Replayed"], again[1]["Location"]) == (
            "true",
            headers["Location"],
        )


def test_a_template_s_place_is_its_revision(served: Served, say: Say) -> None:  # noqa: F811
    served.tx(
        images.add, name="debian", state="ready", format="raw", content="disk", created_at=0.0
    )
    document = '<template name="web"><image target="disk" name="debian"/></template>'
    status, headers, body = say("POST", "/templates", {"document": document})
    assert (status, headers.get("Location")) == (201, f"{P}/templates/web@1"), body
    assert follow(served, headers["Location"])[2]["document"]


def test_what_is_accepted_says_where_to_look(served: Served, say: Say) -> None:  # noqa: F811
    served.tx(world.add_template)
    status, headers, made = say(
        "POST", "/vclusters", {"name": "web", "size": 1, "template": "debian", "group": "site"}
    )
    assert (status, headers["Location"]) == (202, f"{P}/vclusters/web"), made
    assert follow(served, headers["Location"])[1]["ETag"] == headers["ETag"]
    status, headers, made = say("DELETE", "/vclusters/web")
    assert (status, headers["Location"]) == (202, f"{P}/vclusters/web")
    assert say("GET", "/vclusters/web@1", If_None_Match=headers["ETag"])[0] == 304, (
        "it has ended, and can be shown"
    )
    assert say("PATCH", "/groups/site", {"email": "ops@example.org"})[0] == 200
    status, headers, _ = say("POST", "/groups/site/test-notice")
    assert (status, follow(served, headers["Location"])[0]) == (202, 200)


def test_changes_can_be_made_one_after_another_by_their_answers_tags(say: Say) -> None:  # noqa: F811
    tag = say("GET", "/groups/site")[1]["ETag"]
    for priority in (1, 2, 3):
        status, headers, _ = say("PATCH", "/groups/site", {"priority": priority}, If_Match=tag)
        assert status == 200
        assert headers["ETag"] != tag
        tag = headers["ETag"]
    assert say("GET", "/groups/site", If_None_Match=tag)[0] == 304


def test_a_verb_s_answer_has_the_tag_of_what_it_changed(served: Served, say: Say) -> None:  # noqa: F811
    add_node(served, "n1", 1, reported_at=NOW)
    tag = say("POST", "/nodes/n1/quarantine", {"reason": "smoke"})[1]["ETag"]
    assert say("GET", "/nodes/n1", If_None_Match=tag)[0] == 304
    assert say("POST", "/nodes/n1/restore", {}, If_Match=tag)[0] == 200


def test_the_tag_of_a_vcluster_is_that_of_a_look_whatever_its_nodes_are_called(
    served: Served,
    say: Say,  # noqa: F811
) -> None:
    served.tx(world.add_template)
    say("POST", "/vclusters", {"name": "web", "size": 2, "template": "debian", "group": "site"})
    [own] = served.tx(vclusters.every)
    for number, (name, host) in enumerate((("a", "web-10"), ("b", "web-2")), 1):
        add_node(served, name, number, state="active", vcluster_id=own.id, hostname=host)
    served.tx(vclusters.change, own, 0.0, state="active", expires_at=served.clock.now + 60)
    status, headers, told = say("POST", "/vclusters/web/extend", {"lease": 7200})
    assert (status, [each["hostname"] for each in told["nodes"]]) == (200, ["web-2", "web-10"])
    assert say("GET", "/vclusters/web", If_None_Match=headers["ETag"])[0] == 304


def test_what_is_no_more_has_no_tag(served: Served, say: Say) -> None:  # noqa: F811
    served.tx(world.furnish, 1)
    asked = {"name": "course", "size": 1, "template": "debian", "group": "site", "lease": 60.0}
    asked |= {"starts_at": served.clock.now + 86_400, "zone": "UTC", "count": 1}
    status, headers, made = say("POST", "/series", asked)
    assert (status, "ETag" in headers) == (201, True), made
    status, headers, told = say("DELETE", "/series/course")
    assert (status, told["name"], headers.get("ETag")) == (200, "course", None)
    assert say("GET", "/series/course")[0] == 404


# ---------------------------------------------------------------- the document


def test_the_document_has_a_tag(say: Say) -> None:  # noqa: F811
    status, headers, _ = say("GET", "/openapi.json")
    assert (status, say("GET", "/openapi.json", If_None_Match=headers["ETag"])[0]) == (200, 304)


def test_the_document_s_links_lead_to_what_was_made() -> None:
    document = openapi.document()
    ids = {
        operation["operationId"]: path
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }
    found = 0
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                for link in response.get("links", {}).values():
                    found += 1
                    wanted = set(re.findall(r"\{(\w+)\}", ids[link["operationId"]]))
                    assert set(link["parameters"]) == wanted, (path, status)
                    for value in link["parameters"].values():
                        assert re.search(r"\$(request\.path\.\w+|response\.body#/\w+)", value)
    assert found > 10
    templates = document["paths"][f"{P}/templates"]["post"]["responses"]["201"]["links"]["thing"][
        "parameters"
    ]
    assert templates == {"name": "{$response.body#/name}@{$response.body#/revision}"}


@pytest.mark.parametrize(
    ("model", "field", "states"),
    [
        ("NodeReply", "state", NodeState),
        ("VclusterReply", "state", VclusterState),
        ("RequestReply", "state", RequestState),
        ("ReclaimReply", "state", ReclaimState),
        ("CaptureReply", "state", CaptureState),
    ],
)
def test_states_are_enums_in_the_document(model: str, field: str, states: Any) -> None:
    schemas = openapi.document()["components"]["schemas"]
    schema = schemas[model]["properties"][field]
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    assert schema["enum"] == list(states)


def test_no_reply_has_a_state_of_any_text() -> None:
    for name, schema in openapi.document()["components"]["schemas"].items():
        for field, one in schema.get("properties", {}).items():
            is_free = (
                field in ("state", "from_state", "to_state")
                and one.get("type") == "string"
                and "enum" not in one
            )
            assert not is_free, name


def test_a_filter_by_state_is_a_list_with_commas() -> None:
    parameters = openapi.document()["paths"][f"{P}/nodes"]["get"]["parameters"]
    (state,) = [one for one in parameters if one["name"] == "state"]
    assert (state["schema"]["items"]["enum"], state["explode"]) == (list(NodeState), False)
    with pytest.raises(ValueError, match="should be expected, new, registering"):
        OneOrSeveral(NodeState)._known("asleep")


# ---------------------------------------------------------------- methods


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/groups", "GET, POST, HEAD, OPTIONS"),
        ("/groups/site", "GET, PATCH, DELETE, PUT, HEAD, OPTIONS"),
        ("/openapi.json", "GET, HEAD, OPTIONS"),
        ("/events", "GET, HEAD, OPTIONS"),
        ("/nodes/n1/quarantine", "POST, OPTIONS"),
        ("/uploads", "GET, POST, HEAD, OPTIONS"),
    ],
)
def test_what_is_allowed_is_said_truly(served: Served, say: Say, path: str, allowed: str) -> None:  # noqa: F811
    status, headers, problem = say("POST" if "PUT" in allowed else "PUT", path, {})
    assert (status, headers["Allow"], problem["code"]) == (405, allowed, "method_not_allowed")
    status, headers, _ = say("OPTIONS", path)
    assert (status, headers["Allow"]) == (204, allowed)
    for method in ("GET", "HEAD"):
        if path != "/events" and method in allowed:
            assert say(method, path)[0] == 200


def test_the_metrics_are_read_and_nothing_else(served: Served) -> None:
    status, headers, _ = ask(served, "POST", "/metrics")
    assert (status, headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert ask(served, "OPTIONS", "/nowhere")[0] == 404


# ---------------------------------------------------------------- what is not known


def test_unknown_parameters_are_refused_by_every_route(served: Served) -> None:
    """Whether or not the route takes any: what is not known may have been meant."""
    for route in ROUTES:
        path = P + re.sub(r"\{\w+\}", "1", route.path) + "?nonsense=1"
        body = b"{}" if route.body is not None and not route.upload else b""
        status, _, problem = ask(served, route.method, path, body)
        if route.method == "HEAD" or route.upload:
            continue
        if status == 422 and problem.get("field") != "nonsense":
            continue  # its body is incomplete, which is found first
        assert (status, (problem or {}).get("field")) == (
            422,
            "nonsense",
        ), f"{route.method} {route.path}: {problem}"


@pytest.mark.parametrize(
    "path", ["/openapi.json?x=1", "/health?x=1", "/groups/site?x=1", "/states?x="]
)
def test_unknown_parameters_are_refused_where_none_are_taken(say: Say, path: str) -> None:  # noqa: F811
    status, _, problem = say("GET", path)
    assert (status, problem["field"], problem["detail"]) == (422, "x", "is not known here")


def test_a_parameter_stands_once(say: Say) -> None:  # noqa: F811
    status, _, problem = say("GET", "/nodes?state=active&state=off")
    assert (status, problem["field"], problem["detail"]) == (422, "state", "stands twice")


def test_a_body_where_none_is_wanted(served: Served, say: Say) -> None:  # noqa: F811
    add_node(served, "n1", 1, state="registering")
    status, _, problem = say("POST", "/nodes/n1/approve", {"force": True})
    assert (status, problem["field"]) == (422, "force")
    assert say("POST", "/nodes/n1/approve", {})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "detail"),
    [
        ("POST", "/vclusters", [1], "", "should be an object with names and values"),
        ("POST", "/vclusters", {"name": 7}, "name", "should be text"),
        ("POST", "/vclusters", {"size": "3"}, "size", "should be a whole number"),
        ("POST", "/vclusters", {"size": 1.5}, "size", "should be a whole number"),
        ("POST", "/vclusters", {"lease": "1d"}, "lease", "should be a number"),
        ("POST", "/vclusters", {"wait": "yes"}, "wait", "should be true or false"),
        ("POST", "/vclusters", {"volumes": "data"}, "volumes", "should be a list"),
        (
            "POST",
            "/vclusters",
            {"also": [7]},
            "also.0",
            "should be an object with names and values",
        ),
        ("POST", "/vclusters", {"tags": "a\0b"}, "tags", "should be one line of text"),
        (
            "POST",
            "/vclusters",
            {"description": "a\nb"},
            "description",
            "should be one line of text",
        ),
        ("PATCH", "/vclusters/web", {"tags": "a\0b"}, "tags", "should be one line of text"),
        (
            "PATCH",
            "/vclusters/web",
            {"description": "a\x1b[2Jb"},
            "description",
            "should be one line of text",
        ),
        ("GET", "/nodes?limit=many", None, "limit", "should be a whole number"),
        ("GET", "/vclusters?ended=maybe", None, "ended", "should be true or false"),
        (
            "GET",
            "/events?after=zz",
            None,
            "after",
            "should be a position of the stream, such as 17-3",
        ),
    ],
)
def test_what_is_wrong_is_said_without_the_words_of_programs(
    say: Say,  # noqa: F811
    method: str,
    path: str,
    body: Any,
    field: str,
    detail: str,
) -> None:
    status, _, answer = say(method, path, body)
    assert status == 422
    assert {"field": field, "detail": detail} in answer["errors"]


def test_all_that_is_wrong_is_said_at_once(say: Say) -> None:  # noqa: F811
    status, _, problem = say(
        "POST", "/vclusters", {"name": "No Name", "size": 0, "group": 7, "colour": "red"}
    )
    assert status == 422
    named = [one["field"] for one in problem["errors"]]
    assert named == ["name", "size", "template", "group", "colour"]
    assert (problem["field"], problem["detail"]) == (named[0], problem["errors"][0]["detail"])
    status, _, problem = say("GET", "/nodes?limit=0&sort=nothing&x=1")
    assert {one["field"] for one in problem["errors"]} == {"limit", "sort", "x"}


# ---------------------------------------------------------------- health


def test_whether_it_answers_may_be_asked_by_anybody(served: Served) -> None:
    def health(token: str | None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
        connection.request(
            "GET", f"{P}/health", headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    add_node(served, "n1", 1)
    assert health(None) == (200, {"ok": True, "counts": {}}), "nothing about the site"
    assert health(READER)[1]["counts"]
    assert health("cod_wrong")[0] == 401


# ---------------------------------------------------------------- compression


def fetched(
    served: Served, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    connection.request(
        method,
        P + path,
        headers={
            "Authorization": f"Bearer {ADMIN}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        },
    )
    reply = connection.getresponse()
    return reply.status, reply.headers, reply.read()


def test_long_answers_are_packed_for_who_takes_that(served: Served) -> None:
    plain, packed = (
        fetched(served, "/states"),
        fetched(served, "/states", Accept_Encoding="br, gzip;q=0.8"),
    )
    assert (plain[1]["Content-Encoding"], packed[1]["Content-Encoding"]) == (None, "gzip")
    assert plain[1]["Vary"] == packed[1]["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed[2]) == plain[2]
    assert len(packed[2]) == int(packed[1]["Content-Length"]) < len(plain[2]) / 3
    head = fetched(served, "/states", "HEAD", Accept_Encoding="gzip")
    assert (head[1]["Content-Length"], head[2]) == (packed[1]["Content-Length"], b"")
    assert plain[1]["ETag"] != packed[1]["ETag"], "other bytes, another strong tag"
    for tag in (plain[1]["ETag"], packed[1]["ETag"]):
        assert fetched(served, "/states", If_None_Match=tag)[0] == 304
        assert fetched(served, "/states", If_None_Match=tag, Accept_Encoding="gzip")[0] == 304
    assert fetched(served, "/health", Accept_Encoding="gzip")[1]["Content-Encoding"] is None, (
        "too short to be worth it"
    )


def test_a_change_may_be_bound_to_the_tag_of_a_packed_answer(served: Served, say: Say) -> None:  # noqa: F811
    for number in range(1, 30):
        add_node(served, f"n{number}", number)
    headers = fetched(served, "/nodes/n1", Accept_Encoding="gzip")[1]
    if headers["Content-Encoding"] == "gzip":
        assert headers["ETag"].endswith('-gzip"')
    packed = headers["ETag"].removesuffix('"').removesuffix("-gzip") + '-gzip"'
    status, _, _ = ask(
        served, "POST", f"{P}/nodes/n1/quarantine", b'{"reason": "x"}', ADMIN, {"If-Match": packed}
    )
    assert status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/tokens", {"name": "new"}),
        ("POST", "/users", {"name": "new"}),
        ("POST", "/invitations", {"email": "new@example.org"}),
        ("POST", "/groups/site/invitations", {"role": "viewer", "email": "new@example.org"}),
        ("GET", "/groups/site/webhook-secret", None),
        ("POST", "/groups/site/webhook-secret", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_with_a_secret_is_not_packed(
    served: Served, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    """Text that others can choose, packed together with a secret, shows the secret in the length
    (BREACH)."""
    monkeypatch.setattr(request, "WORTH_PACKING", 1)
    served.tx(
        groups.change, served.tx(groups.by_name, "site").id, webhook="https://hooks.example.org/"
    )
    control = ask(served, "POST", f"{P}/groups", b'{"name": "g"}', ADMIN)
    assert control[0] == 201, control
    assert fetched(served, "/groups/g", Accept_Encoding="gzip")[1]["Content-Encoding"] == "gzip", (
        "others are packed"
    )
    status, headers, said = ask(
        served,
        method,
        P + path,
        None if body is None else json.dumps(body).encode(),
        ADMIN,
        {"Accept-Encoding": "gzip"},
    )
    assert status in (200, 201), said
    assert "content-encoding" not in {name.lower() for name in headers}


def test_an_answer_to_a_browsers_session_is_not_packed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "WORTH_PACKING", 1)
    shown = signed_in(served).ask("GET", f"{P}/me")
    assert (shown.status, shown.headers["Content-Encoding"]) == (200, None)


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("identity", False),
        ("*", True),
        ("gzip;q=0", False),
        ("*;q=1, gzip;q=0.0", False),
        ("br;q=1.0, gzip; q=0.5", True),
        ("deflate, *;q=0", False),
    ],
)
def test_who_takes_gzip(header: str, takes: bool) -> None:
    assert gzips(header) is takes


# ---------------------------------------------------------------- limits


CHECK = f"{P}/templates/check", b'{"document": "<template/>", "group": "site"}'


def test_every_answer_to_a_rationed_question_says_what_is_left(served: Served) -> None:
    def limits(headers: dict[str, str]) -> dict[str, str]:
        return {
            name.lower().removeprefix("ratelimit-"): value
            for name, value in headers.items()
            if name.lower().startswith("ratelimit-")
        }

    def asked() -> tuple[int, dict[str, str]]:
        status, headers, _ = ask(served, "POST", *CHECK, ADMIN)
        return status, limits(headers)

    assert asked() == (200, {"limit": "30", "remaining": "29", "reset": "1"})
    for _ in range(28):
        asked()
    assert asked() == (200, {"limit": "30", "remaining": "0", "reset": "30"})
    assert asked() == (429, {"limit": "30", "remaining": "0", "reset": "1"})
    served.clock.now += 10
    assert asked()[1]["remaining"] == "9"
    assert not limits(ask(served, "GET", f"{P}/states", None, ADMIN)[1])
    assert not limits(ask(served, "POST", *CHECK)[1]), "the local administrator has no ration"


def test_who_asks_too_often_is_told_when_to_come_again() -> None:
    wrong = problem_of(SlowDown(12.2))
    assert (wrong.status, wrong.headers()) == (
        429,
        {"Retry-After": "13", "RateLimit-Remaining": "0", "RateLimit-Reset": "13"},
    )


def test_every_link_that_a_change_tells_can_be_found() -> None:
    for route in ROUTES:
        if route.makes:
            path = re.sub(r"\{\w+\}", "x", route.makes)
            shown, names, methods = ROUTE_MAP.find("GET", unquoted(path))
            assert shown is not None or "DELETE" in methods, route.makes
            assert shown is None or names is not None


# ---------------------------------------------------------------- the command line


def test_a_refusal_of_the_server_s_is_json_with_all_that_is_wrong(served: Served) -> None:
    words = (
        "vcluster",
        "create",
        "Web",
        "--size",
        "9",
        "--template",
        "debian",
        "--group",
        "No Group",
    )
    result = run(served, *words, "--json", code=1)
    error = json.loads(result.stderr)["error"]
    assert result.stdout == ""
    assert (error["exit_code"], error["code"], error["status"]) == (1, "invalid", 422)
    named = [one["field"] for one in error["errors"]]
    assert named[0] == error["field"] == "name"
    plain = run(served, *words, code=1).stderr
    assert plain.count("\n") == len(named), "a line for each"
