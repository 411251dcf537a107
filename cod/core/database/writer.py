"""The site's database, on one host or several. If there are several hosts, a thread finds the
writer among them and renews its lease, by the rules of `policy.database_writer`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cod.model import database_urls
from cod.policy import database_writer as policy
from cod.policy.database_writer import (
    HostAnswer,
    Renew,
    TakeOver,
    UseWithoutLease,
    Wait,
    WriterView,
)
from cod.store import database
from cod.store.engine import Engine, NoWriter, Tx, is_retryable
from cod.store.mariadb import writer as store

PATIENCE = 2.0  # seconds for one answer of a host
WAIT = 10.0  # seconds that a transaction waits for the writer before it fails, and is retried
LOOK_PERIOD = 0.5  # seconds between questions to all hosts
RENEWAL_LATE = 1.0  # seconds after which the other hosts are asked beside a renewal

log = logging.getLogger("cod.database")
T = TypeVar("T")


def connect(url: str) -> Engine:
    """Return an engine for a server or a command. If the database has several hosts, the engine
    connects to the present writer, and commits nothing on another host."""
    urls = database_urls(url)
    return database.connect(url, writer=DatabaseWriter(urls) if len(urls) > 1 else None)


def boottime() -> float:
    """Return the seconds since the host's boot, by a clock that cannot be set and that runs while
    the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class DatabaseWriter:
    """The writer among the hosts, which a thread of its own looks for. The first call of `look` or
    `where` starts this thread.

    Any thread may call the other methods; `step` runs in the writer's own thread alone.
    """

    def __init__(self, urls: Mapping[str, str], clock: Callable[[], float] = boottime) -> None:
        """`urls`: of the hosts, by HOST:PORT, in the order in which the site prefers them."""
        # Autocommit, because all processes of all servers write the one row of the lease. A process
        # that is cut off between a statement and its COMMIT would lock the row for the others until
        # the host ends its transaction, and so would each cut-off process that waits behind it.
        self._hosts = {
            host: database.connect(url, size=1, patience=PATIENCE, autocommit=True)
            for host, url in urls.items()
        }
        self._clock = clock
        self._view, self._reason = WriterView(), "no host of the database has answered yet"
        # a thread for each host's question and one for a renewal, which never waits for the others
        self._threads = ThreadPoolExecutor(len(self._hosts) + 1, "db-ask")
        self._asked: dict[str, Future[HostAnswer | None]] = {}
        self._hanging: set[str] = set()  # hosts that took their whole time for their last answer
        self._changed, self._wake = threading.Condition(), threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._cut: Callable[[], None] = lambda: None

    def where(self) -> tuple[str, int]:
        """Return the writer and its epoch, after waiting for it a while. Raises `NoWriter`."""
        if not self._may_write():
            self.look()
            with self._changed:
                self._changed.wait_for(self._may_write, WAIT)
        view = self._view
        if not policy.may_write(view, self._clock()):
            raise NoWriter(f"the database has no writer: {self._reason}")
        return view.host, view.epoch

    def confirm(self, where: tuple[str, int]) -> None:
        """Raise `NoWriter` unless that host may be written to now."""
        view = self._view
        if not policy.is_writer(view, *where) or not policy.may_write(view, self._clock()):
            raise NoWriter(
                f"{where[0]} is not the database's writer, as far as this server can see"
            )

    def look(self) -> None:
        """Have the thread check at once which host is the writer."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="db-writer", daemon=True)
                self._thread.start()
        self._wake.set()

    def when_lost(self, cut: Callable[[], None]) -> None:
        """Set the function that is called when the writer does not answer any more."""
        self._cut = cut

    def close(self) -> None:
        """End the thread. The lease stays, for others of this site or until it expires."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for engine in self._hosts.values():
            engine.dispose()

    def step(self) -> None:
        """Renew the lease. If that fails, ask all hosts and take the policy's next step: wait, use
        a host without a lease, renew the lease, or take it over."""
        view = self._view
        if view.epoch and self._renew(Renew(view.host, view.epoch)):
            return
        if view.host and not self._may_write():
            log.warning("lost sight of %s, the database's writer", view.host)
            self._see(replace(self._view, host="", epoch=0))
            self._cut()
        answers, now = self._answers(self._hosts), self._clock()
        step = policy.next_step(self._view, answers, now)
        if isinstance(step, Wait):
            self._reason = step.reason
        elif isinstance(step, UseWithoutLease):
            self._see(policy.renewed(self._view, step.host, 0, now))
        elif isinstance(step, Renew):
            self._renew(step)
        else:
            self._take_over(step)

    def _may_write(self) -> bool:
        return policy.may_write(self._view, self._clock())

    def _see(self, view: WriterView) -> None:
        if view.host and (view.host, view.epoch) != (self._view.host, self._view.epoch):
            log.info("the database's writer is %s (epoch %d)", view.host, view.epoch)
        with self._changed:
            self._view = view
            self._changed.notify_all()

    def _answers(self, hosts: Collection[str]) -> list[HostAnswer]:
        """Ask all `hosts` at the same time; return the answers in the hosts' order. Each answer is
        taken into the view when it comes, because the time without a renewal counts from then. A
        host that hangs is waited for only once, but asked again and again."""
        for host in hosts:
            if host not in self._asked or self._asked[host].done():
                self._asked[host] = self._threads.submit(self._ask, host)
        asked = {host: self._asked[host] for host in hosts}
        for answered in as_completed(asked[host] for host in hosts if host not in self._hanging):
            if answer := answered.result():
                self._see(policy.seen(self._view, [answer], self._clock()))
        ended = [each.result() for each in asked.values() if each.done()]
        answers = [answer for answer in ended if answer is not None]
        self._see(policy.seen(self._view, answers, self._clock()))
        return answers

    def _ask(self, host: str) -> HostAnswer | None:
        def answer(tx: Tx) -> HostAnswer:
            return HostAnswer(host, store.lease(tx, policy.NOBODY), store.is_writable(tx))

        begun = self._clock()
        found = self._at(host, answer)
        if found is None and self._clock() - begun >= PATIENCE / 2:
            self._hanging.add(host)
        else:
            self._hanging.discard(host)
        return found

    def _renew(self, step: Renew) -> bool:
        begun = self._clock()
        beat = partial(store.renew, host=step.host, epoch=step.epoch)
        renewal = self._threads.submit(self._at, step.host, beat)
        if not wait([renewal], RENEWAL_LATE).done:
            self._answers([host for host in self._hosts if host != step.host])
        # A host may commit a renewal though another host has told of a newer epoch meanwhile.
        if renewal.result() and step.epoch >= self._view.newest.epoch:
            # `begun` is before the host's commit, and all other processes see this renewal after
            # it. So half a lease from `begun` ends before a whole lease that others count, however
            # late the result comes. A renewal that arrives late only makes others wait longer.
            self._see(policy.renewed(self._view, step.host, step.epoch, begun))
            return True
        return False

    def _take_over(self, step: TakeOver) -> None:
        begun, lease = self._clock(), step.lease
        seconds = policy.LEASE_SECONDS
        if self._at(step.host, lambda tx: store.take_over(tx, step.host, lease, seconds)):
            log.warning("took the database's lease over for %s", step.host)
            self._see(policy.renewed(self._view, step.host, lease.epoch + 1, begun))

    def _at(self, host: str, act: Callable[[Tx], T]) -> T | None:
        """Return the result of `act` after its commit at a host; None where the host fails."""
        try:
            with self._hosts[host].begin() as tx:
                return act(tx)
        except Exception as error:
            self._reason = f"{host}: {getattr(error, 'orig', error)}"
            if not is_retryable(error):
                log.error("%s", self._reason)
            return None

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            try:
                self.step()
            except Exception:  # the thread must go on: without it no writer is ever found again
                log.exception("the database's writer could not be looked for")
            self._wake.wait(policy.RENEWAL_PERIOD if self._may_write() else LOOK_PERIOD)
