"""The boot decision: the answer to a machine that asks the network for a boot.

A boot is a conversation in three parts. The machine's firmware asks DHCP for an address and a
first-stage loader (iPXE). The loader asks DHCP again and is sent to its boot script. It fetches the
script, and the script is the decision:

- a node in state *active* boots what its vcluster's template says: its own disk, or a kernel from
  the network (but if it waits to be captured, and no power driver could reboot it, it is sent to
  the trampoline first: `flows.boot.script`);
- a node in state *boot* boots the same, once;
- every other node boots the trampoline.

So DHCP gives every node the same answer (`decide`), and only the script differs (`plan`). A loader
of the second stage is recognised by the options that it sends, and is sent on to the script, never
back to the first stage.

**When has a boot failed?** When a node in state *boot* that has been served its script asks for a
boot again: if its system had come up, the firmware would not ask. The stage of a DISCOVER does not
show this, because a network card's ROM may itself be an iPXE (QEMU's are), whose first DISCOVER
looks like that of a chain-loaded iPXE. Time and the transaction id show it. `nodes.boot_served_at`
is set when the script is served, which is the last message of a boot. A DISCOVER before that moment
is progress or a retry. After it, a DISCOVER is

- a repeat, still under way in the network, if it has the xid of the last exchange (or comes within
  `SETTLE` seconds: nothing reboots that quickly). Some ROMs derive the xid from their MAC and use
  it for ever, so after `REPEAT` seconds even the same xid is new;
- the same firmware at its next boot option, if it comes within `NEXT_OPTION` seconds from UEFI
  firmware that was sent to its disk. UEFI lists each NIC several times (the ROM's iPXE, PXE, HTTP),
  all before the disk, and the script's "local disk" is an exit back to that list. Each of those
  options is sent to a file that does not exist (`NO_SUCH_FILE`), which makes the firmware go on at
  once; silence costs OVMF half a minute of retries. A machine that comes back this early is sent to
  its disk once more, and its failure is noticed by the first DISCOVER after those seconds, or by
  the deadline;
- the same for BIOS firmware, if it comes from another NIC: BIOS lists a NIC once. It gets silence;
- otherwise the machine coming back.

Any host can send such a DISCOVER, so the DISCOVER alone does not make a boot fail. The boot has
failed when the machine that came back fetches its script (`came_back`): that takes a TCP connection
from the address that DHCP gave it. In an isolated vcluster's own network, where no trampoline is
served and only nodes of that vcluster are heard, the DISCOVER is enough.

**When has a boot been missed?** When the system on its disk asks for a new address while the node
is expected in the trampoline: the server was away when the firmware asked, or its boot order
changed. It gets silence and, unless it was just power-cycled because its time was up, a power cycle
at once, not at the deadline.

A node in *inactive*, *wipe*, *prime* or *capture* that asks was reset without COD's order. It goes
to state *trampoline* (event *asked*) and boots it. A node in *off* boots the trampoline as well,
and stays *off* until its agent connects: nothing else shows that it is on. An *active* node that
asks was power-cycled: it boots again and stays active.

**Evidence outweighs packets.** Any host on the network can send a DISCOVER with another machine's
MAC. While the agent of a node is heard (`is_heard`), such a message is answered and noted, and
decides nothing: the machine cannot have been reset. The connection of one that was reset is given
up after three missed heartbeats, which moves the node on; its DISCOVERs count from then on. The
connection does not count once COD has ordered a power cycle.

An *expected* machine that asks stays expected until it reports: anybody can send its MAC.

Who is answered: machines that COD knows; others only if they ask to network-boot and the site's
policy is `discover`. A foreign machine gets silence, never a NAK, so COD can sit beside another
DHCP server. A retired machine is foreign. A machine that COD has no loader for
(`policy.nodes.architecture`) gets silence too, and is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cod.model import (
    Binding,
    BootPlan,
    DhcpClient,
    DhcpQuery,
    Image,
    Node,
    Policy,
    Refused,
    Site,
    Subnet,
)
from cod.model.records import record
from cod.policy.nodes import architecture
from cod.policy.nodes.prime import boot_files
from cod.policy.nodes.template import Configuration
from cod.states import OWN_SYSTEM, WORKING, Disk, NodeEvent, NodeState

SETTLE = 2.0  # seconds after a served script in which a DISCOVER is a packet that was delayed
# seconds (times the patience) in which the system that is to end may ask for an address once more
MISSED = 30.0
REPEAT = 60.0  # seconds after which even a DISCOVER with a known xid is a new boot
# heartbeats after which a connection that no server reports any more counts as closed; a server
# gives up a dead connection after three
HELD = 6
DECLINE_TIME = 10.0  # seconds after its ACK in which a client finds its address in use (RFC 5227)
NO_SUCH_FILE = "go-on-to-your-disk"  # no such file
# seconds (times the site's patience) in which firmware goes through the rest of its boot options
NEXT_OPTION = 120.0

# stages that ask for something to load
_FIRMWARE = frozenset({"firmware", "ipxe", "pxelinux", "httpclient"})
_RESET = WORKING | {NodeState.INACTIVE}


@record(frozen=True, slots=True)
class Verdict:
    """Decision on a client's message.

    binding  'boot': an address for firmware or trampoline; 'vcluster': the address that is reserved
             for its system; 'none': no answer
    event    the event that the message shows for the node; None: none
    new      the machine is unknown and becomes a node
    listed   the machine cannot be booted, and is listed for the administrator with the reason
    noted    the message contradicts the node's connected agent, and is noted as a conflict
    """

    binding: str
    why: str
    event: NodeEvent | None = None
    new: bool = False
    listed: bool = False
    noted: bool = False


@dataclass(frozen=True, slots=True)
class OwnDisk:
    """The disk of a node's own system.

    signature  the mark by which a BIOS machine finds it; None: it has none, or was primed before
               COD kept signatures
    written    COD has written it since its last boot
    """

    signature: int | None
    written: bool


FIRST_DISK = OwnDisk(None, False)


def decide(
    query: DhcpQuery, client: DhcpClient | None, last_xid: int | None, policy: Policy, now: float
) -> Verdict:
    """Return whether a client is answered, with an address of which sort. `last_xid`: the
    transaction id of the last exchange on its boot binding."""
    cannot_boot = query.stage in _FIRMWARE and query.arch not in architecture.SUPPORTED
    unfit = architecture.refusal(query.arch) if cannot_boot else ""
    if client is None:
        if query.stage == "os":
            return Verdict("none", "foreign: it does not ask to network-boot")
        if policy.unknown != "discover":
            return Verdict("none", "unknown, and the site answers known machines only")
        if query.kind != "DISCOVER":
            return Verdict("none", "unknown, and not asking for a new address")
        if unfit:
            return Verdict("none", unfit, listed=True)
        return Verdict("boot", "a machine never seen before", new=True)
    if client.state == NodeState.RETIRED:
        return Verdict("none", "retired")
    if unfit:
        return Verdict("none", unfit, listed=True)
    if query.stage == "os":
        return _system(query, client, policy, now)
    if query.stage == "trampoline":
        return Verdict("boot", "the trampoline's own address")
    if query.kind != "DISCOVER":
        return Verdict("boot", "on its way through the loaders")
    if client.state in OWN_SYSTEM:
        return _asks_again(query, client, last_xid, policy, now)
    # a repeated DISCOVER of one exchange follows a lost packet, not a reset
    if client.state in _RESET and query.xid != last_xid:
        if is_heard(client, policy, now):
            return Verdict("boot", f"its agent is heard in state {client.state}", noted=True)
        return Verdict(
            "boot", f"it was reset or switched on in state {client.state}", NodeEvent.ASKED
        )
    return Verdict("boot", "on its way to the trampoline")


def is_heard(client: DhcpClient, policy: Policy, now: float) -> bool:
    """Return whether the agent of the node's present boot has reported and is still connected."""
    return bool(client.reported) and is_held(client.held_at, policy, now)


