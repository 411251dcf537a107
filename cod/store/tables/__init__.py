"""Every table, with its theory. The paper's persistent tables keep their names (figure 3), the
transitional ones too.

Times are seconds since the epoch (UTC) in DOUBLE columns, so that SQLite and MariaDB agree to the
bit; IPv4 addresses are integers, so that ranges sort; XML documents are text, already validated.
Nothing outside `cod/store` (and the migrations) names a column in SQL. A change here wants a
migration in `schema/migrations`; a test compares the two.
"""

from __future__ import annotations

from cod.store.tables.base import Time, metadata
from cod.store.tables.images import config_templates, images, install_images, uploads
from cod.store.tables.nodes import (
    bindings,
    boot_secrets,
    burnins,
    captures,
    conflicts,
    host_keys,
    nics,
    node_blocks,
    node_failures,
    node_history,
    node_places,
    node_types,
    nodes,
    power_actions,
    sessions,
)
from cod.store.tables.notices import notice_sends, notices, outbox, vcm_invitations, vcms
from cod.store.tables.people import (
    api_tokens,
    audit,
    group_permissions,
    group_type_limits,
    groups,
    invitations,
    posix_ids,
    replies,
    sign_ins,
    ssh_keys,
    users,
    web_sessions,
)
from cod.store.tables.scheduler import (
    claims,
    dns_zones,
    energy_use,
    marks,
    node_permissions,
    node_requests,
    pool_held,
    pool_states,
    reclaims,
    request_tuples,
    reservations,
    vcluster_blocks,
    vcluster_energy,
    vcluster_history,
    vcluster_names,
    vcluster_networks,
    vclusters,
)
from cod.store.tables.switches import switch_ports, switches
from cod.store.tables.volumes import volume_attachments, volume_snapshots, volumes

__all__ = [
    "Time",
    "api_tokens",
    "audit",
    "bindings",
    "boot_secrets",
    "burnins",
    "captures",
    "claims",
    "config_templates",
    "conflicts",
    "dns_zones",
    "energy_use",
    "group_permissions",
    "group_type_limits",
    "groups",
    "host_keys",
    "images",
    "install_images",
    "invitations",
    "marks",
    "metadata",
    "nics",
    "node_blocks",
    "node_failures",
    "node_history",
    "node_permissions",
    "node_places",
    "node_requests",
    "node_types",
    "nodes",
    "notice_sends",
    "notices",
    "outbox",
    "pool_held",
    "pool_states",
    "posix_ids",
    "power_actions",
    "reclaims",
    "replies",
    "request_tuples",
    "reservations",
    "sessions",
    "sign_ins",
    "ssh_keys",
    "switch_ports",
    "switches",
    "uploads",
    "users",
    "vcluster_blocks",
    "vcluster_energy",
    "vcluster_history",
    "vcluster_names",
    "vcluster_networks",
    "vclusters",
    "vcm_invitations",
    "vcms",
    "volume_attachments",
    "volume_snapshots",
    "volumes",
    "web_sessions",
]
