"""SSH host keys of nodes, for SSH clients."""

from __future__ import annotations

from cod.model import Site, dotted
from cod.policy.dns import full_name
from cod.policy.nodes import host_keys as policy
from cod.store import views
from cod.store.engine import Tx
from cod.store.nodes import dns_names, host_keys


def known_hosts(tx: Tx, *, name: str, site: Site) -> list[str]:
    """Return lines of a known_hosts file with the nodes of a vcluster, by their full names and addresses. A vcluster
    that has ended has none."""
    found = views.vclusters(tx, name=name)
    if not found:
        return []
    vcluster = found[0].vcluster
    hosts = dns_names.of_vcluster(tx, vcluster.id)
    keys = host_keys.of_nodes(tx, [host.node_id for host in hosts.values()])
    return [line for hostname, host in hosts.items()
            for line in policy.known_hosts([full_name(hostname, vcluster.name, site), dotted(host.address)],
                                           keys.get(host.node_id, ()))]
