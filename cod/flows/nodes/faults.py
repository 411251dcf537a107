"""Faults of parts outside of COD: switches, file servers, BMCs, other DHCP servers, the source of
the energy curve, the directory, secondary name servers.

The edges write rows about these parts. This module reads the rows, and asks no part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from cod import notice_texts
from cod.model import IN_MAINTENANCE, FailedNode, FailureGroup, NodeView, Notice, OutsideFault
from cod.policy import volumes as volume_policy
from cod.policy.nodes import blame, power
from cod.states import IMAGE_SERVER, KERBEROS, POWER_CONTROL
from cod.store import energy_curve, views, volumes, watermarks
from cod.store.engine import Tx
from cod.store.nodes import conflicts, failures, nodes, switch_ports, switches
from cod.store.nodes import power as node_power
from cod.store.notices import notices

KINDS = {
    "switch": "a switch does not answer",
    "switch-port": "a switch refuses changes of ports, and they are not tried any more",
    "file-server": "a file server does not carry out changes of volumes",
    "power-control": "BMCs or outlets do not answer, or refuse a command",
    "found-off": "nodes in use are off, and COD did not switch them off",
    "image-server": "images are not served to nodes",
    "kerberos": "the site's command does not make keytabs that nodes need",
    "directory": "the directory is not believed: many users would lose their rights at once",
    "dns-secondary": "a secondary name server does not follow the site's zones",
    "dhcp": "nodes took addresses from another DHCP server",
    "energy-curve": "the curve of energy's price or carbon is too old",
    "site-held": "the database may have forgotten what machines run: nothing is granted or erased",
}
_NOTICED_FAULTS = {
    "switch": ("switch", "switch ", "/faults#switch-"),
    "power-control": ("power-control", POWER_CONTROL, "/faults#power-control"),
    "image-server": ("image-server", IMAGE_SERVER, "/faults#the-image-server"),
    "kerberos": ("kerberos", KERBEROS, "/faults#the-command-for-keytabs"),
    "directory-held": ("directory", "the directory", "/faults#the-directory"),
    "dns-secondary": ("dns-secondary", "name server ", notice_texts.SECONDARY),
    "found-off": ("found-off", "node ", "/nodes/"),
    "volume-trouble": ("file-server", "volume ", "/volumes/"),
}
"""By the kind of a notice: the kind of the fault that it is about, the beginning of the fault's
name, and the beginning of the notice's link, which ends in the rest of the name."""
_AWAITED = {IMAGE_SERVER: "image-server", KERBEROS: "kerberos"}
"""The kinds of faults of parts that nodes wait for, and about which there are no other rows."""
RECENT = 3600.0  # seconds after its last answer until another DHCP server counts as gone
ENDED = 86400.0  # seconds for which faults that are over are listed
REMEMBERED = 30 * 86400.0  # seconds for which notices are read for the beginning of a fault


def every(tx: Tx, *, now: float) -> list[OutsideFault]:
    """Return the present faults, then the faults that ended in the last day, the newest first."""
    pairs = [(kind, each.ends) for kind, each in notice_texts.KINDS.items() if each.ends]
    sent = notices.of_site(tx, [kind for pair in pairs for kind in pair], now - REMEMBERED)
    dhcp = _dhcp_servers(tx, now)
    found = [
        *_switches(tx),
        *_ports(tx),
        *_fileservers(tx, sent, now),
        *_machines(tx, sent),
        *dhcp,
        *_curve(tx, now),
        *_held(tx),
        *_standing(sent, "directory-held", "dns-secondary"),
        *_ended(sent, now),
    ]
    return sorted(found, key=lambda one: (one.ended is not None, -(one.ended or one.since or 0.0)))


BY: Mapping[str, Callable[[FailedNode], str]] = {
    "reason": lambda one: blame.alike(one.reason),
    "rack": lambda one: one.block,
    "template": lambda one: one.template,
}
"""Keys by which failed nodes can be grouped."""


