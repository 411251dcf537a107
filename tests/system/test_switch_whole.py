"""A machine on the lab's Open vSwitch: it is installed, its port is known, and the port is put into
a VLAN and back."""

from __future__ import annotations

import pytest

from cod.lab import network, record
from cod.lab.spec import LabDisk, LabNode
from tests.ovs import needs_ovs
from tests.system.qemu import build_all, offer, rack

pytestmark = [pytest.mark.system, pytest.mark.nightly, needs_ovs]


def test_a_machine_on_a_switch_port() -> None:
    build_all("hello-a")
    with rack(
        [LabNode("n1", "bios", disks=(LabDisk(640 << 20),))],
        patience=3.0,
        switch="ovs",
        restored=True,
    ) as stand:
        offer(stand, "hello-a")
        stand.power("n1", "on")
        stand.reaches("n1", "inactive")
        stand.wait(lambda: stand.cod("port", "list"), "the port that its agent heard by LLDP")
        (port,) = stand.cod("port", "list")
        switch = f"{stand.lab}-switch"
        assert (port["switch"], port["port"], port["source"]) == (switch, "tap0n0", "lldp")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "hello-a")
        node = stand.reaches("n1", "active")
        assert "hello" in stand.page(node["address"]), "its system's page, over the switch"
        tags = network.switch_of(record.namespace(stand.lab))
        assert tags.vsctl("get", "port", "tap0n0", "tag") == "1"
        (seen,) = stand.cod("switch", "list")
        assert (seen["name"], seen["ports"], seen["reason"]) == (switch, 1, "")
        assert stand.cod("switch", "check", switch)["about"].startswith("Open vSwitch")