def is_held(held_at: float | None, policy: Policy, now: float) -> bool:
    """Return whether a connection that its server last reported at `held_at` counts as open."""
    return held_at is not None and now - held_at <= HELD * policy.heartbeat


def elsewhere(query: DhcpQuery, client: DhcpClient, subnet: str, site: Site) -> str:
    """Return how the place that a message comes from differs from the node's remembered place, as
    a phrase; '' if it does not, or if the site's policy allows moves.

    A message that a client sends directly, past the relay, shows no place. Two relays of one subnet
    are one place, because routers replace each other.
    """
    past_relay = query.giaddr == "0.0.0.0" and query.ciaddr != "0.0.0.0"
    if site.policy.moves == "follow" or client.home_at is None or past_relay:
        return ""
    if client.state == NodeState.RETIRED:
        return ""  # COD does not answer it
    # a subnet that was only renamed in the site file is the same place
    if subnet != client.home_subnet and client.home_subnet in {each.name for each in site.subnets}:
        return f"on subnet {subnet}, not {client.home_subnet}"
    for name, home, here in (
        ("circuit id", client.home_circuit, query.circuit),
        ("remote id", client.home_remote, query.remote),
    ):
        if home is not None and here != home:
            return f"with the {name} {here or 'left out'}, not {home} (option 82)"
    return ""


