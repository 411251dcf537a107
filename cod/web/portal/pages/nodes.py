"""Pages about nodes: a list of those that the person may see, and one node with its hardware, its
history and its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cod import quantity, states
from cod.flows import views
from cod.flows.nodes import blocks, burnins, consoles, inventory, nodes, switch_ports, types
from cod.flows.people.access import RequiredRight, allows
from cod.model import Listed, NodeView, Refused, Right, SingleRight, SwitchPortView
from cod.model import Page as ListPage
from cod.pool import Tx
from cod.web.api import pci_names
from cod.web.api.resources.consoles import ConsoleReply, console_reply
from cod.web.api.resources.nodes import NODES, NodeQuery, pci_devices
from cod.web.api.routes import Named, Names, see
from cod.web.http.errors import HttpProblem
from cod.web.portal import formatting
from cod.web.portal.forms import Fields, moment_in
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.pages.node_actions import CHOICES
from cod.web.portal.pages.timeline import life
from cod.web.portal.record_fields import body_by, columns_of, facts_of, settings_of

Row = tuple[str, ...]

STATES = [
    (",".join(named), word)
    for word, _, _, named in formatting.by_word(dict.fromkeys(map(str, states.NodeState), 1))
]
"""For the filter: the states that a word stands for, and the word."""


def _list(tx: Tx, ask: PageCall[Names, NodeQuery]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    if ask.who.admin:
        unfit = views.conflict_list(tx, page=ListPage(limit=UNFIT), kind="architecture")
        names = {
            "types": types.names_of(tx),
            "blocks": blocks.names_of(tx),
            "unfit": unfit,
            "waiting": nodes.waiting(tx),
        }
    more = columns_of(NodeView, ask, LISTED)
    found: Any = Listed[NodeView]()
    wrong = ""
    try:
        found = NODES[0].call(ask)(tx)
    except Refused as refused:  # the page shows the fault with the filter
        if refused.field not in ("where", "names"):
            raise
        wrong = refused.sentence
    return {
        "nodes": found,
        "states": STATES,
        "more": more,
        "wrong": wrong,
        "actions": CHOICES,
        "meant": _meant(ask.query),
        **names,
    }


def _meant(query: NodeQuery) -> str:
    """Return a filter that matches exactly the nodes of the list; '' if no filter can."""
    if query.q or query.names or query.group or query.vcluster or query.power:
        return ""
    parts = [f"({query.where})" if query.where.strip() else ""]
    parts += [
        f"{name} = '{value}'" for name in ("type", "block") if (value := getattr(query, name))
    ]
    parts += [f"state in ({query.state})" if query.state else ""]
    return " and ".join(filter(None, parts)) or "name ~ ''"


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    name, is_admin = ask.names.name, ask.who.admin
    view, bindings, history, conflicts = views.node_in_full(
        tx, name, ask.site.policy, ask.who.groups
    )
    node = view.node
    uses = allows(tx, ask.who, RequiredRight(Right.USE, "node", name))
    console = _console(tx, ask)
    ports = switch_ports.of_node(tx, name=name) if is_admin else []
    tested: float | None = None
    health: Mapping[str, Mapping[str, float]] = {}
    if is_admin:
        tested, health = burnins.disks_health(tx, name=name)
    disks = [
        (*_disk(each), *(_smart(health.get(_part(each), {})) if tested else ()))
        for each in nodes.parts(node, "disk")
    ]
    accounts = {"": "none"} | {account.name: account.name for account in ask.site.accounts}
    immune = view.immune_until is not None and view.immune_until > ask.now
    return {
        "view": view,
        "holder": views.vcluster_alone(tx, view.vcluster) if view.vcluster else None,
        "node": node,
        "bindings": bindings,
        "history": history,
        "conflicts": conflicts,
        "facts": [fact for fact in nodes.hardware(node) if not fact[0].startswith(_IN_TABLES)],
        "tables": [
            ("Network interfaces", NIC_HEADS, _nics(nodes.parts(node, "nic"), ports)),
            ("Disks", DISK_HEADS if tested else DISK_HEADS[:4], disks),
        ],
        "tested": tested,
        "phrase": nodes.phrase(node, pci_names.installed().short),
        "pci": pci_devices(node),
        "kept": nodes.kept(node),
        "life": life(history, ask.now),
        "rule": states.NODE_RULES[states.NodeState(node.state)],
        "may_go": inventory.may_be_deleted(node),
        "switches": node.power_driver != "none" and uses,
        "console": console,
        "uses": uses,
        "types": console is not None and not console.untyped and uses,
        "keys": KEYS,
        "whole_console": SHOWN_WHOLE,
        "offered": _offered(node.state) if is_admin else (),
        "wishes": nodes.power_wishes(tx, name=name) if is_admin else (),
        "ports": ports,
        "places": nodes.places_of(tx, name=name) if is_admin else (),
        "port_switches": [switch.name for switch in ask.site.switches] if is_admin else (),
        "told": facts_of(
            view,
            ask.now,
            without=ELSEWHERE,
            words={"immune_until": None if immune else formatting.NONE},
            admin=is_admin,
        ),
        "settings": settings_of(view, Right.ADMIN, options={"power_account": accounts}),
    }


def _console(tx: Tx, ask: PageCall[Named]) -> ConsoleReply | None:
    """Return the end of the node's console; None if the caller may not read consoles."""
    name = ask.names.name
    reads = RequiredRight(Right.USE, "node", name, single=SingleRight.CONSOLES)
    if not allows(tx, ask.who, reads):
        return None
    found = consoles.readable(
        tx, name=name, rules=ask.site.consoles, everything=ask.who.admin, now=ask.now
    )
    return console_reply(ask.consoles, found, None, SHOWN)


