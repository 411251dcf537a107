"""Nodes for a monitoring system to watch, and its token, which reads nothing else."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from cod.flows.people import tokens
from cod.model import Site
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.net.apiserver import NOW, Served, as_json, said
from tests.net.rights_world import OURS, THEIRS, World, standing

METRICS = "cod_metrics"
Asked = Callable[[str, str], tuple[int, Any]]


def answer_dhcp(tx: Tx) -> None:
    """Give every node an address, and the newest of two to ours."""
    tokens.create(tx, "prometheus", METRICS, "metrics", None, NOW)
    ids = {node.name: node.id for node in nodes.every(tx)}
    for number, (name, until) in enumerate(
        [(f"{OURS}-node", NOW), (f"{OURS}-node", NOW + 9), (f"{THEIRS}-node", NOW)]
    ):
        tx.execute(
            insert(t.bindings).values(
                address=0x7F000001 + number,
                mac=f"52:54:00:00:01:{number:02x}",
                kind="vcluster",
                node_id=ids[name],
                subnet="lab",
                state="bound",
                expires_at=until,
            )
        )


@pytest.fixture
def world(
    reactor: Any, engine: Engine, in_reactor: Callable[..., Any], site: Site
) -> Iterator[tuple[Served, World, Asked]]:
    with standing(reactor, engine, in_reactor, site) as (served, world, line):
        served.tx(answer_dhcp)

        def asked(token: str, path: str) -> tuple[int, Any]:
            line.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            reply = line.getresponse()
            text = reply.read().decode()
            return reply.status, json.loads(text) if text[:1] in "[{" else text

        yield served, world, asked


TARGETS = "/api/v1/targets"


def test_targets_are_a_list_as_prometheus_takes_it(world: tuple[Served, World, Asked]) -> None:
    _, _, asked = world
    status, found = asked(METRICS, f"{TARGETS}?port=9400&vcluster={OURS}-cluster")
    assert status == 200
    assert found == [
        {
            "targets": ["127.0.0.2:9400"],
            "labels": {
                "__meta_cod_node": f"{OURS}-node",
                "__meta_cod_hostname": "n1",
                "__meta_cod_vcluster": f"{OURS}-cluster",
                "__meta_cod_group": OURS,
                "__meta_cod_type": "",
                "__meta_cod_block": "",
                "__meta_cod_template": f"{OURS}/{OURS}-template",
            },
        }
    ]


def test_everybody_sees_the_nodes_of_their_groups(world: tuple[Served, World, Asked]) -> None:
    _, asking, asked = world

    def seen(token: str) -> set[str]:
        return {each["labels"]["__meta_cod_group"] for each in asked(token, TARGETS)[1]}

    assert seen(METRICS) == seen(asking.askers["admin"].token) == {OURS, THEIRS}
    assert seen(asking.askers["viewer"].token) == {OURS}
    assert seen(asking.askers["stranger"].token) == {THEIRS}


def test_only_active_nodes_are_targets(world: tuple[Served, World, Asked]) -> None:
    served, _, asked = world
    served.tx(lambda tx: tx.execute(update(t.nodes).values(state="boot")))
    assert asked(METRICS, TARGETS) == (200, [])


@pytest.mark.parametrize(
    ("query", "field"),
    [("vcluster=none", "vcluster"), ("port=0", "port"), ("port=x", "port"), ("ports=1", "ports")],
)
def test_a_wrong_question_is_refused(
    world: tuple[Served, World, Asked], query: str, field: str
) -> None:
    status, problem = world[2](METRICS, f"{TARGETS}?{query}")
    assert (status, problem["field"]) == (422, field)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nodes",
        "/api/v1/me",
        "/api/v1/server",
        "/api/v1/states",
        "/api/v1/tokens",
        "/api/v1/openapi.json",
        "/api/v1/events",
    ],
)
def test_a_token_for_metrics_reads_nothing_else(
    world: tuple[Served, World, Asked], path: str
) -> None:
    status, problem = world[2](METRICS, path)
    assert (status, problem["code"]) == (403, "forbidden")
    assert "/metrics" in problem["detail"]


@pytest.mark.slow
def test_a_token_for_metrics_reads_them_and_the_health(world: tuple[Served, World, Asked]) -> None:
    _, _, asked = world
    status, text = asked(METRICS, "/metrics")
    assert status == 200
    assert "cod_nodes{" in text
    assert asked(METRICS, "/api/v1/health")[0] == 200


def test_a_token_for_metrics_changes_nothing(world: tuple[Served, World, Asked]) -> None:
    served, _, _ = world
    line = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    line.request("DELETE", "/api/v1/tokens/ci", headers={"Authorization": f"Bearer {METRICS}"})
    assert line.getresponse().status == 403
    line.close()


def test_the_command_shows_the_same(world: tuple[Served, World, Asked]) -> None:
    served, _, asked = world
    assert as_json(served, "monitoring", "targets") == asked(METRICS, TARGETS)[1]
    table = said(served, "monitoring", "targets", "--group", OURS)
    assert "127.0.0.2:9100" in table
    assert THEIRS not in table
