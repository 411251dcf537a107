"""Every table, with its theory. The paper's persistent tables keep their names (figure 3), the transitional ones too.

Times are seconds since the epoch (UTC) in DOUBLE columns, so that SQLite and MariaDB agree to the bit; IPv4 addresses
are integers, so that ranges sort; XML documents are text, already validated. Nothing outside `cod/store` (and the
migrations) names a column in SQL. A change here wants a migration in `schema/migrations`; a test compares the two.
"""

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
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    true,
)
from sqlalchemy.dialects import mysql

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite's rowid alias must be INTEGER
Document = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
Name = String(63)  # a DNS label
FullName = String(127)  # GROUP/NAME of an image or template, or the site's NAME
Exact = String(300).with_variant(mysql.VARCHAR(300, collation="utf8mb4_bin"), "mysql", "mariadb")  # 'A' is not 'a'
Mac = String(17)
Time: Double[float] = Double()


def _table(name: str, *columns: Column[object] | Index | UniqueConstraint, comment: str) -> Table:
    return Table(name, metadata, *columns, comment=comment, mysql_engine="InnoDB", mysql_charset="utf8mb4")


# ---------------------------------------------------------------- persistent: people

users = _table(
    "users",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True, comment="sign-in name"),
    Column("full_name", String(200), nullable=False, default=""),
    Column("email", String(254), nullable=False, default=""),
    Column("created_at", Time, nullable=False),
    Column("disabled_at", Time, comment="set: may not sign in"),
    Column("admin", Boolean, nullable=False, default=False, server_default=false(), comment="a site administrator"),
    Column("password", String(200), nullable=False, default="", server_default="",
           comment="argon2id in its own notation; '': none, signs in elsewhere or not yet"),
    Column("directory", String(16), nullable=False, default="", server_default="",
           comment="where it signs in: '' here, ldap or oidc"),
    Column("subject", Exact, unique=True, comment="its name there; null: signs in here"),
    Column("signed_in_at", Time, comment="when it last came in by showing who it is; null: never"),
    Column("absent_at", Time, comment="since when its directory does not know it any more; null: it does"),
    comment="People. Credentials are issued by the site's administrator.",
)

groups = _table(
    "groups",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("priority", Integer, nullable=False, default=0, comment="set by the administrator; larger goes first"),
    Column("default_lease", Time, comment="seconds; null: the site's"),
    Column("max_lease", Time, comment="seconds of a whole lease, with all extensions; null: no limit"),
    Column("image_quota", BigInteger, comment="bytes that its images and uploads may take; null: the site's"),
    Column("email", Text, nullable=False, default="", server_default="",
           comment="whom to tell: addresses, separated by commas"),
    Column("webhook", Text, nullable=False, default="", server_default="",
           comment="URL that notices are posted to, or ''"),
    Column("webhook_events", String(40), nullable=False, default="notices", server_default="notices",
           comment="what is posted: notices, vclusters, nodes; with spaces between"),
    Column("webhook_turn", Integer, nullable=False, default=0, server_default="0",
           comment="how often the webhook's secret was changed; part of what it is derived from"),
    Column("created_at", Time, nullable=False),
    comment="Groups own vclusters, images and templates, and give requests their priority.",
)

group_permissions = _table(
    "group_permissions",
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    Column("user_id", Id, ForeignKey("users.id"), primary_key=True),
    Column("role", String(16), nullable=False, comment="owner, member or viewer"),
    comment="Who may do what in a group's name.",
)

api_tokens = _table(
    "api_tokens",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("user_id", Id, ForeignKey("users.id"), comment="null: acts as the site's administrator"),
    Column("scope", String(8), nullable=False, default="admin", comment="admin, or read: may look, not change"),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="only for this group's things; null: no limit"),
    Column("digest", String(64), nullable=False, unique=True, comment="BLAKE2b-256 of the token, hex"),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, comment="null: never"),
    comment="Bearer tokens of the REST API. The token itself is shown once and not kept.",
)

