"""Which node is the computer that a BMC tells of."""

from __future__ import annotations

import pytest

from cod.model import BmcSystem, KnownMachine, uuids_of
from cod.policy.hardware.bmc_match import BmcOutcome, match

KNOWN, NEW, ELSEWHERE, UNKNOWN, DOUBT = BmcOutcome
UUID = "4c4c4544-0042-3510-8054-b4c04f4e3232"
A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"
NODES = (
    KnownMachine("r1-01", (A,), UUID, "S-01"),
    KnownMachine("r1-02", (B,), None, "S-02", power_driver="ipmi", power_address="10.1.0.2:623"),
)


def system(host: str, *serials: str, uuid: str = "", macs: tuple[str, ...] = ()) -> BmcSystem:
    return BmcSystem(host, "ipmi", host, serials=serials, uuids=uuids_of(uuid), macs=macs)


@pytest.mark.parametrize(
    ("found", "outcome", "node"),
    [
        (system("10.1.0.1", "S-01"), NEW, "r1-01"),
        (system("10.1.0.1", "CN747", "S-01"), NEW, "r1-01"),
        (system("10.1.0.1", uuid=UUID.upper()), NEW, "r1-01"),
        (system("10.1.0.1", uuid="44454c4c-4200-1035-8054-b4c04f4e3232"), NEW, "r1-01"),
        (system("10.1.0.1", macs=("52:54:00:00:00:99", A)), NEW, "r1-01"),
        (system("10.1.0.2", "S-02"), KNOWN, "r1-02"),
        (system("10.1.0.20", "S-02"), ELSEWHERE, "r1-02"),
        (system("10.1.0.3", "S-03"), UNKNOWN, ""),
        (system("10.1.0.3"), UNKNOWN, ""),
        (system("10.1.0.3", "To be filled by O.E.M."), UNKNOWN, ""),
        (system("10.1.0.1", "S-01", macs=(B,)), DOUBT, ""),
    ],
)
def test_a_system_is_the_node_to_which_all_that_it_tells_points(
    found: BmcSystem, outcome: BmcOutcome, node: str
) -> None:
    [one] = match([found], NODES)
    assert (one.outcome, one.node) == (outcome, node)


def test_two_systems_that_fit_one_node_are_both_in_doubt() -> None:
    """One of them lies, or a machine has two BMCs."""
    true, liar = system("10.1.0.1", "S-01", uuid=UUID), system("10.1.0.9", "S-01")
    one, other = match([true, liar], NODES)
    assert one.about == "fits r1-01 by serial number S-01, and so does the system at 10.1.0.9"
    assert other.about == "fits r1-01 by serial number S-01, and so does the system at 10.1.0.1"
    assert {one.outcome, other.outcome} == {DOUBT}
    assert {one.node, other.node} == {""}


def test_a_serial_number_of_a_whole_chassis_tells_nothing() -> None:
    nodes = [KnownMachine("a", (A,), serial="CHASSIS1"), KnownMachine("b", (B,), serial="CHASSIS1")]
    found = [system("10.1.0.1", "CHASSIS1", macs=(A,)), system("10.1.0.2", "CHASSIS1")]
    assert [(one.outcome, one.node) for one in match(found, nodes)] == [(NEW, "a"), (UNKNOWN, "")]


def test_one_of_several_systems_of_a_bmc_is_known_by_its_path() -> None:
    base = "https://10.1.0.1/redfish/v1/Systems/"
    node = KnownMachine("a", (A,), power_driver="redfish", power_address=f"{base}1?insecure=yes")
    for path, outcome in (("1", KNOWN), ("2", ELSEWHERE), ("", KNOWN)):
        found = BmcSystem(
            "10.1.0.1",
            "redfish",
            f"{base}{path}?insecure=yes" if path else "https://10.1.0.1",
            macs=(A,),
        )
        assert match([found], [node])[0].outcome == outcome