_IN_TABLES = ("nic", "disk", "pci ")  # facts that the page shows in tables
NIC_HEADS = ("NIC", "MAC", "Driver", "Link", "Switch port")
DISK_HEADS = ("Disk", "Model", "Size", "Kind", "Wear", "Powered on", "Defects")
_DEFECTS = (
    "media_errors",
    "reallocated_sectors",
    "uncorrectable_errors",
    "pending_sectors",
    "offline_uncorrectable",
    "interface_errors",
)
"""Figures with which disks count their own defects (trampoline/burnin/health.py)."""


def _nics(nics: Sequence[Mapping[str, str]], ports: Sequence[SwitchPortView]) -> list[Row]:
    """Return the rows of the NICs. The switch port that COD knows comes before the port that the
    node reported."""
    known = {each.port.mac: f"{each.port.switch} {each.port.port}" for each in ports}
    return [
        (
            nic.get("name", "") + (", boots" if nic.get("boot") == "yes" else ""),
            nic.get("mac", ""),
            nic.get("driver", ""),
            ", ".join(filter(None, (nic.get("link"), _speed(nic.get("speed", ""))))),
            known.get(nic.get("mac"))
            or " ".join(
                nic[each] for each in ("neighbour/switch", "neighbour/port") if each in nic
            ),
        )
        for nic in nics
    ]


def _speed(mbits: str) -> str:
    if not mbits:
        return ""
    return f"{int(mbits) / 1000:g} Gb/s" if int(mbits) >= 1000 else f"{mbits} Mb/s"


def _disk(disk: Mapping[str, str]) -> Row:
    kind = disk.get("transport", "")
    spins = {"yes": "spinning", "no": "SSD"}.get(disk.get("rotational", ""), "")
    marks = {
        spins: bool(spins) and kind != "nvme",
        "kept": disk.get("keep") == "yes",
        "not local": disk.get("local") == "no",
        "removable": disk.get("removable") == "yes",
        "not offered by the BIOS": disk.get("bootable") == "no",
    }
    model, serial = disk.get("model", ""), disk.get("serial", "")
    return (
        disk.get("name", ""),
        ", ".join(filter(None, (model, serial and f"serial {serial}"))),
        quantity.size(int(disk.get("size", "0"))),
        ", ".join([kind, *(mark for mark, holds in marks.items() if holds)]).removeprefix(", "),
    )


def _part(disk: Mapping[str, str]) -> str:
    """Return the name that burn-ins give to a disk."""
    name, serial = disk.get("name", ""), disk.get("serial", "")
    return f"{name} (serial {serial})" if serial else name


def _smart(figures: Mapping[str, float]) -> Row:
    """Return the cells about the disk's own health report (SMART)."""
    values = {
        name.removeprefix("smart_"): number
        for name, number in figures.items()
        if name.startswith("smart_")
    }
    wear = [f"{values['used_percent']:.0f} % used"] if "used_percent" in values else []
    hours = f"{values['power_on_hours']:,.0f} h" if "power_on_hours" in values else ""
    defects = [
        f"{values[each]:,.0f} {each.replace('_', ' ')}" for each in _DEFECTS if values.get(each)
    ]
    return (
        ", ".join([*wear, *(["failing"] if values.get("failing") else [])]),
        hours,
        ", ".join(defects) or ("none" if values else ""),
    )


KEYS = (
    ("Enter", "\n"),
    ("Ctrl-C", "\x03"),
    ("Ctrl-D", "\x04"),
    ("Esc", "\x1b"),
    ("Tab", "\t"),
    ("Up", "\x1b[A"),
    ("Down", "\x1b[B"),
)
"""Keys with buttons on the page, and the characters that terminals send for them."""


