"""The agent's behaviour, without sockets, clocks or disks: bytes and the time go in, bytes come
out.

A connection consists of hello, mutual proof (`cod.wire.confd.protocol`), the hardware report, then
one order at a time. An order is carried out in a thread (`Job`), so that heartbeats go on. Its
result is kept and sent on every connection until the server has acknowledged it. An order with the
same id as the present one is the same order, and is not carried out twice. An order with another id
replaces the present one, which ends at its next progress report.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from cod.orders import Order, TestResult
from cod.wire.confd import protocol
from cod.wire.confd.messages import (
    Ack,
    Done,
    Error,
    Failed,
    Heartbeat,
    Message,
    Progress,
    Report,
    Welcome,
)
from trampoline.errors import PrimeError

Tell = Callable[[str, int, int, float], None]
"""tell(phase, done, total, rate): a job's sign of progress. Raises Replaced when the job is to
end."""

Act = Callable[[Order, Tell], Mapping[str, float] | tuple[TestResult, ...] | Done]
"""Carries out an order and gives its figures, a burn-in's results, or all that is to be said.
Raises PrimeError with the reason when that cannot be done."""

SILENCE = 3  # heartbeats of the server missed before the connection counts as dead
PROGRESS_EVERY = 1.0  # seconds
# seconds until a report that was not acknowledged, or was refused, is sent again
REPORT_AGAIN = 60.0
# seconds for the handshake, and for the acknowledgement of the last word before a reboot
PATIENCE = 10.0
LEAVING = ("reboot", "off")
REFUSALS = 6  # in a row, of all secrets: only a new boot brings another


class Replaced(Exception):
    """The job's order was replaced by another."""


class Disconnect(Exception):
    """The connection must be given up; the reason is for the console."""


class Job:
    """An order that is carried out in a thread of its own. `wake` is called whenever there is
    something to send."""

    def __init__(self, order: Order, act: Act, wake: Callable[[], None]) -> None:
        self.order = order
        self.result: Done | Failed | None = None
        self.acknowledged = False
        self.progress: Progress | None = None
        self._act = act
        self._wake = wake
        self._replaced = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"order {order.id}", daemon=True)
        self._thread.start()

    def replace(self) -> None:
        """End the job at its next progress report."""
        self._replaced.set()

    def is_running(self) -> bool:
        """Return whether the job's thread may still touch a disk."""
        return self.result is None and self._thread.is_alive()

    def take_progress(self) -> Progress | None:
        """Return the newest progress report, once; None if there is no new one."""
        newest, self.progress = self.progress, None
        return newest

    def _tell(self, phase: str, done: int, total: int, rate: float) -> None:
        if self._replaced.is_set():
            raise Replaced
        self.progress = Progress(self.order.id, phase, done, total, rate)

    def _run(self) -> None:
        try:
            found = self._act(self.order, self._tell)
            if isinstance(found, Done):
                self.result = found
            elif isinstance(found, tuple):
                self.result = Done(self.order.id, results=found)
            else:
                self.result = Done(self.order.id, found)
        except Replaced:
            self.result = Failed(self.order.id, "replaced by another order")
        except PrimeError as error:
            self.result = Failed(self.order.id, str(error), error.cause)
        except Exception as error:  # a bug or a sick machine: the node's record is where it is seen
            self.result = Failed(self.order.id, f"{type(error).__name__}: {error}")
        self._wake()


