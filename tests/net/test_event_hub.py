"""The hub of the events' streams and its streams, on a clock and a pool in the test's hands."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, select
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from cod.flows import views
from cod.model import Role, Who
from cod.store import tables as t
from cod.store.nodes import nodes
from cod.web.api import events
from cod.web.api.event_texts import Event
from cod.web.api.events import Hub
from cod.web.api.json_body import JsonBody
from cod.web.api.resources.server import EventQuery
from cod.web.http.errors import HttpProblem
from tests.net.handpool import HandPool

ADMIN, NOBODY = Who("user:ann", admin=True), Who("user:eve", roles={7: Role.VIEWER})


class Request:
    """What a stream writes to."""

    def __init__(self) -> None:
        self.written, self.over, self.gone = "", False, Deferred[None]()
        self.slow: Any = lambda: None

    def notifyFinish(self) -> Deferred[None]:
        return self.gone

    def setHeader(self, name: str, value: str) -> None: ...

    def registerProducer(self, producer: Any, streaming: bool) -> None: ...

    def unregisterProducer(self) -> None: ...

    def write(self, data: bytes) -> None:
        assert not self.over
        self.written += data.decode()
        self.slow()

    def finish(self) -> None:
        self.over = True

    @property
    def ids(self) -> list[str]:
        """The positions that were written."""
        return re.findall(r"^id: (.*)$", self.written, re.MULTILINE)

    @property
    def nodes(self) -> list[str]:
        """The nodes of the transitions that were written."""
        blocks = [block for block in self.written.split("\n\n") if "event: transition" in block]
        return [json.loads(block.partition("data: ")[2])["node"] for block in blocks]


class Site:
    """A hub on a database."""

    def __init__(self, engine: Engine) -> None:
        self.clock, self.pool, self.engine, self.number = Clock(), HandPool(engine), engine, 0
        self.hub = Hub(self.clock, self.pool)  # it keeps a pool's promise

    def happens(self, *names: str) -> None:
        with self.engine.begin() as tx:
            for name in names:
                self.number += 1
                nodes.add(
                    tx,
                    name=name,
                    boot_mac=f"52:54:00:00:01:{self.number:02x}",
                    now=1.0,
                    cause="seen",
                    actor="x",
                )

    def forgets(self, row: int) -> None:
        """Make a gap in the ids of the history."""
        with self.engine.begin() as tx:
            tx.execute(delete(t.node_history).where(t.node_history.c.id == row))

    def follow(
        self, who: Who = ADMIN, after: int | None = 0, notice: int | None = None
    ) -> tuple[events.EventStream, Request]:
        request = Request()

        async def again() -> Who:
            return self.again

        self.again = who
        stream = events.EventStream(self.hub, request, who, again)
        ensureDeferred(stream.start(None if after is None else (after, notice, "")))
        return stream, request

    def looks(self) -> None:
        self.clock.advance(events.PERIOD)


@pytest.fixture
def site(engine: Engine) -> Site:
    return Site(engine)


def test_what_happens_while_a_stream_catches_up_is_told_once(site: Site) -> None:
    site.happens("n1")
    _, other = site.follow()
    looked = False

    def meanwhile(flow: str) -> None:
        nonlocal looked
        if flow == "past" and not looked and len(site.hub.streams) == 2:
            looked = True
            site.happens("n2")
            site.looks()  # the hub tells the stream of n2, which then reads it itself, too

    site.pool.before = meanwhile
    _, request = site.follow()
    assert looked
    site.happens("n3")
    site.looks()
    assert request.nodes == other.nodes == ["n1", "n2", "n3"]


def test_what_a_stream_has_read_before_the_hub_is_told_once(site: Site) -> None:
    _, other = site.follow()
    site.happens("n1")
    _, request = site.follow()  # it reads n1 itself
    site.looks()
    site.happens("n2")
    site.looks()
    site.looks()
    assert request.nodes == other.nodes == ["n1", "n2"]


def test_with_many_streams_what_happens_is_put_together(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MANY", 1)
    requests = [site.follow()[1] for _ in range(2)]
    site.clock.pump([0.5] * 4)  # looks that know of both
    site.happens("n1")
    site.clock.pump([0.5] * 3)
    assert [each.nodes for each in requests] == [[], []]
    site.happens("n2")
    site.clock.advance(0.5)
    assert [each.nodes for each in requests] == [["n1", "n2"]] * 2


def test_more_than_one_look_takes_is_looked_for_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MANY", 1)
    monkeypatch.setattr(events, "AT_ONCE", 3)
    monkeypatch.setattr(views, "AT_ONCE", 3)
    requests = [site.follow()[1] for _ in range(2)]
    site.clock.pump([0.5] * 4)  # looks that know of both
    site.happens(*(f"n{n}" for n in range(1, 8)))
    site.clock.pump([0.5] * 6)
    assert [each.nodes for each in requests] == [[f"n{n}" for n in range(1, 8)]] * 2


def test_who_catches_up_slowly_gets_all_of_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "AT_ONCE", 3)
    monkeypatch.setattr(events, "HELD", 900)  # less than all of it
    monkeypatch.setattr(views, "past", _in_threes(views.past))
    site.happens(*(f"n{n}" for n in range(1, 20)))
    request = Request()
    stream = events.EventStream(site.hub, request, ADMIN, None)
    request.slow = stream.pauseProducing
    ensureDeferred(stream.start((0, 0, "")))
    for _ in range(40):
        stream.resumeProducing()
    assert request.nodes == [f"n{n}" for n in range(1, 20)]


def test_catching_up_takes_as_many_looks_as_it_needs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.happens(*(f"n{n}" for n in range(1, 8)))
    monkeypatch.setattr(events, "AT_ONCE", 3)
    monkeypatch.setattr(views, "past", _in_threes(views.past))
    _, request = site.follow()
    assert request.nodes == [f"n{n}" for n in range(1, 8)]


def _in_threes(real: Any) -> Any:
    def past(tx: Any, after: int, told: int) -> Any:
        rows, notices = real(tx, after, told)
        return rows[:3], notices

    return past


def test_no_position_is_before_what_the_client_knows(site: Site) -> None:
    site.happens(*(f"n{n}" for n in range(1, 6)))
    site.forgets(2)  # for a while row 2 may be one that still comes
    _, request = site.follow(after=4)
    _, new = site.follow(after=None)
    site.happens("n6")
    site.looks()
    assert (request.nodes, request.ids[-1]) == (["n5", "n6"], "4-0")
    assert (new.nodes, new.ids[-1]) == (["n6"], "5-0")
    site.clock.pump([events.PERIOD] * 80)
    assert request.ids[-1] == new.ids[-1] == "6-0"


def test_a_batch_of_events_has_one_position(site: Site) -> None:
    site.happens("n1", "n2", "n3")
    _, request = site.follow()
    assert request.ids == ["0-0", "3-0"]
    blocks = request.written.split("\n\n")
    assert "n3" in next(block for block in blocks if "id: 3-0" in block)


def test_a_reader_that_stands_still_while_it_catches_up_is_sent_away(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "WAITING", 2)
    monkeypatch.setattr(events, "AT_ONCE", 1)
    site.happens("n1")
    request = Request()
    stream = events.EventStream(site.hub, request, ADMIN, None)
    request.slow = stream.pauseProducing
    ensureDeferred(stream.start((0, 0, "")))
    with site.engine.begin() as tx:
        nodes.change(tx, nodes.by_name(tx, "n1"), progress_done=1, progress_total=9)
    site.looks()
    assert stream._behind == []
    site.happens("n2", "n3")
    site.looks()
    assert not request.over
    site.happens("n4")
    site.looks()
    assert request.over


def test_one_loop_reads_for_those_who_leave_and_come(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gone = site.follow()
    real, looks = site.pool.read, list[Any]()

    def read(flow: Any, *args: Any) -> Any:
        if flow is not views.happened:
            return real(flow, *args)
        looks.append(result := Deferred[None]())
        return result.addCallback(lambda _: real(flow, *args))

    monkeypatch.setattr(site.pool, "read", read)
    site.looks()
    gone.gone.callback(None)
    _, request = site.follow(after=None)
    site.happens("n1")
    for _ in range(3):
        under_way, looks[:] = looks[:], []
        for each in under_way:
            each.callback(None)
        site.looks()
        assert len(looks) == 1
    assert request.nodes == ["n1"]


def test_a_slow_reader_is_waited_for_and_then_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, request = site.follow()
    stream.pauseProducing()
    site.happens("n1")
    site.looks()
    assert request.nodes == []
    stream.resumeProducing()
    assert request.nodes == ["n1"]
    monkeypatch.setattr(events, "HELD", 300)
    stream.pauseProducing()
    site.happens("n2", "n3", "n4")
    site.looks()
    assert request.over
    assert site.hub.streams == set()


def test_silence_is_broken_now_and_then_and_nobody_looks_for_nobody(site: Site) -> None:
    _, request = site.follow()
    for _ in range(40):
        site.looks()
    assert request.written.count(": still here") == 1
    request.gone.callback(None)
    site.clock.pump([events.PERIOD] * round(events.LINGER / events.PERIOD + 2))
    assert site.clock.getDelayedCalls() == []


def test_who_may_no_more_hears_no_more(site: Site) -> None:
    _, request = site.follow()
    site.happens("n1")
    site.looks()
    site.again = NOBODY
    site.clock.advance(events.CHECKED)
    site.looks()
    site.happens("n2")
    site.looks()
    assert request.nodes == ["n1"]


def test_whose_session_is_over_is_sent_away(site: Site) -> None:
    stream, request = site.follow()

    async def over() -> Who:
        raise HttpProblem(401, "unauthorised", "you are not signed in any more")

    stream._again = over
    site.clock.advance(events.CHECKED)
    site.looks()
    assert request.over


@pytest.mark.parametrize("flow", ["resume", "recent"])
def test_who_leaves_while_it_begins_is_no_ghost(site: Site, flow: str) -> None:
    request = Request()
    # as Twisted does: who asks after the connection's end is not told of it
    request.notifyFinish = lambda: Deferred() if request.gone.called else request.gone  # type: ignore[method-assign]
    stream = events.EventStream(site.hub, request, ADMIN, None)
    site.pool.before = lambda name: (
        request.gone.callback(None) if name == flow and not request.gone.called else None
    )
    ensureDeferred(stream.start((0, None, "")))
    assert site.hub.streams == set()
    assert request.written == ""


def test_who_has_left_before_it_begins_is_no_ghost(site: Site) -> None:
    request: Any = SimpleNamespace(
        method=b"GET", verb="GET", api_path="/events", gone=True, getHeader=lambda name: None
    )
    context: Any = SimpleNamespace(hub=site.hub)
    request.notifyFinish, request.caller = Deferred, None
    Deferred.fromCoroutine(JsonBody(request, context)._events(EventQuery(), ADMIN))
    assert site.hub.streams == set()


def test_a_database_that_is_away_ends_the_streams_and_the_next_one_begins_anew(site: Site) -> None:
    _, request = site.follow()
    site.pool.broken = {"happened"}
    site.looks()
    assert request.over
    site.pool.broken = set()
    site.happens("n1")
    _, again = site.follow()
    assert again.nodes == ["n1"]


def test_who_cannot_catch_up_is_sent_away(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.happens("n1")
    site.pool.broken = {"past"}
    _, request = site.follow()
    assert request.over
    assert not site.hub.streams
    assert "what a client has missed cannot be read: the server died here" in caplog.text
    site.pool.broken = set()
    assert site.follow()[1].nodes == ["n1"]


def test_what_cannot_be_joined_is_answered_like_any_request(site: Site) -> None:
    site.pool.broken = {"recent"}
    request, fails = Request(), list[Any]()
    request.registerProducer = lambda *_: fails.append("begun")  # type: ignore[method-assign]
    stream = events.EventStream(site.hub, request, ADMIN, None)
    failed = ensureDeferred(stream.start(None)).addErrback(lambda failure: fails.append(failure))
    assert failed.called
    [failure] = fails
    assert str(failure.value) == "the server died here"
    assert (request.written, request.over) == ("", False)


def test_a_position_is_never_later_than_the_newest_notice(site: Site) -> None:
    """A client may know notices of before the database was restored."""
    site.happens("n1")
    _, request = site.follow(notice=9 * 10**17)
    assert request.ids[0] == "0-0"


def test_a_row_that_comes_late_is_told_however_long_the_first_read_waited(site: Site) -> None:
    site.happens("n1", "n2", "n3")
    h = t.node_history
    with site.engine.begin() as tx:
        late = tx.execute(select(h).where(h.c.id == 2)).mappings().one()
    site.forgets(2)

    def waits(flow: str) -> None:
        if flow == "recent":
            site.clock.rightNow += 60.0

    site.pool.before = waits
    _, request = site.follow(after=None)
    with site.engine.begin() as tx:
        tx.execute(insert(h).values(**late))
    site.looks()
    assert request.nodes == ["n2"]


def test_a_happening_is_for_whom_it_is_for() -> None:
    told = Event(
        "transition",
        {"node": "n1", "vcluster": "v2", "cause": "for v2", "actor": "user:x"},
        5,
        frozenset({2}),
        frozenset({1}),
    )
    assert "v2" in told.text(None)
    assert "v2" in told.text(frozenset({2, 9}))
    assert "n1" in told.text(frozenset({1}))
    assert "v2" not in told.text(frozenset({1}))
    assert told.text(frozenset({3})) == told.text(frozenset()) == ""
    siteonly = Event("notice", {"about": "a disk"}, 6)
    assert siteonly.text(None)
    assert not siteonly.text(frozenset({1}))


def test_many_tokens_are_one_person(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_OF_ONE", 2)
    for number in (1, 2):
        site.follow(Who(f"token:t{number}@eve", user_id=5))
    assert "2 times already" in site.hub.refusal(Who("user:eve", user_id=5))
    assert site.hub.refusal(Who("token:t1@bob", user_id=6)) == ""
