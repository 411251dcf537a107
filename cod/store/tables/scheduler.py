"""Virtual clusters, what is asked for and taken back, who may act, and what nodes used."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    false,
    true,
)

from cod.store.tables.base import Document, Id, Name, Time, Words, table

vclusters = table(
    "vclusters",
    Column("id", Id, primary_key=True),
    Column(
        "name", Name, nullable=False, comment="also its DNS subdomain; unique among those not ended"
    ),
    Column(
        "live_name",
        Name,
        unique=True,
        comment="= name until ended, then null: the unique claim on the name",
    ),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False),
    Column("state", String(16), nullable=False, comment="see states.VclusterState"),
    Column(
        "template_id",
        Id,
        ForeignKey("config_templates.id"),
        nullable=False,
        comment="for new nodes",
    ),
    Column("size", Integer, nullable=False, comment="nodes it should have now"),
    Column("creation_size", Integer, nullable=False, comment="its floor while its lease is valid"),
    Column(
        "attributes",
        Document,
        nullable=False,
        default="",
        comment="requirements for its nodes (XML) or ''",
    ),
    Column("subnet", Name, comment="the site's subnet that its blocks are in"),
    Column("lease_time", Time, nullable=False, comment="seconds, as granted"),
    Column("expires_at", Time, comment="null while pending"),
    Column(
        "drain_until",
        Time,
        comment="its lease has run out: when its nodes are seized; null: not draining",
    ),
    Column(
        "warned",
        Time,
        comment="seconds before its end of the last warning given; null: none for this lease",
    ),
    Column("ready_at", Time, comment="when all its nodes were first active; null: not yet"),
    Column("created_at", Time, nullable=False),
    Column("ended_at", Time),
    Column(
        "leased_at",
        Time,
        comment="when its lease began, from which max_lease counts; null while pending",
    ),
    Column(
        "isolated",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="its nodes are in a VLAN of their own",
    ),
    Column(
        "network_prefix",
        Integer,
        comment="prefix length of the subnet that it gets with its nodes; null: not isolated",
    ),
    Column(
        "preemptible",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="any other request may take its nodes, down to none",
    ),
    Column("user_id", Id, comment="who created it; null: not known"),
    comment="Virtual clusters.",
)

vcluster_blocks = table(
    "vcluster_blocks",
    Column(
        "first_address",
        Id,
        primary_key=True,
        autoincrement=False,
        comment="the unique claim on the block",
    ),
    Column("last_address", BigInteger, nullable=False),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True),
    Column("subnet", Name, nullable=False, comment="as in bindings"),
    comment="Private blocks of addresses of vclusters that have not ended.",
)

vcluster_networks = table(
    "vcluster_networks",
    Column(
        "vlan",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="the unique claim on the VLAN",
    ),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, unique=True),
    Column(
        "first_address",
        BigInteger,
        nullable=False,
        unique=True,
        comment="the unique claim on the subnet",
    ),
    Column("prefix", Integer, nullable=False, comment="the subnet's prefix length"),
    Column("server_address", BigInteger, nullable=False, comment="by which its nodes reach COD"),
    Column("router_address", BigInteger, comment="their default router; null: none"),
    comment=(
        "VLANs and subnets of isolated vclusters, kept until no switch port is in the VLAN any"
        " more."
    ),
)

vcluster_names = table(
    "vcluster_names",
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), primary_key=True),
    Column("name", Name, primary_key=True, comment="a DNS label"),
    Column(
        "target",
        String(253),
        nullable=False,
        comment="a host or a name of the vcluster; external: a full name",
    ),
    Column("external", Boolean, nullable=False, default=False, server_default=false()),
    Column("created_at", Time, nullable=False),
    Column("actor", String(80), nullable=False, comment="who added or changed it last"),
    comment=(
        "Names beside nodes' host names (CNAME), by vclusters' owners. Those of a vcluster that"
        " ends are deleted."
    ),
)

dns_zones = table(
    "dns_zones",
    Column("kind", String(8), primary_key=True, comment="site, vcluster or subnet"),
    Column(
        "key", Name, primary_key=True, comment="name of the vcluster or the subnet; '' for the site"
    ),
    Column(
        "serial",
        BigInteger,
        nullable=False,
        comment="of the SOA: rises with each change, never falls",
    ),
    Column(
        "digest",
        String(64),
        nullable=False,
        default="",
        comment="of the site file's share; the site's row only",
    ),
    comment=(
        "Serials of the DNS zones. A zone that has ended keeps its row: its name may come back."
    ),
)

node_permissions = table(
    "node_permissions",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    Column("right", String(16), nullable=False, comment="use (its holder's group) or operate"),
    comment="Which groups have rights on a node now; follows its holder.",
)

vcluster_history = table(
    "vcluster_history",
    Column("id", Id, primary_key=True),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True),
    Column("at", Time, nullable=False, index=True),
    Column(
        "event",
        String(16),
        nullable=False,
        comment="created, or what of it changed: see store.vclusters.EVENTS",
    ),
    Column("state", String(16), nullable=False, comment="afterwards"),
    Column("size", Integer, nullable=False, comment="nodes it should have afterwards"),
    Column("expires_at", Time, comment="end of its lease afterwards"),
    comment="What became of virtual clusters.",
)

node_requests = table(
    "node_requests",
    Column("id", Id, primary_key=True),
    Column(
        "key",
        String(80),
        unique=True,
        comment="the client's id for it: repeating a request is harmless",
    ),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True),
    Column("kind", String(16), nullable=False, comment="create, grow, replace or move"),
    Column("state", String(16), nullable=False, index=True, comment="see states.RequestState"),
    Column("reason", Text, nullable=False, default="", comment="why it waits or was rejected"),
    Column("priority", Integer, nullable=False, comment="its group's, when submitted"),
    Column("submitted_at", Time, nullable=False),
    Column("decided_at", Time),
    Column(
        "may_wait",
        Boolean,
        nullable=False,
        default=True,
        server_default=true(),
        comment="false: rejected if it cannot be met now",
    ),
    Column(
        "may_spread",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="a tuple's nodes may be of several blocks",
    ),
    Column(
        "source_id",
        Id,
        ForeignKey("vclusters.id"),
        index=True,
        comment="of a move: from whom; else null",
    ),
    Column(
        "deadline", Time, comment="of a move: when nodes that are still held are taken; else null"
    ),
    Column(
        "granted",
        Integer,
        nullable=False,
        default=0,
        server_default="0",
        comment="of a move: nodes so far",
    ),
    Column(
        "starts_at", Time, comment="when a reservation in advance begins; null: the request is none"
    ),
    Column("duration", Time, comment="seconds for which it is"),
    comment="Requests for nodes; satisfied or rejected as a whole.",
)

request_tuples = table(
    "request_tuples",
    Column("request_id", Id, ForeignKey("node_requests.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("attributes", Document, nullable=False, default="", comment="requirements (XML) or ''"),
    Column("template_id", Id, ForeignKey("config_templates.id"), nullable=False),
    comment="A request's tuples.",
)

request_starts = table(
    "request_starts",
    Column("request_id", Id, primary_key=True, autoincrement=False),
    Column("told_at", Time, nullable=False, comment="when this was told first"),
    Column("starts_at", Time, comment="as expected; null: nobody can tell"),
    Column("why", Text, nullable=False, default="", comment="why nobody can tell"),
    Column(
        "sooner_nodes",
        Integer,
        comment="with so many nodes it would start at `sooner_at`; null: nothing is known",
    ),
    Column("sooner_at", Time),
    Column("first_at", Time, comment="the start that was told first of all"),
    Column("first_told_at", Time, comment="when that was told"),
    Column("began_at", Time, index=True, comment="null: it waits"),
    comment="When waiting requests are expected to start, and what became of that.",
)

reservation_series = table(
    "reservation_series",
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True, comment="its clusters' names begin with it"),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False, index=True),
    Column("asked", Document, nullable=False, comment="what each is created with (JSON)"),
    Column("starts_at", Time, nullable=False, comment="the first start"),
    Column("duration", Time, nullable=False, comment="seconds of each lease"),
    Column("zone", String(64), nullable=False, comment="time zone whose clock the starts keep"),
    Column("days", Words(32), nullable=False, comment="of the week: 'mon,wed'"),
    Column("count", Integer, comment="starts in all; null: no limit"),
    Column("ends_at", Time, comment="no start is later; null: no limit"),
    Column("created_at", Time, nullable=False),
    comment="Reservations that recur: a virtual cluster for each start.",
)

series_occurrences = table(
    "series_occurrences",
    Column("series_id", Id, ForeignKey("reservation_series.id"), primary_key=True),
    Column("starts_at", Time, primary_key=True),
    Column("vcluster", Name, nullable=False, comment="name of its virtual cluster"),
    Column("refused", Text, nullable=False, comment="why it could not be reserved; '': it was"),
    comment="Starts of series that were decided: each is, once.",
)

reservations = table(
    "reservations",
    Column(
        "node_id", Id, ForeignKey("nodes.id"), primary_key=True, comment="one reservation a node"
    ),
    Column("request_id", Id, ForeignKey("node_requests.id"), nullable=False, index=True),
    Column(
        "reclaim_id",
        Id,
        ForeignKey("reclaims.id"),
        index=True,
        comment="by which it is taken; null: it is free",
    ),
    Column("at", Time, nullable=False),
    Column(
        "promised_at",
        Time,
        comment="by when its vcluster's VCM gives it back, as that says; null: it has not",
    ),
    comment="Nodes on their way back that were taken for a request.",
)

reclaims = table(
    "reclaims",
    Column("id", Id, primary_key=True),
    Column(
        "vcluster_id",
        Id,
        ForeignKey("vclusters.id"),
        nullable=False,
        index=True,
        comment="from whom",
    ),
    Column(
        "request_id",
        Id,
        ForeignKey("node_requests.id"),
        nullable=False,
        index=True,
        comment="for whom",
    ),
    Column("type_id", Id, ForeignKey("node_types.id"), nullable=False, comment="of which nodes"),
    Column(
        "block_id", Id, ForeignKey("node_blocks.id"), comment="of which block; null: of no block"
    ),
    Column("subnet", Name, nullable=False, default="", comment="of which subnet; '': any"),
    Column(
        "attributes",
        Document,
        nullable=False,
        default="",
        comment="requirements (XML) that its answer must meet",
    ),
    Column("count", Integer, nullable=False, comment="nodes to give back"),
    Column(
        "given", Integer, nullable=False, default=0, comment="nodes given back or seized so far"
    ),
    Column("deadline", Time, nullable=False, comment="what is not given back by then is seized"),
    Column("state", String(16), nullable=False, comment="see states.ReclaimState"),
    Column("created_at", Time, nullable=False),
    Column("ended_at", Time),
    Index(None, "state", "deadline"),
    comment="Nodes that are being taken from a vcluster for a request of higher priority.",
)

pool_states = table(
    "pool_states",
    Column(
        "span",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="seconds: 300, 3600 or 86400",
    ),
    Column("start", BigInteger, primary_key=True, autoincrement=False, comment="of the span"),
    Column("type_id", Id, primary_key=True, autoincrement=False, comment="0: none yet"),
    Column("state", String(16), primary_key=True),
    Column("seconds", Double, nullable=False, comment="node-seconds"),
    comment="Nodes by state and type over time, counted once a minute.",
)

pool_held = table(
    "pool_held",
    Column(
        "span",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="seconds: 300, 3600 or 86400",
    ),
    Column("start", BigInteger, primary_key=True, autoincrement=False, comment="of the span"),
    Column("vcluster_id", Id, primary_key=True, autoincrement=False),
    Column("type_id", Id, primary_key=True, autoincrement=False, comment="0: none yet"),
    Column("seconds", Double, nullable=False, comment="node-seconds"),
    comment="Who held how many nodes over time, counted once a minute.",
)

energy_use = table(
    "energy_use",
    Column(
        "day", Integer, primary_key=True, autoincrement=False, comment="days since the epoch, UTC"
    ),
    Column(
        "group_id",
        Id,
        primary_key=True,
        autoincrement=False,
        comment="who held the nodes; 0: the reserve",
    ),
    Column("type_id", Id, primary_key=True, autoincrement=False),
    Column("seconds", Double, nullable=False, default=0.0, comment="node-seconds"),
    Column("joules", Double, nullable=False, default=0.0, comment="used"),
    Column(
        "always_on", Double, nullable=False, default=0.0, comment="joules had no node ever slept"
    ),
    Column(
        "grams", Double, nullable=False, default=0.0, server_default="0", comment="of CO2 emitted"
    ),
    comment="Energy by day, group and type.",
)

vcluster_energy = table(
    "vcluster_energy",
    Column(
        "day", Integer, primary_key=True, autoincrement=False, comment="days since the epoch, UTC"
    ),
    Column("vcluster_id", Id, primary_key=True, autoincrement=False),
    Column("seconds", Double, nullable=False, comment="node-seconds"),
    Column("joules", Double, nullable=False, comment="used"),
    Column("always_on", Double, nullable=False, comment="joules had no node ever slept"),
    Column("grams", Double, nullable=False, comment="of CO2 emitted"),
    comment="Energy by day and vcluster.",
)

energy_curve = table(
    "energy_curve",
    Column("source", String(500), primary_key=True, comment="a file or an address"),
    Column("content", Document, nullable=False, comment="CSV; '': it was never read"),
    Column("read_at", Time, nullable=False, comment="when the content was read last"),
    Column("good_until", Time, nullable=False, comment="after that the content is too old"),
    Column("fault", Text, nullable=False, comment="why it could not be read last; ''"),
    comment="The price of energy or the CO2 emitted for it, by the hour, as read last.",
)

marks = table(
    "marks",
    Column("name", String(64), primary_key=True),
    Column("at", Time, nullable=False),
    comment="How far work that goes on in time has come: 'energy' …",
)

claims = table(
    "claims",
    Column("name", String(64), primary_key=True, comment="what is claimed: 'manager' …"),
    Column("owner", String(64), nullable=False),
    Column(
        "generation",
        BigInteger,
        nullable=False,
        comment="+1 with each new owner; checked in every apply",
    ),
    Column("expires_at", Time, nullable=False),
    comment="Who may do what only one may do at a time.",
)