web_sessions = _table(
    "web_sessions",
    Column("id", Id, primary_key=True, comment="public name of the session"),
    Column("digest", String(64), nullable=False, unique=True, comment="BLAKE2b-256 of the cookie, hex"),
    Column("user_id", Id, ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", Time, nullable=False),
    Column("last_seen", Time, nullable=False, comment="written once a minute at most"),
    Column("expires_at", Time, nullable=False, index=True),
    Column("address", String(45), nullable=False, comment="signed in from"),
    Column("browser", String(200), nullable=False, default="", comment="what it says it is"),
    comment="Browsers that are signed in. The cookie itself is not kept.",
)

sign_ins = _table(
    "sign_ins",
    Column("key", String(80), primary_key=True, comment="'name:NAME' or 'address:ADDRESS'"),
    Column("failures", Integer, nullable=False, comment="since the last success, or since they were forgotten"),
    Column("last_at", Time, nullable=False, index=True),
    Column("open_at", Time, nullable=False, comment="when the next attempt is listened to"),
    comment="Failed sign-ins, which make the next one wait.",
)

invitations = _table(
    "invitations",
    Column("id", Id, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True, comment="BLAKE2b-256 of the link's secret, hex"),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="null: to the site, into no group"),
    Column("role", String(16), nullable=False, default="", comment="owner, member or viewer; '': none"),
    Column("user_id", Id, ForeignKey("users.id"), index=True, comment="set: a new password for that user"),
    Column("email", String(254), nullable=False, default="", comment="for whom, as the inviter put it"),
    Column("invited_by", String(80), nullable=False),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False, index=True),
    Column("used_at", Time, comment="set: it has done its work"),
    comment="Links that make an account, add one to a group, or set a new password; each works once.",
)

ssh_keys = _table(
    "ssh_keys",
    Column("id", Id, primary_key=True),
    Column("user_id", Id, ForeignKey("users.id"), nullable=False, index=True),
    Column("name", String(200), nullable=False, comment="the key's comment"),
    Column("algorithm", String(63), nullable=False, comment="ssh-ed25519 …"),
    Column("key", Text, nullable=False, comment="base64, as in an authorized_keys file"),
    Column("fingerprint", String(63), nullable=False, comment="SHA256:…, as ssh-keygen prints it"),
    Column("created_at", Time, nullable=False),
    UniqueConstraint("user_id", "fingerprint"),
    comment="Public keys of users; those of a vcluster's group reach its nodes.",
)

audit = _table(
    "audit",
    Column("id", Id, primary_key=True),
    Column("at", Time, nullable=False, index=True),
    Column("actor", String(80), nullable=False, comment="user:NAME, token:NAME, vcm:VCLUSTER …"),
    Column("address", String(45), nullable=False, default="", comment="from where; '': the server itself"),
    Column("action", String(40), nullable=False, comment="what was done: 'vcluster create' …"),
    Column("thing", String(200), nullable=False, default="", comment="to what"),
    Column("group_id", Id, index=True, comment="whose it is; null: the site's. No key: it outlives the group"),
    Column("before", Document, nullable=False, default="", comment="JSON of what changed; secrets left out"),
    Column("after", Document, nullable=False, default="", comment="the same afterwards"),
    comment="Every change that somebody made.",
)

# ---------------------------------------------------------------- persistent: machines

node_types = _table(
    "node_types",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("digest", String(64), nullable=False, unique=True, comment="BLAKE2b-256 of the canonical attributes, hex"),
    Column("attributes", Document, nullable=False, comment="canonical attributes (XML) that make the type"),
    Column("cost", Double, nullable=False, default=1.0, comment="set by the administrator; cheaper types go first"),
    Column("created_at", Time, nullable=False),
    Column("warm_low", Integer, comment="fewer free nodes than this awake: some are woken; null: the site's"),
    Column("warm_high", Integer, comment="more than this awake and idle: some are put to sleep; null: the site's"),
    Column("watts_off", Double, comment="of one node, asleep; null: the site's"),
    Column("watts_idle", Double, comment="awake, in the trampoline; null: the site's"),
    Column("watts_busy", Double, comment="in use; null: the site's"),
    comment="Equivalence classes of nodes under 'equal'. Requests match types, never single nodes.",
)

