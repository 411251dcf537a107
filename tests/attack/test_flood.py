"""One member asks for one vcluster after the other: what waits is bounded, takes no addresses, and
the next pass of the manager serves others. Prints what an attempt costs the server."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cod.model import Site
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import address_blocks, requests, vclusters
from tests.attack.request_flood import ATTEMPTS, create, flood
from tests.store.manager_world import furnish, members, run_pass


@pytest.mark.slow
def test_a_flood_of_requests_ends_no_addresses_and_delays_nobody(tx: Tx, site: Site) -> None:
    few = replace(site.subnets[0], block_pool=("10.77.128.0", "10.77.129.255"))  # 8 blocks
    site = replace(site, subnets=(few,), policy=replace(site.policy, pending_requests=50))
    furnish(tx, 1)
    for name in ("physics", "chemistry"):
        groups.ensure(tx, name, 0.0)
    began = time.process_time()
    answers = flood(tx, site, ATTEMPTS)
    spent = (time.process_time() - began) / ATTEMPTS
    print(f"{ATTEMPTS} requests of one member: {dict(answers)}, {spent * 1000:.1f} ms each")
    assert answers == {"accepted": 50, "refused": ATTEMPTS - 50}
    assert len(requests.every(tx, states=["pending"])) == 50
    assert all(not address_blocks.of(tx, one.id) for one in vclusters.every(tx))
    theirs = create(tx, site, "theirs", "chemistry", 1)
    run_pass(tx, site, 2.0)
    assert members(tx, theirs) == ["node0"]
