"""The image server's question about rights: may a client at an address have an image?

A node may fetch the images of the template that it runs or will run for its holder: those that its
order writes to disk, and those that it boots from without a disk. The node is recognised by the
address that DHCP has given to one of its NICs, for its firmware, its trampoline or its system. An
image's digest is no secret: it gives no access to the image."""

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
    except Refused:  # such a template cannot be carried out, either
        return False
    # All images that a bare name may mean: its meaning may change while the node still writes the
    # image that its order named.
    wanted = (
        {full for name in names for full in possible_names(name, owner_of(row.name))}
        if row
        else set()
    )
    return any(
        image.digest == digest and image.state == "ready"
        for image in images.named(tx, wanted).values()
    )
