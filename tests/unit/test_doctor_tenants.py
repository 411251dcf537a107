"""Warn of networks and rules by which tenants can take each other's machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.doctor.checks.tenants import findings
from cod.doctor.finding import WARNING, Context
from cod.model import Isolation, Policy, PowerRule, Site

SHARED, APPROVING, BLIND = "share the provisioning", "auto_approve", "cannot tell"


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({}, (SHARED,)),
        ({"policy": Policy(auto_approve=True)}, (SHARED, APPROVING)),
        ({"isolation": Isolation((2, 3), "10.80.0.0/20")}, ()),
        ({"isolation": Isolation((2, 3), "10.80.0.0/20", by_default=True)}, ()),
        ({"power": (PowerRule("*", "ipmi", "x"), PowerRule("old-*", "wol", ""))}, (SHARED, BLIND)),
    ],
)
def test_what_tenants_could_use_is_a_warning(
    changes: dict[str, Any], warnings: tuple[str, ...]
) -> None:
    site = replace(Site("test", "cod.test", ()), **changes)
    found = [one for one in findings(Context(site, None, {}, 0.0, True)) if one.state == WARNING]
    assert len(found) == len(warnings)
    assert all(words in one.found for words, one in zip(warnings, found, strict=True))
    assert all(one.remedy for one in found)
