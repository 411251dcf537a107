"""Notices about services that many nodes wait for: switches, power control and images; and about
the site itself."""

from __future__ import annotations

from collections.abc import Sequence

from cod.notice_texts.words import (
    NoticeText,
    fault_page,
    moment,
    node_count,
    node_names,
    notice,
    page,
    sentence,
)

SECONDARY = "/faults#name-server-"
"""How the links of notices about secondaries begin; the rest is ADDRESS@SERVER."""


def authority_ends(ends_at: float) -> NoticeText:
    """Describe an authority's certificate that expires, because no server has been restarted for so
    long."""
    return notice(
        "authority",
        "the authority for VCMs ends",
        "The certificate of this site's authority, by which virtual cluster managers and servers"
        f" know each other, ends {moment(ends_at)}. A server renews it when it starts. VCMs get the"
        " new one when they renew their own certificates, within nine months. Restart each server"
        " of the site soon.",
    )


def site_held(reason: str) -> NoticeText:
    """Describe a site that is held."""
    return notice(
        "site-held",
        "the site is held",
        f"Nothing is granted or erased: {reason}. Machines are asked what they hold, and compared"
        " with the database. An administrator ends the hold on the server's host.",
        page("faults"),
    )


def switch_away(switch: str, nodes: Sequence[str], reason: str) -> NoticeText:
    """Describe a switch that does not answer; `nodes` wait for their ports' VLANs."""
    return notice(
        "switch",
        f"switch {switch} does not answer",
        f"COD cannot change ports of switch {switch}: {sentence(reason)} These nodes wait for it:"
        f" {node_names(nodes)}. The nodes continue by themselves once the switch answers.",
        fault_page(f"switch {switch}"),
    )


def switch_back(switch: str) -> NoticeText:
    """Describe a switch that answers again after `switch_away`."""
    return notice(
        "switch-recovered",
        f"switch {switch} answers again",
        f"Switch {switch} answers again. Nodes that waited for it go on.",
        fault_page(f"switch {switch}"),
    )


def power_control_away(nodes: Sequence[str]) -> NoticeText:
    """Describe BMCs or outlets that do not answer. `nodes` has each node with its driver and
    address."""
    return notice(
        "power-control",
        f"power control of {node_count(len(nodes))} does not answer",
        f"BMCs or outlets of these nodes do not answer: {node_names(nodes)}. COD keeps trying."
        " The nodes continue by themselves once their BMCs or outlets answer. A cluster that has"
        " waited for a node for half an hour gets another node in its place.",
        fault_page("power control"),
    )


def power_control_back() -> NoticeText:
    """Describe the end of `power_control_away`."""
    return notice(
        "power-recovered",
        "no node waits for power control",
        "All BMCs and outlets that nodes waited for answer again, or are no longer needed.",
        fault_page("power control"),
    )


def images_not_served(nodes: Sequence[str], reason: str) -> NoticeText:
    """Describe images that COD does not serve. `nodes` need them; `reason`: the report of one of
    these nodes."""
    return notice(
        "image-server",
        f"{node_count(len(nodes))} cannot fetch images",
        f"COD does not serve the images of these nodes: {node_names(nodes)}. {nodes[0]} says:"
        f" {sentence(reason)} The nodes continue by themselves once the images are served.",
        fault_page("the image server"),
    )


def images_served() -> NoticeText:
    """Describe the end of `images_not_served`."""
    return notice(
        "images-recovered",
        "no node waits for images",
        "COD serves the images that nodes waited for again, or nodes no longer need them.",
        fault_page("the image server"),
    )


def keytabs_not_made(nodes: Sequence[str], reason: str) -> NoticeText:
    """Describe a command for keytabs that fails or is not run. `nodes` need keytabs; `reason`: the
    report of one of these nodes; '': no server has run the command."""
    why = f"one says: {reason}" if reason else "no server has run the site's command for them yet"
    return notice(
        "kerberos",
        f"{node_count(len(nodes))} get no keytab",
        f"These nodes wait for a keytab: {node_names(nodes)}; {sentence(why)}"
        " The command is tried again, and the nodes continue by themselves once it succeeds.",
        fault_page("the command for keytabs"),
    )


def keytabs_made() -> NoticeText:
    """Describe the end of `keytabs_not_made`."""
    return notice(
        "keytabs-made",
        "no node waits for a keytab",
        "The keytabs that nodes waited for are made, or nodes no longer need them.",
        fault_page("the command for keytabs"),
    )


def directory_held(users: Sequence[str], people: int) -> NoticeText:
    """Describe an answer of the directory that would take rights from `users`. They are too many of
    the `people` with rights for COD to believe the answer."""
    return notice(
        "directory-held",
        f"{len(users)} of {people} users would lose their rights",
        f"By what the LDAP directory says, these of {people} users have left it, or a group that"
        f" gave them a role: {node_names(users)}. They keep their rights, because an empty or"
        " partial answer looks the same. Look whether the directory is right. If it is, an"
        " administrator can compare the users with it and trust it (POST /users/sync with trust).",
        fault_page("the directory"),
    )


def directory_normal() -> NoticeText:
    """Describe the end of `directory_held`."""
    return notice(
        "directory-normal",
        "users are as the directory says",
        "No answer of the LDAP directory is held back: users have the rights that it gives.",
        fault_page("the directory"),
    )


def secondary_late(secondary: str, wrong: str) -> NoticeText:
    """Describe a secondary name server that does not follow the site's zones. `secondary`:
    ADDRESS@SERVER, where SERVER is the server that asks it; `wrong`: why."""
    address, _, server = secondary.partition("@")
    return notice(
        "dns-secondary",
        f"name server {address} does not follow the zones",
        f"Server {server} asks the secondary {address} for the serials of the site's zones:"
        f" {sentence(wrong)} Its clients may get names of nodes that have left. Look whether it"
        " runs, may fetch zones (its log), and has the key of [dns] transfer_key_file.",
        fault_page(f"name server {secondary}"),
    )


def secondary_follows(secondary: str) -> NoticeText:
    """Describe the end of `secondary_late`."""
    address, _, server = secondary.partition("@")
    return notice(
        "dns-recovered",
        f"name server {address} follows the zones again",
        f"The secondary {address} has the zones' serials, as server {server} sees it.",
        fault_page(f"name server {secondary}"),
    )


def port_given_up(switch: str, port: str, node: str, vlan: int, reason: str) -> NoticeText:
    """Describe a switch port that was not put into its VLAN. `node`: the node whose NIC is on it,
    '' if unknown."""
    of = f" of node {node}" if node else ""
    return notice(
        "switch-port",
        f"port {port} of switch {switch} could not be changed",
        f"Port {port} of switch {switch}{of} was not put into VLAN {vlan}: {sentence(reason)} It"
        " is not tried again until an administrator has it tried again, or the port is wanted in"
        " another VLAN.",
        page("nodes", node) if node else page("nodes"),
    )


def test(group: str, actor: str) -> NoticeText:
    """Describe the test that `cod notice test` sends."""
    return notice(
        "test",
        f"test notice for group {group}",
        f"This notice shows whether notices reach group {group}; {actor} requested it. No action is"
        " needed.",
    )
