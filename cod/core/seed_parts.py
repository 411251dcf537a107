"""What each subject of COD adds to the seed of a node, and to what the metadata service tells that node."""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import Assignment, Node, Site
from cod.policy.nodes import seed
from cod.policy.people import sshkeys as policy
from cod.store.engine import Tx
from cod.store.people import sshkeys
from cod.store.scheduler import vclusters


def parts(tx: Tx, node: Node, wanted: Assignment, site: Site) -> Sequence[seed.SeedPart]:
    """Return the parts for a node that is held as `wanted` says. A subject adds its part to this list."""
    vcluster = vclusters.get(tx, node.vcluster_id or 0)
    return [
        seed.metadata_service(metadata_url(site, vcluster.subnet if vcluster else None)),
        seed.login_keys(policy.fitting(key.line for _user, key in sshkeys.of_group(tx, wanted.group_id))),
    ]


def metadata_url(site: Site, subnet: str | None) -> str:
    """Return the URL of the metadata service for nodes whose systems have addresses of `subnet`; it ends in /."""
    server = next((each.server for each in site.subnets if each.name == subnet), site.subnets[0].server)
    return f"http://{server}:{site.http_port}/"
