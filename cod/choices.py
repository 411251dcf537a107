"""Choices with names for people: drivers of power, switches and file servers, power verbs, tests of
a burn-in, ways of erasing, roles, single rights, states of deliveries. Standard library only.

The command line's options, the API's enums, the portal's forms, the site file's checks and the
tables of the code are made from these classes: a new member is known in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Self


class Choice(StrEnum):
    """Names that people choose from, each with its meaning.

    about  meaning in a few words, for people; shown on pages and in the documentation
    """

    about: str

    def __new__(cls, name: str, about: str = "") -> Self:
        """Return the member `name` that means `about`."""
        member = str.__new__(cls, name)
        member._value_, member.about = name, about
        return member

    @classmethod
    def names(cls) -> list[str]:
        """Return the names in their order."""
        return [member.value for member in cls]

    @classmethod
    def explained(cls) -> str:
        """Return the names as a list in a sentence, each followed by its meaning in brackets."""
        *others, last = (f"{member.value} ({member.about})" for member in cls)
        return f"{', '.join(others)} or {last}"

    @classmethod
    def abouts(cls) -> dict[str, str]:
        """Return the meanings by name."""
        return {member.value: member.about for member in cls}


@dataclass(frozen=True, slots=True)
class PowerAbilities:
    """Abilities of a power driver.

    switch_off   switch off a machine that runs
    tell         tell whether a machine is on
    order_boot   tell a machine what to boot from
    measure      tell how much power a machine draws
    console      class that follows the consoles of its machines: 'MODULE:CLASS' in `cod.power`; ''
                 if it has none, for the reason `no_console`, which is the end of a sentence
    type         pass on what people type on a console
    page         its addresses are BMCs', which have a page for browsers
    remedy       what people should look at where machines do not answer
    """

    switch_off: bool = True
    tell: bool = True
    order_boot: bool = True
    measure: bool = False
    console: str = ""
    no_console: str = ""
    type: bool = False
    page: bool = False
    remedy: str = ""


_NOTHING = PowerAbilities(switch_off=False, tell=False, order_boot=False)


class PowerDriverKind(Choice):
    """Drivers by which COD switches machines on and off."""

    # the driver `name` is the class NameDriver of the module `cod.power.name`

    can: PowerAbilities

    def __new__(cls, name: str, about: str = "", can: PowerAbilities = _NOTHING) -> Self:
        """Return the member `name` with its meaning and abilities."""
        member = str.__new__(cls, name)
        member._value_, member.about, member.can = name, about, can
        return member

    NONE = (
        "none",
        "nothing switches the machine",
        replace(
            _NOTHING,
            no_console=(
                "it has no power driver, so nothing is known that its console could be followed by"
            ),
        ),
    )
    LAB = (
        "lab",
        "machines of `cod lab`",
        PowerAbilities(console="labconsole:LabConsoles", remedy="cod lab status"),
    )
    IPMI = (
        "ipmi",
        "a BMC, by IPMI",
        PowerAbilities(
            measure=True,
            console="sol:SolConsoles",
            type=True,
            page=True,
            remedy="is the BMC on the network (ping), and IPMI over LAN enabled in it?",
        ),
    )
    REDFISH = (
        "redfish",
        "a BMC, by Redfish",
        PowerAbilities(
            measure=True,
            page=True,
            no_console=(
                "the driver redfish follows no consoles; many BMCs have theirs by IPMI as well,"
                " for the driver ipmi"
            ),
            remedy="is the BMC on the network (ping), and Redfish enabled in it?",
        ),
    )
    WOL = (
        "wol",
        "Wake-on-LAN",
        replace(
            _NOTHING,
            no_console=(
                "a machine that is only woken (driver wol) has no BMC, and so no console to follow"
            ),
        ),
    )
    PDU = (
        "pdu",
        "a switched outlet",
        PowerAbilities(
            order_boot=False,
            no_console="an outlet (driver pdu) has no console to follow",
            remedy="is the outlet strip on the network (ping), and SNMP enabled in it?",
        ),
    )


CANNOT_SWITCH_OFF = frozenset(kind.value for kind in PowerDriverKind if not kind.can.switch_off)
CANNOT_TELL = frozenset(kind.value for kind in PowerDriverKind if not kind.can.tell)
CANNOT_ORDER_BOOT = frozenset(kind.value for kind in PowerDriverKind if not kind.can.order_boot)
WITH_CONSOLES = frozenset(kind.value for kind in PowerDriverKind if kind.can.console)


class PowerVerb(Choice):
    """A change of a node's power that people can order."""

    ON = "on", "switch it on"
    OFF = "off", "switch it off at once"
    SOFT = "soft", "off, but its operating system is asked first"
    CYCLE = "cycle", "off, then on"


