"""Whose hardware is it? What flows make of the answer is in tests/store/test_agent_flows.py."""

from __future__ import annotations

import pytest

from cod.policy.hardware import identity


@pytest.mark.parametrize(
    ("uuid", "unique"),
    [
        (None, False),
        ("00000000-0000-0000-0000-000000000000", False),
        ("ffffffff-ffff-ffff-ffff-ffffffffffff", False),
        ("fefefefe-fefe-fefe-fefe-fefefefefefe", False),
        ("02000300-0400-0500-0006-000700080009", False),
        ("03000200-0400-0500-0006-000700080009", False),
        ("6b1d3a52-0c6e-4a8e-9a56-2f0e6f1b7a11", True),
    ],
)
def test_uuids_that_makers_left_in_tell_nobody_apart(uuid: str | None, unique: bool) -> None:
    assert identity.is_unique(uuid) == unique


def test_a_report_says_no_uuid_where_it_tells_nobody_apart() -> None:
    report = '<node><system uuid="{}"/><firmware kind="uefi"/><nic mac="52:54:00:00:00:02"/></node>'
    assert identity.read(report.format("00000000-0000-0000-0000-000000000000")).uuid is None
    assert identity.read(
        report.format("6b1d3a52-0c6e-4a8e-9a56-2f0e6f1b7a11")
    ) == identity.Hardware("6b1d3a52-0c6e-4a8e-9a56-2f0e6f1b7a11", ("52:54:00:00:00:02",), "uefi")
