"""SSH host keys of nodes, for SSH clients."""

from __future__ import annotations

from cod.model import Site, dotted
from cod.policy import vcluster_names as names_policy
from cod.policy.dns import full_name
from cod.policy.nodes import host_keys as policy
from cod.store import views
from cod.store.engine import Tx
from cod.store.nodes import dns_names, host_keys
from cod.store.scheduler import vcluster_names


def known_hosts(tx: Tx, *, name: str, site: Site) -> list[str]:
    """Return the lines of a known_hosts file for the nodes of a vcluster, with their full names,
    their aliases and their addresses; none for a vcluster that has ended."""
    vcluster = views.vcluster(tx, name).vcluster
    hosts = dns_names.of_vcluster(tx, vcluster.id)
    keys = host_keys.of_nodes(tx, [host.node_id for host in hosts.values()])
    known = vcluster_names.of(tx, vcluster.id)
    names = {hostname: [hostname] for hostname in hosts}
    for name in known:
        last = names_policy.follow(name, known)[-1]
        if not last.external and last.target in hosts:
            names[last.target].append(name)
    return [
        line
        for hostname, host in hosts.items()
        for line in policy.known_hosts(
            [
                *(full_name(one, vcluster.name, site) for one in names[hostname]),
                dotted(host.address),
            ],
            keys.get(host.node_id, ()),
        )
    ]