class NodeAction(Choice):
    """An action that can be applied to many nodes at once."""

    APPROVE = "approve", "accept new machines into the site"
    POWER = "power", "switch them on or off"
    QUARANTINE = "quarantine", "take them out of service"
    RESTORE = "restore", "return them to service"
    BURNIN = "burnin", "test their memory, disks and network"
    MOVED = "moved", "confirm that they were moved"
    RETIRE = "retire", "take them out of the site"
    CHANGE = "change", "change what the site says of them, such as their block"
    RENAME = "rename", "give them names by a pattern"
    TAG = "tag", "add tags"
    UNTAG = "untag", "take tags away"


class NodeLabel(Choice):
    """A label from a node's last report that people search for. The values are stored."""

    PART = "part", "serial number of a disk or of the board"
    BMC = "reported_bmc", "address or MAC of its BMC, in its own words"
    SWITCH = "switch", "switch that it sees by LLDP, first by the NIC that it boots from"


class SwitchDriverKind(Choice):
    """Drivers by which COD changes the ports of switches.

    driver      its class, 'MODULE:CLASS' in `cod.switches`
    tells_macs  it can tell on which port a MAC was heard. OVSDB has no such table; command lines
                have no common form for it
    remedy      what to look at where a switch does not answer
    """

    driver: str
    tells_macs: bool
    remedy: str

    def __new__(
        cls, name: str, about: str = "", driver: str = "", remedy: str = "", tells: bool = False
    ) -> Self:
        """Return the member `name` with its meaning and the other fields."""
        member = str.__new__(cls, name)
        member._value_, member.about, member.driver = name, about, driver
        member.remedy, member.tells_macs = remedy, tells
        return member

    OVS = (
        "ovs",
        "Open vSwitch, by OVSDB",
        "ovs:OvsDriver",
        "does ovsdb-server listen there (ovs-vsctl get-manager), and may this user open the"
        " socket?",
    )
    SNMP = (
        "snmp",
        "Q-BRIDGE-MIB",
        "snmp:SnmpDriver",
        "is the switch on the network (ping), and SNMP enabled in it for this server?",
        True,
    )
    NETMIKO = (
        "netmiko",
        "the command line of `platform`, over SSH",
        "cli:NetmikoDriver",
        "is the switch on the network (ping), and SSH enabled in it for this server?",
    )


class FileServerDriverKind(Choice):
    """Drivers by which COD exports volumes. The functions of `name` are in
    `cod/fileservers/name.sh`.

    exports  the directory of its exports, where the site file names none
    """

    exports: str

    def __new__(cls, name: str, about: str = "", exports: str = "") -> Self:
        """Return the member `name` with its meaning and the directory of its exports."""
        member = str.__new__(cls, name)
        member._value_, member.about, member.exports = name, about, exports
        return member

    GANESHA = "ganesha", "NFS-Ganesha, by D-Bus", "/etc/ganesha/cod.d"
    KERNEL = "kernel", "the kernel's NFS server, by exportfs", "/etc/exports.d"


class DeliveryState(Choice):
    """The state of a notice's delivery."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given up"


class NoticeFormat(Choice):
    """The format of the body that a webhook expects."""

    JSON = "json", "the notice's fields, for programs"
    SLACK = "slack", "a message of Slack"
    MATTERMOST = "mattermost", "a message of Mattermost"
    TEAMS = "teams", "a card of Microsoft Teams, by a workflow"
    MATRIX = "matrix", "a message of Matrix, by Hookshot"


class BurninTest(Choice):
    """The tests of a burn-in, in the order in which they run; `about` is what is tested. The agent
    has a share of the time for each (`trampoline.burnin.run`)."""

    MEMORY = "memory", "Memory"
    DISK = "disk", "Disks"
    NETWORK = "network", "Network"


class Wipe(Choice):
    """A way to erase disks, the strictest last."""

    TABLES = "tables", "partition tables at once, everything before another group gets the node"
    ZERO = "zero", "every byte zeroed"
    PURGE = "purge", "purged where disks can, and every byte zeroed"


LeastWipe = Literal[Wipe.ZERO, Wipe.PURGE]
"""The ways that groups and templates can ask for: those that leave no byte. `schema/template.rng`
has them, too."""


class Role(Choice):
    """A member's role in a group, the strongest first."""

    OWNER = "owner", "manages members and settings, and uses the group's resources"
    MEMBER = "member", "uses the group's resources"
    VIEWER = "viewer", "read only"


class SingleRight(Choice):
    """A right that an owner gives a member beside the member's role."""

    RESIZE = "resize", "resizes clusters, extends leases, releases nodes"
    CONSOLES = "consoles", "reads the consoles of nodes"
    CAPTURE = "capture", "saves nodes as images"
    INVITE = "invite", "invites people, in the same role at most"


class NoticeMail(Choice):
    """The time at which a kind of notices comes to a person by mail."""

    DEFAULT = "default", "to the addresses that the group or the site names"
    AT_ONCE = "at-once", "at once, a mail for each"
    DAILY = "daily", "daily, in one mail"
    NEVER = "never", "never"
