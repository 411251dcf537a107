"""A node's metadata: data about itself and its vcluster, for the metadata service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

METADATA_ADDRESS = "169.254.169.254"
"""The address at which images expect a metadata service, on port 80."""


@dataclass(frozen=True, slots=True)
class LoginKey:
    """A public SSH key (a line of authorized_keys) and the name of the user whose key it is."""

    user: str
    line: str


@dataclass(frozen=True, slots=True)
class PeerNode:
    """A node of the same vcluster: host name and address of its system, and the node's state."""

    hostname: str
    address: str
    state: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """A node's metadata at one moment.

    instance      instance id: changes whenever the node is primed; the same as in its seed
    name          the machine's name at the site
    hostname      its name in its vcluster
    fqdn          its host name with the domain
    network       network of its address; '': the site file has none for it
    servers       COD's addresses in this network, the address of the answering server first
    template      template with its revision, 'web@3'
    started       when the node was assigned to the vcluster
    ends          when the node leaves the vcluster: the end of the lease or of its grace, or, if
                  earlier, the deadline of a reclaim of the node, or the time promised by the VCM;
                  None: unknown
    leaving       whether the node is about to leave: the lease has ended, or a reclaim takes it
    cpus, memory  from the machine's report, memory in MiB; 0: not reported
    keys          present keys of the group's owners and members
    documents     the files of cloud-init, by name: meta-data, user-data, network-config and, if
                  there is any, vendor-data
    """

    instance: str
    name: str
    hostname: str
    fqdn: str
    mac: str
    address: str
    network: str
    servers: tuple[str, ...]
    site: str
    node_type: str
    block: str
    vcluster: str
    vcluster_id: int
    domain: str
    group: str
    template: str
    started: float | None
    ends: float | None
    leaving: bool
    cpus: int = 0
    memory: int = 0
    user_data: str = ""
    keys: tuple[LoginKey, ...] = ()
    documents: Mapping[str, str] = field(default_factory=dict)
