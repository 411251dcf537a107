"""Records that the DHCP, boot and DNS servers exchange with their flows."""

from __future__ import annotations

from dataclasses import dataclass

from cod.model.records import record
from cod.model.site.network import Subnet


@record(frozen=True, slots=True)
class DhcpQuery:
    """A client's DHCP message, decoded, with names of RFC 2131.

    kind        DISCOVER, REQUEST, DECLINE, RELEASE or INFORM
    subnet      name of the site's subnet that it came from (by interface or giaddr); None: the site
                has no such subnet
    arch        option 93; None: absent
    stage       the program that sent it: 'firmware', 'ipxe', 'pxelinux', 'httpclient', 'trampoline'
                or 'os'
    requested   option 50
    server_id   option 54
    uuid        option 97 in the form that Linux prints
    circuit, remote  option 82's circuit id and remote id in hex, cut to the length of their
                     columns; None: absent
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
    """The node that owns a MAC: the columns of `nodes` that the DHCP flow needs, and the name of
    its vcluster.

    vlan          VLAN of its vcluster's own network; None: the vcluster is not isolated
    held_at       when a server last reported that it holds the connection of the node's agent;
                  None: there is no connection
    reported      whether the agent has reported on this connection, and COD has not ordered a power
                  cycle since
    home_at       when the place where the node boots was remembered: `home_subnet`, and the switch
                  port by option 82, `home_circuit` and `home_remote`
    story         verdict on its machine's report (see `NodeStory`); None: the site is not held
    sent_to_disk  whether its last boot script sent it to its disk, as a script would now; read from
                  the database only if it decides (`policy.nodes.boot.may_be_next_option`)
    cycled        whether it was power-cycled because its time in this state was over; read from the
                  database only if it decides (`policy.nodes.boot.may_have_missed`)
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

    subnet      name of the subnet whose server, router and DNS servers the client is told
    network     the record of this subnet if it is an isolated vcluster's; None: it is the site's
    lease_time  seconds; None in the answer to an INFORM, which binds no address
    bootfile    the file to load next, a file name or a URL
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
    """A node's next boot, decided by `policy.nodes.boot` and encoded by `wire.bootscript`.

    action   'trampoline', 'local' (its own disk), 'kernel' (diskless) or 'none' (COD does not boot
             it)
    kernel, initrds, cmdline   URLs and arguments, for 'trampoline' and 'kernel'. For 'local', the
             kernel is the program that finds the disk on a BIOS machine (`wire.diskloader`); '':
             the first disk is started
    why      one line for the log and the script's comment
    scripts  URLs of the node's script on the other servers, which iPXE tries if a file cannot be
             loaded from this server
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
    """The answer about a name of the site. `code` is 'ok' or 'nxdomain'; 'ok' without records is an
    empty answer.

    zone     zone whose SOA, with `serial`, is in a negative answer; '': the name itself
    server   whether the address of the answering server belongs to the name
    """

    code: str
    records: tuple[DnsRecord, ...] = ()
    zone: str = ""
    serial: int = 0
    server: bool = False
