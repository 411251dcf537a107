"""Warn of a host that forwards IPv6 between isolated networks."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from cod.doctor.checks.network import _local, isolation
from cod.doctor.finding import BAD, GOOD, WARNING, Finding
from cod.host import Interface
from cod.model import Site
from cod.site.own_address import own_first


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


def seen(address: str, site: Site) -> Finding:
    """Return what is found on a host that has the address on br0."""
    br0 = Interface("br0", True, True, (IPv4Interface(f"{address}/16"),))
    return _local({"br0": br0}, own_first(site, {address}).subnets[0])


def test_a_host_that_is_none_of_the_servers_is_told(site: Site) -> None:
    one = replace(site.subnets[0], interface="br0", others=("10.77.0.2",))
    site = replace(site, subnets=(one,))
    assert [seen(each, site).state for each in one.servers] == [GOOD, GOOD]
    found = seen("10.77.0.3", site)
    assert found.state == BAD
    assert "none of 10.77.0.1, 10.77.0.2 is an address of this host" in found.found
