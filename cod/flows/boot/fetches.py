"""The image server's question about rights: may a client at an address have an image?

A node may have the images of the template that it runs or will run for its holder: those of its
order, and those that it boots from without a disk. It is known by the address that DHCP has given
to one of its NICs, for its firmware, its trampoline or its system. A digest is no secret: knowing
one opens nothing."""

from __future__ import annotations

from cod.model import Refused, owner_of, possible_names
from cod.policy.nodes import template
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.nodes import bindings, nodes


def may_fetch(tx: Tx, *, address: str, digest: str) -> bool:
    """Return whether the node at that address runs, or is to run, a template that names the image
    with that digest."""
    mac = bindings.mac_at(tx, address)
    node = nodes.by_mac(tx, mac) if mac else None
    if node is None or node.vcluster_id is None or node.template_id is None:
        return False
    row = templates.get(tx, node.template_id)
    try:
        names = template.image_names(template.parse(row.document)) if row else ()
    except Refused:  # it cannot be carried out, either
        return False
    # All that a bare name may stand for: another image may come to be meant while an order's is
    # being written.
    wanted = (
        {full for name in names for full in possible_names(name, owner_of(row.name))}
        if row
        else set()
    )
    return any(
        image.digest == digest and image.state == "ready"
        for image in images.named(tx, wanted).values()
    )
