"""Answers of the metadata service: facts about the node that asks, and about its peers.

The client's address decides the answer. The service describes only the node that DHCP has reserved
this address for, and only while the node runs its own system. A machine in its firmware or in the
trampoline has an address of a boot pool, and gets no metadata. The answer is current: it contains
SSH keys that were added after the node was primed.
"""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from cod.core import seed_parts
from cod.model import LoginKey, Metadata, PeerNode, Refused, Site, dotted
from cod.policy.nodes import seed, template
from cod.store.engine import Tx
from cod.store.nodes import metadata as rows
from cod.store.people import sshkeys
from cod.store.scheduler import vclusters


def of(tx: Tx, *, address: str, site: Site) -> Metadata | None:
    """Return the metadata for the node whose system has that address; None where no node's system
    has it. Reads only."""
    found = rows.at(tx, address)
    if found is None:
        return None
    node, wanted, domain = found.node, found.wanted, f"{found.vcluster}.{site.domain}"
    try:
        configuration = template.parse(wanted.document)
    except Refused:  # such a template cannot be carried out, so there is nothing to describe
        return None
    if configuration.secret:
        configuration = replace(configuration, user_data="")
    instance = f"{node.id}.{found.primed or node.generation}"
    fqdn = f"{node.hostname or node.name}.{domain}"
    vcluster = vclusters.get(tx, node.vcluster_id or 0)
    subnet = seed_parts.system_subnet(tx, vcluster, site)
    keys = sshkeys.of_group(tx, wanted.group_id)
    parts = seed_parts.parts(vcluster, subnet, wanted, keys, site)
    times = [at for at in (found.drain_until or found.expires_at, found.taken_at) if at is not None]
    report = ElementTree.fromstring(node.attributes) if node.attributes else None
    return Metadata(
        instance=instance,
        name=node.name,
        hostname=node.hostname or node.name,
        fqdn=fqdn,
        mac=found.mac,
        address=address,
        network=subnet.network if subnet.name == found.subnet else "",
        servers=subnet.servers,
        site=site.name,
        node_type=found.node_type,
        block=found.block,
        vcluster=found.vcluster,
        vcluster_id=node.vcluster_id or 0,
        domain=domain,
        group=found.group,
        template=f"{wanted.name}@{found.revision}",
        started=node.assigned_at,
        ends=min(times, default=None),
        leaving=found.drain_until is not None or found.taken_at is not None,
        cpus=_number(report, "cpu", "count"),
        memory=_number(report, "memory", "mib"),
        user_data=configuration.user_data,
        keys=tuple(LoginKey(user, key.line) for user, key in keys),
        documents=seed.documents(
            configuration,
            instance=instance,
            fqdn=fqdn,
            mac=found.mac,
            parts=[part for part in parts if not part.secret],
        ),
    )


def peers(tx: Tx, *, vcluster_id: int) -> list[PeerNode]:
    """Return all nodes of the vcluster, including the asking node, by address. Reads only."""
    return [
        PeerNode(hostname, dotted(address), state)
        for hostname, address, state in rows.peers(tx, vcluster_id)
    ]


def _number(report: ElementTree.Element | None, part: str, attribute: str) -> int:
    found = report.find(part) if report is not None else None
    return int(found.get(attribute, "0")) if found is not None else 0
