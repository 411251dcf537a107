"""The REST API over real sockets: who may what, what is refused and how, and that nothing makes it
fail."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from twisted.internet.defer import Deferred
from twisted.python import log as twisted_log

from cod.client import ApiError, Unreachable
from cod.core.nodes import transitions
from cod.model import Effect
from cod.states import NodeEvent
from cod.store import tables
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.web.api.resources import ROUTE_MAP, ROUTES
from cod.web.api.routes import matched
from cod.web.http.request import PREFIX
from tests.net.apiserver import ADMIN, NOW, READER, STALE, Served, add_node
from tests.rows import add_template

TEMPLATE = '<template name="web"><image target="disk" name="red"/></template>'


def raw(
    served: Served, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any, Any]:
    """(status, headers, JSON body) of a request by the administrator's token over TCP."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    headers.setdefault("Authorization", f"Bearer {ADMIN}")
    connection.request(
        method,
        path,
        body,
        {name.replace("_", "-"): value for name, value in headers.items() if value},
    )
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, reply.headers, json.loads(text) if text else None


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args, **kwargs)
    return caught.value


# ---------------------------------------------------------------- who may what


def test_the_local_administrator_needs_no_token(served: Served) -> None:
    assert served.local.get("/nodes") == {"items": [], "next": None, "total": 0}
    assert served.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("token", [None, "", "nonsense", STALE, "cod_ädmin"])
def test_without_a_valid_token_nothing_is_told(served: Served, token: str | None) -> None:
    authorization = "" if token is None else f"Bearer {token}"
    for path in (
        "/api/v1/nodes",
        "/api/v1/nowhere",
        "/metrics",
        "/api/v1/openapi.json",
        "/api/v1/events",
    ):
        status, headers, problem = raw(
            served, "GET", path, Authorization=authorization.encode().decode("latin-1")
        )
        assert status == 401
        assert headers["WWW-Authenticate"] == "Bearer"
        # an answer has names in it that others have given
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert problem["code"] == "unauthorised"


def test_a_token_expires_and_can_be_revoked(served: Served) -> None:
    from cod.flows.people import tokens

    served.tx(tokens.create, "brief", "cod_brief", "admin", 60.0, NOW)
    assert served.remote("cod_brief").get("/nodes")["items"] == []
    served.clock.now += 61
    assert refused(served.remote("cod_brief").get, "/nodes").status == 401
    served.tx(tokens.revoke, "ci")
    assert refused(served.remote(ADMIN).get, "/nodes").status == 401


def test_a_reading_token_may_read_only(served: Served) -> None:
    reader = served.remote(READER)
    assert reader.get("/groups")["items"][0]["name"] == "site"
    for route in ROUTES:
        if route.changes:
            error = refused(
                reader.call, route.method, route.path.replace("{", "").replace("}", ""), {}
            )
            assert (error.status, error.code) == (403, "forbidden"), route


def test_only_the_local_administrator_names_files_of_the_server(served: Served) -> None:
    body = {"name": "x", "path": "/etc/shadow"}
    assert refused(served.remote(ADMIN).post, "/images", body).status == 403
    assert served.local.post("/images", body)["state"] == "ingesting"


def test_the_actor_is_written_in_the_history(served: Served) -> None:
    add_node(served, "n1", 1, reported_at=NOW)
    served.local.post("/nodes/n1/quarantine", {"reason": "smoke"})
    served.remote(ADMIN).post("/nodes/n1/restore")
    history = served.local.get("/nodes/n1")["history"]
    assert [(h["event"], h["actor"]) for h in history] == [
        ("seen", "test"),
        ("quarantined", "user:root"),
        ("restored", "token:ci"),
    ]


# ---------------------------------------------------------------- refusals