node_blocks = _table(
    "node_blocks",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    comment="Nodes that are near each other on the network, as the administrator groups them.",
)

nodes = _table(
    "nodes",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True, comment="the site's name for the machine"),
    Column("state", String(16), nullable=False, comment="see cod/states.py"),
    Column("since", Time, nullable=False, comment="when it entered that state"),
    Column("generation", Integer, nullable=False, default=0, comment="+1 at each transition; fences late effects"),
    Column("deadline", Time, comment="when 'timed_out' happens; null in stable states"),
    Column("attempts", Integer, nullable=False, default=0, comment="failures on this way; reset on arrival"),
    Column("reason", Text, nullable=False, default="", comment="the last trouble, readable; shown with quarantine"),
    Column("boot_mac", Mac, nullable=False, comment="the NIC it network-boots from"),
    Column("uuid", String(36), comment="DMI UUID, joins its NICs; null when absent or known-bogus"),
    Column("firmware", String(8), comment="bios or uefi, as reported (or seen in option 93)"),
    Column("type_id", Id, ForeignKey("node_types.id")),
    Column("block_id", Id, ForeignKey("node_blocks.id")),
    Column("subnet", Name, comment="the site's subnet that it last reported from"),
    Column("relay", String(15), comment="the DHCP relay that it was last heard through (giaddr); null: none"),
    Column("circuit", String(160), comment="option 82 circuit id that a relay or switch put in, hex: its switch port"),
    Column("remote", String(160), comment="option 82 remote id, hex: its switch"),
    Column("attributes", Document, comment="the last hardware report (XML)"),
    Column("reported_at", Time, comment="when"),
    Column("last_seen", Time, comment="last sign of life, written in batches"),
    Column("disk", String(8), nullable=False, comment="foreign, dirty, clean or cached: see states.Disk"),
    Column("cached_template_id", Id, ForeignKey("config_templates.id"), comment="what a cached disk holds"),
    Column("cached_group_id", Id, ForeignKey("groups.id"), comment="for whom"),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), comment="holder; null: nobody"),
    Column("request_id", Id, ForeignKey("node_requests.id"), index=True, comment="the request that it was granted for"),
    Column("position", Integer, comment="of the tuple of that request that it was granted for; null: not known"),
    Column("template_id", Id, ForeignKey("config_templates.id"), comment="what it is to run for its holder"),
    Column("hostname", Name, comment="its name in its vcluster"),
    Column("assigned_at", Time, comment="start of its immunity (scheduling inertia)"),
    Column("released", Id, nullable=False, default=0, comment="vcluster it comes back from, not yet clean; 0: none"),
    Column("progress_done", BigInteger, nullable=False, default=0, comment="bytes of the running wipe, prime, capture"),
    Column("progress_total", BigInteger, nullable=False, default=0),
    Column("progress_rate", Double, nullable=False, default=0.0, comment="bytes per second, recent"),
    Column("progress_phase", String(16), nullable=False, default="", server_default="",
           comment="of which step these are, as its agent calls it: wipe, write, verify …"),
    Column("power", String(8), nullable=False, default="unknown", comment="on, off or unknown, as last verified"),
    Column("power_driver", String(16), nullable=False, default="none", comment="none, lab, ipmi, redfish, wol, pdu"),
    Column("power_address", String(200), nullable=False, default="", comment="the driver's address of this node"),
    Column("power_account", Name, comment="the site file's account to sign in to its BMC with; null: none"),
    Column("keep", String(1000), nullable=False, default="", comment="its disks that are never written, as marks "
           "with newlines between: see policy/keep.py"),
    Column("watts", Double, comment="as last measured by its BMC; null: never"),
    Column("power_wanted", String(8), comment="on, off or cycle: the newest wish"),
    Column("power_seq", Integer, nullable=False, default=0, comment="+1 with each wish"),
    Column("boot_served_at", Time, comment="in boot: when its final boot decision was served"),
    Column("disk_signature", BigInteger, comment="of the disk that was primed, by which a BIOS boots it; null: none"),
    Index(None, "state", "deadline", "power_wanted"),  # overdue nodes; nodes that are waking
    # Covers the manager's census, so that counting a hundred thousand nodes never reads their wide rows.
    Index("ix_nodes_census", "vcluster_id", "released", "state", "type_id", "block_id", "subnet", "disk",
          "cached_template_id", "cached_group_id", "power_driver", "since", "assigned_at"),
    Index(None, "type_id", "state"),
    comment="Physical machines.",
)

