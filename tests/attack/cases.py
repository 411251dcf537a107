"""What one member, one node or one packet can do to others: a case each, played on the flows with a
database of its own and a clock that is moved by hand.

`before` has what was measured on 2026-11-23, before the promises of docs/security.md were kept. The
tests named by `also` show more of the case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from sqlalchemy import event

from cod.model import Energy, Policy, Site
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import address_blocks, vclusters
from tests.attack import forgeries, request_flood
from tests.attack.small_disk import ServingOnSmallDisk, fill_and_free
from tests.conftest import SUBNET, in_memory
from tests.net.server_process import founded
from tests.store.agentlab import Lab
from tests.store.manager_world import furnish, members, planned
from tests.store.spoilt_machines import Hall, revise, wanted

SITE = Site(name="test", domain="cod.test", subnets=(SUBNET,), policy=Policy(auto_approve=True))
TRIES = 10


@dataclass(frozen=True)
class Case:
    """One case. `play` returns what it measures; `most`: more must never be, None where nothing is
    promised."""

    name: str
    measures: str
    before: str
    most: float | None
    play: Callable[[], float]
    also: tuple[str, ...] = ()


@contextmanager
def site_lab() -> Iterator[Lab]:
    """A new site's database, in memory, with a clock and machines."""
    engine = in_memory()
    with engine.begin() as tx:
        yield Lab(tx, SITE)
    engine.dispose()


# ---------------------------------------------------------------- the spoiler


def spoilt(templates: int) -> int:
    """Return how many of eight free machines one member's wrong templates quarantine."""
    with site_lab() as lab:
        groups.ensure(lab.tx, "physics", 0.0)
        lab.site = replace(lab.site, energy=Energy())
        hall = Hall(lab)
        for turn in range(1, templates + 1):
            wanted(lab, revise(lab, turn), name=f"vc{turn}")
            hall.rest()
        return hall.states().count("quarantined")


# ---------------------------------------------------------------- the impostor


def welcomed(power: str) -> int:
    """Return how many of ten agents in the name of a free machine that is off are welcomed, where
    its power driver says so."""
    with site_lab() as lab:
        lab.machine(1, "off")
        return sum(not isinstance(lab.knock(1, power=power), str) for _ in range(TRIES))


def answered_elsewhere() -> int:
    """Return how many of ten DISCOVERs in a node's name are answered at another port than its
    own."""
    with site_lab() as lab:
        forgeries.settled(lab)
        asked = [
            forgeries.send(lab, "DISCOVER", 20 + turn, **forgeries.ELSEWHERE)
            for turn in range(TRIES)
        ]
        return TRIES - asked.count(None)


def quicker() -> int:
    """Return how many of ten hosts that are quicker than a booting node are given its secret, where
    its BMC hands it a nonce."""
    with site_lab() as lab:
        forgeries.booting(lab, nonce=True)
        return forgeries.race(lab)


def free_without_evidence(*, auto_approve: bool) -> int:
    """Return how many impostors become a free machine where neither a driver nor option 82 tells
    them apart."""
    with site_lab() as lab:
        lab.site = replace(lab.site, policy=replace(lab.site.policy, auto_approve=auto_approve))
        lab.machine(1, "off", power_address="")
        node = lab.node(1)
        nodes.change(lab.tx, node, power_driver="none")
        lab.boots(1)
        return int(lab.node(1).state == "inactive")


# ---------------------------------------------------------------- forged packets


def disturbed() -> int:
    """Return how many nodes are moved by 34 forged DISCOVERs a second: free, in wipe, in prime."""
    moved = 0
    for state in forgeries.STATES:
        with site_lab() as lab:
            forgeries.at_work(lab, state)
            before = lab.node(1)
            forgeries.forge(lab)
            moved += lab.node(1) != before
    return moved


def declined() -> int:
    """Return how many addresses an active node loses to a forged DHCPDECLINE, or gains."""
    with site_lab() as lab:
        return len(forgeries.decline(lab))


def ports_taken() -> int:
    """Return how many ports of others a node takes that reports them by LLDP."""
    with site_lab() as lab:
        return sum(node == lab.node(2).id for node in forgeries.lie(lab).values()) - 1


# ---------------------------------------------------------------- the flood


@dataclass
class Flooded:
    """What a flood left behind: how many vclusters wait that hold addresses; and what another
    group's request for a node then costs until it is granted: passes of the manager, SQL
    statements, seconds of processor time."""

    holding: int
    passes: int = 0
    statements: int = 0
    seconds: float = 0.0


@cache
def flooded(attempts: int) -> Flooded:
    """Return what another group's request costs after so many of one member, of which one can be
    granted and those that are let in wait."""
    with site_lab() as lab:
        tx, site = lab.tx, lab.site
        furnish(tx, 3)
        for name in ("physics", "chemistry"):
            groups.ensure(tx, name, 0.0)
        request_flood.flood(tx, site, attempts)
        found = Flooded(sum(bool(address_blocks.of(tx, one.id)) for one in vclusters.every(tx)))
        with _counted(tx, found):
            theirs = request_flood.create(tx, site, "theirs", "chemistry", 1)
        while not members(tx, theirs):
            found.passes += 1
            assert found.passes <= 10
            _pass(tx, site, theirs, found)
        return found


