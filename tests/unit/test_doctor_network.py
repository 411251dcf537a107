"""Warn of a host that forwards IPv6 between isolated networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cod.doctor.finding import WARNING
from cod.doctor.network import isolation


@pytest.mark.parametrize(
    ("text", "warned"), [("0\n", False), ("1\n", True), ("2\n", True), (None, False)]
)
def test_ipv6_that_is_forwarded_is_a_warning(
    tmp_path: Path, text: str | None, warned: bool
) -> None:
    file = tmp_path / "forwarding"
    if text is not None:
        file.write_text(text)
    found = list(isolation(file))
    assert [one.state for one in found] == [WARNING] * warned
    assert all("net.ipv6.conf.all.forwarding=0" in one.remedy for one in found)
