"""Burn-ins that the site's rules request, and the ends of burn-ins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from secrets import token_hex

from cod.core.nodes import transitions
from cod.model import Node, Site
from cod.orders import TestResult
from cod.policy.nodes import burnin
from cod.states import NodeEvent, Step
from cod.store.engine import Tx
from cod.store.nodes import burnins

# causes of burn-ins by the site's rules
NEW, RESTORED, FAILURES, AGAIN = "new machine", "restored", "failures", "periodic"


def ask(
    tx: Tx,
    node: Node,
    site: Site,
    now: float,
    *,
    cause: str,
    actor: str,
    tests: Iterable[str] | None = None,
    seconds: int | None = None,
    erase: bool = False,
) -> None:
    """Request a burn-in of the node, unless one is requested already. `tests` and `seconds` of None
    are those of the site file. Raises `Refused` for tests that do not exist."""
    if burnins.open_of(tx, node.id) is None:
        chosen = burnin.tests(site.burnin.tests if tests is None else tests)
        # A transaction that runs twice makes two secrets: agents learn only the committed one.
        burnins.add(
            tx,
            node_id=node.id,
            cause=cause,
            tests=",".join(chosen),
            erase=erase,
            secret=token_hex(32),
            seconds=site.burnin.seconds if seconds is None else seconds,
            actor=actor,
            asked_at=now,
        )


def ask_of_new(tx: Tx, node: Node, site: Site, now: float, actor: str) -> None:
    """Request a burn-in of a machine that was just approved, if the site's rules say so."""
    if site.burnin.at_registration:
        ask(tx, node, site, now, cause=NEW, actor=actor, erase=site.burnin.erase_new)


def ask_after_failures(tx: Tx, node: Node, site: Site, now: float) -> None:
    """Request a burn-in of a free node in the trampoline, if it has failed as often as the site's
    rules allow."""
    most = site.burnin.after_failures
    if most and node.attempts >= most and node.vcluster_id is None:
        ask(tx, node, site, now, cause=FAILURES, actor="deadline")


def ask_on_return(tx: Tx, node: Node, site: Site, now: float, actor: str) -> None:
    """Request a burn-in of a node that returns to service, if the site's rules say so."""
    if site.burnin.after_trouble:
        ask(tx, node, site, now, cause=RESTORED, actor=actor, erase=site.burnin.erase_new)


def finish(tx: Tx, node: Node, results: Sequence[TestResult], site: Site, now: float) -> Node:
    """Store the results of the node's burn-in, and return the node as it is now: it has passed and
    goes back to the trampoline, or is out of service."""
    row = burnins.open_of(tx, node.id)
    wanted = row.tests.split(",") if row else ()
    if row is not None:
        burnins.change(tx, row.id, results=json.dumps([asdict(each) for each in results]))
    found = burnin.problems(results, wanted, site.burnin)
    if found:
        reason = burnin.sentence(found)
        step = Step(NodeEvent.QUARANTINED, reason, {"reason": reason})
    else:  # the test left clean disks as zeros
        step = Step(
            NodeEvent.BURNED_IN,
            "it passed its burn-in",
            {"reason": "", "disk": node.disk, "attempts": 0},
        )
    return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)
