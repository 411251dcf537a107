"""Types, blocks and requirements over the REST API and the command line; and what is bad about
them, refused whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select

from cod.client import ApiError
from cod.store import tables
from cod.store.engine import Tx
from cod.store.nodes import nodes, types
from tests.net.apiserver import NOW, Served, add_node, as_json, said
from tests.nodes import REPORT
from tests.rows import add_template

pytestmark = pytest.mark.slow

TEMPLATE = '<template name="web"><image target="disk" name="red"/></template>'


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args, **kwargs)
    return caught.value


def typed(tx: Tx, attributes: str = '<node><memory mib="2048"/></node>') -> int:
    return types.of(tx, attributes, NOW).id


def counts(served: Served) -> dict[str, int]:
    """How many rows each table has."""
    return {
        name: served.tx(lambda tx, table=table: tx.scalar(select(func.count()).select_from(table)))
        for name, table in tables.metadata.tables.items()
    }


# ---------------------------------------------------------------- types


def test_types_over_the_api(served: Served) -> None:
    add_node(served, "n1", 1, type_id=served.tx(typed), state="inactive")
    [listed] = served.local.get("/types")["items"]
    assert (listed["name"], listed["nodes"], listed["states"], listed["cost"]) == (
        "type1",
        1,
        {"inactive": 1},
        1.0,
    )
    assert listed["facts"] == [{"attribute": "memory/mib", "value": "2048 MiB"}]
    assert (
        served.local.patch("/types/type1", {"name": "small", "cost": 0, "warm_high": 9})[
            "warm_high"
        ]
        == 9
    )
    assert served.local.patch("/types/small", {"warm_high": None})["warm_high"] is None
    shown = served.local.get("/types/small")
    assert shown["attributes"] == '<node><memory mib="2048"/></node>'
    assert [(node["name"], node["type"]) for node in shown["members"]] == [("n1", "small")]
    assert served.local.post("/types/refresh") == {"looked": 0, "changed": 0, "next": None}
    assert refused(served.local.delete, "/types/small").status == 409
    served.tx(typed, "<node/>")
    assert served.local.delete("/types/type2") is None
    assert refused(served.local.get, "/types/type2").status == 404


NO_TYPES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"cost": -1}, "cost", "at least 0"),
    ({"cost": float("inf")}, "cost", "finite"),
    ({"cost": None}, None, "cannot be null"),
    ({}, None, "names nothing to change"),
    ({"warm_low": 1.5}, "warm_low", "whole number"),
    ({"warm_low": -1}, "warm_low", "at least"),
    ({"warm_high": 10**12}, "warm_high", "at most"),
    ({"watts_busy": -3}, "watts_busy", "at least"),
    ({"warm_low": 5, "warm_high": 4}, "warm_low", "warm_low 5 should not be above warm_high 4"),
    ({"name": "No!"}, "name", "lower-case letters"),
    ({"colour": "red"}, "colour", ""),
]


def test_what_a_type_cannot_be(served: Served) -> None:
    served.tx(typed)
    before = served.local.get("/types")
    for body, field, words in NO_TYPES:
        error = refused(served.local.patch, "/types/type1", body)
        assert (error.status, error.field) == (422, field), body
        assert words in error.detail
    assert served.local.get("/types") == before


def test_types_on_the_command_line(served: Served) -> None:
    document = '<node><cpu count="4"/><disk size="1"/><disk size="1"/><memory mib="2048"/></node>'
    add_node(served, "n1", 1, type_id=served.tx(typed, document))
    told = said(
        served, "type", "set", "type1", "--name", "small", "--cost", "2.5", "--warm-high", "7"
    ).splitlines()
    assert told[1].split() == [
        "small",
        "2.5",
        "1",
        "1",
        "new",
        "site's",
        "to",
        "7",
        "2048",
        "MiB,",
        "4",
        "CPUs,",
        "0",
        "nics,",
        "2",
        "disks",
    ]
    assert (
        as_json(served, "type", "set", "small", "--warm-high", "site", "--watts-off", "3.5")[
            "warm_high"
        ]
        is None
    )
    assert as_json(served, "type", "list")[0]["watts_off"] == 3.5
    shown = said(served, "type", "show", "small")
    assert "memory/mib" in shown
    assert "2048 MiB" in shown
    assert shown.splitlines()[-1].split() == ["n1", "new", "-", "-"]
    assert "say what to set" in said(served, "type", "set", "small", code=2)
    assert "not a valid integer" in said(
        served, "type", "set", "small", "--warm-low", "1.5", code=2
    )
    assert "has 1 node" in said(served, "type", "delete", "small", code=1)
    served.tx(typed, "<node/>")
    assert said(served, "type", "delete", "type2") == "type2: deleted\n"


def test_a_refresh_goes_through_all_nodes(served: Served) -> None:
    def furnish(tx: Tx) -> None:
        for number in range(205):
            nodes.add(
                tx,
                name=f"n{number}",
                boot_mac=f"52:54:00:00:00:{number:02x}",
                now=NOW,
                cause="",
                actor="test",
                type_id=typed(tx),
                attributes=REPORT,
                reported_at=NOW,
            )

    served.tx(furnish)
    assert said(served, "type", "refresh") == "205 nodes looked at, 205 of another type now\n"
    assert as_json(served, "type", "refresh") == {"looked": 205, "changed": 0}
    [other, kind] = served.local.get("/types")["items"]
    assert (other["nodes"], kind["nodes"]) == (0, 205)


# ---------------------------------------------------------------- blocks


def test_blocks_over_the_api(served: Served) -> None:
    add_node(served, "n1", 1, type_id=served.tx(typed))
    add_node(served, "n2", 2)
    assert served.local.post("/blocks", {"name": "rack1"}) == {
        "name": "rack1",
        "nodes": 0,
        "types": {},
    }
    assert served.local.post("/blocks/rack1/add", {"nodes": ["n*"]})["types"] == {"type1": 1, "": 1}
    assert served.local.get("/blocks/rack1") == served.local.get("/blocks")["items"][0]
    assert [
        node["name"] for node in served.local.get("/nodes", block="rack1", type="type1")["items"]
    ] == ["n1"]
    assert refused(served.local.delete, "/blocks/rack1").status == 409
    assert served.local.post("/blocks/rack1/remove", {"nodes": ["n[1-2]"]})["nodes"] == 0
    put = partial(served.local.post, "/blocks/rack1/add")
    assert put({"nodes": ["n[1]", "52-54-00-00-00-02"]})["nodes"] == 2
    assert str(refused(put, {"nodes": ["n[2-4]"]})) == "there is no node 'n3'"
    assert str(refused(put, {"nodes": ["n[2-"]})).startswith("names: at character 2")
    assert served.local.post("/blocks", {"name": "rack2"})
    assert served.local.post("/blocks/rack2/add", {"nodes": ["@rack1"]})["nodes"] == 2
    assert served.local.post("/blocks/rack2/remove", {"nodes": ["n[2-2]*"]})["nodes"] == 1
    assert served.local.post("/blocks/rack2/add", {"nodes": ["?[1-2]"]})["nodes"] == 2
    assert str(refused(put, {"nodes": ["n*[ab]"]})).startswith("nodes: n*[ab]: expected numbers")
    assert served.local.post("/blocks", {"name": "rack3"})
    assert str(refused(put, {"nodes": []})) == "nodes: is empty"
    for nothing in (" ", ",", "@rack3"):
        assert str(refused(put, {"nodes": ["n1", nothing]})) == f"nodes: {nothing!r} means no node"
    outside = refused(served.local.post, "/blocks/rack1/remove", {"nodes": ["n[1-2]"]})
    assert str(outside) == "there is no node 'n1' in block rack1"
    assert served.local.post("/blocks/rack2/remove", {"nodes": ["n?"]})["nodes"] == 0
    assert served.local.delete("/blocks/rack1") is None
    assert refused(served.local.post, "/blocks/rack1/add", {"nodes": ["n1"]}).status == 404
    assert refused(served.local.post, "/blocks", {"name": "proposal"}).field == "name"
    assert refused(served.local.post, "/blocks", {"name": "x" * 64}).field == "name"
    assert refused(served.local.post, "/blocks/x/add", {"nodes": []}).field == "nodes"
    assert {effect.what for effect in served.effects} == {"manager"}


def test_blocks_on_the_command_line(served: Served) -> None:
    for number in (1, 2, 3):
        add_node(
            served,
            f"n{number}",
            number,
            relay="10.77.0.254" if number < 3 else None,
            circuit=f"Gi1/0/{number}".encode().hex(),
        )
    found = said(served, "block", "propose").splitlines()
    assert found[1].split(None, 3) == [
        "10-77-0-254-gi1-0",
        "(new)",
        "n1",
        "asked through relay 10.77.0.254, circuit Gi1/0, port 1",
    ]
    assert found[-1] == "nothing is known of: n3"
    assert as_json(served, "block", "propose")["unknown"] == ["n3"]
    assert "they say which to create" in said(
        served, "block", "propose", "10-77-0-254-gi1-0", code=2
    )
    assert "no block 'other' is proposed" in said(
        served, "block", "propose", "--apply", "other", code=1
    )
    said(served, "block", "propose", "--apply", "10-77-0-254-gi1-0")
    assert said(served, "block", "list").splitlines()[1].split() == [
        "10-77-0-254-gi1-0",
        "2",
        "2",
        "not",
        "reported",
    ]
    said(served, "block", "create", "rack1")
    assert as_json(served, "block", "add", "rack1", "n[2-3]")["nodes"] == 2
    assert as_json(served, "block", "show", "rack1")["nodes"] == 2
    assert [node["name"] for node in as_json(served, "node", "list", "--block", "rack1")] == [
        "n2",
        "n3",
    ]
    assert "Block" in said(served, "node", "show", "n2")
    assert "no node 'n1' in block rack1" in said(served, "block", "remove", "rack1", "n1", code=1)
    said(served, "block", "remove", "rack1", "n*")
    assert said(served, "block", "delete", "rack1") == "rack1: deleted\n"


# ---------------------------------------------------------------- bad input


def wants(inner: str) -> str:
    return f"<requires>\n{inner}</requires>"


NO_HARDWARE = [
    ("<requires>\n<memory></requires>", "line 2"),
    ("nonsense", "line 1"),
    ("<!DOCTYPE a [<!ENTITY b 'c'>]><requires/>", "line 1"),
    ("<a>" * 1000, "line 1"),
    (wants("<nic/>" * 300), "line 2: requirements have at most 256 elements"),
    (
        wants('<memory><mib min="8GiB" max="4GiB"/></memory>'),
        "line 2: memory/mib: min 8GiB is above max 4GiB",
    ),
    (wants('<memory><mib min="4GHz"/></memory>'), "line 2: memory/mib: 'GHz' is no unit"),
    (wants('<memory><mib min="4" min="5"/></memory>'), "line 2"),
    (
        wants('<memory><mib min="' + "9" * 300 + '"/></memory>'),
        "line 2: memory/mib: min has 300 characters",
    ),
    (
        wants('<memory><mib atleast="4"/></memory>'),
        "line 2: memory/mib: there is no operator 'atleast'",
    ),
    (wants("<memmory/>"), "line 2: memmory: no node has such an attribute; did you mean memory?"),
    (wants('<nic><mac equal="x"/></nic>'), "line 2: nic/mac: it is particular to one machine"),
    (
        wants('<firmware><version newer="2"/></firmware>'),
        "line 2: firmware/version: it takes no part",
    ),
]
BAD: list[tuple[dict[str, Any], str, str]] = [
    *(({"attributes": document}, "attributes", words) for document, words in NO_HARDWARE),
    ({"template": "none"}, "template", "no template 'none'"),
    ({"template": "web@9"}, "template", "'web@9'"),
    ({"size": 0}, "size", "at least 1"),
    ({"size": -1}, "size", "at least"),
    ({"size": 1.5}, "size", "whole number"),
    ({"size": 10**30}, "size", "at most"),
    ({"size": 100_000}, "size", "nodes at most"),
    ({"lease": -1.0}, "lease", "more than 0"),
    ({"lease": 0}, "lease", "more than 0"),
    ({"lease": 1e300}, "lease", "at most"),
    ({"lease": float("nan")}, "lease", "finite"),
]


def ask(inner: dict[str, Any]) -> dict[str, Any]:
    return {"name": "blue", "size": 1, "template": "web"} | inner


def test_a_bad_vcluster_is_refused_and_nothing_is_stored(served: Served) -> None:
    served.tx(add_template, "web", TEMPLATE, now=NOW)
    before = counts(served)
    for body, field, words in BAD:
        error = refused(served.local.post, "/vclusters", ask(body))
        assert (error.status in (404, 422), error.field) == (True, field), body
        assert words in error.detail
    assert counts(served) == before
    assert served.effects == []


def test_bad_tuples_are_refused_by_their_place_and_nothing_is_stored(served: Served) -> None:
    served.tx(add_template, "web", TEMPLATE, now=NOW)
    served.local.post("/vclusters", ask({}))
    served.tx(lambda tx: tx.execute(tables.vclusters.update().values(state="active")))
    before = counts(served)
    good = {"count": 1, "attributes": wants('<memory><mib min="4GiB"/></memory>')}
    for bad, field, words in (
        ({"count": 0}, "tuples.1.count", "at least 1"),
        ({"count": 10**9}, "tuples.1.count", "at most"),
        (
            {"count": 1, "attributes": wants('<cpu><count min="four"/></cpu>')},
            "tuples.1.attributes",
            "line 2: cpu/count: 'four' is no number",
        ),
        ({"count": 1, "attributes": "<requires>"}, "tuples.1.attributes", "line 1"),
        ({"count": 1, "template": "none"}, "tuples.1.template", "no template 'none'"),
    ):
        error = refused(served.local.post, "/vclusters/blue/requests", {"tuples": [good, bad]})
        assert error.field == field
        assert words in error.detail
    assert counts(served) == before
    served.local.post("/vclusters/blue/requests", {"tuples": [good]})
    assert counts(served)["request_tuples"] == before["request_tuples"] + 1


def test_a_template_that_asks_for_the_impossible_is_refused(served: Served) -> None:
    before = counts(served)
    document = TEMPLATE.replace(
        "<image", '<requires>\n<disk><size min="2TB" max="1TB"/></disk></requires><image'
    )
    error = refused(served.local.post, "/templates", {"document": document})
    assert (error.status, error.field) == (422, "requires")
    assert "in <requires>, line 2: disk/size: min 2TB is above max 1TB" in error.detail
    assert (
        served.local.post("/templates/check", {"document": document})["faults"][0]["sentence"]
        == error.detail
    )
    assert counts(served) == before
