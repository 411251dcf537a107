"""A hardware report to match requirements against."""

from __future__ import annotations

REPORT = """<node version="1">
  <system uuid="4c4c4544-0042-3510-8054-b4c04f4e3232" vendor="Dell Inc." product="R640" serial="B5TN222"/>
  <firmware kind="uefi" version="2.12.2"/>
  <memory mib="3965"/>
  <cpu count="4" sockets="1" model="Xeon" mhz="2095" arch="x86_64"><flag>aes</flag><flag>vmx</flag></cpu>
  <nic name="eth0" mac="52:54:00:00:00:01" driver="ixgbe" link="up" speed="10000" boot="yes"/>
  <nic name="eth1" mac="52:54:00:00:00:02" driver="ixgbe" link="down" boot="no"/>
  <disk name="sda" size="500107862016" transport="ata" local="yes" rotational="yes" removable="no" serial="Z1"/>
  <disk name="nvme0n1" size="960197124096" transport="nvme" local="yes" rotational="no" removable="no">
    <partition number="1" start="1048576" size="536870912"/>
  </disk>
  <kernel release="6.1.0-31-amd64"/>
</node>"""
