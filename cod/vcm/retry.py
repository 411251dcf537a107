"""Retries of a VCM's steps. Each step runs in a thread, where it may block, and the failure of one
does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList, ensureDeferred
from twisted.internet.threads import deferToThreadPool

from cod.vcm.link import LinkLost, NmpError
from cod.vcm.pool import NotYet

T = TypeVar("T")
SOON = 1.0  # seconds after which a step that was not yet possible is tried again
AFTER_TROUBLE = 5.0  # the same for one that failed

log = logging.getLogger("cod.vcm")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a VCM.

    vcluster, vcm       its vcluster; its name and version
    state               the state file
    interval            seconds between looks at the pool
    template, requires  of requested nodes; '' the vcluster's own
    extend              seconds to extend the lease by when COD warns of its end; 0: let it end
    dry_run             log the actions, and do nothing
    """

    vcluster: str
    vcm: str
    state: Path
    interval: float = 15.0
    template: str = ""
    requires: str = ""
    extend: float = 0.0
    dry_run: bool = False


class RetryingSteps:
    """Takes steps one after the other, or several at a time. `_next`: seconds until the next
    round."""

    def __init__(self, reactor: Any, threads: Any) -> None:
        self._reactor, self._threads = reactor, threads
        self._next = 0.0
        self._logged: dict[str, str] = {}  # the last logged error of each step

    def _come_back(self, seconds: float = SOON) -> None:
        self._next = min(self._next, seconds)

    def _in_thread(self, function: Callable[..., T], *args: Any) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._threads, function, *args)

    async def _done(self, what: str, function: Callable[..., None], *args: Any) -> bool:
        """Call a function of the pool for one node; return whether it succeeded."""

        async def call() -> None:
            await self._in_thread(partial(function, *args))

        return await self._attempt(what, call())

    async def _attempt(self, what: str, step: Awaitable[None]) -> bool:
        """Take the step; return whether it succeeded. A failure is logged unless it repeats the
        last one."""
        try:
            await step
        except NotYet as reason:
            log.debug("%s: not yet: %s", what, reason)
            self._come_back()
        except (LinkLost, NmpError) as error:
            self._say(what, f"COD: {error}")
        except Exception as error:
            self._say(what, f"{type(error).__name__}: {error}")
            log.debug("%s", what, exc_info=True)
        else:
            if self._logged.pop(what, None):
                log.info("%s again", what)
            return True
        return False

    def _say(self, what: str, sentence: str) -> None:
        if self._logged.get(what) != sentence:
            log.error("not so: %s: %s; this is tried again", what, sentence)
        self._logged[what] = sentence

    async def _all_of(self, work: Iterable[Awaitable[None]]) -> None:
        """Run several steps at a time. When all have ended, raise the error of the first that
        failed."""
        ended: Any = await DeferredList([ensureDeferred(one) for one in work], consumeErrors=True)  # type: ignore[arg-type]
        for succeeded, result in ended:
            if not succeeded:
                result.raiseException()