nics = _table(
    "nics",
    Column("mac", Mac, primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False, index=True),
    comment="MACs key nodes: whatever a machine says on the wire is traced to its node by this table.",
)

node_history = _table(
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
    Column("actor", String(80), nullable=False, comment="who: agent, dhcp, manager, deadline, user:NAME …"),
    Column("bytes_written", BigInteger, comment="leaving prime: bytes written to disk"),
    Column("rate", Double, comment="leaving prime: mean bytes per second"),
    Index(None, "node_id", "id"),
    Index(None, "vcluster_id", "id"),
    Index(None, "at"),
    comment="Every transition of every node.",
)

# ---------------------------------------------------------------- persistent: software

images = _table(
    "images",
    Column("id", Id, primary_key=True),
    Column("name", FullName, nullable=False, unique=True, comment="GROUP/NAME; the site's: NAME"),
    Column("group_id", Id, ForeignKey("groups.id"), comment="owner; null: the site's"),
    Column("state", String(16), nullable=False, comment="ingesting, ready or failed"),
    Column("format", String(16), nullable=False, comment="what was added: raw, gzip, zstd or qcow2"),
    Column("size", BigInteger, nullable=False, default=0, comment="bytes on a disk"),
    Column("used", BigInteger, nullable=False, default=0, comment="bytes in its used chunks"),
    Column("stored", BigInteger, nullable=False, default=0, comment="bytes of the served form"),
    Column("sha256", String(64), nullable=False, default="", comment="of the added file; before that: what it must be"),
    Column("digest", String(64), nullable=False, default="", comment="BLAKE2b-256 of the manifest; its folder's name"),
    Column("created_at", Time, nullable=False),
    Column("reason", Text, nullable=False, default="", comment="why ingest failed"),
    Column("content", String(16), nullable=False, default="", comment="disk, partition or file (served as is)"),
    Column("source", Text, nullable=False, default="", comment="while ingesting: the server's file that is taken in"),
    Column("sector", Integer, nullable=False, default=0, comment="bytes of its disks' logical sectors; 0: any will do"),
    comment="Disk and partition images in their served form.",
)

uploads = _table(
    "uploads",
    Column("id", String(32), primary_key=True, comment="random; its file's name in the folder of incoming files"),
    Column("name", FullName, nullable=False, unique=True, comment="of the image to be, in full; the claim on it"),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="owner; null: the site's"),
    Column("size", BigInteger, nullable=False, comment="bytes in all"),
    Column("offset", BigInteger, nullable=False, default=0, comment="bytes known to be on disk"),
    Column("boot", String(36), nullable=False, default="", comment="boot id of the host that writes its file; while "
           "that boot lasts, what is in the file beyond `offset` is right, too"),
    Column("sha256", String(64), nullable=False, default="", comment="what it must be; '': nobody said"),
    Column("plain", Boolean, nullable=False, default=False, comment="serve it as it is: a kernel or ramdisk"),
    Column("raw", Boolean, nullable=False, default=False, comment="neither partition table nor file system is wanted"),
    Column("actor", String(80), nullable=False),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False, index=True, comment="given up by then unless more of it comes"),
    comment="Files on their way in, piece by piece.",
)

config_templates = _table(
    "config_templates",
    Column("id", Id, primary_key=True),
    Column("name", FullName, nullable=False, comment="GROUP/NAME; the site's: NAME"),
    Column("revision", Integer, nullable=False),
    Column("group_id", Id, ForeignKey("groups.id"), comment="owner; null: the site's"),
    Column("document", Document, nullable=False, comment="XML, valid against schema/template.rng"),
    Column("digest", String(64), nullable=False, comment="BLAKE2b-256 of the document, hex"),
    Column("created_at", Time, nullable=False),
    Column("retired_at", Time),
    UniqueConstraint("name", "revision"),
    comment="Configuration templates. A change is a new revision; a row never changes.",
)

