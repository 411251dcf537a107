"""Burn-ins that the site's rules ask for, and the end of those that ran."""

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

# why the site asks
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
    """Note that the node is to be burnt in, unless that is wanted already. What is left out is as
    the site file says. Raises `Refused` for tests that do not exist."""
    if burnins.open_of(tx, node.id) is None:
        chosen = burnin.tests(site.burnin.tests if tests is None else tests)
        # A transaction that runs twice draws twice: the agents learn only what was committed.
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
    """Note that a machine that was just approved is to be burnt in, where the site wants that."""
    if site.burnin.at_registration:
        ask(tx, node, site, now, cause=NEW, actor=actor, erase=site.burnin.erase_new)


def ask_after_failures(tx: Tx, node: Node, site: Site, now: float) -> None:
    """Note that a free node in the trampoline is to be burnt in, if it has failed too often on its
    way there."""
    most = site.burnin.after_failures
    if most and node.attempts >= most and node.vcluster_id is None:
        ask(tx, node, site, now, cause=FAILURES, actor="deadline")


def ask_on_return(tx: Tx, node: Node, site: Site, now: float, actor: str) -> None:
    """Note that a node that returns to service is to be burnt in, where the site wants that."""
    if site.burnin.after_trouble:
        ask(tx, node, site, now, cause=RESTORED, actor=actor, erase=site.burnin.erase_new)


def finish(tx: Tx, node: Node, results: Sequence[TestResult], site: Site, now: float) -> Node:
    """Keep the results of the node's burn-in, and return the node as it is now: it goes on, or is
    quarantined."""
    row = burnins.open_of(tx, node.id)
    wanted = row.tests.split(",") if row else ()
    if row is not None:
        burnins.change(tx, row.id, results=json.dumps([asdict(each) for each in results]))
    found = burnin.problems(results, wanted, site.burnin)
    if found:
        reason = burnin.sentence(found)
        step = Step(NodeEvent.QUARANTINED, reason, {"reason": reason})
    else:  # what was clean was left as zeros
        step = Step(
            NodeEvent.BURNED_IN,
            "it passed its burn-in",
            {"reason": "", "disk": node.disk, "attempts": 0},
        )
    return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)
