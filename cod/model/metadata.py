"""A node's metadata: of itself and of its vcluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

METADATA_ADDRESS = "169.254.169.254"
"""Where images expect a metadata service, on port 80."""


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
    """A node's metadata, as of one moment.

    instance      changes whenever the node is primed anew; the same as in its seed
    name          the machine's name at the site; `hostname`: its name in its vcluster; `fqdn`: that
                  with the domain
    network       of its address, '' where the site file has none; `servers`: COD's addresses there,
                  that of the one that answers first
    template      with its revision, 'web@3'
    started       when the node was given to the vcluster
    ends          when the node goes back, as far as that is known: the end of the lease or of its
                  grace or, where that is earlier, the deadline of a reclaim that takes it, or the
                  time that was promised; None: not known
    leaving       the node is on its way back: the lease has ended, or a reclaim takes it
    cpus, memory  of the machine's report, memory in MiB; 0 where that does not say
    keys          of the group's owners and members, as of now
    documents     cloud-init's: meta-data, user-data, network-config and, where there is any,
                  vendor-data
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
