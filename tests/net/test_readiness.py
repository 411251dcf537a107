"""A template's readiness check: a node is active when its system answers, not before, and not after
it has left."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update
from twisted.internet.defer import Deferred, ensureDeferred

from cod.core.nodes import transitions
from cod.flows.nodes import readiness
from cod.flows.nodes.readiness import Check
from cod.model import Policy, SiteRef
from cod.states import NodeEvent, NodeState
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import nodes
from cod.workers import readiness as prober


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/good" else 503)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that only look whether the port answers: the standard error may
        be another test's by now."""


@pytest.fixture
def port() -> Iterator[int]:
    """A system that answers /good well and everything else badly."""
    server = Quiet(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def asked(in_reactor: Any, reactor: Any, port: int, path: str) -> bool:
    check = Check(1, 1, "n1", "127.0.0.1", port, path)
    return bool(in_reactor(lambda: Deferred.fromCoroutine(prober.answers(reactor, check))))


@pytest.mark.parametrize(("path", "ready"), [("/good", True), ("/bad", False), ("", True)])
def test_a_system_is_ready_when_it_answers_well(
    in_reactor: Any, reactor: Any, port: int, path: str, ready: bool
) -> None:
    assert asked(in_reactor, reactor, port, path) is ready


def test_a_system_that_is_not_there_is_not_ready(in_reactor: Any, reactor: Any, port: int) -> None:
    assert not asked(in_reactor, reactor, 1, "")


def booting(tx: Tx, document: str, binding: str = "bound") -> int:
    """A node in state boot for that template, its system's binding in that state; its id."""
    template = new_id(
        tx.execute(
            insert(t.config_templates).values(
                name="web", revision=1, document=document, digest="0" * 64, created_at=0.0
            )
        )
    )
    node = nodes.add(
        tx,
        name="n1",
        boot_mac="52:54:00:00:00:01",
        now=0.0,
        cause="",
        actor="test",
        state=NodeState.BOOT,
        template_id=template,
    )
    tx.execute(
        insert(t.bindings).values(
            address=0x7F000001,
            mac="52:54:00:00:00:01",
            kind="vcluster",
            node_id=node.id,
            subnet="lab",
            state=binding,
            expires_at=9e9,
        )
    )
    return node.id


IMAGE = '<image target="disk" name="debian"/>'
READY = f'<template name="web">{IMAGE}<ready port="80" path="/x"/></template>'


def test_only_nodes_whose_system_has_asked_and_whose_template_wants_it_are_looked_at(
    tx: Tx,
) -> None:
    node_id = booting(tx, READY, "reserved")
    assert readiness.waiting(tx, 5.0) == []
    tx.execute(update(t.bindings).values(state="bound"))
    assert readiness.waiting(tx, 5.0) == [Check(node_id, 0, "n1", "127.0.0.1", 80, "/x")]
    tx.execute(
        update(t.config_templates).values(document=f'<template name="web">{IMAGE}</template>')
    )
    assert readiness.waiting(tx, 5.0) == []


def test_a_port_without_dhcp_is_asked_at_the_reserved_address_once_the_boot_was_served(
    tx: Tx,
) -> None:
    document = f'<template name="web">{IMAGE}<ready by="port" port="80"/></template>'
    node_id = booting(tx, document, "reserved")
    assert readiness.waiting(tx, 5.0) == []
    tx.execute(update(t.nodes).values(boot_served_at=4.0))
    assert readiness.waiting(tx, 5.0) == [Check(node_id, 0, "n1", "127.0.0.1", 80, "")]
    tx.execute(update(t.bindings).values(state="left"))
    assert readiness.waiting(tx, 5.0) == []


def test_some_time_after_its_boot_a_node_is_active_unasked(tx: Tx) -> None:
    booting(
        tx, f'<template name="web">{IMAGE}<ready by="time" seconds="60"/></template>', "reserved"
    )
    assert readiness.waiting(tx, 1e6) == []  # its firmware is still on its way
    tx.execute(update(t.nodes).values(boot_served_at=100.0))
    assert readiness.waiting(tx, 159.0) == []
    [check] = readiness.waiting(tx, 160.0)
    assert check.port == 0
    readiness.answered(tx, check, Policy(), 160.0)
    node = nodes.by_name(tx, "n1")
    assert node is not None
    assert (node.state, node.boot_served_at) == (NodeState.ACTIVE, 100.0)
    assert nodes.history(tx, node.id)[-1]["cause"].startswith(
        "60 s have passed since its boot was served"
    )


def test_an_answer_makes_the_node_active_once(tx: Tx) -> None:
    booting(tx, READY)
    (check,) = readiness.waiting(tx, 5.0)
    readiness.answered(tx, check, Policy(), 5.0)
    node = nodes.by_name(tx, "n1")
    assert node is not None
    assert (node.state, nodes.history(tx, node.id)[-1]["actor"]) == (NodeState.ACTIVE, "readiness")
    assert readiness.waiting(tx, 5.0) == []
    assert readiness.answered(tx, check, Policy(), 6.0) == ()


def test_an_answer_after_the_boot_has_failed_changes_nothing(tx: Tx) -> None:
    booting(tx, READY)
    (check,) = readiness.waiting(tx, 5.0)
    node = nodes.by_name(tx, "n1")
    assert node is not None
    transitions.move(tx, node, NodeEvent.BOOT_FAILED, now=4.0, cause="", actor="test")
    assert readiness.answered(tx, check, Policy(), 5.0) == ()
    assert nodes.by_name(tx, "n1").state == NodeState.TRAMPOLINE


@pytest.mark.parametrize(
    ("ready", "binding"),
    [
        ('<ready port="{port}" path="/good"/>', "bound"),
        ('<ready by="time" seconds="3"/>', "reserved"),
    ],
    ids=["by asking", "by time alone"],
)
def test_the_prober_finds_them_by_itself(
    in_reactor: Any,
    reactor: Any,
    pool: Any,
    engine: Engine,
    port: int,
    site: Any,
    ready: str,
    binding: str,
) -> None:
    with engine.begin() as tx:
        booting(tx, f'<template name="web">{IMAGE}{ready.format(port=port)}</template>', binding)
        tx.execute(update(t.nodes).values(boot_served_at=4.0))
    made_active: Deferred[None] = Deferred()
    service = prober.Prober(
        reactor, pool, SiteRef(site), lambda: 7.0, lambda _effects: made_active.callback(None)
    )
    in_reactor(lambda: ensureDeferred(service._look()))
    in_reactor(lambda: made_active.addTimeout(30, reactor))
    with engine.begin() as tx:
        assert nodes.every(tx)[0].state == NodeState.ACTIVE
