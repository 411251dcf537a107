"""Delivers notices: claims what is due, has it sent by its channel, writes down what came of it, tries again later.

At least once: a server that dies between sending and writing leaves a claim that runs out, and the notice is sent again
under the same id. What each delivery keeps waiting is decided in `policy.people.delivery`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList
from twisted.python.threadpool import ThreadPool

from cod.flows.notices import notices as flows
from cod.flows.notices import webhook_feed
from cod.flows.notices.notices import Delivery, Target
from cod.model import SiteRef
from cod.net.notify.delivery_errors import DeliveryError
from cod.net.notify.mailer import Mailer
from cod.net.notify.webhooks import Webhooks
from cod.periodic import Timer

POLL = 1.0  # seconds between looks for what is due
LEASE = 120.0  # seconds of a claim: longer than any attempt takes
THREADS = 8

log = logging.getLogger("cod.notices")


class Sender(Protocol):
    """One channel. Returns a remark for people, mostly ''. Raises `DeliveryError`."""

    def send(self, delivery: Delivery) -> Awaitable[str]:
        """Send it once."""


class Notifier(Service):
    """One server's deliveries. `reactor` keeps its time for pauses, `clock()` is the time of day for the rows."""

    def __init__(
        self, reactor: Any, pool: Any, server_name: str, clock: Callable[[], float], senders: Mapping[str, Sender]
    ) -> None:
        self._pool, self._server, self._clock, self._senders = pool, server_name, clock, senders
        self._under_way: dict[Target, Deferred[None]] = {}
        self._looking = self._again = False
        self._timer = Timer(reactor, POLL, self._look, at_once=True)

    def startService(self) -> None:
        """Begin to look for what is due."""
        super().startService()  # type: ignore[no-untyped-call]
        self._timer.startService()

    def stopService(self) -> Deferred[Any]:
        """Claim nothing more; fires when what is under way has ended."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._timer.stopService()
        return DeferredList(list(self._under_way.values()), consumeErrors=True)

    def wake(self) -> None:
        """Look now: somebody has written a notice."""
        self._look()

    def _look(self) -> None:
        if self._looking:
            self._again = True
        elif self.running:
            self._looking, self._again = True, False
            Deferred.fromCoroutine(self._claim())

    async def _claim(self) -> None:
        try:
            if await self._pool.read(webhook_feed.due, self._clock()):
                await self._pool.run(webhook_feed.gather, self._clock())
            for delivery in await self._pool.run(
                    flows.claim, self._server, tuple(self._under_way), self._clock(), LEASE):
                self._begin(delivery)
        except Exception as error:
            log.error("looking for notices to deliver: %s", error, exc_info=not self._pool.is_away(error))
        finally:
            self._looking = False
            if self._again:
                self._look()

    def _begin(self, delivery: Delivery) -> None:
        # Entered before it begins, because it may have ended when fromCoroutine returns.
        ended = self._under_way[delivery.to] = Deferred()

        def end(_none: object) -> None:
            del self._under_way[delivery.to]
            ended.callback(None)
            self._look()  # more may wait for the same target

        Deferred.fromCoroutine(self._deliver(delivery)).addBoth(end)

    async def _deliver(self, delivery: Delivery) -> None:
        what = f"notice {delivery.notice.id} by {delivery.send.channel}"
        try:
            try:
                remark = await self._senders[delivery.send.channel].send(delivery)
            except DeliveryError as unsent:
                await self._failed(delivery, what, unsent)
            except Exception as error:
                log.exception("%s: the sender is broken", what)
                await self._failed(delivery, what, DeliveryError(f"a bug in COD: {type(error).__name__}"))
            else:
                log.info("%s is delivered%s", what, f"; {remark}" if remark else "")
                await self._pool.run(flows.succeeded, delivery, remark, self._clock())
        except Exception:
            log.exception("%s: the outcome was not written; its claim will run out", what)

    async def _failed(self, delivery: Delivery, what: str, unsent: DeliveryError) -> None:
        now = self._clock()
        again = await self._pool.run(flows.failed, delivery, unsent.sentence, unsent.lasting, unsent.dead, now)
        then = "given up" if again is None else f"again in {again - now:.0f} s"
        log.warning("%s failed, %s: %s", what, then, unsent.sentence)


class Post(Service):
    """What delivers notices in a running server: both channels, the threads that they need, and the `Notifier`."""

    def __init__(
        self, reactor: Any, pool: Any, site: SiteRef, server_name: str, key: bytes, clock: Callable[[], float]
    ) -> None:
        self._threads = ThreadPool(0, THREADS, "notices")
        self._notifier = Notifier(reactor, pool, server_name, clock, {
            "webhook": Webhooks(reactor, site, key, self._threads, clock),
            "email": Mailer(reactor, site, self._threads)})
        self.wake = self._notifier.wake

    def startService(self) -> None:
        """Begin."""
        super().startService()  # type: ignore[no-untyped-call]
        self._threads.start()
        self._notifier.startService()

    def stopService(self) -> Deferred[Any]:
        """Claim nothing more; fires when what is under way has ended."""
        super().stopService()  # type: ignore[no-untyped-call]
        return self._notifier.stopService().addBoth(lambda _result: self._threads.stop())
