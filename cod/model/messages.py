"""DHCP, boot and DNS messages: what passes between their servers and their flows."""

from __future__ import annotations

from dataclasses import dataclass

from cod.model.records import record
from cod.model.site.network import Subnet


@record(frozen=True, slots=True)
class DhcpQuery:
    """A client's message as the flow sees it (RFC 2131 field and option names).

    kind        DISCOVER, REQUEST, DECLINE, RELEASE or INFORM
    subnet      name of the site's subnet that it came from (interface or giaddr); None if the site
                has none
    arch        option 93, None when absent
    stage       who is speaking: 'firmware', 'ipxe', 'pxelinux', 'httpclient', 'trampoline' or 'os'
    requested   option 50; server_id option 54; uuid option 97 in the form that Linux prints
    circuit     option 82's circuit id, remote its remote id; in hex, cut to what a column holds;
                None when absent
    """

    kind: str
    mac: str
    xid: int
    subnet: str | None
    stage: str
    ciaddr: str = "0.0.0.0"
    giaddr: str = "0.0.0.0"
    requested: str | None = None
    server_id: str | None = None
    arch: int | None = None
    uuid: str | None = None
    client_id: bytes | None = None
    circuit: str | None = None
    remote: str | None = None


@record(frozen=True, slots=True)
class DhcpClient:
    """The node that owns a MAC, as the DHCP flow needs it: columns of `nodes`, and its vcluster's
    name.

    vlan          of its vcluster's own network; None: the vcluster is not isolated
    held_at       when a server last said that it holds the connection of the node's agent; None:
                  there is no connection
    reported      the agent has reported on it, and COD has not ordered a power cycle since
    home_at       when the place where the node boots was remembered: `home_subnet`, and the switch
                  port by option 82, `home_circuit` and `home_remote`
    story         verdict on what its machine said since the site was held; None: it is not held
    sent_to_disk  what was served of late was its disk, and is what it would be served now; looked
                  up only for messages that this decides (`policy.nodes.boot.may_be_next_option`)
    cycled        its time in this state was up before, for which it was power-cycled; looked up
                  only for messages that this decides (`policy.nodes.boot.may_have_missed`)
    """

    id: int
    name: str
    state: str
    boot_mac: str
    boot_served_at: float | None
    template_id: int | None
    vcluster: str | None
    relay: str | None = None
    circuit: str | None = None
    remote: str | None = None
    since: float = 0.0
    disk: str = ""
    vlan: int | None = None
    held_at: float | None = None
    reported: bool | None = None
    home_at: float | None = None
    home_subnet: str | None = None
    home_circuit: str | None = None
    home_remote: str | None = None
    story: str | None = None
    sent_to_disk: bool = False
    cycled: bool = False


@record(frozen=True, slots=True)
class DhcpAnswer:
    """The flow's answer: `kind` OFFER, ACK or NAK. Options that are None are left out.

    subnet      whose server, router and DNS servers are told
    network     the same as a record, where it is an isolated vcluster's and not the site's
    lease_time  seconds; None in the answer to an INFORM, which binds nothing
    bootfile    the next thing to load, a file name or a URL
    """

    kind: str
    yiaddr: str
    subnet: str
    lease_time: float | None = None
    hostname: str | None = None
    domain: str | None = None
    bootfile: str | None = None
    reason: str = ""
    network: Subnet | None = None


@dataclass(frozen=True, slots=True)
class BootPlan:
    """A node's next boot, decided by `policy.nodes.boot`; written out by `wire/bootscript`.

    action   'trampoline', 'local' (its own disk), 'kernel' (diskless) or 'none' (not ours to boot)
    kernel, initrds, cmdline   URLs and arguments, for 'trampoline' and 'kernel'; for 'local', the
             kernel is the program that finds the disk on a BIOS machine (`wire.diskloader`), ''
             where the first disk is to be started
    why      one line for the log and the script's comment
    scripts  URLs of the node's script on the other servers, for iPXE: tried where a file cannot be
             loaded from this one
    """

    action: str
    why: str
    kernel: str = ""
    initrds: tuple[str, ...] = ()
    cmdline: str = ""
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A question: `name` in lower case without the last dot, `type` as text ('A', 'PTR' …, 'TYPE65'
    if unnamed)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class DnsRecord:
    """A resource record. `name`: lower case, without the last dot. `data` by `type`: A: the address
    as an integer; NS, PTR, CNAME: a name; SOA: the serial; SSHFP: (algorithm, type, fingerprint in
    hex); TXT: a text."""

    name: str
    type: str
    data: int | str | tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """The site's answer about a name of its own. `code` is 'ok' or 'nxdomain'; 'ok' without records
    is an empty answer.

    zone     whose SOA a negative answer names, with `serial`; '': the name's own
    server   the address of the server that is asked belongs to the name
    """

    code: str
    records: tuple[DnsRecord, ...] = ()
    zone: str = ""
    serial: int = 0
    server: bool = False