def _typed(fields: Fields) -> dict[str, Any]:
    """Return the body with what a person typed: a key, or a line with its end."""
    key = dict(KEYS).get(fields.one("key"))
    return {"typed": key or fields.one("typed") + "\n"}


UNFIT = 20  # machines that COD has no loader for, shown below the nodes
LISTED = {*("name", "state", "reason", "boot_mac", "firmware", "hostname", "vcluster", "address")}
SHOWN = 2**13  # bytes of a console on the page
SHOWN_WHOLE = 2**22  # bytes of a console in the file that the page offers
ELSEWHERE = (
    *("name", "state", "since", "deadline", "attempts", "reason", "type", "block", "reported_at"),
    *(
        "position",
        "subnet",
        "relay",
        "circuit",
        "remote",
        "power_driver",
        "power_address",
        "power_account",
    ),
)
"""Fields that the page shows in sentences, in the section of places and in the form."""
# Actions that an administrator is offered, with the event of the lifecycle that each causes.
_OFFERS = {
    "approve": "approved",
    "quarantine": "quarantined",
    "restore": "restored",
    "retire": "retired",
}


def _offered(state: str) -> tuple[str, ...]:
    """Return the actions of `_OFFERS` that the lifecycle allows in that state. A node out of
    service can be taken out of service again, which changes the reason and the time of its return.
    """
    if state == states.NodeState.QUARANTINED:
        return ("quarantine", "restore", "retire")
    return tuple(
        name
        for name, event in _OFFERS.items()
        if (states.NodeState(state), states.NodeEvent(event)) in states.NODE_TRANSITIONS
    )


def _aside(fields: Fields) -> dict[str, Any]:
    """Return the body with the reason. Raises `HttpProblem` with all missing fields: the reason
    and, for a node in use, the check box that confirms that its work may stop."""
    wrong = {} if fields.one("reason").strip() else {"reason": "should say why"}
    if fields.one("holder") and fields.one("sure") != fields.one("holder"):
        wrong["sure"] = f"tick this: the work of {fields.one('holder')} on it stops"
    if wrong:
        raise HttpProblem(422, "invalid", next(iter(wrong.values())), next(iter(wrong)), wrong)
    return {"reason": fields.one("reason"), "until": moment_in(fields, "until")}


_PAGE = "/nodes/{name}"

PAGES = (
    Page("/nodes", "nodes.html", _list, query=NodeQuery, shared=True),
    Page(_PAGE, "node.html", _one, see("node"), nav="/nodes"),
)
ACTIONS = (
    act(
        "/nodes/{name}/change",
        f"PATCH {_PAGE}",
        _PAGE,
        "{reply.name} is changed.",
        then=lambda ask, reply: f"/nodes/{reply.name}",
        body=partial(body_by, NodeView, Right.ADMIN),
    ),
    act(
        "/nodes/{name}/keep",
        f"PATCH {_PAGE}",
        _PAGE,
        "The kept disks of {reply.name} are changed.",
        body=lambda fields: {
            name: [line.strip() for line in fields.one(name).splitlines() if line.strip()]
            for name in ("keep", "keep_was")
        },
    ),
    act("/nodes/{name}/approve", "POST", _PAGE, "{reply.name} belongs to the site now."),
    act(
        "/nodes/{name}/power",
        "POST",
        _PAGE,
        "{reply.name} is being switched; what its power turns out to be is shown here.",
    ),
    act(
        "/nodes/{name}/console",
        "POST",
        _PAGE,
        then=lambda ask, reply: f"/nodes/{reply.node}#console",
        body=_typed,
    ),
    act("/nodes/{name}/port", "PUT", _PAGE, "The switch port is entered."),
    act(
        "/nodes/{name}/port-retry",
        "POST /nodes/{name}/port/retry",
        _PAGE,
        "The switch port is tried again; the outcome is shown here.",
    ),
    act("/nodes/{name}/moved", "POST", _PAGE, "{reply.name} may boot there."),
    act("/nodes/{name}/quarantine", "POST", _PAGE, "{reply.name} is out of service.", body=_aside),
    act("/nodes/{name}/restore", "POST", _PAGE, "{reply.name} is back."),
    act(
        "/nodes/{name}/delete",
        f"DELETE {_PAGE}",
        _PAGE,
        "{ask.names.name} is deleted.",
        then=to("/nodes"),
    ),
    act("/nodes/{name}/retire", "POST", _PAGE, "{reply.name} is no longer part of the site."),
)
