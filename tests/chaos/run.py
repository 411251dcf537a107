"""A chaos run: faults one after another under load, and what has come of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from sqlalchemy import func, select

from cod.store import tables as t
from cod.store.engine import Tx
from tests.chaos.checks import Owners, Prober, Turns, Watch
from tests.chaos.faults import FAULTS, HOUR, ChaosFault
from tests.chaos.site import ChaosSite
from tests.history_rows import node_rows
from tests.waiting import until

MOST_MOVES = 8  # transitions between two faults
STILL = 20.0  # seconds without a transition after which a fault comes all the same
SETTLED = 20.0  # seconds after a fault that count as its own
TAKEN = 60.0  # seconds after a fault within which somebody else takes the claim over because of it
REST = 900.0  # seconds after the last fault within which all machines are free
STORY = 40  # lines of a story's end


@dataclass
class FaultCount:
    """The faults of one kind.

    silence    the longest time without an answer to DHCP during one, and shortly after it, seconds
    unmanaged  the longest time without a manager's sign of life then, seconds; a manager that has
               nothing to do gives one every 7.5 s
    takeovers  seconds from the beginning of each that hit the manager to the next claim, where that
               came before the next fault
    """

    count: int = 0
    silence: float = 0.0
    unmanaged: float = 0.0
    takeovers: list[float] = field(default_factory=list)


@dataclass
class ChaosOutcome:
    """What a run has come to. `fenced`: managers that were stopped, lost their claim meanwhile, and
    went on."""

    seed: int
    faults: dict[str, FaultCount] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    looks: int = 0
    disks: int = 0
    transitions: int = 0
    fenced: int = 0
    silence: float = 0.0
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the outcome for programs."""
        return asdict(self)

    def __str__(self) -> str:
        titles = ("DHCP silent", "manager silent")
        lines = [f"{'fault':22}{'times':>6}{titles[0]:>13}{titles[1]:>16}  manager taken over, s"]
        for kind, each in sorted(self.faults.items()):
            taken = each.takeovers
            shown = (
                f"{len(taken)}: median {median(taken):.1f}, most {max(taken):.1f}" if taken else ""
            )
            silent = f"{each.silence:11.1f} s{each.unmanaged:14.1f} s"
            lines.append(f"{kind:22}{each.count:6}{silent}  {shown}".rstrip())
        asked = ", ".join(f"{name} {count}" for name, count in sorted(self.asked.items()))
        return "\n".join(
            [
                *lines,
                f"{asked}: {self.acknowledged} acknowledged; {self.transitions} transitions, rows"
                f" read {self.looks} times, free disks {self.disks} times; longest silence"
                f" {self.silence:.1f} s; {self.fenced} managers woke without their claim;"
                f" {len(self.violations)} violations",
            ]
        )


@dataclass(frozen=True, slots=True)
class SeenFault:
    """A fault with its beginning and its end, in seconds of the monotonic clock, and the server
    that managed when it began."""

    fault: ChaosFault
    begin: float
    end: float
    manager: str


