"""Which of the BMC addresses that a machine reports are proposed, and whose they are already."""

from __future__ import annotations

import pytest

from cod.model import ProposedBmc, TypeRules
from cod.policy.hardware import bmcs
from cod.policy.hardware.equal import canonical


def report(*addresses: str) -> str:
    bmcs = (f"<bmc by='ipmi' address='{each}'/>" for each in addresses)
    return f"<node>{''.join(bmcs)}</node>"


@pytest.mark.parametrize(
    "address",
    [
        "999.1.1.1",
        "0.0.0.0",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "01.2.3.4",
    ],
)
def test_addresses_that_no_server_reaches_are_not_proposed(address: str) -> None:
    assert bmcs.proposed(report(address, "10.1.0.7", "10.1.0.7")) == (
        ProposedBmc("ipmi", "10.1.0.7"),
    )
    assert bmcs.proposed(None) == ()
    assert bmcs.without(report(address, "10.1.0.7")) == "<node />"
    assert bmcs.without(None) is None


def test_a_report_proposes_a_few_at_most() -> None:
    many = report(*(f"10.1.0.{n}" for n in range(1, 200)))
    assert [each.address for each in bmcs.proposed(many)] == [f"10.1.0.{n}" for n in range(1, 5)]


def test_nodes_that_are_switched_by_the_address_are_named() -> None:
    switched = [
        ("a", "10.1.0.7"),
        ("b", "https://10.1.0.7:443/redfish/v1/Systems/1?insecure=yes"),
        ("c", "10.1.0.70"),
        ("d", "110.1.0.7?suite=17"),
        ("e", None),
    ]
    assert bmcs.used(ProposedBmc("ipmi", "10.1.0.7"), switched).nodes == ("a", "b")


def test_a_bmc_makes_no_other_type() -> None:
    """Machines that are known keep their types when trampolines begin to report BMCs."""
    assert canonical(report("10.1.0.7"), TypeRules()) == canonical(report(), TypeRules())
