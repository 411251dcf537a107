"""Records of switches and their ports. Attributes have the names of their columns; `store/tables`
explains each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cod.choices import SwitchDriverKind
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.keys import LABEL, AbsolutePath, Positive, Read, SiteTable, key_about, site_key

SWITCH_PLATFORMS = (
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
    """A switch whose ports COD changes (docs/switches). Repeat for more. Re-read on SIGHUP."""

    name: Annotated[str, About("Switch")] = field(
        metadata=key_about("its name in `cod switch` and `cod port`, a DNS label", pattern=LABEL)
    )
    driver: Annotated[SwitchDriverKind, About("Driver")] = field(
        metadata=key_about(SwitchDriverKind.explained())
    )
    address: Annotated[str, About("Address")] = field(
        metadata=key_about(
            "ovs: unix:PATH, tcp:HOST[:PORT] or ssl:HOST[:PORT]; snmp, netmiko: HOST[:PORT]",
            min_length=1,
            max_length=200,
        )
    )
    account: Annotated[str | None, About("Account", none="none", level=FieldLevel.DETAIL)] = (
        site_key(
            None,
            "name of the [[account]] to sign in with; snmp: without a user the "
            "password is the community",
        )
    )
    platform: Annotated[str, About("Platform", level=FieldLevel.DETAIL)] = site_key(
        "", "netmiko: " + ", ".join(SWITCH_PLATFORMS)
    )
    provisioning_vlan: Annotated[
        int, About("Provisioning VLAN", FieldKind.NUMBER, level=FieldLevel.WIDE)
    ] = site_key(1, "the VLAN of nodes that are in no isolated network", ge=1, le=4094)
    known_as: Undescribed[tuple[str, ...]] = site_key(
        (),
        "patterns on the system name or chassis id that the switch tells "
        "by LLDP, where that is not `name`: 'leaf-3.*', '44:4c:a8:*'",
    )
    ports: Undescribed[Annotated[Mapping[str, str], Read(_expressions)]] = site_key(
        {},
        "regular expressions on the port ids that the switch tells by LLDP, "
        r"and the driver's names: { 'Gi(.*)' = 'GigabitEthernet\1' }",
    )
    nodes_on: Undescribed[tuple[str, ...]] = site_key(
        (),
        "patterns on the driver's names of the ports that nodes are on; on others nothing is"
        " believed that a node says by LLDP. snmp: the switch is asked where booting nodes are."
        " Empty: any port, and it is not asked",
    )
    save: Undescribed[bool] = site_key(
        False,
        "netmiko: save the configuration after each change, so that it survives a "
        "restart of the switch",
    )
    verify: Undescribed[Positive] = site_key(
        300.0, "seconds between looks at a port in an isolated network, which put it right"
    )
    ca_file: Undescribed[AbsolutePath | None] = site_key(
        None, "ovs over ssl: PEM file of the authority that signed the switch's certificate"
    )
    certificate: Undescribed[AbsolutePath | None] = site_key(
        None, "ovs over ssl: PEM file of COD's own certificate"
    )
    key: Undescribed[AbsolutePath | None] = site_key(None, "ovs over ssl: PEM file of its key")
    host_key: Undescribed[str] = site_key(
        "",
        "netmiko: the switch's SSH key, 'ssh-ed25519 AAAA…'; empty: any key is accepted, "
        "and the password goes to whoever answers",
        max_length=2000,
        pattern=r"^$|^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?$",
    )


@dataclass(frozen=True, slots=True)
class SwitchSession:
    """A row of `switches`: the state of the sessions with a switch."""

    name: Undescribed[str]
    epoch: Undescribed[int] = 0
    claimed_by: Undescribed[str | None] = None
    claim_expires: Undescribed[float | None] = None
    next_at: Undescribed[float] = 0.0
    failures: Undescribed[int] = 0
    reason: Annotated[
        str, About("Trouble", about="why the last session failed; '': it did not")
    ] = ""
    about: Annotated[
        str,
        About("Says of itself", about="what the switch says of itself", level=FieldLevel.DETAIL),
    ] = ""
    tried_at: Annotated[
        float | None,
        About(
            "Tried",
            FieldKind.MOMENT,
            "when the last session ended",
            none="never",
            level=FieldLevel.WIDE,
        ),
    ] = None
    answered_at: Annotated[
        float | None,
        About(
            "Answered", FieldKind.MOMENT, "when the last session that succeeded ended", none="never"
        ),
    ] = None
    check_wanted: Undescribed[bool] = False

    @property
    def checking(
        self,
    ) -> Annotated[
        bool,
        About(
            "Checking", FieldKind.FLAG, "a session is wanted or under way", level=FieldLevel.DETAIL
        ),
    ]:
        """Return whether a session is requested or under way."""
        return self.check_wanted or self.claimed_by is not None


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """A row of `switch_ports`: the NIC that is connected to a port, the VLAN that the port is to be
    in, and the VLAN last read from the switch.

    wanted_vlan  None: the provisioning VLAN of its switch
    """

    id: Undescribed[int]
    switch: Annotated[str, About("Switch")]
    port: Annotated[str, About("Port")]
    node_id: Undescribed[int | None]
    mac: Annotated[str | None, About("MAC")]
    source: Annotated[Literal["lldp", "manual"], About("Source", FieldKind.CHOICE)]
    seen_at: Annotated[float, About("Seen", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    wanted_vlan: Annotated[
        int | None, About("Wanted", FieldKind.NUMBER, none="the provisioning VLAN of its switch")
    ]
    seq: Undescribed[int]
    wished_at: Undescribed[float]
    applied_vlan: Annotated[
        int | None,
        About(
            "Applied",
            FieldKind.NUMBER,
            "as last read from the switch, at `verified_at`; where a VLAN was no longer wanted"
            " before the switch showed it, that VLAN",
        ),
    ]
    applied_seq: Undescribed[int]
    verified_at: Annotated[float | None, About("Verified", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    attempts: Annotated[int, About("Attempts", FieldKind.NUMBER, level=FieldLevel.WIDE)]
    next_at: Annotated[float | None, About("Next", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    reason: Annotated[str, About("Reason")]
    given_up: Undescribed[bool]
    corrected_at: Annotated[
        float | None,
        About(
            "Corrected",
            FieldKind.MOMENT,
            "when it was last found in another VLAN than COD had put it in",
            level=FieldLevel.WIDE,
        ),
    ]

    @property
    def pending(self) -> bool:
        """Return whether the newest change has not been read back from the switch yet."""
        return self.applied_seq != self.seq


@dataclass(frozen=True, slots=True)
class SwitchPortView:
    """A switch port for people, with the name of the node whose NIC is connected to it."""

    port: SwitchPort
    node: Annotated[str | None, About("Node", FieldKind.LINK, place="nodes")]

    @property
    def state(
        self,
    ) -> Annotated[
        Literal["untouched", "pending", "applied", "given up"],
        About(
            "State",
            about="untouched: COD has never changed it; pending, until the switch shows the wanted"
            " VLAN; applied; or given up, for `reason`",
        ),
    ]:
        """Return the state of the port's last change."""
        if self.port.given_up:
            return "given up"
        if self.port.pending:
            return "pending"
        return "applied" if self.port.seq else "untouched"


@dataclass(frozen=True, slots=True)
class SwitchView:
    """A switch of the site file for people, with the state of the sessions with it."""

    switch: Switch
    session: SwitchSession
    ports: Annotated[int, About("Ports", FieldKind.NUMBER, "how many are known")] = 0
    pending: Annotated[int, About("Pending", FieldKind.NUMBER, "ports that wait for a VLAN")] = 0
    given_up: Annotated[
        int, About("Given up", FieldKind.NUMBER, "ports that are not tried any more")
    ] = 0
