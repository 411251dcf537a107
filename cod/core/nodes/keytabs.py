"""Nodes that are primed with a keytab, and those whose keytab is not made yet."""

from __future__ import annotations

from contextlib import suppress

from cod.model import Keytab, PrimingNode, Refused, Site
from cod.policy.nodes import template
from cod.policy.people import kerberos
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import host_keys


def wanted(tx: Tx, site: Site) -> list[tuple[PrimingNode, Keytab | None]]:
    """Return the nodes that are being primed with a keytab, each with the row of its host."""
    if not (site.kerberos.realm and site.kerberos.keytab_command):
        return []
    priming = host_keys.priming(tx, site.domain)
    documents = templates.documents(tx, {one.template_id for one in priming})
    asking = set()
    for template_id, document in documents.items():
        with suppress(Refused):  # the order with such a template fails, and tells the reason
            if kerberos.has_keytab(site.kerberos, template.parse(document)):
                asking.add(template_id)
    found = [one for one in priming if one.template_id in asking]
    rows = {row.host: row for row in host_keys.keytabs(tx, [one.host for one in found])}
    return [(one, rows.get(one.host)) for one in found]


def is_there(node: PrimingNode, row: Keytab | None) -> bool:
    """Return whether the node's keytab is made for its present order."""
    return row is not None and row.order_id == node.order_id and row.sealed is not None


def awaiting(tx: Tx, site: Site) -> set[int]:
    """Return the ids of the nodes whose order waits for their keytab."""
    return {node.node_id for node, row in wanted(tx, site) if not is_there(node, row)}
