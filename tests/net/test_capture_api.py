"""Captures over the API and for people: asked for, watched, cancelled, and by whom."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from cod.cli.nodes import capture, follow
from cod.cli.wait import TimedOut
from cod.client import ApiError
from cod.flows.people.access import digest
from cod.store import tables as t
from cod.store.nodes import captures, nodes
from cod.store.people import tokens
from tests.net.apiserver import NOW, READER, Served, add_node, as_json, run

pytestmark = pytest.mark.slow

DISK = {"disk": "foreign", "reported_at": NOW}


def foreign(served: Served, name: str = "n1", number: int = 1, state: str = "inactive") -> None:
    add_node(served, name, number, state=state, **DISK)


def test_a_capture_over_the_api(served: Served) -> None:
    foreign(served)
    with pytest.raises(ApiError) as none:
        served.local.get("/nodes/n1/capture")
    assert none.value.status == 404
    asked = served.local.post("/nodes/n1/capture", {"image": "mine"})
    assert (
        asked["state"],
        asked["node_state"],
        asked["image"],
        asked["template"],
        asked["group"],
    ) == ("running", "capture", "mine", "mine", "")
    assert served.local.get("/nodes/n1/capture") == asked
    assert served.local.get("/captures")["items"] == [asked]
    assert served.local.get("/captures", q="nothing")["items"] == []
    assert {effect.what for effect in served.effects} >= {"orders"}
    shown = str(served.local.get("/nodes/n1")) + str(served.local.get("/captures")) + str(asked)
    secret = served.tx(lambda tx: captures.get(tx, nodes.by_name(tx, "n1").id).secret)
    assert len(secret) == 64
    assert secret not in shown
    assert served.local.delete("/nodes/n1/capture")["state"] == "cancelled"
    with pytest.raises(ApiError, match="not being captured"):
        served.local.delete("/nodes/n1/capture")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"image": ""}, 422),
        ({"image": "x", "more": 1}, 422),
        ({"image": "../x"}, 422),
        ({"image": "x" * 64}, 422),
        ({"image": "x", "group": "nobody"}, 404),
        ({"image": 7}, 422),
        ({"image": "x", "partition": 0}, 422),
        ({"image": "x", "partition": 129}, 422),
        ({"image": "x", "partition": 3, "map": True}, 422),
        ({"image": "x", "partition": 3, "template": "x"}, 422),
        ({"image": "x", "map": True, "template": "x"}, 422),
    ],
)
def test_what_is_refused(served: Served, body: Any, status: int) -> None:
    foreign(served)
    with pytest.raises(ApiError) as refused:
        served.local.post("/nodes/n1/capture", body)
    assert refused.value.status == status
    assert served.local.get("/nodes/n1")["state"] == "inactive"


def test_who_may_only_look_may_not_ask(served: Served) -> None:
    foreign(served)
    with pytest.raises(ApiError) as refused:
        served.remote(READER).post("/nodes/n1/capture", {"image": "mine"})
    assert refused.value.status == 403


def test_for_people(served: Served) -> None:
    foreign(served)
    assert (
        "running"
        in run(served, "node", "capture", "n1", "--image", "mine", "--template", "").stdout
    )
    far = update(t.nodes).values(progress_done=30, progress_total=120, progress_rate=2.0**20)
    served.tx(lambda tx: tx.execute(far))
    lines = run(served, "node", "capture", "n1").stdout
    assert "running 25 % 1.0 MiB/s" in lines
    assert "template  none" in lines
    assert as_json(served, "node", "capture", "n1")["done"] == 30
    assert "cancelled by" in run(served, "node", "capture", "n1", "--cancel").stdout
    assert run(served, "node", "capture", "n2", "--image", "x", code=1).stderr.startswith("Error:")


def test_a_part_of_the_disk_over_the_command_line(served: Served) -> None:
    foreign(served)
    foreign(served, "n2", 2)
    lines = run(served, "node", "capture", "n1", "--image", "mine", "--partition", "3").stdout
    assert "of        partition 3" in lines
    assert "template  none" in lines
    assert as_json(served, "node", "capture", "n2", "--image", "plan", "--map")["what"] == "map"


def test_waiting_for_one_that_fails(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    foreign(served)
    served.local.post("/nodes/n1/capture", {"image": "mine"})
    states = iter(["running", "failed"])
    shown: list[float] = []

    class Api:
        def get(self, place: str) -> Any:
            value = served.local.get(place)
            return value | {"state": next(states), "reason": "no room"}

    value = follow.follow(
        Api(), "/nodes/n1/capture", "capture", capture.OVER, 9.0, sleep=shown.append
    )
    assert (value["state"], shown) == ("failed", [0.5])
    assert "n1: capture running, node saving\n" in capsys.readouterr().out
    times = iter([0.0, 1.0, 99.0])
    with pytest.raises(TimedOut, match="goes on without being watched"):
        follow.follow(
            served.local,
            "/nodes/n1/capture",
            "capture",
            capture.OVER,
            9.0,
            clock=lambda: next(times),
            sleep=lambda _: None,
        )


def test_a_group_sees_and_cancels_its_own_alone(served: Served) -> None:
    """A member's token: the group's node's capture, not what another group had made of the node
    before."""
    foreign(served)
    foreign(served, "n2", 2)

    def rows(tx: Any) -> None:
        for number, name in enumerate(("artists", "physics"), 7):
            tx.execute(insert(t.groups).values(id=number, name=name, created_at=NOW))
        tx.execute(insert(t.users).values(id=5, name="ann", created_at=NOW))
        tx.execute(insert(t.group_permissions).values(group_id=7, user_id=5, role="member"))
        tokens.add(tx, "brush@ann", "write", digest("cod_brush"), NOW, None, user_id=5)
        node = nodes.by_name(tx, "n1")
        assert node is not None
        tx.execute(insert(t.node_permissions).values(node_id=node.id, group_id=7, right="use"))
        captures.put(
            tx,
            node.id,
            image="theirs",
            template="",
            group_id=8,
            state="done",
            actor="x",
            asked_at=NOW,
        )

    served.tx(rows)
    api = served.remote("cod_brush")
    assert api.get("/captures")["items"] == []
    for place in ("/nodes/n1/capture", "/nodes/n2/capture"):
        with pytest.raises(ApiError) as missing:
            api.get(place)
        assert missing.value.status == 404
    for body in ({"image": "mine", "group": "physics"}, {"image": "mine", "group": ""}):
        with pytest.raises(ApiError) as refused:
            api.post("/nodes/n1/capture", body)
        assert refused.value.status in (403, 404)
    with pytest.raises(ApiError) as refused:
        api.post("/nodes/n2/capture", {"image": "mine", "group": "artists"})
    assert refused.value.status == 404
    assert (
        api.post("/nodes/n1/capture", {"image": "mine", "group": "artists"})["group"] == "artists"
    )
    assert [one["image"] for one in api.get("/captures")["items"]] == ["artists/mine"]
    assert api.delete("/nodes/n1/capture")["state"] == "cancelled"
