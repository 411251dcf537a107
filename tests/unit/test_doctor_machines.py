"""Warn of UEFI machines that only their own system brings back to COD."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cod.doctor.checks import machines
from cod.doctor.finding import WARNING, Context
from cod.doctor.rows import rows
from cod.model import PowerRule, Site


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"firmware": "uefi", "power_driver": "wol"}, True),
        ({"firmware": "uefi", "power_driver": "pdu"}, True),
        ({"firmware": "uefi", "power_driver": "none"}, True),
        ({"firmware": "uefi", "power_driver": "redfish"}, False),
        ({"firmware": "bios", "power_driver": "wol"}, False),
        ({"firmware": None, "power_driver": "wol"}, False),
        ({"firmware": "uefi", "power_driver": "wol", "state": "retired"}, False),
    ],
)
def test_uefi_machines_whose_boot_nothing_orders(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], warned: bool
) -> None:
    row = {"power_address": "", "power_account": None, "state": "inactive"} | changes
    known = [SimpleNamespace(name=f"n{n}", **row) for n in range(1, 8)]
    monkeypatch.setattr(machines, "rows", lambda settings, read: known)
    site = replace(Site("test", "cod.test", ()), power=(PowerRule("*", "wol", ""),))
    found = [
        one.found
        for one in machines.findings(Context(site, None, {}, 0.0, True))
        if one.state == WARNING
    ]
    assert len(found) == warned
    assert all(one.startswith("n1, n2, n3, n4, n5 and 2 more: UEFI") for one in found)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "cod.db"
    settings: Any = SimpleNamespace(database=f"sqlite:///{file}")
    assert rows(settings, lambda tx: ["a row"]) is None
    assert not file.exists()