# ---------------------------------------------------------------- persistent: virtual clusters

vclusters = _table(
    "vclusters",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, comment="also its DNS subdomain; unique among those not ended"),
    Column("live_name", Name, unique=True, comment="= name until ended, then null: the unique claim on the name"),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False),
    Column("state", String(16), nullable=False, comment="see states.VclusterState"),
    Column("template_id", Id, ForeignKey("config_templates.id"), nullable=False, comment="for new nodes"),
    Column("size", Integer, nullable=False, comment="nodes it should have now"),
    Column("creation_size", Integer, nullable=False, comment="its floor while its lease is valid"),
    Column("attributes", Document, nullable=False, default="", comment="requirements for its nodes (XML) or ''"),
    Column("subnet", Name, comment="the site's subnet that its block is in"),
    Column("first_address", BigInteger, unique=True, comment="of its private block; the unique claim on the block"),
    Column("last_address", BigInteger),
    Column("lease_time", Time, nullable=False, comment="seconds, as granted"),
    Column("expires_at", Time, comment="null while pending"),
    Column("drain_until", Time, comment="its lease has run out: when its nodes are seized; null: not draining"),
    Column("warned", Time, comment="seconds before its end of the last warning given; null: none for this lease"),
    Column("ready_at", Time, comment="when all its nodes were first active; null: not yet"),
    Column("created_at", Time, nullable=False),
    Column("ended_at", Time),
    Column("leased_at", Time, comment="when its lease began, from which max_lease counts; null while pending"),
    comment="Virtual clusters.",
)

node_permissions = _table(
    "node_permissions",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    Column("right", String(16), nullable=False, comment="use (its holder's group) or operate"),
    comment="Which groups have rights on a node now; follows its holder.",
)

vcluster_history = _table(
    "vcluster_history",
    Column("id", Id, primary_key=True),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True),
    Column("at", Time, nullable=False, index=True),
    Column("event", String(16), nullable=False, comment="created, or what of it changed: see store.vclusters.EVENTS"),
    Column("state", String(16), nullable=False, comment="afterwards"),
    Column("size", Integer, nullable=False, comment="nodes it should have afterwards"),
    Column("expires_at", Time, comment="end of its lease afterwards"),
    comment="What became of virtual clusters.",
)

# ---------------------------------------------------------------- transitional: what coordinates the servers

node_requests = _table(
    "node_requests",
    Column("id", Id, primary_key=True),
    Column("key", String(80), unique=True, comment="the client's id for it: repeating a request is harmless"),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True),
    Column("kind", String(16), nullable=False, comment="create, grow or replace"),
    Column("state", String(16), nullable=False, index=True, comment="see states.RequestState"),
    Column("reason", Text, nullable=False, default="", comment="why it waits or was rejected"),
    Column("priority", Integer, nullable=False, comment="its group's, when submitted"),
    Column("submitted_at", Time, nullable=False),
    Column("decided_at", Time),
    Column("may_wait", Boolean, nullable=False, default=True, server_default=true(),
           comment="false: rejected if it cannot be met now"),
    Column("may_spread", Boolean, nullable=False, default=False, server_default=false(),
           comment="a tuple's nodes may be of several blocks"),
    comment="Requests for nodes; satisfied or rejected as a whole.",
)

