"""`cod timeline` and `cod node captures`: what the portal draws and lists, in a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from cod.cli.scheduler import timeline
from cod.store import tables as t
from tests.net.apiserver import NOW, Served, add_node, as_json, run

pytestmark = pytest.mark.slow  # with the command line's other tests


def words(served: Served, *command: str) -> list[list[str]]:
    return [line.split() for line in run(served, *command).stdout.splitlines()]


def counted(tx: Any) -> None:
    start = int(NOW // 300) * 300
    tx.execute(
        insert(t.pool_states),
        [
            {"span": 300, "start": start, "type_id": 0, "state": state, "seconds": nodes * 300.0}
            for state, nodes in (("active", 5), ("off", 2))
        ],
    )


def test_the_pool_by_state(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.tx(counted)
    monkeypatch.setattr(timeline, "time", SimpleNamespace(time=lambda: NOW))
    head, *lines = words(served, "timeline", "--by", "state", "--since", "5min")
    assert head == ["FROM", "in", "use", "asleep"]
    assert lines[-1][-2:] == ["5.0", "2.0"]
    assert as_json(served, "timeline", "--by", "state", "--since", "5min")["by"] == "state"


def test_nobody_held_anything(served: Served) -> None:
    head, *lines = words(served, "timeline", "--by", "group", "--group", "site")
    assert head == ["FROM"]
    assert all(line[-1] == "ago)" for line in lines)  # a time and its age alone
    assert (
        "all the site's nodes"
        in run(served, "timeline", "--by", "state", "--group", "site", code=2).stderr
    )


def test_captures_are_listed(served: Served) -> None:
    assert len(words(served, "node", "captures")) == 1
    add_node(served, "n1", 1, state="inactive", disk="foreign")
    served.local.post("/nodes/n1/capture", {"image": "mine"})
    head, line = words(served, "node", "captures")
    assert (head[:2], line[:3]) == (["NODE", "IMAGE"], ["n1", "mine", "mine"])
    assert [one["node"] for one in as_json(served, "node", "captures")] == ["n1"]