def decline_doubt(
    query: DhcpQuery, client: DhcpClient, bound: Binding, policy: Policy, now: float
) -> str:
    """Return why a DHCPDECLINE of the address `bound` is ignored; '' if it is believed."""
    if client.state == NodeState.ACTIVE:
        return "the node is active"
    if is_heard(client, policy, now):
        return "the node's agent is heard"
    recent = bound.acked_at is not None and now - bound.acked_at <= DECLINE_TIME
    if bound.state != "bound" or bound.xid != query.xid or not recent:
        return "it does not follow the acknowledgement of that address"
    return ""


def _system(query: DhcpQuery, client: DhcpClient, policy: Policy, now: float) -> Verdict:
    if client.state in OWN_SYSTEM:
        return Verdict("vcluster", "its vcluster's system")
    # only once: after one power cycle, the deadline of the state decides
    if may_have_missed(query, client, policy, now) and not client.cycled:
        why = (
            f"its disk's system started {now - client.since:.0f} s after it was to boot from the"
            " network: it missed that boot"
        )
        return Verdict("none", why, NodeEvent.TIMED_OUT)
    return Verdict("none", f"an operating system on a node in state {client.state}")


def may_have_missed(query: DhcpQuery, client: DhcpClient, policy: Policy, now: float) -> bool:
    """Return whether the message is from the system on the disk of a node that should boot the
    trampoline: the node has missed its network boot, unless it was power-cycled a moment ago.

    A clean disk starts no system: then the message is from other firmware (iSCSI, remote
    management). A node with a story may run a system that the database does not know
    (`policy.stories`).
    """
    return (
        query.stage == "os"
        and query.kind == "DISCOVER"
        and client.state == NodeState.TRAMPOLINE
        and now - client.since >= MISSED * policy.patience
        and client.disk not in (Disk.CLEAN, Disk.TABLES)
        and client.story is None
        and not is_heard(client, policy, now)
    )


def _asks_again(
    query: DhcpQuery, client: DhcpClient, last_xid: int | None, policy: Policy, now: float
) -> Verdict:
    if client.boot_served_at is None:
        return Verdict("boot", "on its way to its system")
    since = now - client.boot_served_at
    if _is_next_option(query, client, policy, now):
        return Verdict(
            "boot", "its firmware's next boot option; nothing to load there sends it on to its disk"
        )
    if query.mac != client.boot_mac and since < NEXT_OPTION * policy.patience:
        return Verdict("none", "its firmware's next boot option; silence sends it on to its disk")
    if client.state == NodeState.ACTIVE:
        return Verdict("boot", "power-cycled: it boots its system again")
    if is_repeat(query, client.boot_served_at, last_xid, now):
        return Verdict("boot", "a repeated packet of the boot that was served")
    return Verdict(
        "boot",
        f"it asked to boot again {since:.0f} s after its boot was served",
        NodeEvent.BOOT_FAILED,
    )


def is_repeat(
    query: DhcpQuery, boot_served_at: float | None, last_xid: int | None, now: float
) -> bool:
    """Return whether the message is a repeated or delayed packet of the boot that was served."""
    if boot_served_at is None:
        return False
    since = now - boot_served_at
    return since < SETTLE or (query.xid == last_xid and since < REPEAT)


def came_back(node: Node, bound: Binding) -> bool:
    """Return whether a node that fetches its script has come back because its system did not come
    up: it got the address `bound` after its boot had been served."""
    served, acked = node.boot_served_at, bound.acked_at
    if node.state != NodeState.BOOT or bound.kind != "boot" or served is None or acked is None:
        return False
    return acked > served