def failed(tx: Tx, *, by: str) -> list[FailureGroup]:
    """Return the nodes that are out of service because of a failure, grouped by a key of `BY`, the
    largest group first. Nodes in maintenance are left out."""
    groups = defaultdict(list)
    for one in failures.failed(tx, IN_MAINTENANCE):
        groups[BY[by](one)].append(one)
    return [
        FailureGroup(key, tuple(some))
        for key, some in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    ]


def gauges(tx: Tx, now: float) -> list[tuple[str, int, int, float]]:
    """Return, for each kind, (kind, number of present faults, number of nodes or volumes that they
    affect, seconds since the oldest began); zeros where there is no fault."""
    lasting = [each for each in every(tx, now=now) if each.ended is None]
    found = []
    for kind in KINDS:
        own = [each for each in lasting if each.kind == kind]
        oldest = min((each.since for each in own if each.since is not None), default=now)
        found.append((kind, len(own), sum(len(each.affects) for each in own), now - oldest))
    return found


def _begun(sent: Iterable[Notice], kind: str) -> dict[str, float]:
    """Return, by node or volume, the time of the last notice of that kind about it."""
    return {_rest(kind, each.link): each.at for each in sent if each.kind == kind}


def _rest(kind: str, link: str) -> str:
    return unquote(link.removeprefix(_NOTICED_FAULTS[kind][2]))


def _switches(tx: Tx) -> Iterator[OutsideFault]:
    for switch in switches.every(tx):
        if switch.reason:
            names = [
                view.node
                for view in switch_ports.listed(tx, switch.name)
                if view.node is not None and view.port.pending
            ]
            yield _of_nodes(
                tx, "switch", f"switch {switch.name}", switch.answered_at, names, switch.reason
            )


def _ports(tx: Tx) -> Iterator[OutsideFault]:
    for name, counts in switch_ports.counts(tx).items():
        if counts["given_up"]:
            refused = [view for view in switch_ports.listed(tx, name) if view.port.given_up]
            yield _of_nodes(
                tx,
                "switch-port",
                f"ports of switch {name}",
                min(view.port.wished_at for view in refused),
                [view.node for view in refused if view.node is not None],
                f"port {refused[0].port.port}: {refused[0].port.reason}",
            )


def _fileservers(tx: Tx, sent: Sequence[Notice], now: float) -> Iterator[OutsideFault]:
    begun = _begun(sent, "volume-trouble")
    by_server = defaultdict(list)
    for volume, _ in volumes.every(tx):
        if volume_policy.state(volume, now) == "trouble":
            by_server[volume.fileserver].append(volume)
    for server, troubled in by_server.items():
        applied = {volume.id: volume.applied for volume in troubled}
        since = [begun.get(volume.name) for volume in troubled]
        yield OutsideFault(
            "file-server",
            f"file server {server}",
            min((at for at in since if at is not None), default=None),
            None,
            tuple(sorted(volume.name for volume in troubled)),
            _names(
                one.vcluster
                for one in volumes.attachments(tx, list(applied))
                if not one.leaving and one.sequence > applied[one.volume_id]
            ),
            troubled[0].reason,
        )


