"""What each subject of COD adds to the seed of a node, and to what the metadata service tells that node."""

from __future__ import annotations

from collections.abc import Sequence

from cod.core import isolation
from cod.model import Assignment, Node, Site, Vcluster
from cod.policy.nodes import seed
from cod.policy.people import sshkeys as policy
from cod.store.engine import Tx
from cod.store.people import sshkeys
from cod.store.scheduler import vclusters


def parts(tx: Tx, node: Node, wanted: Assignment, site: Site) -> Sequence[seed.SeedPart]:
    """Return the parts for a node that is held as `wanted` says. A subject adds its part to this list."""
    vcluster = vclusters.get(tx, node.vcluster_id or 0)
    return [
        seed.metadata_service(metadata_url(tx, vcluster, site)),
        seed.login_keys(policy.fitting(key.line for _user, key in sshkeys.of_group(tx, wanted.group_id))),
    ]


def metadata_url(tx: Tx, vcluster: Vcluster | None, site: Site) -> str:
    """Return the URL of the metadata service for the systems of a vcluster's nodes; it ends in /."""
    own = isolation.server(tx, vcluster.id) if vcluster and vcluster.isolated else None
    subnet = next((each for each in site.subnets if vcluster and each.name == vcluster.subnet), site.subnets[0])
    return f"http://{own or subnet.server}:{site.http_port}/"