def may_be_next_option(query: DhcpQuery, client: DhcpClient, policy: Policy, now: float) -> bool:
    """Return whether the message may be from UEFI firmware that goes on to its next boot option,
    provided that it was sent to its disk."""
    served = client.boot_served_at if client.state in OWN_SYSTEM else None
    by_uefi = query.stage in _FIRMWARE and (
        query.arch in architecture.UEFI or query.stage == "httpclient"
    )
    return by_uefi and served is not None and now - served < NEXT_OPTION * policy.patience


def _is_next_option(
    query: DhcpQuery, client: DhcpClient | None, policy: Policy, now: float
) -> bool:
    return (
        client is not None
        and client.sent_to_disk
        and may_be_next_option(query, client, policy, now)
    )


def bootfile(
    query: DhcpQuery, client: DhcpClient | None, subnet: Subnet, site: Site, now: float
) -> str | None:
    """Return the file that a client loads next, for option 67 and the `file` field; None: it needs
    none. The caller has refused machines of architectures that COD does not support."""
    base = f"http://{subnet.server}:{site.boot.http_port}"
    goes_on = _is_next_option(query, client, site.policy, now)
    if query.stage == "ipxe":
        return f"{base}/files/{NO_SUCH_FILE}" if goes_on else f"{base}/boot/{query.mac}/script.ipxe"
    loader = (
        NO_SUCH_FILE
        if goes_on
        else site.boot.uefi_loader
        if query.arch in architecture.UEFI
        else site.boot.bios_loader
    )
    if query.stage == "httpclient":
        return f"{base}/files/{loader}"
    return loader if query.stage == "firmware" else None


def plan(
    state: str,
    template: Configuration | None,
    images: Mapping[str, Image],
    mac: str,
    subnet: Subnet,
    site: Site,
    disk: OwnDisk = FIRST_DISK,
) -> BootPlan:
    """Return what a node in `state` boots: the decision of its boot script.

    template  the template of the node's vcluster; None: the node has none
    images    images that the node boots from, by name
    """
    if state == NodeState.RETIRED:
        return BootPlan("none", "retired")
    port = site.boot.http_port
    decided = (
        _own_system(template, images, state, f"http://{subnet.server}:{port}", disk)
        if state in OWN_SYSTEM
        else trampoline(state, mac, subnet, site)
    )
    scripts = tuple(f"http://{each}:{port}/boot/{mac}/script.ipxe" for each in subnet.others)
    return replace(decided, scripts=scripts) if scripts else decided


def trampoline(state: str, mac: str, subnet: Subnet, site: Site) -> BootPlan:
    """Return the boot plan of the trampoline. The node's secret is in a ramdisk of its own, because
    kernel command lines end up in logs."""
    base = f"http://{subnet.server}:{site.boot.http_port}"
    words = [
        f"cod.confd={','.join(f'{each}:{site.boot.confd_port}' for each in subnet.servers)}",
        f"cod.mac={mac}",
        "quiet",
        "panic=10",
        "cryptomgr.notests",
    ]
    if site.policy.same_wwn != "refuse":
        words.append(f"cod.same_wwn={site.policy.same_wwn}")
    if site.boot.console:
        words.append(f"console={site.boot.console}")
    ramdisks = (f"{base}/files/trampoline/ramdisk", f"{base}/boot/{mac}/secret.cpio")
    return BootPlan(
        "trampoline",
        f"state {state}",
        f"{base}/files/trampoline/vmlinuz",
        ramdisks,
        " ".join(words),
    )


def _own_system(
    template: Configuration | None,
    images: Mapping[str, Image],
    state: str,
    base: str,
    disk: OwnDisk,
) -> BootPlan:
    if template is None:
        return BootPlan("none", f"a node in state {state} without a template")
    if template.diskless is None:
        if disk.signature is None:
            return BootPlan("local", f"state {state}")
        # The first boot after priming must start the disk that COD wrote. Later the owner may have
        # written another partition table, so any disk that can be started is tried.
        also = "" if state == NodeState.BOOT and disk.written else "-or-first"
        return BootPlan("local", f"state {state}", f"{base}/boot/disk/{disk.signature:08x}{also}")
    try:
        kernel, ramdisks = boot_files(template.diskless, images, f"{base}/images")
    except Refused as refused:
        return BootPlan("none", refused.sentence)
    cmdline = template.diskless.cmdline.replace("{metadata}", f"{base}/")
    return BootPlan("kernel", f"state {state}, diskless", kernel, ramdisks, cmdline)