request_tuples = _table(
    "request_tuples",
    Column("request_id", Id, ForeignKey("node_requests.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("attributes", Document, nullable=False, default="", comment="requirements (XML) or ''"),
    Column("template_id", Id, ForeignKey("config_templates.id"), nullable=False),
    comment="A request's tuples.",
)

reservations = _table(
    "reservations",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True, comment="one reservation a node"),
    Column("request_id", Id, ForeignKey("node_requests.id"), nullable=False, index=True),
    Column("reclaim_id", Id, ForeignKey("reclaims.id"), index=True, comment="by which it is taken; null: it is free"),
    Column("at", Time, nullable=False),
    Column("promised_at", Time, comment="by when its vcluster's VCM gives it back, as that says; null: it has not"),
    comment="Nodes on their way back that were taken for a request.",
)

reclaims = _table(
    "reclaims",
    Column("id", Id, primary_key=True),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True, comment="from whom"),
    Column("request_id", Id, ForeignKey("node_requests.id"), nullable=False, index=True, comment="for whom"),
    Column("type_id", Id, ForeignKey("node_types.id"), nullable=False, comment="of which nodes"),
    Column("block_id", Id, ForeignKey("node_blocks.id"), comment="of which block; null: of no block"),
    Column("subnet", Name, nullable=False, default="", comment="of which subnet; '': any"),
    Column("attributes", Document, nullable=False, default="", comment="requirements (XML) that its answer must meet"),
    Column("count", Integer, nullable=False, comment="nodes to give back"),
    Column("given", Integer, nullable=False, default=0, comment="nodes given back or seized so far"),
    Column("deadline", Time, nullable=False, comment="what is not given back by then is seized"),
    Column("state", String(16), nullable=False, comment="see states.ReclaimState"),
    Column("created_at", Time, nullable=False),
    Column("ended_at", Time),
    Index(None, "state", "deadline"),
    comment="Nodes that are being taken from a vcluster for a request of higher priority.",
)

install_images = _table(
    "install_images",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("generation", Integer, nullable=False, comment="of the node's prime state that this belongs to"),
    Column("template_id", Id, ForeignKey("config_templates.id"), nullable=False),
    Column("state", String(16), nullable=False, comment="pending, running, done or failed"),
    Column("at", Time, nullable=False),
    Column("reason", Text, nullable=False, default=""),
    comment="The image installation that a node is in; cleared when the node leaves its vcluster.",
)

captures = _table(
    "captures",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("image", FullName, nullable=False, comment="full name of the image to be"),
    Column("template", FullName, nullable=False, default="", comment="full name of the template to be; '': none"),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="owner of both; null: the site's"),
    Column("source_id", Id, ForeignKey("config_templates.id"), index=True,
           comment="template that the disk was written by; null: nobody knows"),
    Column("state", String(16), nullable=False, index=True, comment="see states.CaptureState"),
    Column("generation", Integer, nullable=False, default=0, comment="of the node's capture state; 0: not there yet"),
    Column("secret", String(64), nullable=False, default="", comment="of the stream, hex; '' once it is over"),
    Column("digest", String(64), nullable=False, default="", comment="BLAKE2b-256 of the manifest, once it is known"),
    Column("actor", String(80), nullable=False),
    Column("asked_at", Time, nullable=False),
    Column("ended_at", Time),
    Column("reason", Text, nullable=False, default="", comment="why it failed, or what went wrong on the way"),
    comment="The newest capture of each node's disk into an image.",
)

bindings = _table(
    "bindings",
    Column("address", Id, primary_key=True, autoincrement=False, comment="IPv4 as an integer"),
    Column("mac", Mac, comment="null: nobody's (declined)"),
    Column("kind", String(8), nullable=False, comment="boot (firmware, trampoline) or vcluster (the OS)"),
    Column("node_id", Id, ForeignKey("nodes.id"), index=True, comment="null: a machine not known yet"),
    Column("subnet", Name, nullable=False),
    Column("hostname", Name),
    Column("state", String(8), nullable=False, comment="offered, bound, reserved (kept for a node) or declined"),
    Column("expires_at", Time, nullable=False),
    Column("client_id", String(160), comment="option 61, hex; recorded, never a key"),
    Column("xid", BigInteger, nullable=False, default=0, comment="of its last exchange: tells a repeat from a boot"),
    UniqueConstraint("mac", "kind", "subnet"),
    comment="Addresses bound by DHCP. The primary key is what makes two holders of one address impossible.",
)

