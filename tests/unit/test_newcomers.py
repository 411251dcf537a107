"""Limits for machines never seen before, alone. Floods on a whole site:
tests/store/test_dhcp_starvation.py."""

from __future__ import annotations

from cod.model import DhcpQuery, Policy
from cod.policy.nodes.newcomers import Newcomers

POLICY = Policy(new_rate=1.0, new_burst=5)


def ask(number: int) -> DhcpQuery:
    return DhcpQuery("DISCOVER", f"52:54:00:00:00:{number:02x}", 1, "lab", "firmware", arch=0)


def test_a_transaction_that_is_run_again_counts_its_machines_once() -> None:
    newcomers = Newcomers()
    batch = [ask(number) for number in range(4)]
    for _ in range(3):
        assert all(newcomers.admits(query, "lab", POLICY, 1000.0) for query in batch)
    # the last fifth is kept for machines that ask again
    assert not newcomers.admits(ask(9), "lab", POLICY, 1000.0)
    assert newcomers.admits(ask(9), "lab", POLICY, 1001.0)
