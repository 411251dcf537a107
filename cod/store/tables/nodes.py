"""Machines: what they are, where they are in their lifecycle, their addresses, agents and power."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
)

from cod.store.tables.base import Document, FullName, Id, Mac, Name, Time, table

node_types = table(
    "node_types",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column(
        "digest",
        String(64),
        nullable=False,
        unique=True,
        comment="BLAKE2b-256 of the canonical attributes, hex",
    ),
    Column(
        "attributes",
        Document,
        nullable=False,
        comment="canonical attributes (XML) that make the type",
    ),
    Column(
        "cost",
        Double,
        nullable=False,
        default=1.0,
        comment="set by the administrator; cheaper types go first",
    ),
    Column("created_at", Time, nullable=False),
    Column(
        "warm_low",
        Integer,
        comment="fewer free nodes than this awake: some are woken; null: the site's",
    ),
    Column(
        "warm_high",
        Integer,
        comment="more than this awake and idle: some are put to sleep; null: the site's",
    ),
    Column("watts_off", Double, comment="of one node, asleep; null: the site's"),
    Column("watts_idle", Double, comment="awake, in the trampoline; null: the site's"),
    Column("watts_busy", Double, comment="in use; null: the site's"),
    Column(
        "turnaround",
        Double,
        comment="seconds until nodes that are given back are free again, as learnt; null: unknown",
    ),
    comment="Equivalence classes of nodes under 'equal'. Requests match types, never single nodes.",
)

node_blocks = table(
    "node_blocks",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    comment="Nodes that are near each other on the network, as the administrator groups them.",
)

nodes = table(
    "nodes",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True, comment="the site's name for the machine"),
    Column("state", String(16), nullable=False, comment="see cod/states.py"),
    Column("since", Time, nullable=False, comment="when it entered that state"),
    Column(
        "generation",
        Integer,
        nullable=False,
        default=0,
        comment="+1 at each transition; fences late effects",
    ),
    Column("deadline", Time, comment="when 'timed_out' happens; null in stable states"),
    Column(
        "attempts",
        Integer,
        nullable=False,
        default=0,
        comment="failures on this way; reset on arrival",
    ),
    Column(
        "reason",
        Text,
        nullable=False,
        default="",
        comment="the last trouble, readable; shown with quarantine",
    ),
    Column("boot_mac", Mac, nullable=False, comment="the NIC it network-boots from"),
    Column("uuid", String(36), comment="DMI UUID, joins its NICs; null when absent or known-bogus"),
    Column("firmware", String(8), comment="bios or uefi, as reported (or seen in option 93)"),
    Column("type_id", Id, ForeignKey("node_types.id")),
    Column("block_id", Id, ForeignKey("node_blocks.id")),
    Column("subnet", Name, comment="the site's subnet that it last reported from"),
    Column(
        "relay",
        String(15),
        comment="the DHCP relay that it was last heard through (giaddr); null: none",
    ),
    Column(
        "circuit",
        String(160),
        comment="option 82 circuit id that a relay or switch put in, hex: its switch port",
    ),
    Column("remote", String(160), comment="option 82 remote id, hex: its switch"),
    Column("attributes", Document, comment="the last hardware report (XML)"),
    Column("reported_at", Time, comment="when"),
    Column("last_seen", Time, comment="last sign of life, written in batches"),
    Column(
        "disk",
        String(8),
        nullable=False,
        comment="foreign, dirty, clean or cached: see states.Disk",
    ),
    Column(
        "cached_template_id",
        Id,
        ForeignKey("config_templates.id"),
        comment="what a cached disk holds",
    ),
    Column("cached_group_id", Id, ForeignKey("groups.id"), comment="for whom"),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), comment="holder; null: nobody"),
    Column(
        "request_id",
        Id,
        ForeignKey("node_requests.id"),
        index=True,
        comment="the request that it was granted for",
    ),
    Column(
        "position",
        Integer,
        comment="of the tuple of that request that it was granted for; null: not known",
    ),
    Column(
        "template_id",
        Id,
        ForeignKey("config_templates.id"),
        comment="what it is to run for its holder",
    ),
    Column("hostname", Name, comment="its name in its vcluster"),
    Column("assigned_at", Time, comment="start of its immunity (scheduling inertia)"),
    Column(
        "released",
        Id,
        nullable=False,
        default=0,
        comment="vcluster it comes back from, not yet clean; 0: none",
    ),
    Column(
        "progress_done",
        BigInteger,
        nullable=False,
        default=0,
        comment="bytes of the running wipe, prime, capture",
    ),
    Column("progress_total", BigInteger, nullable=False, default=0),
    Column(
        "progress_rate", Double, nullable=False, default=0.0, comment="bytes per second, recent"
    ),
    Column(
        "progress_phase",
        String(16),
        nullable=False,
        default="",
        server_default="",
        comment="of which step these are, as its agent calls it: wipe, write, verify …",
    ),
    Column(
        "power",
        String(8),
        nullable=False,
        default="unknown",
        comment="on, off or unknown, as last verified",
    ),
    Column(
        "power_driver",
        String(16),
        nullable=False,
        default="none",
        comment="none, lab, ipmi, redfish, wol, pdu",
    ),
    Column(
        "power_address",
        String(200),
        nullable=False,
        default="",
        comment="the driver's address of this node",
    ),
    Column(
        "power_account",
        Name,
        comment="the site file's account to sign in to its BMC with; null: none",
    ),
    Column(
        "keep",
        String(1000),
        nullable=False,
        default="",
        comment=(
            "its disks that are never written, as marks with newlines between: see policy/keep.py"
        ),
    ),
    Column(
        "waits_for",
        String(80),
        nullable=False,
        default="",
        server_default="",
        comment="part of the site that is down and that it needs to go on; '': none",
    ),
    Column("waits_since", Time, comment="null: it does not"),
    Column(
        "boot_unordered",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="it was reset or switched on by nobody's order, which nothing has confirmed yet",
    ),
    Column("home_at", Time, comment="when the place below was remembered; null: it was not yet"),
    Column("home_subnet", Name, comment="where it boots: subnet, which its relay stands for"),
    Column("home_circuit", String(160), comment="where it boots: circuit id; null: not told"),
    Column("home_remote", String(160), comment="where it boots: remote id; null: not told"),
    Column("home_port", String(200), comment="where it boots: SWITCH PORT by LLDP; null: not told"),
    Column("power_seen_at", Time, comment="when its power driver last told `power`; null: never"),
    Column(
        "wipe",
        String(8),
        nullable=False,
        default="",
        server_default="",
        comment=(
            "tables, zero or purge: in wipe, how its disks are being erased; else how at least they"
            " are to be next, by those that held it; '': they say nothing"
        ),
    ),
    Column("watts", Double, comment="as last measured by its BMC; null: never"),
    Column("power_wanted", String(8), comment="on, off or cycle: the newest wish"),
    Column("power_seq", Integer, nullable=False, default=0, comment="+1 with each wish"),
    Column("boot_served_at", Time, comment="in boot: when its final boot decision was served"),
    Column(
        "disk_signature",
        BigInteger,
        comment="of the disk that was primed, by which a BIOS boots it; null: none",
    ),
    Index(None, "state", "deadline", "power_wanted"),  # overdue nodes; nodes that are waking
    # Covers the manager's counts, so that counting a hundred thousand nodes never reads their wide
    # rows.
    Index(
        "ix_nodes_census",
        "vcluster_id",
        "released",
        "state",
        "type_id",
        "block_id",
        "subnet",
        "disk",
        "cached_template_id",
        "cached_group_id",
        "power_driver",
        "since",
        "assigned_at",
    ),
    Index(None, "type_id", "state"),
    Index(None, "waits_for"),  # the few that wait
    comment="Physical machines.",
)

nics = table(
    "nics",
    Column("mac", Mac, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False, index=True),
    comment=(
        "MACs key nodes: whatever a machine says on the wire is traced to its node by this table."
    ),
)

node_history = table(
    "node_history",
    Column("id", Id, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False),
    Column("at", Time, nullable=False),
    Column("event", String(16), nullable=False),
    Column("from_state", String(16)),
    Column("to_state", String(16), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("vcluster_id", Id, comment="holder after the transition"),
    Column("cause", Text, nullable=False, comment="why, readable"),
    Column(
        "actor",
        String(80),
        nullable=False,
        comment="who: agent, dhcp, manager, deadline, user:NAME …",
    ),
    Column("bytes_written", BigInteger, comment="leaving prime: bytes written to disk"),
    Column("rate", Double, comment="leaving prime: mean bytes per second"),
    Column(
        "erased",
        Document,
        comment=(
            "leaving wipe, prime: how disks were erased (JSON, orders.Erasure); null: none were"
        ),
    ),
    Index(None, "node_id", "id"),
    Index(None, "vcluster_id", "id"),
    Index(None, "at"),
    comment="Every transition of every node.",
)

bindings = table(
    "bindings",
    Column("address", Id, primary_key=True, autoincrement=False, comment="IPv4 as an integer"),
    Column("mac", Mac, comment="null: nobody's (declined)"),
    Column(
        "kind",
        String(8),
        nullable=False,
        comment="boot (firmware, trampoline) or vcluster (the OS)",
    ),
    Column(
        "node_id", Id, ForeignKey("nodes.id"), index=True, comment="null: a machine not known yet"
    ),
    Column("subnet", Name, nullable=False),
    Column("hostname", Name),
    Column(
        "state",
        String(8),
        nullable=False,
        comment="offered, bound, reserved (kept for a node) or declined",
    ),
    Column("expires_at", Time, nullable=False),
    Column("client_id", String(160), comment="option 61, hex; recorded, never a key"),
    Column(
        "xid",
        BigInteger,
        nullable=False,
        default=0,
        comment="of its last exchange: tells a repeat from a boot",
    ),
    Column("acked_at", Time, comment="when that was acknowledged: a DHCPDECLINE counts just after"),
    UniqueConstraint("mac", "kind", "subnet"),
    comment=(
        "Addresses bound by DHCP. The primary key is what makes two holders of one address"
        " impossible."
    ),
)

conflicts = table(
    "conflicts",
    Column("id", Id, primary_key=True),
    Column("at", Time, nullable=False, index=True),
    Column("kind", String(16), nullable=False, comment="declined, exhausted, identity"),
    Column("subnet", Name),
    Column("address", BigInteger),
    Column("mac", Mac, index=True),
    Column("about", Text, nullable=False),
    comment="Address and identity trouble, for the API and the administrator.",
)

node_places = table(
    "node_places",
    Column("id", Id, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False, index=True),
    Column("subnet", Name),
    Column("circuit", String(160), comment="circuit id of option 82; null: none"),
    Column("remote", String(160), comment="remote id of option 82; null: none"),
    Column("port", String(200), comment="SWITCH PORT by LLDP; null: not told"),
    Column("heard_at", Time, nullable=False),
    Column("approved", Boolean, nullable=False, comment="the node may boot there, too"),
    comment="Places where a node's MAC was heard, besides the one that is remembered as its own.",
)

boot_secrets = table(
    "boot_secrets",
    Column("id", String(32), primary_key=True, comment="public name of the secret"),
    Column("mac", Mac, nullable=False, index=True, comment="the machine it was minted for"),
    Column(
        "kind",
        String(8),
        nullable=False,
        comment="boot (once, minutes) or session (until the next boot)",
    ),
    Column("address", String(15), nullable=False, comment="the only address it is valid from"),
    Column("salt", LargeBinary, nullable=False),
    Column("stored_key", LargeBinary, nullable=False, comment="verifies the agent; see wire/confd"),
    Column("server_key", LargeBinary, nullable=False, comment="proves the server; see wire/confd"),
    Column("expires_at", Time, nullable=False, index=True),
    comment=(
        "Verifiers of the secrets that machines boot with. The secrets themselves are not kept."
    ),
)

sessions = table(
    "sessions",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column(
        "server",
        String(64),
        nullable=False,
        index=True,
        comment="the server that holds the connection",
    ),
    Column(
        "epoch", BigInteger, nullable=False, comment="newest wins; an older connection is closed"
    ),
    Column("address", String(15), nullable=False),
    Column("connected_at", Time, nullable=False),
    Column(
        "last_seen",
        Time,
        nullable=False,
        comment="when its server last said that it still holds it",
    ),
    Column(
        "reported",
        Boolean,
        nullable=False,
        default=False,
        comment="its agent has reported: it gets orders",
    ),
    Column(
        "order_sent",
        String(40),
        nullable=False,
        default="",
        comment="id of the last order sent on it",
    ),
    comment="Open agent connections.",
)

power_actions = table(
    "power_actions",
    Column("id", Id, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False, index=True),
    Column("generation", Integer, nullable=False, comment="dropped when the node has moved on"),
    Column("desired", String(8), nullable=False, comment="on, off or cycle"),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_at", Time, nullable=False, index=True, comment="when to try"),
    Column("claimed_by", String(64)),
    Column("claim_expires", Time),
    Column("done_at", Time, index=True, comment="set: finished, dropped or given up (see error)"),
    Column("error", Text, nullable=False, default=""),
    Column("wished_at", Time, nullable=False, default=0.0, server_default="0"),
    Column(
        "stage",
        Integer,
        nullable=False,
        default=0,
        server_default="0",
        comment="commands that were accepted and did not show: a stronger one is next",
    ),
    comment=(
        "Power as desired state. Run at least once; dropped when the node has a new generation."
    ),
)

host_keys = table(
    "host_keys",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("algorithm", String(32), primary_key=True, comment="ssh-ed25519"),
    Column("key", String(300), nullable=False, comment="the public part, base64"),
    Column("order_id", String(40), nullable=False, comment="of the installation that writes it"),
    Column(
        "salt",
        String(64),
        nullable=False,
        comment=(
            "of the private part, with the site's secret; '' once that is "
            "written: nobody but the node has it then"
        ),
    ),
    Column("made_at", Time, nullable=False),
    comment=(
        "SSH host keys of nodes that hold what was installed with them. The private parts are not"
        " kept."
    ),
)

captures = table(
    "captures",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("image", FullName, nullable=False, comment="full name of the image to be"),
    Column(
        "template",
        FullName,
        nullable=False,
        default="",
        comment="full name of the template to be; '': none",
    ),
    Column(
        "group_id",
        Id,
        ForeignKey("groups.id"),
        index=True,
        comment="owner of both; null: the site's",
    ),
    Column(
        "source_id",
        Id,
        ForeignKey("config_templates.id"),
        index=True,
        comment="template that the disk was written by; null: nobody knows",
    ),
    Column("state", String(16), nullable=False, index=True, comment="see states.CaptureState"),
    Column(
        "generation",
        Integer,
        nullable=False,
        default=0,
        comment="of the node's capture state; 0: not there yet",
    ),
    Column(
        "secret",
        String(64),
        nullable=False,
        default="",
        comment="of the stream, hex; '' once it is over",
    ),
    Column(
        "digest",
        String(64),
        nullable=False,
        default="",
        comment="BLAKE2b-256 of the manifest, once it is known",
    ),
    Column("actor", String(80), nullable=False),
    Column("asked_at", Time, nullable=False),
    Column("ended_at", Time),
    Column(
        "reason",
        Text,
        nullable=False,
        default="",
        comment="why it failed, or what went wrong on the way",
    ),
    Column(
        "what",
        String(8),
        nullable=False,
        default="",
        server_default="",
        comment="map, or a partition's number; '': the whole disk",
    ),
    comment="The newest capture of each node's disk into an image.",
)

node_failures = table(
    "node_failures",
    Column("id", Id, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False, index=True),
    Column(
        "template_id",
        Id,
        ForeignKey("config_templates.id"),
        index=True,
        comment="that its holder wanted on it; null: the revision has had a success since",
    ),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False, index=True),
    Column(
        "set_aside",
        Boolean,
        nullable=False,
        comment="it is in quarantine for it, and no administrator has looked at it",
    ),
    Column("reason", Text, nullable=False),
    Column("at", Time, nullable=False),
    comment="Failures on the way to a holder that count against a template or a group.",
)

burnins = table(
    "burnins",
    Column("id", Id, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False),
    Column("state", String(16), nullable=False, comment="see states.BurninState"),
    Column(
        "cause",
        String(200),
        nullable=False,
        comment="why it was asked for: on demand, new machine …",
    ),
    Column(
        "tests", String(40), nullable=False, comment="memory, disk, network, with commas between"
    ),
    Column("seconds", Integer, nullable=False, comment="for all tests together"),
    Column(
        "erase",
        Boolean,
        nullable=False,
        comment="disks that are not clean are erased before, and so tested by writing",
    ),
    Column(
        "secret",
        String(64),
        nullable=False,
        default="",
        comment="hex; opens its agent's port for a neighbour",
    ),
    Column(
        "generation",
        Integer,
        nullable=False,
        default=0,
        comment="of the node's burnin state; 0: not there yet",
    ),
    Column("actor", String(80), nullable=False),
    Column("asked_at", Time, nullable=False),
    Column("started_at", Time, comment="of the newest attempt"),
    Column("ended_at", Time),
    Column(
        "reason",
        Text,
        nullable=False,
        default="",
        comment="why it failed, or what went wrong on the way",
    ),
    Column(
        "results",
        Document,
        nullable=False,
        default="[]",
        comment="JSON: the tests' results, see orders.TestResult",
    ),
    Index("ix_burnins_node_id_id", "node_id", "id"),
    Index("ix_burnins_state", "state"),
    comment="Tests of nodes: the one that is open, and those that are over.",
)