def _pass(tx: Tx, site: Site, vcluster_id: int, found: Flooded) -> None:
    """Run a pass of the manager, until the vcluster has its node."""
    now = 1.0 + found.passes
    with _counted(tx, found):
        claim = claims.hold(tx, "manager", "a", now, 10.0)
        acts = planned(tx, site, now)
    assert claim is not None
    for act in acts:
        with _counted(tx, found):
            act.flow(tx, claim=claim, now=now)
        if members(tx, vcluster_id):
            return


@contextmanager
def _counted(tx: Tx, found: Flooded) -> Iterator[None]:
    """Add to `found` what the block costs."""

    def count(*_: object) -> None:
        found.statements += 1

    event.listen(tx, "before_cursor_execute", count)
    began = time.process_time()
    yield
    found.seconds += time.process_time() - began
    event.remove(tx, "before_cursor_execute", count)


def statements_ratio() -> float:
    """Return by how much more SQL another group's request costs after the flood."""
    return flooded(request_flood.ATTEMPTS).statements / flooded(0).statements


def later() -> float:
    """Return how many seconds of processor time another group's request costs more."""
    return flooded(request_flood.ATTEMPTS).seconds - flooded(0).seconds


# ---------------------------------------------------------------- the full disk


def ended_by_a_full_disk() -> int:
    """Return how many parts of a running server end when its disk is full."""
    with founded(ServingOnSmallDisk) as serving:
        return fill_and_free(serving)


FULL_DISK = "full disk"
FLOOD = f"flood: {request_flood.ATTEMPTS:,} requests"
CASES = (
    Case(
        "spoiler: one wrong template",
        "of 8 free machines, in quarantine",
        "7 of 7 in 195 s",
        3,
        lambda: spoilt(1),
        ("tests/store/test_blame.py",),
    ),
    Case(
        "spoiler: five new templates",
        "of 8 free machines, in quarantine",
        "not measured",
        3,
        lambda: spoilt(5),
        ("tests/store/test_blame.py",),
    ),
    Case(
        "impostor, BMC says off",
        "of 10 agents in a free machine's name, welcomed",
        "1 of 1 in 0.3 s",
        0,
        lambda: welcomed("off"),
        ("tests/attack/test_identity.py", "tests/system/test_impostors.py"),
    ),
    Case(
        "impostor, option 82",
        "of 10 DISCOVERs from another port, answered",
        "not measured",
        0,
        answered_elsewhere,
        ("tests/attack/test_identity.py",),
    ),
    Case(
        "impostor, boot_nonce",
        "of 10 that are quicker than a booting node, given its secret",
        "not measured",
        0,
        quicker,
        ("tests/attack/test_identity.py", "tests/store/test_boot_nonces.py"),
    ),
    Case(
        "impostor, neither",
        "becomes a free machine; administrators approve",
        "1 of 1 in 0.4 s",
        0,
        lambda: free_without_evidence(auto_approve=False),
        ("tests/attack/test_identity.py",),
    ),
    Case(
        "impostor, neither",
        "becomes a free machine; auto_approve",
        "1 of 1 in 0.4 s",
        None,
        lambda: free_without_evidence(auto_approve=True),
    ),
    Case(
        "forger: 34 DISCOVERs/s",
        "of 3 nodes (free, wipe, prime), disturbed",
        "4 of 4 in 35 s",
        0,
        disturbed,
        ("tests/attack/test_identity.py",),
    ),
    Case(
        "decliner: DHCPDECLINEs",
        "addresses that an active node loses",
        "1 a packet",
        0,
        declined,
        ("tests/attack/test_identity.py",),
    ),
    Case(
        "liar of ports: LLDP",
        "ports of another node, taken",
        "1 of 1",
        0,
        ports_taken,
        ("tests/attack/test_identity.py", "tests/store/test_switch_ports.py"),
    ),
    Case(
        FLOOD,
        "waiting virtual clusters that hold addresses",
        "503 (all addresses)",
        0,
        lambda: flooded(request_flood.ATTEMPTS).holding,
        ("tests/attack/test_flood.py", "tests/store/test_rations.py"),
    ),
    Case(
        FLOOD,
        "passes until another group's request is granted",
        "never (no address)",
        1,
        lambda: flooded(request_flood.ATTEMPTS).passes,
        ("tests/attack/test_flood.py",),
    ),
    Case(
        FLOOD,
        "SQL statements of that, times those without",
        "not measured",
        2,
        statements_ratio,
    ),
    Case(
        FLOOD,
        "s of processor time later than without; goal 0.3",
        "not measured",
        None,
        later,
    ),
    Case(
        FULL_DISK,
        "parts of a server that end",
        "2: web, manager",
        0,
        ended_by_a_full_disk,
        ("tests/attack/test_full_disk.py",),
    ),
)
