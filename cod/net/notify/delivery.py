"""Delivers notices: claims due deliveries, has their channels send them, records the outcomes, and
repeats failed attempts later.

A notice is delivered at least once: when a server dies between sending and recording, its claim
runs out, and the notice is sent again with the same id. `policy.notice_delivery` decides which
deliveries a failure delays.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from cod.flows.notices import mail_choices, webhook_feed
from cod.flows.notices import notices as flows
from cod.flows.notices.notices import Delivery, Target
from cod.model import SiteRef
from cod.net.notify.delivery_errors import DeliveryError
from cod.net.notify.mailer import Mailer
from cod.net.notify.webhooks import Webhooks
from cod.periodic import Claimer

POLL = 1.0  # seconds between looks for what is due
LEASE = 120.0  # seconds of a claim, which is longer than any attempt
THREADS = 8

log = logging.getLogger("cod.notices")


class Sender(Protocol):
    """A channel. `send` returns a remark for people, mostly '', and raises `DeliveryError`."""

    def send(self, delivery: Delivery) -> Awaitable[str]:
        """Send the notice once."""


class Notifier(Claimer):
    """The deliveries of one server. `reactor` measures pauses, `clock()` is the time of day for the
    rows."""

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        server_name: str,
        clock: Callable[[], float],
        senders: Mapping[str, Sender],
        site: SiteRef,
    ) -> None:
        super().__init__(reactor, pool, log, "looking for notices to deliver", POLL)
        self._reactor, self._site, self._clock = reactor, site, clock
        self._server, self._senders = server_name, senders
        self._busy: set[Target] = set()
        self._readers: dict[str, webhook_feed.Following] = {}  # positions in histories, by kind

    async def look(self) -> None:
        """Claim notices that are due, and begin to deliver them."""
        await self._gather()
        hour = self._site.current.notices.digest_hour
        if await self._pool.read(mail_choices.digests_due, hour, self._clock()):
            await self._pool.run(mail_choices.send_digests, hour, self._clock())
        for delivery in await self._pool.run(
            flows.claim, self._server, tuple(self._busy), self._clock(), LEASE
        ):
            self._busy.add(delivery.to)
            self.begin(self._deliver(delivery))

    async def _gather(self) -> None:
        """Write posts of the new events of nodes and vclusters."""
        begun = self._reactor.seconds()
        feeds = await self._pool.read(webhook_feed.look, self._readers)
        self._readers = {
            kind: feed.reader for kind, feed in feeds.items() if feed.reader is not None
        }
        for kind, reader in self._readers.items():
            reader.settle(feeds[kind].mark or 0)
            reader.see(feeds[kind].ids, begun, self._reactor.seconds())
        until = {kind: reader.floor for kind, reader in self._readers.items()}
        if any(
            (feed.mark is None) == feed.wanted or until.get(kind, 0) > (feed.mark or 0)
            for kind, feed in feeds.items()
        ):
            await self._pool.run(webhook_feed.gather, until, self._clock())

    async def _deliver(self, delivery: Delivery) -> None:
        what = f"notice {delivery.notice.id} by {delivery.send.channel}"
        try:
            try:
                remark = await self._senders[delivery.send.channel].send(delivery)
            except DeliveryError as unsent:
                await self._put_off(delivery, what, unsent)
            except Exception as error:
                log.exception("%s: the sender is broken", what)
                await self._put_off(
                    delivery, what, DeliveryError(f"a bug in COD: {type(error).__name__}")
                )
            else:
                log.info("%s is delivered%s", what, f"; {remark}" if remark else "")
                await self._pool.run(flows.succeeded, delivery, remark, self._clock())
        except Exception:
            log.exception("%s: the outcome was not written; its claim will run out", what)
        finally:
            self._busy.discard(delivery.to)
            self.wake()  # more may wait for the same target

    async def _put_off(self, delivery: Delivery, what: str, unsent: DeliveryError) -> None:
        now = self._clock()
        again = await self._pool.run(
            flows.failed, delivery, unsent.sentence, unsent.lasting, unsent.dead, now
        )
        then = "given up" if again is None else f"again in {again - now:.0f} s"
        log.warning("%s failed, %s: %s", what, then, unsent.sentence)


class Post(Service):
    """Delivery of notices in a running server: the channels, their threads, and the `Notifier`."""

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        site: SiteRef,
        server_name: str,
        key: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._threads = ThreadPool(0, THREADS, "notices")
        self._notifier = Notifier(
            reactor,
            pool,
            server_name,
            clock,
            {
                "webhook": Webhooks(reactor, site, key, self._threads, clock),
                "email": Mailer(reactor, site, self._threads),
            },
            site,
        )
        self.wake = self._notifier.wake

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self._threads.start()
        self._notifier.startService()

    def stopService(self) -> Deferred[Any]:
        """Claim nothing more. The result fires when the deliveries under way have ended."""
        super().stopService()  # type: ignore[no-untyped-call]
        return self._notifier.stopService().addBoth(lambda _result: self._threads.stop())
