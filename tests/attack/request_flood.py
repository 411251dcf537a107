"""A member who asks for one vcluster after the other."""

from __future__ import annotations

import os
from collections import Counter

from cod.flows.scheduler import vclusters as flows
from cod.model import AskedVcluster, Refused, Site
from cod.store.engine import Tx
from tests.contexts import flow_context

ATTEMPTS = min(10_000, int(os.environ.get("COD_ATTACK", "1000")))


def create(tx: Tx, site: Site, name: str, group: str, size: int) -> int:
    made = flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name=name, size=size, template="debian", group=group),
    )
    return made.value[0].vcluster.id


def flood(tx: Tx, site: Site, attempts: int) -> Counter[str]:
    """Ask for so many vclusters in the name of group physics; return what was answered how
    often."""
    answers: Counter[str] = Counter()
    for number in range(attempts):
        try:
            create(tx, site, f"much{number}", "physics", 2)
            answers["accepted"] += 1
        except Refused:
            answers["refused"] += 1
    return answers
