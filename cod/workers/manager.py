"""The resource manager's loop: holds the claim, watches for changes, runs scheduler passes and
deadlines.

Every second it asks the database whether anything has changed, and runs a pass if so; also when
time alone may require one (`flows.scheduler.plan.due`: a lease, a deadline or an inertia ends), and
at least every ten seconds. A wake-up makes it look at once; but for a while after each look,
wake-ups are gathered. Only the server that holds the claim does anything: the others look every
second whether the claim is over, and whether the database has lost commits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred

from cod.claimkeeper import ClaimKeeper
from cod.flows.claims import Claim
from cod.flows.nodes import deadlines
from cod.flows.scheduler import apply_plan, maintenance, plan
from cod.model import Effect, Refused, SiteRef
from cod.pool import Pool
from cod.workers.lost_commits import LostCommits

PERIOD = 1.0  # seconds between looks
# After a look, wake-ups are gathered for the time that the look took, times this factor, from
# `LEAST` to `PERIOD`: after an outage each machine's report is a wake-up, and one look handles all
# of them.
GATHERED = 3
LEAST = 0.2  # seconds
PATIENCE = 10.0  # seconds after which a pass is run although nothing seems to have changed
# seconds without a jump of the wall clock after which leases may run out
CALM = 60.0
JUMP = 5.0  # seconds
# the fields of a plan in which no lease runs out
ENDS: dict[str, Any] = {"warnings": (), "drains": (), "expired": (), "overdue": ()}
ASIDE = 30.0  # seconds for which a request is left out of plans after its grant has failed
CLAIM = 15.0  # seconds that the claim outlives its owner's last sign; renewed at half of it

log = logging.getLogger("cod.manager")


class Manager(Service):
    """One server's manager. `effects` carries out the wake-ups that flows return; `server` names
    this server; in the file `memory` it remembers how far the database had come."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        server: str,
        clock: Callable[[], float],
        effects: Callable[[Iterable[Effect]], object],
        memory: Path | None = None,
    ) -> None:
        self._reactor, self._pool, self._site = reactor, pool, site
        self._clock, self._effects = clock, effects
        self._keeper = ClaimKeeper(reactor, pool, "manager", server, CLAIM)
        self._losses = LostCommits(reactor, pool, server, memory)
        self._pulse: object = None
        self._seen: plan.Observed | None = None
        self._still: plan.NoChange | None = None
        self._aside: dict[int, float] = {}  # requests that are left out of plans, and until when
        self._next_pass = 0.0
        self._started = self._calm_at = 0.0
        self._offset: float | None = None
        self._woken = self._gathers = False
        self._pause: Deferred[None] | None = None
        self._life: Deferred[None] | None = None

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self._started = self._clock()
        self._life = ensureDeferred(self._live())

    def stopService(self) -> Deferred[None] | None:
        """End after the act under way, and let another server take over at once."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._go_on()
        return self._life

    def wake(self) -> None:
        self._woken = True
        if not self._gathers:
            self._go_on()

    def _go_on(self) -> None:
        if self._pause is not None:
            pause, self._pause = self._pause, None
            pause.callback(None)

    async def _live(self) -> None:
        while self.running:
            began = self._reactor.seconds()
            try:
                await self._look()
            except Exception as error:
                away = self._pool.is_away(error)
                log.error("the manager's pass failed: %s", error, exc_info=not away)
            took = self._reactor.seconds() - began
            await self._rest(min(PERIOD, max(LEAST, GATHERED * took)))
        await self._keeper.give_up()

    async def _rest(self, gathered: float) -> None:
        """Wait until the next look is due: `PERIOD`, or until the first wake-up, but at least
        `gathered` seconds."""
        if not self.running:
            return
        self._gathers = True
        self._pause = Deferred()
        calls = [
            self._reactor.callLater(gathered, self._end_gathering),
            self._reactor.callLater(PERIOD, self._go_on),
        ]
        await self._pause
        for call in calls:
            if call.active():
                call.cancel()

    def _end_gathering(self) -> None:
        self._gathers = False
        if self._woken:
            self._go_on()

    async def _look(self) -> None:
        woken, self._woken = self._woken, False
        claim = await self._hold()
        if claim is None:
            return
        now = self._clock()
        self._watch_clock(now)
        try:
            effects = await self._pool.run(
                deadlines.run, self._site.current, now, self._started, claim=claim
            )
        except apply_plan.Lost as error:
            self._lose(error, "deadlines wait")
            return
        self._effects(effects)
        if self._reactor.seconds() >= self._calm_at:
            await self._maintain()
        pulse = await self._pool.read(plan.pulse)
        if woken or pulse != self._pulse or now >= self._next_pass:
            self._pulse, self._next_pass = pulse, now + PATIENCE
            await self._pass(now)

    async def _maintain(self) -> None:
        """Carry on with maintenance windows. An error is logged, and does not hold up requests."""
        more = True
        while more and self.running and (claim := await self._hold()) is not None:
            try:
                done = await self._pool.run(
                    maintenance.run, claim=claim, site=self._site.current, now=self._clock()
                )
            except apply_plan.Lost as error:
                self._lose(error, "maintenance waits")
                return
            except Exception as error:
                if self._pool.is_away(error):
                    raise
                log.exception("maintenance failed")
                return
            self._effects(done.effects)
            more = done.value

    def _watch_clock(self, now: float) -> None:
        """Notice when the clock was set. A clock that is wrong at the start, or that is set, must
        not end leases, since nodes that are taken back are wiped. Nor is it a node's fault if its
        deadline is suddenly past."""
        offset = now - self._reactor.seconds()
        if self._offset is None or abs(offset - self._offset) > JUMP:
            self._calm_at = self._reactor.seconds() + CALM
            self._next_pass, self._still = 0.0, None  # both hold for the former time
            if self._offset is not None:
                self._started = now
                log.warning(
                    "the clock was set by %.0f s; no lease runs out for %.0f s",
                    offset - self._offset,
                    CALM,
                )
        self._offset = offset

    async def _hold(self) -> Claim | None:
        """Return the claim, renewed in time; None while it is another server's, or the site is
        held. A hold that has begun since the last look has made the claim void."""
        now = self._clock()
        before = self._keeper.claim
        claim = await self._keeper.keep(now)
        is_renewed = claim is not None and claim is not before
        if is_renewed:
            self._losses.acted()
        if claim and (before is None or claim.generation != before.generation):
            # A hold ends a claim. The database may have lost rows that are remembered here, and have
            # given their ids to others.
            self._seen, self._still, self._aside = None, None, {}
            self._next_pass = 0.0
        if is_renewed or self._losses.is_due():
            await self._losses.look(now)
        if (before is None) != (claim is None):
            log.info("this server is %s the manager", "now" if claim else "no longer")
        return None if self._losses.is_held else claim

    async def _pass(self, now: float) -> None:
        site = self._site.current
        self._seen = await self._pool.snapshot(plan.look, site, now, self._seen, again=True)
        self._aside = {
            one: until for one, until in self._aside.items() if until > self._reactor.seconds()
        }
        seen = plan.without(self._seen.site, self._aside)
        self._next_pass = min(self._next_pass, plan.due(seen, site, now))
        if self._still is not None and self._still.lasts(seen, site, now):
            return
        planned = plan.decide(self._seen.site, site, now, self._aside)
        self._still = None if planned else plan.still(seen, site, now)
        if self._reactor.seconds() < self._calm_at:
            planned = replace(planned, **ENDS)
        acts = deque(apply_plan.acts(planned, site, bulk=True))
        while acts:
            act = acts.popleft()
            claim = await self._hold()
            if claim is None or self._seen is None or not self.running:
                return
            try:
                acts.extendleft(reversed(await self._act(act, claim)))
            except apply_plan.Lost as error:
                self._lose(error, "the rest of the plan is dropped")
                return

    def _lose(self, error: apply_plan.Lost, rest: str) -> None:
        """Note that another server has the claim. `rest` says what is left undone, for the log."""
        self._keeper.claim = None
        log.warning("%s; %s", error, rest)

    def _set_aside(self, act: apply_plan.Act) -> None:
        """Leave a request out of plans for a while. A grant that cannot be carried out would
        otherwise be planned again and again, with nodes that other requests could have."""
        if act.request_id is not None:
            self._aside[act.request_id] = self._reactor.seconds() + ASIDE
            self._next_pass = 0.0

    async def _act(self, act: apply_plan.Act, claim: Claim) -> tuple[apply_plan.Act, ...]:
        """Carry out an act; return the acts that replace the part that could not be carried out."""
        done = None
        try:
            done = await self._pool.run(act.flow, claim=claim, now=self._clock())
        except apply_plan.Stale as error:
            log.info("%s: the world has changed since the snapshot: %s", act.name, error)
        except Refused as refused:
            log.warning("%s: %s", act.name, refused.sentence)
            self._set_aside(act)
            if act.request_id is not None:
                await self._pool.run(apply_plan.waits, act.request_id, refused, self._clock())
        except apply_plan.Lost:
            raise
        except Exception as error:
            # an error in the rows of one act must not keep all others waiting for ever
            if self._pool.is_away(error):
                raise
            log.exception("%s failed", act.name)
            self._set_aside(act)
        else:
            self._losses.acted()
            self._effects(done.effects)
        return act.left(done)
