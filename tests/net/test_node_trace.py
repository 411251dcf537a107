"""Ways of nodes as traces: a real history, and a collector that notes what comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cod.cli.nodes.trace import ways
from cod.core.nodes import transitions
from cod.states import NodeEvent as E
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.net.apiserver import NOW, Served, add_node, as_json, run
from tests.net.receivers import Listener, listening

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

WAY = (
    (E.PRIME_ORDERED, 0.0, "request 7"),
    (E.FAILED, 10.25, "disk is full"),
    (E.PRIME_ORDERED, 12.0, "again"),
    (E.PRIMED, 72.0, "written"),
    (E.BOOTED, 100.0, "answers"),
    (E.RELEASED, 5000.0, "cluster deleted"),
)
SINCE = ("--since", "1970-01-02T00:00Z")


def walk(tx: Tx, way: tuple[tuple[E, float, str], ...]) -> None:
    for event, seconds, cause in way:
        (node,) = nodes.every(tx)
        transitions.move(tx, node, event, now=NOW + seconds, cause=cause, actor="manager")


@pytest.fixture
def walked(served: Served) -> Served:
    """A site with a node that was free, is in use after a failure, and starts to come back."""
    add_node(served, "n1", 1, state="inactive")
    served.tx(walk, WAY)
    return served


@pytest.fixture
def collector() -> Iterator[Listener]:
    with listening() as collector:
        collector.more = b"{}"
        yield collector


def sent(collector: Listener) -> list[dict[str, Any]]:
    """The spans of the only request that came."""
    [(_, _, body)] = collector.got
    (resource,) = json.loads(body)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return list(scope["spans"])


def url(collector: Listener) -> str:
    return f"http://127.0.0.1:{collector.port}"


def test_each_step_is_told_with_its_time(walked: Served) -> None:
    lines = run(walked, "node", "trace", "n1", *SINCE, "-o", "csv").stdout.splitlines()
    rows = [line.split(",") for line in lines]
    assert [(row[1], row[2], row[3], row[5], row[6]) for row in rows[1:]] == [
        ("inactive", "active", "prime", "10 s", "failed"),
        ("inactive", "active", "trampoline", "2 s", "prime_ordered"),
        ("inactive", "active", "prime", "1 min", "primed"),
        ("inactive", "active", "boot", "28 s", "booted"),
        ("inactive", "active", "all", "1 min 40 s", "booted"),
    ]


def test_a_way_is_a_trace_that_a_collector_gets(walked: Served, collector: Listener) -> None:
    words = ("node", "trace", "n1", *SINCE)
    said = run(walked, *words, "--otlp", url(collector)).stdout
    assert said == f"1 way of 1 node sent to {url(collector)}\n"
    [(path, headers, body)] = collector.got
    assert (path, headers["Content-Type"]) == ("/v1/traces", "application/json")
    assert json.loads(body) == as_json(walked, *words), "it is what --json prints"
    way, *steps = sent(collector)
    assert way["name"] == "inactive to active"
    assert (way["parentSpanId"], way["status"]) == ("", {})
    nanoseconds = (1_000_000_000_000_000, 1_000_100_000_000_000)
    assert (way["startTimeUnixNano"], way["endTimeUnixNano"]) == tuple(map(str, nanoseconds))
    assert [each["name"] for each in steps] == ["prime", "trampoline", "prime", "boot"]
    assert {each["parentSpanId"] for each in steps} == {way["spanId"]}
    assert {len(each["spanId"]) for each in (way, *steps)} == {16}
    assert {(each["traceId"], len(each["traceId"])) for each in steps} == {(way["traceId"], 32)}
    assert steps[0]["status"] == {"code": 2, "message": "disk is full"}
    assert steps[0]["endTimeUnixNano"] == steps[1]["startTimeUnixNano"] == "1000010250000000"
    assert {"key": "cod.event", "value": {"stringValue": "primed"}} in steps[2]["attributes"]
    assert len({each["spanId"] for each in (way, *steps)}) == 5


def test_ways_that_are_over_for_long_or_not_over_are_left_out(
    walked: Served, collector: Listener
) -> None:
    """The way to *in use* ended before; the way back, which failed, is a trace as soon as it has
    ended."""
    words = ("node", "trace", "n1", "--since", "1970-01-12T14:00Z", "--otlp", url(collector))
    assert run(walked, *words).stdout.startswith("0 ways of 0 nodes")
    assert collector.got == []
    walked.tx(walk, ((E.WIPE_ORDERED, 5060.0, "dirty"), (E.EXHAUSTED, 5400.0, "")))
    run(walked, *words)
    way, *steps = sent(collector)
    assert (way["name"], way["status"]["message"]) == ("active to quarantined", "exhausted")
    assert [each["name"] for each in steps] == ["trampoline", "wipe"]


def test_a_history_without_its_beginning_has_only_whole_ways(
    walked: Served, collector: Listener
) -> None:
    moves = walked.local.every("/nodes/n1/history")[::-1]
    assert [len(way) for way in ways(moves)] == [5]
    assert list(ways(moves[2:])) == []


def test_headers_of_the_environment_are_sent(
    walked: Served, collector: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a%2Cb,X-Scope=site")
    run(walked, "node", "trace", "n1", *SINCE, "--otlp", f"{url(collector)}/v1/traces")
    [(path, headers, _)] = collector.got
    assert path == "/v1/traces"
    assert (headers["Authorization"], headers["X-Scope"]) == ("Bearer a,b", "site")


@pytest.mark.parametrize("name", ["Authorization", "Authorization s3cret"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_secret(
    walked: Served, collector: Listener, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"{name}=Bearer%20s3cret%0A")
    said = run(walked, "node", "trace", "n1", *SINCE, "--otlp", url(collector), code=2)
    assert "header" in said.stderr
    assert "s3cret" not in said.stderr
    assert collector.got == []


def test_a_collectors_url_keeps_its_query(walked: Served, collector: Listener) -> None:
    run(walked, "node", "trace", "n1", *SINCE, "--otlp", f"{url(collector)}/in/?key=k")
    assert [path for path, _, _ in collector.got] == ["/in/v1/traces?key=k"]


@pytest.mark.parametrize(
    ("status", "answer", "about"),
    [
        (415, b'{"code": 3, "message": "no JSON here"}', "answers 415: no JSON here"),
        (503, b"", "answers 503: Service Unavailable"),
        (302, b"", "answers 302: Found"),
        (400, b"[" * 60_000, "answers 400: Bad Request"),
        (200, b'{"partialSuccess": {"rejectedSpans": "5", "errorMessage": "old"}}', "5 spans: old"),
    ],
)
def test_what_a_collector_refuses_is_said(
    walked: Served, collector: Listener, status: int, answer: bytes, about: str
) -> None:
    collector.status, collector.more = status, answer
    words = ("node", "trace", "n1", *SINCE, "--otlp", url(collector))
    assert about in run(walked, *words, code=1).stderr
    assert len(collector.got) == 1, "no redirection is followed"


def test_a_collector_that_is_none_is_said(walked: Served) -> None:
    words = ("node", "trace", "n1", *SINCE, "--otlp")
    assert "does not answer" in run(walked, *words, "http://127.0.0.1:1", code=1).stderr
    assert "http://" in run(walked, *words, "collector:4318", code=2).stderr