class ChaosRun:
    """Faults on an idle site, with what is looked at meanwhile. `said`: is told each fault."""

    def __init__(
        self, site: ChaosSite, seed: int, said: Callable[[str], None] = lambda _: None
    ) -> None:
        self._site, self._said = site, said
        self._rng = random.Random(seed)
        self.outcome = ChaosOutcome(seed)
        self.watch = Watch(site.database.url, site.machines)
        self.owners = Owners(site, random.Random(f"{seed} owners"))
        self._prober = Prober(site)
        self._seen: list[SeenFault] = []

    def run(
        self, more: Callable[[ChaosOutcome], bool], names: Sequence[str], *, in_order: bool = False
    ) -> ChaosOutcome:
        """Let faults of those `names` happen, drawn or in that order, while there is `more` to do,
        then let all come to rest; return what was found."""
        turns = [
            Turns(self.watch.look, 0.1),
            Turns(self.owners.turn, 0.25),
            Turns(self._prober.turn, 0.0),
        ]
        for each in turns:
            each.start()
        try:
            until(lambda: self.watch.claims, "the site has a manager")
            while more(self.outcome) and not self._found() and all(map(Turns.is_alive, turns)):
                self._wait()
                done = len(self.outcome.story)
                self._fault(names[done] if in_order else self._rng.choice(names))
            self.owners.resting = True
            self._pass_written_times()
            if not self._found():
                self._come_to_rest()
        finally:
            for each in reversed(turns):
                each.stop()
        self.watch.conclude()
        self._conclude()
        self.watch.close()
        return self.outcome

    def _found(self) -> bool:
        found = self.outcome.violations, self.watch.violations, self.owners.violations
        return any(found)

    def _wait(self) -> None:
        wanted = len(self.watch.seen) + self._rng.randint(1, MOST_MOVES)
        end = time.monotonic() + STILL
        while len(self.watch.seen) < wanted and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self._rng.uniform(0.0, 0.3))

    def _fault(self, name: str) -> None:
        manager = self._site.manager = self.watch.claims[-1].owner
        begin = time.monotonic()
        fault = FAULTS[name](self._site, self._rng)
        if fault is None:
            return
        line = f"{time.strftime('%H:%M:%S')} {fault.kind}: {fault.target}, {fault.seconds:.1f} s"
        self.outcome.story.append(f"{line}; the manager is {manager}")
        self._said(self.outcome.story[-1])
        self.outcome.faults.setdefault(fault.kind, FaultCount())
        time.sleep(fault.seconds)
        try:
            fault.mend()
        except RuntimeError as error:  # what was seen until then is told nevertheless
            self.outcome.violations.append(f"{line}: not mended: {error}")
        self._seen.append(SeenFault(fault, begin, time.monotonic(), manager))

    def _pass_written_times(self) -> None:
        """Set all clocks to where the one was that was furthest ahead: a time that its server has
        written, such as a deadline, is due only then."""
        if "clock ahead" in self.outcome.faults:
            for server in self._site.servers:
                server.step_clock(HOUR)

    def _come_to_rest(self) -> None:
        end = time.monotonic() + REST
        while self.watch.read(_held) or not self._site.is_idle():
            if time.monotonic() > end:
                states = [f"{row.node} is {row.state}" for row in self.watch.read(node_rows)]
                self.outcome.violations.append(f"no rest within {REST:.0f} s: {', '.join(states)}")
                return
            time.sleep(1.0)

    def _conclude(self) -> None:
        outcome, watch, owners = self.outcome, self.watch, self.owners
        outcome.asked = owners.asked
        outcome.acknowledged = sum(told.acknowledged.total() for told in owners.told.values())
        outcome.looks, outcome.disks = watch.looks, watch.disks_read
        outcome.transitions = len(watch.seen)
        count(outcome, self._seen, watch, self._prober.answered, time.monotonic())
        outcome.violations += watch.violations + owners.violations + owners.compare(watch)
        if len(self._prober.offered) > 1:
            outcome.violations.append(f"one machine was offered {sorted(self._prober.offered)}")
        if outcome.violations:
            outcome.story += owners.log[-STORY:]
            outcome.story += [str(row) for row in list(watch.seen.values())[-STORY:]]


def count(
    outcome: ChaosOutcome,
    faults: Sequence[SeenFault],
    watch: Watch,
    answered: Sequence[float],
    ended: float,
) -> None:
    """Count for each kind of fault what was seen during its faults, and until the next one. What
    comes after that is the next one's. `answered`: when DHCP was; `ended`: when the run was over,
    both in seconds of the monotonic clock."""
    starts = [each.begin for each in faults[1:]] + [ended]
    for seen, following in zip(faults, starts, strict=True):
        kind, begin = outcome.faults.setdefault(seen.fault.kind, FaultCount()), seen.begin
        until_ = min(seen.end + SETTLED, following)
        kind.count += 1
        kind.silence = max(kind.silence, longest_gap(answered, begin, until_))
        kind.unmanaged = max(kind.unmanaged, longest_gap(watch.signs, begin, until_))
        if seen.fault.hits == seen.manager:
            claims = (now.since for _, now in pairwise(watch.claims))
            until_ = min(seen.end + TAKEN, following)
            taken = next((since for since in claims if begin < since < until_), None)
            if taken is not None:
                kind.takeovers.append(taken - begin)
                outcome.fenced += "stopped" in seen.fault.kind and taken < seen.end
    outcome.silence = max((each.silence for each in outcome.faults.values()), default=0.0)


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time between two of the `times` that ended in, or goes on at the end of,
    that span."""
    times = [each for each in times if each < end]
    before = [each for each in times if each <= begin]
    span = [*(before[-1:] or [begin]), *(each for each in times if each > begin), end]
    return max(b - a for a, b in pairwise(span))


def _held(tx: Tx) -> int:
    """Return how many vclusters have not ended."""
    ended = t.vclusters.c.state != "ended"
    return tx.scalar(select(func.count()).select_from(t.vclusters).where(ended)) or 0