REFUSALS: list[tuple[str, str, bytes | None, int, str, str | None]] = [
    ("GET", "/api/v1/nodes/none", None, 404, "not_found", "name"),
    ("GET", "/api/v1/nodes?limit=0", None, 422, "invalid", "limit"),
    ("GET", "/api/v1/nodes?colour=red", None, 422, "invalid", "colour"),
    ("GET", "/api/v1/requests/x", None, 404, "not_found", "id"),
    ("GET", "/api/v1/nowhere", None, 404, "not_found", None),
    ("GET", "/", None, 404, "not_found", None),
    ("GET", "/api/v1/nodes/../../metrics", None, 404, "not_found", None),
    ("PUT", "/api/v1/nodes", b"{}", 405, "method_not_allowed", None),
    ("BREW", "/api/v1/nodes", None, 405, "method_not_allowed", None),
    ("POST", "/api/v1/groups", b"{", 400, "bad_json", None),
    ("POST", "/api/v1/groups", b"\xff", 400, "bad_json", None),
    ("POST", "/api/v1/groups", b"[" * 100_000, 400, "bad_json", None),
    ("POST", "/api/v1/groups", b"", 400, "bad_json", None),
    ("POST", "/api/v1/groups", b"[]", 422, "invalid", None),
    ("POST", "/api/v1/groups", b"{}", 422, "invalid", "name"),
    ("POST", "/api/v1/groups", b'{"name": 7}', 422, "invalid", "name"),
    ("POST", "/api/v1/groups", b'{"name": "A b"}', 422, "invalid", "name"),
    ("POST", "/api/v1/groups", b'{"name": "a", "colour": "red"}', 422, "invalid", "colour"),
    ("POST", "/api/v1/groups", b'{"name": "a", "priority": 1e999}', 422, "invalid", "priority"),
    (
        "POST",
        "/api/v1/groups",
        b'{"name": "a", "default_lease": NaN}',
        422,
        "invalid",
        "default_lease",
    ),
    ("POST", "/api/v1/groups", b'{"name": "site"}', 409, "conflict", "name"),
    ("POST", "/api/v1/groups", b'{"name": "' + b"a" * 2**20 + b'"}', 413, "too_large", None),
    (
        "POST",
        "/api/v1/vclusters",
        b'{"name": "a", "size": 1, "template": "t"}',
        404,
        "not_found",
        "template",
    ),
    (
        "POST",
        "/api/v1/vclusters",
        b'{"name": "a", "size": "1", "template": "t"}',
        422,
        "invalid",
        "size",
    ),
    (
        "POST",
        "/api/v1/vclusters",
        b'{"name": "a", "size": 1, "template": "t", "attributes": "<!DOCTYPE x>"}',
        422,
        "invalid",
        "attributes",
    ),
    ("POST", "/api/v1/templates", b'{"document": "<x/>"}', 422, "invalid", "document"),
    ("PATCH", "/api/v1/nodes/n1", b"{}", 422, "invalid", None),
    ("DELETE", "/api/v1/images/none", None, 404, "not_found", "name"),
    ("PATCH", "/api/v1/uploads/x", b"{}", 415, "unsupported_media_type", None),
    ("POST", "/api/v1/uploads", b'{"name": "../x", "size": 1}', 422, "invalid", "name"),
    ("DELETE", "/api/v1/uploads/..%2f..%2fetc%2fpasswd", None, 404, "not_found", None),
]


def test_refusals(served: Served) -> None:
    for method, path, body, status, code, field in REFUSALS:
        got, headers, problem = raw(served, method, path, body, Content_Type="application/json")
        assert (got, problem["code"], problem.get("field")) == (status, code, field), (
            method,
            path,
            body,
        )
        assert headers["Content-Type"] == "application/problem+json"
        assert problem["status"] == status
        assert problem["type"] == f"urn:cod:problem:{code}"
        assert problem["detail"]
        assert problem["title"]
        if status == 405:
            assert "GET" in headers["Allow"]
    assert raw(served, "GET", "/api/v1/nodes")[0] == 200


def test_another_media_type_is_refused(served: Served) -> None:
    assert (
        raw(
            served,
            "POST",
            "/api/v1/groups",
            b"name=a",
            Content_Type="application/x-www-form-urlencoded",
        )[0]
        == 415
    )
    assert (
        raw(
            served, "POST", "/api/v1/groups", b"--", Content_Type="multipart/form-data; boundary=x"
        )[0]
        == 415
    )


def test_a_rule_that_says_no_is_a_conflict(served: Served) -> None:
    add_node(served, "n1", 1)
    error = refused(served.local.post, "/nodes/n1/approve")
    assert (error.status, error.code) == (409, "conflict")
    assert "has not reported yet" in error.detail