class Agent:
    """One machine's agent. The shell passes it connections, bytes and the time, and sends what
    `to_send` returns.

    scan    makes the hardware report's document
    act     carries out an order
    wake    makes the shell call `tick` soon; called from jobs' threads
    log     one line for the console
    keep    stores a secret for an agent that is started after this one in the same boot
    leave   'reboot' or 'off' once the machine is to go; the shell does it
    ordered   the server has sent it an order with work: the machine is the site's
    source  where the order's image comes from, for people; set by the shell, '' for nothing
    """

    def __init__(
        self,
        mac: str,
        secrets: protocol.Secrets,
        scan: Callable[[], str],
        act: Act,
        wake: Callable[[], None],
        log: Callable[[str], None],
        keep: Callable[[protocol.Secret], None],
    ) -> None:
        self.leave: str | None = None
        self.ordered = False
        self.source = ""
        self.welcomed = False
        self._mac, self._secrets, self._keep = mac, secrets, keep
        self._scan, self._act, self._wake, self._log = scan, act, wake, log
        self._side: protocol.AgentSide | None = None
        self._output = bytearray()
        self._order = ""  # id of the order in hand
        self._job: Job | None = None  # none while waiting
        self._next: Order | None = None
        self._reported = ""
        self._refusals = 0
        self._interval = 0.0
        self._heard_at = self._beat_at = self._report_at = self._progress_at = self._leave_at = 0.0
        self._sent_result: Done | Failed | None = None

    # ------------------------------------------------------------ what the shell tells

    def connected(self, now: float) -> None:
        """Send hello on a new connection."""
        self._side = protocol.AgentSide(
            self._secrets.current(),
            self._mac,
            os.urandom(protocol.NONCE),
            os.urandom(protocol.KEY),
        )
        self._output[:] = self._side.to_send()
        self._heard_at, self.welcomed, self._sent_result = now, False, None

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the server. Raises confd.ProtocolError and Disconnect."""
        assert self._side
        self._heard_at = now
        for event in self._side.receive(data):
            self._hear(event, now)
        self._output += self._side.to_send()
        self.tick(now)

    def tick(self, now: float) -> None:
        """Send the messages that are due: heartbeat, report, progress, result. Raises Disconnect
        when the server has gone silent."""
        self._start_next()
        if not self.welcomed:
            if now >= self._heard_at + PATIENCE:
                raise Disconnect("the server did not finish the handshake")
            return
        if now >= self._heard_at + SILENCE * self._interval:
            raise Disconnect(f"nothing heard for {now - self._heard_at:.0f} s")
        if now >= self._beat_at:
            self._say(Heartbeat())
            self._beat_at = now + self._interval
            # A disk that appeared late or a cable that was plugged in is reported; changes by the
            # order itself are not.
            if not self._job and not self._report_at and self._scan() != self._reported:
                self._log("the machine has changed: reporting again")
                self._report_at = now
        if self._report_at and now >= self._report_at:
            self._report_at = now + REPORT_AGAIN
            self._reported = self._scan()
            self._say(Report(self._reported))
        if self._job and now >= self._progress_at:
            self._progress_at = now + PROGRESS_EVERY
            if (progress := self._job.take_progress()) and not self._job.result:
                source = self.source if progress.phase == "write" else ""
                self._say(replace(progress, source=source))
        self._tell_result(now)

    def due(self) -> float:
        """Return when `tick` should be called next, if nothing else happens."""
        if not self.welcomed:
            return self._heard_at + PATIENCE
        progress_at = self._progress_at if self._is_working() else 0.0
        optional = [self._report_at, self._leave_at, progress_at]
        return min(
            self._beat_at, self._heard_at + SILENCE * self._interval, *filter(None, optional)
        )

    def to_send(self) -> bytes:
        """Return bytes for the server; empty when there are none."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def lost(self) -> None:
        """Forget a connection that has ended. Work goes on; a machine that only waits for the last
        acknowledgement leaves now."""
        self._side, self.welcomed = None, False
        self._output.clear()
        if self._leave_at and self._job:
            self.leave = self._job.order.action

    # ------------------------------------------------------------ what the server says

    def _hear(self, event: protocol.Event, now: float) -> None:
        if isinstance(event, protocol.NewSecret):
            # before the proof leaves: see cod.wire.confd.protocol
            self._secrets.learned(event.secret)
            self._keep(self._secrets.current())
        elif isinstance(event, Welcome):
            self.welcomed, self._refusals = True, 0
            self._interval, self._beat_at = event.heartbeat, now + event.heartbeat
            self._report_at = now
            self._log(f"{event.node}: reporting to its server")
        elif isinstance(event, Order):
            self._obey(event)
        elif isinstance(event, Ack) and not event.order:
            self._report_at = 0.0
        elif isinstance(event, Ack):
            if self._job and self._job.result and event.order == self._job.order.id:
                self._job.acknowledged = True
                if self._job.order.action in LEAVING:
                    self.leave = self._job.order.action
        elif isinstance(event, Error):
            self._be_refused(event)

    def _be_refused(self, error: Error) -> None:
        if error.code == "unknown":
            self._secrets.refused()
            self._refusals += 1
            if self._refusals >= REFUSALS and not self._is_working():
                self._log(
                    "the server knows none of this machine's secrets: rebooting for a new one"
                )
                self.leave = "reboot"
        if not self.welcomed or error.code != "refused":
            raise Disconnect(f"the server says {error.code}: {error.reason}")
        self._log(f"the server refused a message: {error.reason}")

    def _obey(self, order: Order) -> None:
        if order.id == self._order and not self._next:
            self._sent_result = None  # the server asks again: it hears the result again
            if self._job:
                self._job.acknowledged = False
            return
        self._next = order
        if self._job:
            self._job.replace()
        self._start_next()

    def _is_working(self) -> bool:
        return self._job is not None and self._job.is_running()

    def _start_next(self) -> None:
        """Begin the next order when no job is running: two must never write at the same time."""
        if not self._next or self._is_working():
            return
        order, self._next = self._next, None
        self._order, self._job, self._sent_result, self._leave_at = order.id, None, None, 0.0
        self.source = ""
        self._log(f"order {order.id}: {order.action}")
        if order.action != "wait":
            self.ordered = self.ordered or order.action != "look"
            # leaving needs no job: the result is sent, and the machine goes once it is acknowledged
            work = (lambda order, tell: {}) if order.action in LEAVING else self._act
            self._job = Job(order, work, self._wake)

    # ------------------------------------------------------------ what is said

    def _tell_result(self, now: float) -> None:
        """Send the job's result, once on each connection; leave if the order says so and nobody
        acknowledges the result."""
        job = self._job
        if not job or not job.result or self._next:
            return
        if self._sent_result is not job.result and not job.acknowledged:
            ended = "done" if isinstance(job.result, Done) else f"failed: {job.result.reason}"
            self._log(f"order {job.order.id}: {job.order.action} {ended}")
            self._say(job.result)
            self._sent_result = job.result
            self._leave_at = now + PATIENCE if job.order.action in LEAVING else 0.0
        if self._leave_at and now >= self._leave_at:  # unacknowledged, but the order stands
            self.leave = job.order.action

    def _say(self, message: Message) -> None:
        assert self._side
        self._output += self._side.to_send() + self._side.send(message)
