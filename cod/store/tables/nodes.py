"""Tables of nodes: their hardware, their states, addresses, agents and power."""

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
)

from cod.choices import PowerDriverKind
from cod.store.tables.base import (
    Document,
    FullName,
    Id,
    Mac,
    Name,
    Time,
    defaulted,
    not_null,
    table,
)

TAGS = 600  # characters of a node's tags

node_types = table(
    "node_types",
    Column("id", Id, primary_key=True),
    not_null("name", Name, unique=True),
    not_null(
        "digest", String(64), unique=True, comment="BLAKE2b-256 of the canonical attributes, hex"
    ),
    not_null("attributes", Document, comment="canonical attributes (XML) that make the type"),
    Column(
        "product",
        String(64),
        index=True,
        comment="BLAKE2b-256 of its element with vendor and product, hex; null: it names none",
    ),
    not_null(
        "cost", Double, default=1.0, comment="set by the administrator; cheaper types go first"
    ),
    not_null("created_at", Time),
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
    not_null("name", Name, unique=True),
    comment="Nodes that are near each other on the network, as the administrator groups them.",
)

nodes = table(
    "nodes",
    Column("id", Id, primary_key=True),
    not_null("name", Name, unique=True, comment="the site's name for the machine"),
    not_null("state", String(16), comment="see cod/states.py"),
    not_null("since", Time, comment="when it entered that state"),
    not_null(
        "generation", Integer, default=0, comment="+1 at each transition; fences late effects"
    ),
    Column("deadline", Time, comment="when 'timed_out' happens; null in stable states"),
    not_null("attempts", Integer, default=0, comment="failures on this way; reset on arrival"),
    not_null(
        "reason", Text, default="", comment="the last trouble, readable; shown with quarantine"
    ),
    # '' where the MAC of an expected machine is not known
    not_null("boot_mac", Mac, comment="the NIC it network-boots from"),
    Column(
        "uuid",
        String(36),
        index=True,
        comment="DMI UUID, joins its NICs; null when absent or known-bogus",
    ),
    Column(
        "serial",
        String(64),
        index=True,
        comment="of the system, as reported or as an administrator expects it; null: not known",
    ),
    Column("firmware", String(8), comment="bios or uefi, as reported (or seen in option 93)"),
    Column("type_id", Id, ForeignKey("node_types.id")),
    Column("block_id", Id, ForeignKey("node_blocks.id")),
    Column("rack_position", String(16), comment="in its rack: '17'; null: not known"),
    defaulted(
        "tags",
        String(TAGS),
        "",
        index=True,
        comment="an administrator's words for it, each between spaces: ' gpu old '; '': none",
    ),
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
    not_null("disk", String(8), comment="foreign, dirty, clean or cached: see states.Disk"),
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
    Column("hostname", Name, index=True, comment="its name in its vcluster"),
    Column("assigned_at", Time, comment="start of its immunity (scheduling inertia)"),
    not_null(
        "released", Id, default=0, comment="vcluster it comes back from, not yet clean; 0: none"
    ),
    not_null(
        "progress_done", BigInteger, default=0, comment="bytes of the running wipe, prime, capture"
    ),
    not_null("progress_total", BigInteger, default=0),
    not_null("progress_rate", Double, default=0.0, comment="bytes per second, recent"),
    defaulted(
        "progress_phase",
        String(16),
        "",
        comment="of which step these are, as its agent calls it: wipe, write, verify …",
    ),
    defaulted(
        "progress_source",
        Name,
        "",
        comment="where the image comes from: a node's name, or 'the server'; empty: not told",
    ),
    not_null("power", String(8), default="unknown", comment="on, off or unknown, as last verified"),
    not_null("power_driver", String(16), default="none", comment=", ".join(PowerDriverKind)),
    not_null(
        "power_address",
        String(200),
        default="",
        index=True,
        comment="the driver's address of this node",
    ),
    Column(
        "power_account",
        Name,
        comment="the site file's account to sign in to its BMC with; null: none",
    ),
    defaulted(
        "keep",
        String(1000),
        "",
        comment=(
            "its disks that are never written, as marks with newlines between: see policy/keep.py"
        ),
    ),
    defaulted(
        "waits_for",
        String(80),
        "",
        comment="part of the site that is down and that it needs to go on; '': none",
    ),
    Column("waits_since", Time, comment="null: it does not"),
    defaulted(
        "boot_unordered",
        Boolean,
        False,
        comment="it was reset or switched on by nobody's order, which nothing has confirmed yet",
    ),
    Column("home_at", Time, comment="when the place below was remembered; null: it was not yet"),
    Column("home_subnet", Name, comment="where it boots: subnet, which its relay stands for"),
    Column("home_circuit", String(160), comment="where it boots: circuit id; null: not told"),
    Column("home_remote", String(160), comment="where it boots: remote id; null: not told"),
    Column("home_port", String(200), comment="where it boots: SWITCH PORT by LLDP; null: not told"),
    Column("power_seen_at", Time, comment="when its power driver last told `power`; null: never"),
    defaulted(
        "wipe",
        String(8),
        "",
        comment=(
            "tables, zero or purge: in wipe, how its disks are being erased; else how at least they"
            " are to be next, by those that held it; '': they say nothing"
        ),
    ),
    Column("watts", Double, comment="as last measured by its BMC; null: never"),
    Column("power_wanted", String(8), comment="on, off or cycle: the newest wish"),
    not_null("power_seq", Integer, default=0, comment="+1 with each wish"),
    Column("boot_served_at", Time, comment="in boot: when its final boot decision was served"),
    Column(
        "disk_signature",
        BigInteger,
        comment="of the disk that was primed, by which a BIOS boots it; null: none",
    ),
    Index(None, "state", "deadline", "power_wanted"),  # overdue nodes; nodes that are waking
    # Covers the manager's counts and a vcluster's host names, so that neither reads the wide rows
    # of a hundred thousand nodes.
    Index(
        "ix_nodes_counts",
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
        "hostname",
    ),
    Index(None, "type_id", "state"),
    Index(None, "waits_for"),  # the few that wait
    comment="Physical machines.",
)