def _machines(tx: Tx, sent: Sequence[Notice]) -> Iterator[OutsideFault]:
    begun = _begun(sent, "found-off")
    troubled = views.troubled_nodes(
        tx, begins=power.TROUBLE, reason=power.FOUND_OFF, parts=(*_AWAITED, POWER_CONTROL)
    )
    by_kind: dict[tuple[str, str], list[tuple[float, NodeView]]] = defaultdict(list)
    for view in troubled:
        node = view.node
        if node.reason == power.FOUND_OFF:
            at = begun.get(node.name, node.since)
            by_kind["found-off", "nodes found off"].append((at, view))
        elif node.waits_for in _AWAITED:
            awaited = _AWAITED[node.waits_for], node.waits_for
            by_kind[awaited].append((node.waits_since or node.since, view))
        else:
            actions = node_power.of_node(tx, node.id, limit=1)
            requested_at = actions[0].wished_at if actions else node.since
            by_kind["power-control", POWER_CONTROL].append((node.waits_since or requested_at, view))
    for (kind, what), found in by_kind.items():
        since, first = min(found, key=lambda one: one[0])
        yield OutsideFault(
            kind,
            what,
            since,
            None,
            _names(view.node.name for _, view in found),
            _names(view.vcluster for _, view in found if view.vcluster),
            f"{first.node.name}: {first.node.reason}",
        )


def _dhcp_servers(tx: Tx, now: float) -> list[OutsideFault]:
    by_subnet = defaultdict(list)
    for each in conflicts.since(tx, "dhcp", now - ENDED):
        by_subnet[each["subnet"]].append(each)
    known = nodes.by_macs(tx, {each["mac"] for some in by_subnet.values() for each in some})
    found = []
    for subnet, some in by_subnet.items():
        last = some[-1]["at"]
        names = {known[each["mac"]].name for each in some if each["mac"] in known}
        found.append(
            OutsideFault(
                "dhcp",
                f"another DHCP server on {subnet}",
                some[0]["at"],
                last if last <= now - RECENT else None,
                tuple(sorted(names)),
                tuple(views.holders(tx, names)),
                some[-1]["about"],
            )
        )
    return found


def _curve(tx: Tx, now: float) -> Iterator[OutsideFault]:
    stored = energy_curve.find(tx)
    if stored is not None and now >= stored.good_until:
        why = stored.fault or "it says nothing about the hours from now on"
        about = f"{stored.source}: {why}"
        yield OutsideFault("energy-curve", "energy curve", stored.good_until, None, (), (), about)


def _held(tx: Tx) -> Iterator[OutsideFault]:
    since = watermarks.at(tx, watermarks.HOLD)
    if since is not None:
        why = watermarks.about(tx, watermarks.HOLD)
        yield OutsideFault("site-held", "the site", since, None, (), (), why)


def _standing(sent: Sequence[Notice], *kinds: str) -> Iterator[OutsideFault]:
    """Yield present faults of the kinds that are known by notices alone: those whose last notice
    does not tell the end."""
    last = {}
    for each in sent:
        told_of = notice_texts.KINDS.get(each.kind)
        begins = (told_of and told_of.ends) or each.kind
        if begins in kinds:
            last[begins, each.link] = each
    for (begins, link), each in last.items():
        if each.kind == begins:
            kind, what, _ = _NOTICED_FAULTS[begins]
            name = what + _rest(begins, link)
            yield OutsideFault(kind, name, each.at, None, (), (), each.subject)


def _of_nodes(
    tx: Tx, kind: str, what: str, since: float | None, names: Iterable[str], about: str
) -> OutsideFault:
    own = _names(names)
    return OutsideFault(kind, what, since, None, own, tuple(views.holders(tx, own)), about)


def _ended(sent: Sequence[Notice], now: float) -> Iterator[OutsideFault]:
    """Yield each fault once whose last notice tells its end."""
    begun: dict[tuple[str, str], float] = {}
    found: dict[tuple[str, str], OutsideFault] = {}
    for each in sent:
        begins = notice_texts.KINDS[each.kind].ends
        if not begins:
            begun[each.kind, each.link] = each.at
            found.pop((each.kind, each.link), None)
        elif each.at > now - ENDED:
            kind, what, link = _NOTICED_FAULTS[begins]
            rest = _rest(begins, each.link)
            found[begins, each.link] = OutsideFault(
                kind,
                what + rest,
                begun.get((begins, each.link)),
                each.at,
                (rest,) if link.endswith("/") else (),
                (),
                each.subject,
            )
    yield from found.values()


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
