"""Values of live parts of pages, read once for all who watch the same page with the same rights.

Hundreds may watch a cluster whose nodes change all the time. Each person's rights are checked in a
transaction of its own (`flows.people.access.guarded`). The values of the page are read for the
first person, and used again for the others. The page is loaded as a caller without a name, so that
the values hold nothing about a person; they are kept by the roles and single rights of the caller.

The values are used until an event is told to those who see these groups. If many browsers watch,
the values are used despite events for a part of the time between two fetches of a page. The answer
then says that newer values exist, and the page asks again. If no browser follows the events, no
values are kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from twisted.internet.defer import DeferredLock

from cod.flows import views
from cod.model import Who
from cod.pool import Tx
from cod.web.api.context import Context
from cod.web.api.events import SELDOM
from cod.web.portal.page import Page, PageCall

OLDEST = 15.0  # seconds after which a change without an event is shown
MOST = 100  # loads that are kept; each page and query has its own
PART = 4  # values are used despite events for 1/PART of the time between two fetches


@dataclass
class _Load:
    """Values that a page loaded, by a read that began at `began`. Requests that arrive during the
    read wait for `turn`."""

    began: float = float("-inf")
    values: Mapping[str, Any] = field(default_factory=dict)
    turn: DeferredLock = field(default_factory=DeferredLock)


class SharedLoads:
    """Loads of live parts of pages, kept in this process for all who watch with the same rights."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loads: dict[Hashable, _Load] = {}

    async def of(
        self, page: Page[Any, Any], ask: PageCall[Any, Any], heard: int
    ) -> tuple[Mapping[str, Any], bool]:
        """Return the variables that a page loads, and whether an event has followed since the load.
        The request's rights have been checked. The variables include the time of the load (`now`)
        and the last event before it (`last_event`). `heard` is the last event that the browser's
        page knows of, maybe from another server."""
        clock = self._context.reactor.seconds
        fresh = [
            (key, load)
            for key, load in self._loads.items()
            if load.turn.locked or clock() - load.began < OLDEST
        ]
        self._loads = dict(fresh[1 - MOST :])
        load = self._loads.setdefault(_key(page, ask), _Load())
        await load.turn.acquire()
        try:
            if not self._serves(load, ask.who, heard):
                began = clock()
                nameless = replace(ask, who=_nameless(ask.who), host="")
                load.values = await self._context.pool.read(partial(_read, page, nameless))
                load.began = began
                heard = 0  # the values are new: they include every event
        finally:
            load.turn.release()
        return load.values, self._is_stale(load, ask.who, heard)

    def clear(self) -> None:
        """Forget all values, because somebody has sent a form, and needs to see its effect."""
        self._loads = {}

    def _is_stale(self, load: _Load, who: Who, heard: int) -> bool:
        changed_at = self._context.hub.last_change(who.groups)
        return load.began < changed_at or load.values.get("last_event", 0) < heard

    def _serves(self, load: _Load, who: Who, heard: int) -> bool:
        hub = self._context.hub
        age = self._context.reactor.seconds() - load.began
        if not hub.streams or age >= OLDEST:
            return False
        return not self._is_stale(load, who, heard) or age < (hub.apart() - SELDOM) / PART


def _read(page: Page[Any, Any], ask: PageCall[Any, Any], tx: Tx) -> dict[str, Any]:
    shared = {
        "now": ask.now,
        "last_event": views.last_event(tx),
        "nav_counts": views.attention(tx, groups=ask.who.groups),
    }
    return shared | dict(page.load(tx, ask))


def _nameless(who: Who) -> Who:
    """Return a caller with the rights of `who`, but without anything that identifies the person."""
    return Who(
        "user:",
        admin=who.admin,
        writes=who.writes,
        user_id=0,
        roles=who.roles,
        only=who.only,
        singles=who.singles,
    )


def _key(page: Page[Any, Any], ask: PageCall[Any, Any]) -> Hashable:
    """Return all that a page's load depends on: the caller's rights, as `_nameless` keeps them, and
    the request."""
    who = ask.who
    return (
        (page.path, ask.names, None if ask.query is None else ask.query.model_dump_json()),
        (who.admin, who.writes, who.only),
        frozenset(who.roles.items()),
        frozenset(who.singles.items()),
    )
