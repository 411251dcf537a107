"""The table of the site file about switches whose ports COD changes."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from cod.site.values import LABEL, AbsolutePath, Positive, Table

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


class SwitchTable(Table):
    """A switch whose ports COD changes (docs/switches.md). Repeat for more. Re-read on SIGHUP."""

    name: str = Field(
        pattern=LABEL, description="its name in `cod switch` and `cod port`, a DNS label"
    )
    driver: Literal["ovs", "snmp", "netmiko"] = Field(
        description=(
            "ovs (Open vSwitch, by OVSDB), snmp (Q-BRIDGE-MIB) or netmiko (the command line of"
            " `platform`, over SSH)"
        )
    )
    address: str = Field(
        min_length=1,
        max_length=200,
        description=(
            "ovs: unix:PATH, tcp:HOST[:PORT] or ssl:HOST[:PORT]; snmp, netmiko: HOST[:PORT]"
        ),
    )
    account: str | None = Field(
        None,
        description=(
            "name of the [[account]] to sign in with; snmp: without a user the "
            "password is the community"
        ),
    )
    platform: str = Field("", description="netmiko: " + ", ".join(PLATFORMS))
    provisioning_vlan: int = Field(
        1, ge=1, le=4094, description="the VLAN of nodes that are in no isolated network"
    )
    known_as: tuple[str, ...] = Field(
        (),
        description=(
            "patterns on the system name or chassis id that the switch tells "
            "by LLDP, where that is not `name`: 'leaf-3.*', '44:4c:a8:*'"
        ),
    )
    ports: dict[str, str] = Field(
        {},
        description="regular expressions on the port ids that the switch tells by LLDP, "
        r"and the driver's names: { 'Gi(.*)' = 'GigabitEthernet\1' }",
    )
    nodes_on: tuple[str, ...] = Field(
        (),
        description=(
            "patterns on the driver's names of the ports that nodes are on; on others nothing is"
            " believed that a node says by LLDP. snmp: the switch is asked where booting nodes are."
            " Empty: any port, and it is not asked"
        ),
    )
    save: bool = Field(
        False,
        description=(
            "netmiko: save the configuration after each change, so that it survives a "
            "restart of the switch"
        ),
    )
    verify: Positive = Field(
        300.0,
        description="seconds between looks at a port in an isolated network, which put it right",
    )
    ca_file: AbsolutePath | None = Field(
        None,
        description="ovs over ssl: PEM file of the authority that signed the switch's certificate",
    )
    certificate: AbsolutePath | None = Field(
        None, description="ovs over ssl: PEM file of COD's own certificate"
    )
    key: AbsolutePath | None = Field(None, description="ovs over ssl: PEM file of its key")
    host_key: str = Field(
        "",
        max_length=2000,
        pattern=r"^$|^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?$",
        description=(
            "netmiko: the switch's SSH key, 'ssh-ed25519 AAAA…'; empty: any key is accepted, "
            "and the password goes to whoever answers"
        ),
    )

    @field_validator("ports")
    @classmethod
    def _expressions(cls, ports: dict[str, str]) -> dict[str, str]:
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

    @model_validator(mode="after")
    def _coherent(self) -> SwitchTable:
        if (self.driver == "netmiko") != bool(self.platform):
            raise ValueError("platform should be set for the driver netmiko, and for it alone")
        if self.platform and self.platform not in PLATFORMS:
            raise ValueError(
                f"platform should be one of {', '.join(PLATFORMS)}, not {self.platform!r}"
            )
        if self.driver != "ovs" and self.account is None:
            raise ValueError(f"account should be set: the driver {self.driver} signs in")
        if self.address.startswith("ssl:") and not (self.ca_file and self.certificate and self.key):
            raise ValueError(
                "ca_file, certificate and key should be set for an address that begins with ssl:"
            )
        return self