nics = table(
    "nics",
    Column("mac", Mac, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id"), index=True),
    comment=(
        "MACs key nodes: whatever a machine says on the wire is traced to its node by this table."
    ),
)

node_labels = table(
    "node_labels",
    Column("kind", String(16), primary_key=True, comment="see choices.NodeLabel"),
    Column("label", String(64), primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True, index=True),
    comment="What nodes' last reports name and people look for, so that no report is searched.",
)

node_history = table(
    "node_history",
    Column("id", Id, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id")),
    not_null("at", Time),
    not_null("event", String(16)),
    Column("from_state", String(16)),
    not_null("to_state", String(16)),
    not_null("generation", Integer),
    Column("vcluster_id", Id, comment="holder after the transition"),
    not_null("cause", Text, comment="why, readable"),
    not_null("actor", String(80), comment="who: agent, dhcp, manager, deadline, user:NAME …"),
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
    not_null("kind", String(8), comment="boot (firmware, trampoline) or vcluster (the OS)"),
    Column(
        "node_id", Id, ForeignKey("nodes.id"), index=True, comment="null: a machine not known yet"
    ),
    not_null("subnet", Name),
    Column("hostname", Name),
    not_null("state", String(8), comment="offered, bound, reserved (kept for a node) or declined"),
    not_null("expires_at", Time),
    Column("client_id", String(160), comment="option 61, hex; recorded, never a key"),
    not_null(
        "xid", BigInteger, default=0, comment="of its last exchange: tells a repeat from a boot"
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
    not_null("at", Time, index=True),
    not_null("kind", String(16), comment="declined, exhausted, identity"),
    Column("subnet", Name),
    Column("address", BigInteger),
    Column("mac", Mac, index=True),
    not_null("about", Text),
    comment="Address and identity trouble, for the API and the administrator.",
)

node_places = table(
    "node_places",
    Column("id", Id, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id"), index=True),
    Column("subnet", Name),
    Column("circuit", String(160), comment="circuit id of option 82; null: none"),
    Column("remote", String(160), comment="remote id of option 82; null: none"),
    Column("port", String(200), comment="SWITCH PORT by LLDP; null: not told"),
    not_null("heard_at", Time),
    not_null("approved", Boolean, comment="the node may boot there, too"),
    comment="Places where a node's MAC was heard, besides the one that is remembered as its own.",
)

boot_secrets = table(
    "boot_secrets",
    Column("id", String(32), primary_key=True, comment="public name of the secret"),
    not_null("mac", Mac, index=True, comment="the machine it was minted for"),
    not_null("kind", String(8), comment="boot (once, minutes) or session (until the next boot)"),
    not_null("address", String(15), comment="the only address it is valid from"),
    not_null("salt", LargeBinary),
    not_null("stored_key", LargeBinary, comment="verifies the agent; see wire/confd"),
    not_null("server_key", LargeBinary, comment="proves the server; see wire/confd"),
    not_null("expires_at", Time, index=True),
    comment=(
        "Verifiers of the secrets that machines boot with. The secrets themselves are not kept."
    ),
)

sessions = table(
    "sessions",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    not_null("server", String(64), index=True, comment="the server that holds the connection"),
    not_null("epoch", BigInteger, comment="newest wins; an older connection is closed"),
    not_null("address", String(15)),
    not_null("connected_at", Time),
    not_null("last_seen", Time, comment="when its server last said that it still holds it"),
    not_null("reported", Boolean, default=False, comment="its agent has reported: it gets orders"),
    not_null("order_sent", String(40), default="", comment="id of the last order sent on it"),
    comment="Open agent connections.",
)

node_stories = table(
    "node_stories",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    not_null(
        "known",
        Integer,
        comment="newest generation in which the database can have had it installed",
    ),
    not_null("verdict", String(8), comment="silent, agrees or differs"),
    defaulted("source", String(8), "", comment="agent, dhcp or switch; '': nothing was said"),
    Column("at", Time, comment="when it was said"),
    defaulted("said", String(300), ""),
    comment="Nodes that are held until their machines and the database agree.",
)

power_actions = table(
    "power_actions",
    Column("id", Id, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id"), index=True),
    not_null("generation", Integer, comment="dropped when the node has moved on"),
    not_null("desired", String(8), comment="on, off or cycle"),
    not_null("attempts", Integer, default=0),
    not_null("next_at", Time, index=True, comment="when to try"),
    Column("claimed_by", String(64)),
    Column("claim_expires", Time),
    Column("done_at", Time, index=True, comment="set: finished, dropped or given up (see error)"),
    not_null("error", Text, default=""),
    defaulted("wished_at", Time, 0.0),
    defaulted(
        "stage",
        Integer,
        0,
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
    not_null("key", String(300), comment="the public part, base64"),
    not_null("order_id", String(40), comment="of the installation that writes it"),
    not_null(
        "salt",
        String(64),
        comment=(
            "of the private part, with the site's secret; '' once that is "
            "written: nobody but the node has it then"
        ),
    ),
    not_null("made_at", Time),
    comment=(
        "SSH host keys of nodes that hold what was installed with them. The private parts are not"
        " kept."
    ),
)

keytabs = table(
    "keytabs",
    Column("host", String(255), primary_key=True, comment="name with its domain"),
    not_null("node_id", Id, index=True, comment="that has the name, or had it"),
    not_null("vcluster_id", Id, comment="that the node has it in"),
    not_null("order_id", String(40), comment="of the installation that writes it"),
    Column(
        "sealed",
        LargeBinary(40_000),
        comment="the keytab, encrypted; null: not made yet, or written to the node",
    ),
    not_null("attempts", Integer, comment="failed ones"),
    not_null("next_at", Time, comment="when to try again"),
    not_null("reason", Text, comment="why the last attempt failed; ''"),
    Column("made_at", Time, comment="null: its principals were never made"),
    # rows outlive their nodes until the principals are removed
    comment="Hosts whose principals are in the site's Kerberos, and keytabs on their way.",
)

captures = table(
    "captures",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    not_null("image", FullName, comment="full name of the image to be"),
    not_null("template", FullName, default="", comment="full name of the template to be; '': none"),
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
    not_null("state", String(16), index=True, comment="see states.CaptureState"),
    not_null(
        "generation", Integer, default=0, comment="of the node's capture state; 0: not there yet"
    ),
    not_null("secret", String(64), default="", comment="of the stream, hex; '' once it is over"),
    not_null(
        "digest", String(64), default="", comment="BLAKE2b-256 of the manifest, once it is known"
    ),
    not_null("actor", String(80)),
    not_null("asked_at", Time),
    Column("ended_at", Time),
    not_null("reason", Text, default="", comment="why it failed, or what went wrong on the way"),
    defaulted("what", String(8), "", comment="map, or a partition's number; '': the whole disk"),
    comment="The newest capture of each node's disk into an image.",
)

reinstalls = table(
    "reinstalls",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    not_null(
        "template_id", Id, ForeignKey("config_templates.id"), index=True, comment="to be installed"
    ),
    not_null("at_once", Integer, comment="nodes of the vcluster at a time; 0: all"),
    not_null("actor", String(80)),
    not_null("asked_at", Time),
    Column("begun_at", Time, comment="when the node left its system; null: not yet"),
    comment="Nodes that their vclusters' owners have installed anew, until they are active again.",
)

node_failures = table(
    "node_failures",
    Column("id", Id, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id"), index=True),
    Column(
        "template_id",
        Id,
        ForeignKey("config_templates.id"),
        index=True,
        comment="that its holder wanted on it; null: the revision has had a success since",
    ),
    not_null("group_id", Id, ForeignKey("groups.id"), index=True),
    not_null(
        "set_aside",
        Boolean,
        comment="it is in quarantine for it, and no administrator has looked at it",
    ),
    not_null("reason", Text),
    not_null("at", Time),
    comment="Failures on the way to a holder that count against a template or a group.",
)

console_input = table(
    "console_input",
    Column("id", Id, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id"), index=True),
    not_null(
        "tenure", String(48), comment="whose the node was then; dropped where it is another's"
    ),
    not_null(
        "administrator",
        Boolean,
        comment="who typed is one; what others typed is for the node's own system alone",
    ),
    not_null("typed", Text, comment="may be a password"),
    not_null("at", Time),
    comment="What people typed on consoles, for the seconds until it is there.",
)

burnins = table(
    "burnins",
    Column("id", Id, primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id", name="fk_burnins_node_id_nodes")),
    not_null("state", String(16), comment="see states.BurninState"),
    not_null("cause", String(200), comment="why it was asked for: on demand, new machine …"),
    not_null("tests", String(40), comment="memory, disk, network, with commas between"),
    not_null("seconds", Integer, comment="for all tests together"),
    not_null(
        "erase",
        Boolean,
        comment="disks that are not clean are erased before, and so tested by writing",
    ),
    not_null(
        "secret", String(64), default="", comment="hex; opens its agent's port for a neighbour"
    ),
    not_null(
        "generation", Integer, default=0, comment="of the node's burnin state; 0: not there yet"
    ),
    not_null("actor", String(80)),
    not_null("asked_at", Time),
    Column("started_at", Time, comment="of the newest attempt"),
    Column("ended_at", Time),
    not_null("reason", Text, default="", comment="why it failed, or what went wrong on the way"),
    not_null(
        "results", Document, default="[]", comment="JSON: the tests' results, see orders.TestResult"
    ),
    Index("ix_burnins_node_id_id", "node_id", "id"),
    Index("ix_burnins_state", "state"),
    comment="Tests of nodes: the one that is open, and those that are over.",
)
