"""What a page loads is read once for all who watch it with the same rights, and no longer than it
is true."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from cod.flows import views
from cod.model import Role, SingleRight, Site, Who
from cod.web.api.models import Paged
from cod.web.api.routes import Call, Named
from cod.web.portal import shared_loads
from cod.web.portal.page import Page
from cod.web.portal.shared_loads import SharedLoads

ANN = Who("user:ann", user_id=1, roles={7: Role.OWNER}, address="10.0.0.9", session=3, joined=5.0)
BOB = Who("user:bob", user_id=2, roles={7: Role.OWNER}, address="10.0.0.8", session=4, joined=6.0)


@dataclass
class Hub:
    """The streams of the page's process."""

    streams: set[int] = field(default_factory=lambda: {1})
    between: float = 4.0
    at: dict[Any, float] = field(default_factory=dict)

    def apart(self) -> float:
        return self.between

    def last_change(self, groups: frozenset[int] | None) -> float:
        return max((self.at.get(each, 0.0) for each in (groups or (None,))), default=0.0)


class World:
    """A page whose loads are counted, with what asked for them; they end when the test says so."""

    def __init__(self) -> None:
        self.reactor, self.hub, self.pool = Clock(), Hub(), self
        self.asked: list[Who] = []
        self.reads: list[Deferred[Any]] = []
        self.loads = SharedLoads(self)
        self.page: Page[Any, Any] = Page("/things/{name}", "thing.html", self.load, shared=True)

    def load(self, tx: Any, ask: Any) -> dict[str, Any]:
        self.asked.append(ask.who)
        return {"number": len(self.asked)}

    def read(self, flow: Any) -> Deferred[Any]:
        value = flow(None)
        self.reads.append(Deferred())
        return self.reads[-1].addCallback(lambda _: value)

    def look(self, who: Who = ANN, name: str = "farm", query: Paged | None = None) -> list[Any]:
        """Return where the answer is put: (number of the load, is there more to come)."""
        ask: Call[Any, Any, Any] = Call(
            Site.__new__(Site), self.reactor.seconds(), who, Path(), Named(name), None, query
        )
        found: list[Any] = []
        ensureDeferred(self.loads.of(self.page, ask, 0)).addBoth(found.append)
        return found

    def loaded(self, *asked: Any, **more: Any) -> tuple[int, bool]:
        """Return (number of the load, is there more to come)."""
        found = self.look(*asked, **more)
        for each in self.reads:
            if not each.called:
                each.callback(None)
        values, stale = found[0]
        return values["number"], stale


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(views, "last_event", lambda tx: 41)
    monkeypatch.setattr(views, "attention", lambda tx, groups: {})
    made = World()
    made.reactor.advance(100)
    return made


def test_those_with_the_same_rights_share_what_nobody_of_them_is_named_in(world: World) -> None:
    assert world.loaded(ANN) == (1, False)
    assert world.loaded(BOB) == (1, False)
    (who,) = world.asked
    assert (who.name, who.address, who.session, who.joined) == ("user:", "", None, None)
    assert who.user_id not in (ANN.user_id, BOB.user_id)
    assert (who.roles, who.groups) == (ANN.roles, ANN.groups)


@pytest.mark.parametrize(
    "other",
    [
        replace(BOB, roles={7: Role.VIEWER}),
        replace(BOB, roles={7: Role.OWNER, 8: Role.VIEWER}),
        replace(BOB, roles={8: Role.OWNER}),
        replace(BOB, roles={}),
        replace(BOB, admin=True),
        replace(BOB, writes=False),
        replace(BOB, only=7),
        replace(BOB, singles={7: frozenset({next(iter(SingleRight))})}),
    ],
    ids=repr,
)
def test_those_with_other_rights_share_nothing(world: World, other: Who) -> None:
    assert world.loaded(ANN) == (1, False)
    assert world.loaded(other) == (2, False)
    assert world.loaded(BOB) == (1, False)


def test_every_right_that_somebody_has_is_in_the_key() -> None:
    """A field that is added to `Who` is either left out of what pages are loaded by, or counts."""
    kept = shared_loads._nameless(replace(ANN, admin=True, only=7, measures=True))
    plain = Who("user:", user_id=0)
    differ = {name for name in Who.__slots__ if getattr(kept, name) != getattr(plain, name)}
    assert differ == {"admin", "roles", "only"}
    assert set(Who.__slots__) == differ | {
        *("name", "writes", "user_id", "address", "local", "session", "joined"),
        *("singles", "measures"),
    }


def test_each_page_and_question_is_loaded_by_itself(world: World) -> None:
    assert world.loaded() == (1, False)
    assert world.loaded(name="web") == (2, False)
    assert world.loaded(query=Paged(limit=3)) == (3, False)
    assert world.loaded(query=Paged(limit=4)) == (4, False)
    assert world.loaded(query=Paged(limit=3)) == (3, False)


def test_whoever_comes_during_a_read_waits_for_it(world: World) -> None:
    first, second = world.look(ANN), world.look(BOB)
    assert (first, second) == ([], [])
    assert world.loaded(replace(ANN, roles={8: Role.OWNER})) == (2, False)
    assert len(first) == len(second) == 1
    assert len(world.asked) == 2


def test_after_an_event_that_one_hears_of_it_is_read_again(world: World) -> None:
    assert world.loaded() == (1, False)
    world.reactor.advance(1)
    world.hub.at[8] = 101.0
    assert world.loaded() == (1, False)
    world.hub.at[7] = 101.0
    world.reactor.advance(1)
    assert world.loaded() == (2, False)


def test_where_many_watch_it_serves_a_while_and_says_that_there_is_more(world: World) -> None:
    world.hub.between = 44.0
    assert world.loaded() == (1, False)
    world.hub.at[7] = 100.5
    world.reactor.advance(9.9)
    assert world.loaded() == (1, True)
    world.reactor.advance(0.2)
    assert world.loaded() == (2, False)


def test_what_happens_during_a_read_is_not_in_it(world: World) -> None:
    found = world.look()
    world.reactor.advance(1)
    world.hub.at[7] = 100.5
    world.reads[0].callback(None)
    assert found[0][1]
    assert world.loaded() == (2, False)


def test_nothing_is_kept_for_long_or_where_nobody_follows_the_events(world: World) -> None:
    assert world.loaded() == (1, False)
    world.reactor.advance(shared_loads.OLDEST)
    assert world.loaded() == (2, False)
    world.hub.streams.clear()
    assert world.loaded() == (3, False)
    assert world.loaded() == (4, False)


def test_who_has_sent_a_form_sees_what_came_of_it(world: World) -> None:
    found = world.look()
    world.loads.clear()  # the read that is under way may not know of it
    assert world.loaded() == (2, False)
    assert found[0][0]["number"] == 1


def test_a_read_that_failed_is_tried_by_the_next(world: World) -> None:
    first, second = world.look(ANN), world.look(BOB)
    world.reads[0].errback(OSError("the database is away"))
    assert isinstance(first[0].value, OSError)
    assert second == []
    world.reads[1].callback(None)
    assert second[0][0]["number"] == 2
