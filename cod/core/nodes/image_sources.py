"""The part of prime orders by which nodes pass images on to each other (docs/images)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cod.model import ChunkKeys, ImageReceiver, Site
from cod.orders import ChunkSource, ImageSource, Order, PassOn
from cod.policy import image_chains
from cod.store.engine import Tx
from cod.store.nodes import sessions


def appoint(
    tx: Tx, orders: Sequence[tuple[int, int, Order]], site: Site, keys: ChunkKeys, now: float
) -> list[tuple[int, int, Order]]:
    """Return the orders, given as (node id, epoch, order). Prime orders get the nodes from which to
    fetch images, and the key and port with which to pass images on."""
    primed = [node_id for node_id, _, order in orders if order.action == "prime"]
    receivers = sessions.image_receivers(tx, primed)
    above = image_chains.chains(receivers)
    addresses = {each.node_id: each.address for each in receivers}
    return [
        (
            node_id,
            epoch,
            _with_sources(order, above[node_id], addresses[node_id], site, keys, now)
            if order.action == "prime" and node_id in above
            else order,
        )
        for node_id, epoch, order in orders
    ]


def _with_sources(
    order: Order,
    above: Sequence[ImageReceiver],
    address: str,
    site: Site,
    keys: ChunkKeys,
    now: float,
) -> Order:
    if not any(image.compression == "chunks" for image in order.images):
        return order
    expires = int(now + image_chains.TOKEN_LASTS)

    def sources(image: ImageSource) -> tuple[ChunkSource, ...]:
        return tuple(
            ChunkSource(
                f"http://{each.address}:{image_chains.PORT}",
                keys.token(keys.key(each.order_id), image.digest, address, expires),
                each.name,
            )
            for each in above
        )

    return replace(
        order,
        images=tuple(
            replace(image, sources=sources(image)) if image.compression == "chunks" else image
            for image in order.images
        ),
        pass_on=PassOn(
            image_chains.PORT,
            keys.key(order.id),
            site.images.pass_on_rate,
            image_chains.LINGER,
            now,
        ),
    )
