"""Command lines of switches, by platform, that set and read an access VLAN. Data for the driver
`netmiko`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    """The command lines of one platform; {port} and {vlan} are filled in. Expressions are regular.

    device   netmiko's name for the platform
    change   lines that put a port into a VLAN, in configuration mode (`shell`: at the prompt)
    read     the command that shows a port
    vlan     expression for its output whose group 1 is the access VLAN
    absent   VLAN of a port whose output names no VLAN; None: it is not known then
    trunk    expression that matches its output if the port is a trunk
    missing  expression that matches its output if there is no such port
    refused  expression that matches the output of `change` if the switch refused a line
    commit   the change has to be committed
    save     line that saves the configuration; '': netmiko's own way
    shell    there is no configuration mode
    """

    device: str
    change: tuple[str, ...]
    read: str
    vlan: str
    trunk: str
    missing: str
    refused: str
    absent: int | None = None
    commit: bool = False
    save: str = ""
    shell: bool = False


_CISCO_SHOWN = r"(?mi)^\s*Access Mode VLAN:\s*(\d+)"
_CISCO_TRUNK = r"(?mi)^\s*(?:Administrative|Operational) Mode:\s*trunk"
_CISCO_REFUSED = r"(?mi)^\s*%\s*(?!Access VLAN does not exist\. Creating)\S.*$|^ERROR:.*$"

PLATFORMS = {
    "cisco_ios": Platform(
        "cisco_ios",
        ("interface {port}", "switchport mode access", "switchport access vlan {vlan}"),
        "show interfaces {port} switchport",
        _CISCO_SHOWN,
        _CISCO_TRUNK,
        r"(?i)%\s*Invalid|is not a switchable",
        _CISCO_REFUSED,
    ),
    "cisco_nxos": Platform(
        "cisco_nxos",
        ("interface {port}", "switchport mode access", "switchport access vlan {vlan}"),
        "show interface {port} switchport",
        _CISCO_SHOWN,
        _CISCO_TRUNK,
        r"(?i)Invalid (?:interface|range|command)",
        _CISCO_REFUSED,
    ),
    "arista_eos": Platform(
        "arista_eos",
        ("interface {port}", "switchport mode access", "switchport access vlan {vlan}"),
        "show interfaces {port} switchport",
        _CISCO_SHOWN,
        _CISCO_TRUNK,
        r"(?i)%\s*(?:Invalid|Interface)",
        _CISCO_REFUSED,
    ),
    "aruba_aoscx": Platform(
        "aruba_aoscx",
        ("interface {port}", "no routing", "vlan access {vlan}"),
        "show running-config interface {port}",
        r"(?m)^\s*vlan access (\d+)",
        r"(?m)^\s*vlan trunk ",
        r"(?i)Invalid input|does not exist|Unknown",
        r"(?mi)^.*(?:Invalid input|does not exist|failed).*$",
        absent=1,
    ),
    "aruba_osswitch": Platform(
        "aruba_osswitch",
        ("vlan {vlan}", "untagged {port}", "exit"),
        "show vlans ports {port} detail",
        r"(?m)^\s*(\d+)\s.*\bUntagged\b",
        r"(?m)\bTagged\b",
        r"(?i)not found|Invalid input",
        r"(?mi)^.*(?:Invalid input|not found|Error).*$",
        absent=0,
    ),
    "dell_os10": Platform(
        "dell_os10",
        ("interface {port}", "switchport mode access", "switchport access vlan {vlan}"),
        "show running-configuration interface {port}",
        r"(?m)^\s*switchport access vlan (\d+)",
        r"(?m)^\s*switchport mode trunk",
        r"(?i)%\s*Error|Invalid",
        r"(?mi)^\s*%\s*(?:Error|Warning).*$",
        absent=1,
    ),
    "juniper_junos": Platform(
        "juniper_junos",
        (
            "delete interfaces {port} unit 0 family ethernet-switching vlan",
            "set interfaces {port} unit 0 family ethernet-switching interface-mode access",
            "set interfaces {port} unit 0 family ethernet-switching vlan members {vlan}",
        ),
        "show configuration interfaces {port} unit 0 family ethernet-switching | display set",
        r"(?m)vlan members (\d+)\s*$",
        r"interface-mode trunk|port-mode trunk",
        r"(?i)syntax error|unknown",
        r"(?mi)^\s*(?:error:|syntax error).*$",
        absent=0,
        commit=True,
    ),
    "cumulus": Platform(
        "linux",
        ("nv set interface {port} bridge domain br_default access {vlan}", "nv config apply -y"),
        "nv show interface {port} bridge domain br_default -o json",
        r'"access"\s*:\s*(\d+)',
        r'"untagged"\s*:\s*\d+',
        r"(?i)not found|does not exist|Invalid",
        r"(?mi)^.*(?:Error|Invalid|not found).*$",
        absent=0,
        save="nv config save",
        shell=True,
    ),
}