conflicts = _table(
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

boot_secrets = _table(
    "boot_secrets",
    Column("id", String(32), primary_key=True, comment="public name of the secret"),
    Column("mac", Mac, nullable=False, index=True, comment="the machine it was minted for"),
    Column("kind", String(8), nullable=False, comment="boot (once, minutes) or session (until the next boot)"),
    Column("address", String(15), nullable=False, comment="the only address it is valid from"),
    Column("salt", LargeBinary, nullable=False),
    Column("stored_key", LargeBinary, nullable=False, comment="verifies the agent; see wire/confd"),
    Column("server_key", LargeBinary, nullable=False, comment="proves the server; see wire/confd"),
    Column("expires_at", Time, nullable=False, index=True),
    comment="Verifiers of the secrets that machines boot with. The secrets themselves are not kept.",
)

sessions = _table(
    "sessions",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("server", String(64), nullable=False, index=True, comment="the server that holds the connection"),
    Column("epoch", BigInteger, nullable=False, comment="newest wins; an older connection is closed"),
    Column("address", String(15), nullable=False),
    Column("connected_at", Time, nullable=False),
    Column("last_seen", Time, nullable=False, comment="when its server last said that it still holds it"),
    Column("reported", Boolean, nullable=False, default=False, comment="its agent has reported: it gets orders"),
    Column("order_sent", String(40), nullable=False, default="", comment="id of the last order sent on it"),
    comment="Open agent connections.",
)

power_actions = _table(
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
    Column("stage", Integer, nullable=False, default=0, server_default="0",
           comment="commands that were accepted and did not show: a stronger one is next"),
    comment="Power as desired state. Run at least once; dropped when the node has a new generation.",
)

notices = _table(
    "notices",
    Column("id", Id, primary_key=True),
    Column("at", Time, nullable=False),
    Column("kind", String(16), nullable=False, comment="ready, lease, reclaim, request, hardware …"),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="whom it concerns; null: the site"),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    Column("subject", String(200), nullable=False),
    Column("about", Text, nullable=False, comment="the sentences"),
    Column("events", Document, comment="JSON of what happened, for programs; null: a notice for people"),
    Column("link", String(300), nullable=False, default="", server_default="",
           comment="path of the portal's page where something can be done about it; ''"),
    Index(None, "kind", "at"),
    comment="What groups and the site are told.",
)

notice_sends = _table(
    "notice_sends",
    Column("id", Id, primary_key=True),
    Column("notice_id", Id, ForeignKey("notices.id"), nullable=False, index=True),
    Column("channel", String(8), nullable=False, comment="webhook or email"),
    Column("target", Text, nullable=False, comment="URL or addresses; '': the administrators of the site file"),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_at", Time, nullable=False, comment="when to try"),
    Column("claimed_by", String(64)),
    Column("claim_expires", Time),
    Column("done_at", Time, comment="set: delivered or given up"),
    Column("delivered", Boolean, nullable=False, default=False),
    Column("error", Text, nullable=False, default="", comment="of the last attempt; if delivered: who refused it"),
    Index(None, "done_at", "next_at"),
    comment="Deliveries of notices; run at least once.",
)

vcms = _table(
    "vcms",
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), primary_key=True),
    Column("serial", String(64), nullable=False, default="", comment="of its certificate, hex; '': known by address"),
    Column("address", String(15), nullable=False, default="", comment="the only one it may come from; '': any"),
    Column("enrolled_at", Time, nullable=False),
    Column("sequence", BigInteger, nullable=False, default=0, comment="of the last message that was put in its outbox"),
    Column("acked", BigInteger, nullable=False, default=0, comment="up to which it has dealt with them"),
    Column("about", String(200), nullable=False, default="", comment="what it says it is"),
    Column("server", String(64), comment="the server that holds its connection; null: it is away"),
    Column("epoch", BigInteger, nullable=False, default=0, comment="newest wins; an older connection is closed"),
    Column("connected_at", Time, comment="when it came, or went"),
    Column("head", Name, comment="host name of the vcluster's node that it runs on; null: it runs elsewhere"),
    Column("ends_at", Time, comment="when its certificate ends; null: it has none, or has not shown it since"),
    Column("next_serial", String(64), comment="of the certificate that it got for this one and has not shown yet"),
    Column("next_ends_at", Time, comment="when that one ends"),
    Column("warned_at", Time, comment="when its group was last told of the certificate's end"),
    comment="Virtual cluster managers. A row is what lets one speak for its vcluster, and choose its nodes.",
)

