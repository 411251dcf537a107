"""The subnet that the nodes of a new vcluster come from."""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import RequestTuple, Site, Subnet
from cod.policy.scheduler import whatif
from cod.policy.scheduler.feasibility import lacking
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import types
from cod.store.scheduler import address_blocks, node_counts


def choose(
    tx: Tx,
    site: Site,
    tuples: Sequence[RequestTuple],
    *,
    isolated: bool,
) -> Subnet:
    """Return the best subnet for a request for a new vcluster, among subnets that have addresses
    for its nodes. Criteria, in this order: enough matching nodes, free or held; enough free
    addresses; the most matching nodes; the most nodes.

    An isolated vcluster has its own addresses, and only nodes with usable switch ports match it. If
    no subnet has enough addresses, the best of all subnets is returned. The template 0 has no
    requirements."""
    if len(site.subnets) == 1:
        return site.subnets[0]
    documents = {0: whatif.ANYTHING} | templates.for_matching(
        tx, {one.template_id for one in tuples}
    )
    size = sum(one.count for one in tuples)
    counts = node_counts.by_subnet(tx, usable=isolated)
    known = node_counts.by_subnet(tx)
    attributes = {kind.id: kind.attributes for kind in types.every(tx)}

    def matching(subnet: Subnet, one: RequestTuple) -> int:
        return sum(
            count
            for type_id, count in counts.get(subnet.name, {}).items()
            if type_id in attributes
            and not lacking(one.attributes, documents[one.template_id], attributes[type_id])
        )

    def merit(subnet: Subnet) -> tuple[bool, bool, int, int]:
        found = [matching(subnet, one) for one in tuples]
        return (
            all(count >= one.count for count, one in zip(found, tuples, strict=True)),
            isolated or address_blocks.free_room(tx, subnet) >= size,
            sum(found),
            sum(known.get(subnet.name, {}).values()),
        )

    roomy = [one for one in site.subnets if isolated or one.room >= size]
    return max(roomy or site.subnets, key=merit)
