"""Which networks of isolated vclusters there are, for the services that the server runs in them."""

from __future__ import annotations

from cod.core.networks import isolation
from cod.model import Site, Subnet
from cod.store.engine import Tx


def networks(tx: Tx, site: Site) -> list[Subnet]:
    """Return the networks of all isolated vclusters that have not ended, by VLAN."""
    return isolation.subnets(tx, site)