def test_a_bug_is_not_told_to_the_client(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from cod.flows import views

    monkeypatch.setattr(views, "conflict_list", lambda tx, **_: 1 / 0)
    status, _, problem = raw(served, "GET", "/api/v1/conflicts")
    assert (status, problem["code"]) == (500, "internal")
    assert "division" not in json.dumps(problem)


def test_chunked_bodies_have_the_same_limit(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        peer.sendall(
            f"POST /api/v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(40):
            peer.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
        peer.sendall(b"0\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_end_is_cut_off(served: Served) -> None:
    def send_for_ever(peer: socket.socket) -> None:
        peer.sendall(
            b"POST /api/v1/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        )
        for _ in range(10_000):
            peer.sendall(b" " * 2**20)

    with (
        socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        send_for_ever(peer)


@pytest.mark.parametrize(
    "lines",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_not_http_does_no_harm(served: Served, lines: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        said = b""
        with suppress(OSError):  # the server may have had enough of it
            peer.sendall(lines)
            peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            said = peer.recv(1000)
        assert not said.startswith(b"HTTP/1.1 5")
    assert served.local.get("/nodes")["items"] == []


@pytest.mark.parametrize("host", [b"", b"Host: x\r\nHost: y\r\n"])
@pytest.mark.parametrize("path", [b"/", b"/api/v1/nodes"])
def test_a_request_names_its_host_once(served: Served, host: bytes, path: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        peer.sendall(b"GET " + path + b" HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
        assert peer.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_line_that_is_too_long_is_answered(served: Served) -> None:
    line = b"GET /api/v1/nodes?where=" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        peer.sendall(line)
        said = peer.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"ask for less at once" in said


@pytest.mark.parametrize("coding", [b"chunked", b"identity"])
def test_a_request_with_two_lengths_ends_the_connection(served: Served, coding: bytes) -> None:
    """What stands behind it may be a second request that a proxy has not seen."""
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        peer.sendall(
            b"POST /api/v1/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: "
            + coding
            + b"\r\n\r\n0\r\n\r\nGET /api/v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        said = b""
        while data := peer.recv(65536):
            said += data
    assert said.count(b"HTTP/1.1 ") == 1


# ---------------------------------------------------------------- hostile bodies, on every route

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=80)
    | st.sampled_from(
        ["n1", "site", "web", "on", "<a/>", "<!DOCTYPE x []>", "../../etc/passwd", "\x00", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "size",
                    "template",
                    "group",
                    "attributes",
                    "lease",
                    "nodes",
                    "document",
                    "reason",
                    "desired",
                    "tuples",
                    "count",
                    "path",
                    "sha256",
                    "power_driver",
                    "priority",
                ]
            )
            | st.text(),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)
VALUES = st.sampled_from(
    ["n1", "site", "web", "0", "-1", "9" * 20, "%00", "%ff", "a%2Fb", "..", "%C3%BC"]
)


@pytest.mark.slow
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=st.sampled_from(ROUTES),
    body=JSON | st.binary(max_size=60),
    value=VALUES,
    query=st.text(max_size=30),
)
def test_no_request_makes_the_server_fail(
    served: Served, route: Any, body: Any, value: str, query: str
) -> None:
    path = PREFIX + "/".join(
        value if part.startswith("{") else part for part in route.path.split("/")
    )
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    ascii_query = query.encode("unicode_escape").decode().replace(" ", "+").replace("#", "")
    kind = (
        "application/offset+octet-stream"
        if route.method == "PATCH" and route.upload
        else "application/json"
    )
    status, _, _ = raw(
        served,
        route.method,
        path + "?" + ascii_query,
        data if route.method != "GET" else None,
        Content_Type=kind,
    )
    assert status < 500


# ---------------------------------------------------------------- what it is for


def test_nodes_are_listed_page_by_page_and_filtered(served: Served) -> None:
    for number in range(5):
        add_node(served, f"n{number}", number, state="inactive" if number % 2 else "new")
    page = served.local.get("/nodes", limit=2)
    assert ([n["name"] for n in page["items"]], page["total"]) == (["n0", "n1"], 5)
    assert [
        n["name"] for n in served.local.get("/nodes", limit=2, after=page["next"])["items"]
    ] == ["n2", "n3"]
    assert [n["name"] for n in served.local.every("/nodes", limit=2)] == [
        "n0",
        "n1",
        "n2",
        "n3",
        "n4",
    ]
    assert [n["name"] for n in served.local.every("/nodes", state="inactive")] == ["n1", "n3"]
    assert served.local.get("/nodes", limit=5)["next"] is None


def test_a_node_is_shown_patched_and_renamed(served: Served) -> None:
    add_node(served, "n1", 1, power_driver="lab", power_address="/s#n1")
    assert (
        served.local.patch("/nodes/n1", {"name": "rack-1", "power_address": "/t#n1"})["name"]
        == "rack-1"
    )
    node = served.local.get("/nodes/rack-1")
    assert node["power"] == {
        "state": "unknown",
        "seen_at": None,
        "wanted": None,
        "driver": "lab",
        "address": "/t#n1",
        "account": None,
        "watts": None,
    }
    assert node["macs"] == ["52:54:00:00:00:01"]
    assert node["history"][0]["to_state"] == "new"
    assert refused(served.local.get, "/nodes/n1").status == 404


def test_a_power_wish_wakes_the_power_edge(served: Served) -> None:
    add_node(served, "n1", 1, state="active", power_driver="lab")
    assert served.local.post("/nodes/n1/power", {"desired": "cycle"})["power"]["wanted"] == "cycle"
    assert Effect("wake", "power") in served.effects


def test_a_vcluster_from_request_to_end(served: Served) -> None:
    served.tx(add_template, "web", TEMPLATE, now=NOW)
    made = served.local.post("/vclusters", {"name": "blue", "size": 2, "template": "web"}, key="k1")
    assert (made["state"], made["size"], made["template"], made["group"]) == (
        "pending",
        2,
        "web@1",
        "site",
    )
    assert Effect("wake", "manager") in served.effects
    again = served.local.post(
        "/vclusters", {"name": "blue", "size": 2, "template": "web"}, key="k1"
    )
    assert again == made
    assert (
        refused(
            served.local.post, "/vclusters", {"name": "blue", "size": 2, "template": "web"}
        ).status
        == 409
    )
    (request,) = served.local.get("/requests", vcluster="blue")["items"]
    assert request["tuples"] == [{"count": 2, "attributes": "", "template": "web@1"}]
    assert served.local.get(f"/requests/{request['id']}") == request
    assert served.local.delete("/vclusters/blue")["state"] == "ended"
    assert served.local.get("/vclusters")["items"] == []
    assert [v["name"] for v in served.local.get("/vclusters", ended=True)["items"]] == ["blue"]


def test_every_request_for_nodes_has_an_id_of_its_own(served: Served) -> None:
    """A flow whose commit has an unknown outcome is run again: without an id, twice the nodes would
    be asked for. A client cannot take an id that the server makes itself."""
    served.tx(add_template, "web", TEMPLATE, now=NOW)
    for name, key in (("one", None), ("two", None), ("three", "replace 7.1"), ("four", "k" * 500)):
        served.local.post("/vclusters", {"name": name, "size": 1, "template": "web"}, key=key)
    keys = served.tx(lambda tx: list(tx.scalars(select(tables.node_requests.c.key))))
    assert len(set(keys)) == 4
    assert all(key and " " not in key and len(key) <= 80 for key in keys)


@pytest.mark.parametrize(
    "error", [nodes.Stale(1, 2), IntegrityError("INSERT", {}, Exception(1062))]
)
def test_who_comes_second_is_told_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """On MariaDB two requests may change the same rows at the same time; that is no bug of the
    server."""

    def beaten(tx: Tx, *_arguments: Any, **_more: Any) -> None:
        raise error

    add_node(served, "n1", 1)
    monkeypatch.setattr(transitions, "move", beaten)
    answer = refused(served.local.post, "/nodes/n1/quarantine", {"reason": "noise"})
    assert (answer.status, answer.code) == (409, "conflict")


def test_templates_are_checked_with_line_numbers(served: Served) -> None:
    bad = served.local.post(
        "/templates/check", {"document": "<template name='a'>\n<imagine/>\n</template>"}
    )
    assert (bad["ok"], bad["faults"][0]["line"]) == (False, 2)
    missing = served.local.post("/templates/check", {"document": TEMPLATE})
    assert not missing["ok"]
    assert "red" in missing["faults"][0]["sentence"]


def test_the_server_describes_itself(served: Served) -> None:
    assert served.local.get("/server")["domain"] == "cod.test"
    assert {s["name"] for s in served.local.get("/states")["states"]} >= {
        "new",
        "active",
        "quarantined",
    }
    health = served.local.get("/health")
    assert health["ok"]
    add_node(served, "n1", 1)
    assert served.local.get("/health")["counts"]["nodes"] == {"new": 1}
    assert raw(served, "HEAD", "/api/v1/nodes")[0] == 200


@pytest.mark.slow
def test_the_openapi_document_is_valid_and_complete(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiles grammars of IRIs, for five seconds of CPU, which no schema of the document asks for.
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", None)
    from openapi_spec_validator import validate

    document = served.local.get("/openapi.json")
    validate(document)
    described = {
        (method.upper(), path.removeprefix(PREFIX))
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert described == {(r.method, r.path) for r in ROUTES} | {("GET", "/events")}
    ids = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(ids)) == len(ids)


def test_no_path_is_matched_by_two_routes() -> None:
    for route in ROUTES:
        path = route.path.replace("{", "").replace("}", "")
        assert ROUTE_MAP.find(route.method, path)[0] is route


def test_a_parameter_is_never_empty() -> None:
    assert matched("/nodes/{name}", "/nodes/a") == {"name": "a"}
    assert matched("/nodes/{name}", "/nodes/") is None
    assert matched("/nodes/{name}", "/nodes/a/b") is None


# ---------------------------------------------------------------- events


def move(served: Served, name: str, event: NodeEvent) -> None:
    def step(tx: Any) -> None:
        transitions.move(tx, nodes.by_name(tx, name), event, now=NOW, cause="test", actor="test")

    served.tx(step)


@pytest.mark.slow
def test_events_are_followed_from_the_beginning_and_as_they_happen(served: Served) -> None:
    add_node(served, "n1", 1)
    events = served.remote(READER).events(after=0)
    kind, value = next(events)
    assert (kind, value["node"], value["to_state"]) == ("transition", "n1", "new")
    move(served, "n1", NodeEvent.REGISTERED)
    kind, value = next(events)
    assert (value["from_state"], value["to_state"]) == ("new", "registering")
    served.tx(
        lambda tx: nodes.change(tx, nodes.by_name(tx, "n1"), progress_done=5, progress_total=10)
    )
    kind, value = next(events)
    assert (kind, value["done"], value["total"]) == ("progress", 5, 10)
    events.close()


def test_events_begin_now_unless_told_otherwise(served: Served) -> None:
    add_node(served, "n1", 1)
    got: list[Any] = []
    events = served.local.events()
    thread = threading.Thread(target=lambda: got.append(next(events)))
    thread.start()
    number = 2
    while thread.is_alive():  # the stream begins at some moment while nodes appear
        add_node(served, f"n{number}", number)
        number += 1
        thread.join(0.3)
    assert got[0][1]["node"] != "n1"


def test_stopping_ends_the_streams(served: Served, in_reactor: Callable[..., Any]) -> None:
    add_node(served, "n1", 1)
    events = served.local.events(after=0)
    next(events)
    in_reactor(lambda: [api.stop() for api in served.server._apis])
    assert list(events) == []


# ---------------------------------------------------------------- metrics


def test_metrics_count_what_is_in_the_database(served: Served) -> None:
    add_node(served, "n1", 1)
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {READER}"})
    reply = connection.getresponse()
    text = reply.read().decode()
    assert reply.status == 200
    assert 'cod_nodes{state="new"} 1.0' in text.splitlines()


def test_a_server_that_is_gone_is_unreachable(
    served: Served, in_reactor: Callable[..., Any]
) -> None:
    in_reactor(served.server.stopService)
    with pytest.raises(Unreachable, match="is `cod serve` running"):
        served.remote(ADMIN).get("/nodes")
    in_reactor(served.server.startService)


def test_a_server_that_starts_again_sweeps_beside_what_its_last_sweep_has_under_way(
    served: Served, in_reactor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[Deferred[None]] = []
    errors: list[Any] = []

    async def sweep() -> None:
        sweeps.append(Deferred())
        await sweeps[-1]

    def note(event: dict[str, Any]) -> None:
        if event.get("isError"):
            errors.append(twisted_log.textFromEventDict(event))

    monkeypatch.setattr(served.server.intake, "sweep", sweep)
    in_reactor(served.server.stopService)
    for _ in range(2):
        in_reactor(served.server.startService)
        in_reactor(served.server.stopService)
    twisted_log.addObserver(note)
    for under_way in sweeps:
        in_reactor(lambda done=under_way: done.callback(None))
    in_reactor(gc.collect)  # an error that nobody has handled is told then
    twisted_log.removeObserver(note)
    assert (len(sweeps), errors) == (2, [])
