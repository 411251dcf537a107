"""The events' streams: who sees what, one look for all, who comes back, who is too many."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from cod.client import Client
from cod.core.nodes import transitions
from cod.flows.people.access import digest
from cod.model import Role
from cod.states import NodeEvent
from cod.store import tables
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import access, groups, people, signins
from cod.web.api import events
from tests.net.apiserver import NOW, Served, add_node
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

SECRET = "the-cookie-of-"


def _people(tx: Tx) -> None:
    """Owners of physics and of web, and an administrator; each with a session and each group with a
    vcluster."""
    for name in ("physics", "web"):
        group = groups.ensure(tx, name, NOW)
        user = people.add(tx, f"{name}-owner", NOW)
        people.set_role(tx, group.id, user.id, Role.OWNER)
        _session(tx, name, user.id)
    _session(tx, "admin", people.add(tx, "ann", NOW, admin=True).id)


def _session(tx: Tx, name: str, user: int) -> None:
    signins.add(
        tx, digest(SECRET + name), user, NOW, expires_at=NOW + 1e6, address="127.0.0.1", browser=""
    )


class Stream:
    """What somebody hears, as (kind, value)."""

    def __init__(
        self, served: Served, name: str, after: int | None = None, last: str | None = None
    ) -> None:
        self._connection = HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
        query = "" if after is None else f"?after={after}"
        headers = {"Cookie": f"__Host-cod={SECRET}{name}"}
        headers |= {} if last is None else {"Last-Event-ID": last}
        self._connection.request("GET", f"/api/v1/events{query}", headers=headers)
        self.reply = self._connection.getresponse()
        self._lines = iter(self.reply)
        self.first = next(self._lines) if self.reply.status == 200 else b""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        kind = ""
        for line in self._lines:
            word, _, rest = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                kind = rest
            elif word == "data":
                yield kind, json.loads(rest)

    def until_node(self, name: str) -> list[Any]:
        """The transitions up to the first of that node, with it."""
        heard = []
        for kind, value in self:
            if kind == "transition":
                heard.append(value)
                if value["node"] == name:
                    return heard
        raise AssertionError(f"the stream ended after {heard}")

    def close(self) -> None:
        self.reply.close()
        self._connection.close()


@pytest.fixture
def site_with_people(served: Served) -> Served:
    served.tx(_people)
    return served


def held(tx: Tx, name: str, number: int, group: str | None) -> None:
    """A node whose first transition is already for a vcluster of the group."""
    vcluster = None if group is None else _vcluster(tx, group)
    node = nodes.add(
        tx, name=name, boot_mac=f"52:54:00:00:00:{number:02x}", now=NOW, cause="seen", actor="test"
    )
    tx.execute(
        tables.node_history.update()
        .where(tables.node_history.c.node_id == node.id)
        .values(vcluster_id=vcluster, cause=f"for {group}")
    )
    tx.execute(
        tables.nodes.update().where(tables.nodes.c.id == node.id).values(vcluster_id=vcluster)
    )


def _vcluster(tx: Tx, group: str) -> int:
    found = tx.scalar(
        tables.vclusters.select()
        .with_only_columns(tables.vclusters.c.id)
        .where(tables.vclusters.c.name == f"of-{group}")
    )
    if found is not None:
        return int(found)
    template = tx.execute(
        tables.config_templates.insert().values(
            name=f"t-{group}", revision=1, document="<x/>", digest=group, created_at=NOW
        )
    ).inserted_primary_key
    owner = groups.by_name(tx, group)
    assert template is not None and owner is not None  # noqa: PT018
    made = tx.execute(
        tables.vclusters.insert().values(
            name=f"of-{group}",
            live_name=f"of-{group}",
            group_id=owner.id,
            state="active",
            template_id=template[0],
            size=1,
            creation_size=1,
            attributes="",
            lease_time=60.0,
            created_at=NOW,
        )
    ).inserted_primary_key
    assert made is not None
    return int(made[0])


def test_who_comes_from_long_ago_hears_of_the_last_things(
    site_with_people: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = site_with_people
    for number in range(1, 7):
        served.tx(held, f"n{number}", number, "physics")
    monkeypatch.setattr(events, "BEHIND", 2)
    stream = Stream(served, "physics", after=0)
    assert [each["node"] for each in stream.until_node("n6")] == ["n5", "n6"]
    stream.close()


def test_everybody_hears_of_what_is_theirs_alone(site_with_people: Served) -> None:
    served = site_with_people
    streams = {name: Stream(served, name, after=0) for name in ("physics", "web", "admin")}
    for number, group in enumerate(("physics", "web", None, "physics", "web"), 1):
        served.tx(held, f"n{number}", number, group)
    served.tx(held, "last-p", 20, "physics")
    served.tx(held, "last-w", 21, "web")
    assert [each["node"] for each in streams["physics"].until_node("last-p")] == [
        "n1",
        "n4",
        "last-p",
    ]
    assert [each["node"] for each in streams["web"].until_node("last-w")] == ["n2", "n5", "last-w"]
    assert [each["node"] for each in streams["admin"].until_node("last-w")] == [
        "n1",
        "n2",
        "n3",
        "n4",
        "n5",
        "last-p",
        "last-w",
    ]
    for stream in streams.values():
        stream.close()


def _handed_on(tx: Tx) -> None:
    """n1 leaves the vcluster of physics for that of web."""
    node = nodes.by_name(tx, "n1")
    tx.execute(
        tables.node_history.insert().values(
            node_id=node.id,
            at=NOW,
            event="released",
            from_state="active",
            to_state="trampoline",
            generation=9,
            vcluster_id=_vcluster(tx, "web"),
            cause="taken for of-web",
            actor="user:web-owner",
        )
    )


def test_who_loses_a_node_hears_that_it_goes_and_not_to_whom(site_with_people: Served) -> None:
    served = site_with_people
    served.tx(held, "n1", 1, "physics")
    stream = Stream(served, "physics", after=served.local.get("/nodes/n1")["history"][0]["id"])
    served.tx(_handed_on)
    heard = stream.until_node("n1")[0]
    assert (heard["from_state"], heard["to_state"]) == ("active", "trampoline")
    assert "web" not in json.dumps(heard)
    stream.close()


def test_progress_is_told_to_its_group_and_only_what_has_changed(site_with_people: Served) -> None:
    served = site_with_people
    for number, group in enumerate(("physics", "web", "physics"), 1):
        served.tx(held, f"n{number}", number, group)
        served.tx(
            lambda tx, name: nodes.change(
                tx, nodes.by_name(tx, name), progress_done=1, progress_total=9
            ),
            f"n{number}",
        )
    stream = Stream(served, "physics")
    heard = iter(stream)
    assert sorted(next(heard)[1]["node"] for _ in range(2)) == ["n1", "n3"]
    for done in (2, 3):
        served.tx(
            lambda tx, done=done: nodes.change(tx, nodes.by_name(tx, "n3"), progress_done=done)
        )
        kind, value = next(heard)
        assert (kind, value["node"], value["done"]) == ("progress", "n3", done)
        assert "group_id" not in value
    stream.close()


def test_who_comes_back_misses_nothing_and_hears_nothing_twice(site_with_people: Served) -> None:
    served = site_with_people
    served.tx(lambda tx: [held(tx, f"a{n}", n, "physics") for n in range(1, 20)])
    hub = served.server._apis[1].context.hub
    other = Stream(served, "admin")  # the hub has looked at all of these already
    back = Stream(served, "physics", after=5)
    served.tx(held, "last", 77, "physics")
    assert [each["id"] for each in back.until_node("last")] == list(range(6, 21))
    assert len(hub.streams) == 2
    for stream in (other, back):
        stream.close()
    until(lambda: not hub.streams, "the streams stay")


def test_who_knows_events_of_before_a_restore_hears_what_comes(site_with_people: Served) -> None:
    """The ids of an older backup go on below those that a client has seen."""
    served = site_with_people
    stream = Stream(served, "physics", after=10**9)
    served.tx(held, "n1", 1, "physics")
    assert [one["node"] for one in stream.until_node("n1")] == ["n1"]
    stream.close()


def test_one_look_serves_all(site_with_people: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served = site_with_people
    looks: list[int] = []
    real = served.pool.read
    monkeypatch.setattr(
        served.pool,
        "read",
        lambda flow, *args, **named: (
            looks.append(1) if getattr(flow, "__name__", "") == "happened" else None,
            real(flow, *args, **named),
        )[1],
    )
    streams = [Stream(served, "physics") for _ in range(20)]
    hub = served.server._apis[1].context.hub
    until(
        lambda: all(each._behind is None for each in hub.streams) and len(hub.streams) == 20,
        "not all follow",
    )
    before, began = len(looks), time.monotonic()
    until(lambda: len(looks) >= before + 3, "nobody looks")
    served.tx(held, "n1", 1, "physics")
    assert all(stream.until_node("n1") for stream in streams)
    assert len(looks) - before < 3 + 2 * (time.monotonic() - began) / events.PERIOD  # not one each
    for stream in streams:
        stream.close()


def test_the_position_that_a_browser_repeats_counts_and_not_the_address_it_began_with(
    site_with_people: Served,
) -> None:
    served = site_with_people
    for number in (1, 2, 3):
        served.tx(held, f"n{number}", number, "physics")
    stream = Stream(served, "physics", after=0, last="2-0")
    assert [each["node"] for each in stream.until_node("n3")] == ["n3"]
    stream.close()
    refused = Stream(served, "physics", last="two")
    assert refused.reply.status == 422
    assert b"Last-Event-ID" in refused.reply.read()


def test_too_many_streams_of_one_are_refused(
    site_with_people: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_OF_ONE", 2)
    streams = [Stream(site_with_people, "physics") for _ in range(2)]
    refused = Stream(site_with_people, "physics")
    assert refused.reply.status == 503
    assert b"close some of those pages" in refused.reply.read()
    welcome = Stream(site_with_people, "web")
    assert welcome.reply.status == 200
    monkeypatch.setattr(events, "MOST", 3)
    assert Stream(site_with_people, "admin").reply.status == 503
    for stream in [*streams, welcome]:
        stream.close()


def test_who_asks_for_the_head_alone_opens_no_stream(site_with_people: Served) -> None:
    connection = HTTPConnection("127.0.0.1", site_with_people.server.ports[0], timeout=60)
    connection.request("HEAD", "/api/v1/events", headers={"Cookie": f"__Host-cod={SECRET}physics"})
    assert connection.getresponse().status == 200
    assert site_with_people.server._apis[1].context.hub.streams == set()
    connection.close()


def test_a_stream_ends_with_its_session(
    site_with_people: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHECKED", 0.1)
    stream = Stream(site_with_people, "physics")
    ended = threading.Thread(target=lambda: list(stream))
    ended.start()
    site_with_people.tx(lambda tx: signins.end(tx, people.by_name(tx, "physics-owner").id))
    ended.join(60)
    assert not ended.is_alive()


def test_what_a_page_asks_for_by_itself_does_not_prolong_its_session(
    site_with_people: Served,
) -> None:
    served = site_with_people
    served.clock.now += 3600
    Stream(served, "physics").close()
    connection = HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    cookie = {"Cookie": f"__Host-cod={SECRET}physics"}
    terminal = "/api/v1/nodes/n1/console?raw=true&since=0"
    for path, seen in (("/?part=vclusters", NOW), (terminal, NOW), ("/", NOW + 3600)):
        connection.request("GET", path, headers=cookie)
        assert connection.getresponse().read()
        assert served.tx(access.by_cookie, digest(SECRET + "physics")).last_seen == seen
    connection.close()


def test_a_node_that_moves_as_the_rules_say_is_told_once(site_with_people: Served) -> None:
    served = site_with_people
    add_node(served, "n1", 1)
    stream = Stream(served, "admin")
    served.tx(
        lambda tx: transitions.move(
            tx,
            nodes.by_name(tx, "n1"),
            NodeEvent.REGISTERED,
            now=NOW,
            cause="reported",
            actor="test",
        )
    )
    assert [each["to_state"] for each in stream.until_node("n1")] == ["registering"]
    add_node(served, "n2", 2)
    # n1 is looked at again, and not told
    assert [each["node"] for each in stream.until_node("n2")] == ["n2"]
    stream.close()


def test_a_program_goes_on_where_it_was(site_with_people: Served) -> None:
    served = site_with_people
    for number in (1, 2):
        add_node(served, f"n{number}", number)
    with Client(served.local.server) as here:
        heard = here.events(0)
        assert [next(heard)[1]["node"] for _ in range(2)] == ["n1", "n2"]
        position = here.position
        heard.close()
        add_node(served, "n3", 3)
        assert next(here.events(position))[1]["node"] == "n3"
