"""Rows about switches and their ports. Names of attributes are the columns' names; `store/tables`
explains each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cod.model.keys import LABEL, AbsolutePath, Positive, Read, SiteTable, key_about, site_key

PLATFORMS = (
    "arista_eos",
    "aruba_aoscx",
    "aruba_osswitch",
    "cisco_ios",
    "cisco_nxos",
    "cumulus",
    "dell_os10",
    "juniper_junos",
)


def _expressions(ports: Mapping[str, str]) -> Mapping[str, str]:
    for pattern, name in ports.items():
        try:
            groups = re.compile(pattern).groups
            re.compile("(x)" * groups).fullmatch("x" * groups).expand(name)  # type: ignore[union-attr]
        except (re.error, IndexError):
            raise ValueError(
                f"{pattern!r} = {name!r} should be a regular expression and a name that uses"
                " its groups"
            ) from None
    return ports


@dataclass(frozen=True, slots=True)
class Switch(SiteTable):
    """A switch whose ports COD changes (docs/switches.md). Repeat for more. Re-read on SIGHUP."""

    name: str = field(
        metadata=key_about("its name in `cod switch` and `cod port`, a DNS label", pattern=LABEL)
    )
    driver: Literal["ovs", "snmp", "netmiko"] = field(
        metadata=key_about(
            "ovs (Open vSwitch, by OVSDB), snmp (Q-BRIDGE-MIB) or netmiko (the command line of"
            " `platform`, over SSH)"
        )
    )
    address: str = field(
        metadata=key_about(
            "ovs: unix:PATH, tcp:HOST[:PORT] or ssl:HOST[:PORT]; snmp, netmiko: HOST[:PORT]",
            min_length=1,
            max_length=200,
        )
    )
    account: str | None = site_key(
        None,
        "name of the [[account]] to sign in with; snmp: without a user the "
        "password is the community",
    )
    platform: str = site_key("", "netmiko: " + ", ".join(PLATFORMS))
    provisioning_vlan: int = site_key(
        1, "the VLAN of nodes that are in no isolated network", ge=1, le=4094
    )
    known_as: tuple[str, ...] = site_key(
        (),
        "patterns on the system name or chassis id that the switch tells "
        "by LLDP, where that is not `name`: 'leaf-3.*', '44:4c:a8:*'",
    )
    ports: Annotated[Mapping[str, str], Read(_expressions)] = site_key(
        {},
        "regular expressions on the port ids that the switch tells by LLDP, "
        r"and the driver's names: { 'Gi(.*)' = 'GigabitEthernet\1' }",
    )
    nodes_on: tuple[str, ...] = site_key(
        (),
        "patterns on the driver's names of the ports that nodes are on; on others nothing is"
        " believed that a node says by LLDP. snmp: the switch is asked where booting nodes are."
        " Empty: any port, and it is not asked",
    )
    save: bool = site_key(
        False,
        "netmiko: save the configuration after each change, so that it survives a "
        "restart of the switch",
    )
    verify: Positive = site_key(
        300.0, "seconds between looks at a port in an isolated network, which put it right"
    )
    ca_file: AbsolutePath | None = site_key(
        None, "ovs over ssl: PEM file of the authority that signed the switch's certificate"
    )
    certificate: AbsolutePath | None = site_key(
        None, "ovs over ssl: PEM file of COD's own certificate"
    )
    key: AbsolutePath | None = site_key(None, "ovs over ssl: PEM file of its key")
    host_key: str = site_key(
        "",
        "netmiko: the switch's SSH key, 'ssh-ed25519 AAAA…'; empty: any key is accepted, "
        "and the password goes to whoever answers",
        max_length=2000,
        pattern=r"^$|^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?$",
    )


@dataclass(frozen=True, slots=True)
class SwitchSession:
    """A row of `switches`: what came of the sessions with a switch."""

    name: str
    epoch: int
    claimed_by: str | None
    claim_expires: float | None
    next_at: float
    failures: int
    reason: str
    about: str
    tried_at: float | None
    answered_at: float | None
    check_wanted: bool


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """A row of `switch_ports`: which NIC is on a port, and the VLANs that the port should be in and
    was last read in.

    wanted_vlan  None: the provisioning VLAN of its switch
    """

    id: int
    switch: str
    port: str
    node_id: int | None
    mac: str | None
    source: str
    seen_at: float
    wanted_vlan: int | None
    seq: int
    wished_at: float
    applied_vlan: int | None
    applied_seq: int
    verified_at: float | None
    attempts: int
    next_at: float | None
    reason: str
    given_up: bool
    corrected_at: float | None

    @property
    def pending(self) -> bool:
        """Return whether the newest wish has not been read back from the switch yet."""
        return self.applied_seq != self.seq


@dataclass(frozen=True, slots=True)
class SwitchPortView:
    """A switch port for people, with the name of the node whose NIC is on it."""

    port: SwitchPort
    node: str | None

    @property
    def state(self) -> str:
        """Return how it goes: 'untouched' (COD has never changed the port), 'applied', 'pending' or
        'given up'."""
        if self.port.given_up:
            return "given up"
        if self.port.pending:
            return "pending"
        return "applied" if self.port.seq else "untouched"


@dataclass(frozen=True, slots=True)
class SwitchView:
    """A switch of the site file for people, with what came of the sessions with it; None: there was
    none.

    ports     how many of its ports are known; `pending`: wait for their VLAN; `given_up`: are not
              tried any more
    """

    switch: Switch
    session: SwitchSession | None
    ports: int = 0
    pending: int = 0
    given_up: int = 0
