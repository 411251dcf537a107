"""The page that asks for confirmation before an action on many nodes: it shows how many there are,
and whose work stops."""

from __future__ import annotations

import re
from typing import Any

from cod.choices import NodeAction, PowerDriverKind, PowerVerb
from cod.flows.nodes import blocks, nodes
from cod.pool import Tx
from cod.web.api import pci_names
from cod.web.api.routes import ADMINS, Names
from cod.web.http.errors import HttpProblem
from cod.web.portal.formatting import outcomes
from cod.web.portal.forms import Fields, moment_in
from cod.web.portal.page import Page, PageCall, act

CHOICES = (
    ("approve", "Approve"),
    ("power on", "Power on"),
    ("power soft", "Shut down systems"),
    ("power cycle", "Power-cycle"),
    ("power off", "Power off"),
    ("quarantine", "Take out of service"),
    ("restore", "Return to service"),
    ("burnin", "Burn in"),
    ("change", "Put into a block"),
    ("change power", "Change the type of power"),
    ("tag", "Tag"),
    ("untag", "Take tags away"),
    ("rename", "Rename"),
    ("moved", "Confirm move"),
    ("retire", "Retire"),
)
"""Actions as the form names them, with the power verb, and what buttons say."""
_NOTHING = {"block": None}  # a change that leaves the block as it is
_PATH = "/node-actions"


def _waiting(tx: Tx, ask: PageCall[Names]) -> dict[str, Any]:
    racks, total = blocks.new_machines(tx)
    names = pci_names.installed()
    phrases = {
        one.view.node.name: nodes.phrase(one.view.node, names.short)
        for rack in racks
        for one in rack.machines
    }
    return {"racks": racks, "total": total, "phrases": phrases, "blocks": blocks.names_of(tx)}


def _approval(fields: Fields) -> dict[str, Any]:
    """Return the body that approves machines, names them and puts them into a rack."""
    body = _body(fields)
    if not body["names"]:
        raise HttpProblem(422, "invalid", "No machine is chosen: tick some.", "node")
    block, to = fields.one("block").strip(), fields.one("to").strip()
    more: dict[str, Any] = {"changes": {"block": block}} if block else {}
    return body | more | ({"to": to} if to else {})


def _load(tx: Tx, ask: PageCall[Names]) -> dict[str, Any]:
    drivers = [(each.value, f"{each}: {each.about}") for each in PowerDriverKind]
    accounts = [("", "as it is"), *((each.name, each.name) for each in ask.site.accounts)]
    return {"choices": dict(CHOICES), "drivers": drivers, "accounts": accounts}


def _body(fields: Fields) -> dict[str, Any]:
    """Return the body without the fields that belong to one action."""
    action, _, desired = fields.one("action").partition(" ")
    named = [*fields.all("node"), *filter(None, fields.one("names").split(","))]
    body: dict[str, Any] = {"action": action, "names": named}
    return body | ({"desired": desired} if desired in PowerVerb.names() else {})


def _look(fields: Fields) -> dict[str, Any]:
    """Return the body of the check. Fields that the action needs get placeholders, because the page
    that shows the check asks for them."""
    body = _body(fields)
    if fields.one("all"):
        body |= {"names": [], "where": fields.one("all")}
    match body["action"]:
        case NodeAction.QUARANTINE:
            body["reason"] = "not said yet"
        case NodeAction.CHANGE | NodeAction.RENAME | NodeAction.TAG | NodeAction.UNTAG:
            body |= {"action": str(NodeAction.CHANGE), "changes": _NOTHING}
    if not body["names"] and "where" not in body:
        raise HttpProblem(422, "invalid", "No node is chosen: tick some in the list.")
    return body


def _do(fields: Fields) -> dict[str, Any]:
    """Return the body that carries out the action. Raises `HttpProblem` unless a check box confirms
    that work may stop."""
    body = _body(fields)
    if fields.one("stops") and not fields.one("sure"):
        why = f"tick this: work stops in {fields.one('stops')}"
        raise HttpProblem(422, "invalid", why, "sure", {"sure": why})
    body["stops"] = list(filter(None, fields.one("stops").split(", ")))
    match body["action"]:
        case NodeAction.QUARANTINE:
            body["reason"] = fields.one("reason").strip()
            body["until"] = moment_in(fields, "until")
        case NodeAction.BURNIN:
            body["burnin"] = {"erase": fields.one("erase") == "true"}
        case NodeAction.CHANGE if fields.one("action") == "change power":
            power = {name: fields.one(name) for name in ("power_driver", "power_account")}
            body["changes"] = {name: value for name, value in power.items() if value}
        case NodeAction.CHANGE:
            body["changes"] = {"block": fields.one("block").strip()}
        case NodeAction.RENAME:
            body["to"] = fields.one("to").strip()
        case NodeAction.TAG | NodeAction.UNTAG:
            body["tags"] = re.split(r"[\s,]+", fields.one("tags").strip(" ,"))
    return body


_NEW = "/new-machines"
PAGES = (
    Page(_PATH, "node-actions.html", _load, ADMINS, nav="/nodes"),
    Page(_NEW, "new-machines.html", _waiting, ADMINS, nav="/nodes"),
)
ACTIONS = (
    act(f"{_PATH}/check", "POST /nodes/actions/check", _PATH, again=_PATH, body=_look),
    act(_PATH, "POST /nodes/actions", _PATH, shows="node-actions-done.html", body=_do),
    act(
        _NEW,
        "POST /nodes/actions",
        _NEW,
        lambda ask, reply: f"Approved: {outcomes(reply.items)}.",
        body=_approval,
    ),
)