vcm_invitations = _table(
    "vcm_invitations",
    Column("vcluster_id", Id, ForeignKey("vcms.vcluster_id"), primary_key=True),
    Column("node_id", Id, ForeignKey("nodes.id"), nullable=False, index=True, comment="whom it was given to"),
    Column("digest", String(64), nullable=False, comment="SHA-256 of the invitation, which is kept nowhere"),
    Column("expires_at", Time, nullable=False),
    Column("taken_by", String(64), comment="SHA-256 of the public key that has a certificate for it"),
    comment="What the VCM on a vcluster's head trades for its certificate; written when the head is primed.",
)

outbox = _table(
    "outbox",
    Column("vcluster_id", Id, ForeignKey("vcms.vcluster_id"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("verb", String(32), nullable=False, comment="as in docs/nmp.md"),
    Column("body", Document, nullable=False, comment="its fields, as JSON"),
    Column("at", Time, nullable=False),
    comment="What COD owes its VCMs: kept until they have acknowledged it.",
)

energy_use = _table(
    "energy_use",
    Column("day", Integer, primary_key=True, autoincrement=False, comment="days since the epoch, UTC"),
    Column("group_id", Id, primary_key=True, autoincrement=False, comment="who held the nodes; 0: the reserve"),
    Column("type_id", Id, primary_key=True, autoincrement=False),
    Column("seconds", Double, nullable=False, default=0.0, comment="node-seconds"),
    Column("joules", Double, nullable=False, default=0.0, comment="used"),
    Column("always_on", Double, nullable=False, default=0.0, comment="joules had no node ever slept"),
    comment="Energy by day, group and type.",
)

pool_states = _table(
    "pool_states",
    Column("span", Integer, primary_key=True, autoincrement=False, comment="seconds: 300, 3600 or 86400"),
    Column("start", BigInteger, primary_key=True, autoincrement=False, comment="of the span"),
    Column("type_id", Id, primary_key=True, autoincrement=False, comment="0: none yet"),
    Column("state", String(16), primary_key=True),
    Column("seconds", Double, nullable=False, comment="node-seconds"),
    comment="Nodes by state and type over time, counted once a minute.",
)

pool_held = _table(
    "pool_held",
    Column("span", Integer, primary_key=True, autoincrement=False, comment="seconds: 300, 3600 or 86400"),
    Column("start", BigInteger, primary_key=True, autoincrement=False, comment="of the span"),
    Column("vcluster_id", Id, primary_key=True, autoincrement=False),
    Column("type_id", Id, primary_key=True, autoincrement=False, comment="0: none yet"),
    Column("seconds", Double, nullable=False, comment="node-seconds"),
    comment="Who held how many nodes over time, counted once a minute.",
)

replies = _table(
    "replies",
    Column("key", String(64), primary_key=True, comment="SHA-256 of who asked and the key that they gave"),
    Column("question", String(64), nullable=False, comment="SHA-256 of method, path, query and body"),
    Column("status", Integer, nullable=False),
    Column("body", Document, nullable=False, comment="JSON; '' where it had a secret in it, or nothing"),
    Column("at", Time, nullable=False, index=True),
    comment="What was answered to questions that carried an Idempotency-Key; kept for a day.",
)

marks = _table(
    "marks",
    Column("name", String(64), primary_key=True),
    Column("at", Time, nullable=False),
    comment="How far work that goes on in time has come: 'energy' …",
)

claims = _table(
    "claims",
    Column("name", String(64), primary_key=True, comment="what is claimed: 'manager' …"),
    Column("owner", String(64), nullable=False),
    Column("generation", BigInteger, nullable=False, comment="+1 with each new owner; checked in every apply"),
    Column("expires_at", Time, nullable=False),
    comment="Who may do what only one may do at a time.",
)
