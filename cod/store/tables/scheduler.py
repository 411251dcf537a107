"""Tables of virtual clusters, requests and reclaims, permissions, energy, and of the servers' own
work."""

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
)

from cod.store.tables.base import Document, Id, Name, Time, Words, defaulted, not_null, table

vclusters = table(
    "vclusters",
    Column("id", Id, primary_key=True),
    not_null("name", Name, comment="also its DNS subdomain; unique among those not ended"),
    Column(
        "live_name",
        Name,
        unique=True,
        comment="= name until ended, then null: the unique claim on the name",
    ),
    not_null("group_id", Id, ForeignKey("groups.id")),
    not_null("state", String(16), comment="see states.VclusterState"),
    not_null("template_id", Id, ForeignKey("config_templates.id"), comment="for new nodes"),
    not_null("size", Integer, comment="nodes it should have now"),
    not_null("creation_size", Integer, comment="its floor while its lease is valid"),
    not_null("attributes", Document, default="", comment="requirements for its nodes (XML) or ''"),
    Column("subnet", Name, comment="the site's subnet that its blocks are in"),
    not_null("lease_time", Time, comment="seconds, as granted"),
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
    not_null("created_at", Time),
    Column("ended_at", Time),
    Column(
        "leased_at",
        Time,
        comment="when its lease began, from which max_lease counts; null while pending",
    ),
    defaulted("isolated", Boolean, False, comment="its nodes are in a VLAN of their own"),
    Column(
        "network_prefix",
        Integer,
        comment="prefix length of the subnet that it gets with its nodes; null: not isolated",
    ),
    defaulted(
        "preemptible", Boolean, False, comment="any other request may take its nodes, down to none"
    ),
    Column("user_id", Id, comment="who created it; null: not known"),
    defaulted("description", String(500), "", comment="what it is for"),
    defaulted("tags", String(200), "", comment="words to find it by, with spaces between"),
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
    not_null("last_address", BigInteger),
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    not_null("subnet", Name, comment="as in bindings"),
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
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), unique=True),
    not_null("first_address", BigInteger, unique=True, comment="the unique claim on the subnet"),
    not_null("prefix", Integer, comment="the subnet's prefix length"),
    not_null("server_address", BigInteger, comment="by which its nodes reach COD"),
    Column("router_address", BigInteger, comment="their default router; null: none"),
    not_null(
        "servers",
        Integer,
        server_default="1",
        comment="addresses from server_address on that are COD's, one of each of its hosts",
    ),
    comment=(
        "VLANs and subnets of isolated vclusters, kept until no switch port is in the VLAN any"
        " more."
    ),
)

vcluster_names = table(
    "vcluster_names",
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), primary_key=True),
    Column("name", Name, primary_key=True, comment="a DNS label"),
    not_null(
        "target", String(253), comment="a host or a name of the vcluster; external: a full name"
    ),
    defaulted("external", Boolean, False),
    not_null("created_at", Time),
    not_null("actor", String(80), comment="who added or changed it last"),
    comment=(
        "Names beside nodes' host names (CNAME), by vclusters' owners. Those of a vcluster that"
        " ends are deleted."
    ),
)

vcluster_former_names = table(
    "vcluster_former_names",
    Column("name", Name, primary_key=True, comment="no other vcluster gets it meanwhile"),
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    comment="Names that vclusters had before they were renamed, until they end.",
)

dns_zones = table(
    "dns_zones",
    Column("kind", String(8), primary_key=True, comment="site, vcluster or subnet"),
    Column(
        "key", Name, primary_key=True, comment="name of the vcluster or the subnet; '' for the site"
    ),
    not_null("serial", BigInteger, comment="of the SOA: rises with each change, never falls"),
    not_null(
        "digest", String(64), default="", comment="of the site file's share; the site's row only"
    ),
    comment=(
        "Serials of the DNS zones. A zone that has ended keeps its row: its name may come back."
    ),
)

node_permissions = table(
    "node_permissions",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    not_null("right", String(16), comment="use (its holder's group) or operate"),
    comment="Which groups have rights on a node now; follows its holder.",
)

vcluster_history = table(
    "vcluster_history",
    Column("id", Id, primary_key=True),
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    not_null("at", Time, index=True),
    not_null(
        "event", String(16), comment="created, or what of it changed: see store.vclusters.EVENTS"
    ),
    not_null("state", String(16), comment="afterwards"),
    not_null("size", Integer, comment="nodes it should have afterwards"),
    Column("expires_at", Time, comment="end of its lease afterwards"),
    comment="What became of virtual clusters.",
)

request_watchers = table(
    "request_watchers",
    Column("request_id", Id, ForeignKey("node_requests.id"), primary_key=True),
    Column("user_id", Id, primary_key=True, autoincrement=False),
    comment="People who are told when a request is decided.",
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
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    not_null("kind", String(16), comment="create, grow, replace or move"),
    not_null("state", String(16), index=True, comment="see states.RequestState"),
    not_null("reason", Text, default="", comment="why it waits or was rejected"),
    not_null("priority", Integer, comment="its group's, when submitted"),
    not_null("submitted_at", Time),
    Column("decided_at", Time),
    defaulted("may_wait", Boolean, True, comment="false: rejected if it cannot be met now"),
    defaulted("may_spread", Boolean, False, comment="a tuple's nodes may be of several blocks"),
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
    defaulted("granted", Integer, 0, comment="of a move: nodes so far"),
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
    not_null("count", Integer),
    not_null("attributes", Document, default="", comment="requirements (XML) or ''"),
    not_null("template_id", Id, ForeignKey("config_templates.id")),
    comment="A request's tuples.",
)

request_starts = table(
    "request_starts",
    Column("request_id", Id, primary_key=True, autoincrement=False),
    not_null("told_at", Time, comment="when this was told first"),
    Column("starts_at", Time, comment="as expected; null: nobody can tell"),
    not_null("why", Text, default="", comment="why nobody can tell"),
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
    not_null("name", Name, unique=True, comment="its clusters' names begin with it"),
    not_null("group_id", Id, ForeignKey("groups.id"), index=True),
    not_null("asked", Document, comment="what each is created with (JSON)"),
    not_null("starts_at", Time, comment="the first start"),
    not_null("duration", Time, comment="seconds of each lease"),
    not_null("zone", String(64), comment="time zone whose clock the starts keep"),
    not_null("days", Words(32), comment="of the week: 'mon,wed'"),
    Column("count", Integer, comment="starts in all; null: no limit"),
    Column("ends_at", Time, comment="no start is later; null: no limit"),
    not_null("created_at", Time),
    comment="Reservations that recur: a virtual cluster for each start.",
)

series_occurrences = table(
    "series_occurrences",
    Column("series_id", Id, ForeignKey("reservation_series.id"), primary_key=True),
    Column("starts_at", Time, primary_key=True),
    not_null("vcluster", Name, comment="name of its virtual cluster"),
    not_null("refused", Text, comment="why it could not be reserved; '': it was"),
    comment="Starts of series that were decided: each is, once.",
)

reservations = table(
    "reservations",
    Column(
        "node_id", Id, ForeignKey("nodes.id"), primary_key=True, comment="one reservation a node"
    ),
    not_null("request_id", Id, ForeignKey("node_requests.id"), index=True),
    Column(
        "reclaim_id",
        Id,
        ForeignKey("reclaims.id"),
        index=True,
        comment="by which it is taken; null: it is free",
    ),
    not_null("at", Time),
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
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True, comment="from whom"),
    not_null("request_id", Id, ForeignKey("node_requests.id"), index=True, comment="for whom"),
    not_null("type_id", Id, ForeignKey("node_types.id"), comment="of which nodes"),
    Column(
        "block_id", Id, ForeignKey("node_blocks.id"), comment="of which block; null: of no block"
    ),
    not_null("subnet", Name, default="", comment="of which subnet; '': any"),
    not_null(
        "attributes", Document, default="", comment="requirements (XML) that its answer must meet"
    ),
    not_null("count", Integer, comment="nodes to give back"),
    not_null("given", Integer, default=0, comment="nodes given back or seized so far"),
    not_null("deadline", Time, comment="what is not given back by then is seized"),
    not_null("state", String(16), comment="see states.ReclaimState"),
    not_null("created_at", Time),
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
    not_null("seconds", Double, comment="node-seconds"),
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
    not_null("seconds", Double, comment="node-seconds"),
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
    not_null("seconds", Double, default=0.0, comment="node-seconds"),
    not_null("joules", Double, default=0.0, comment="used"),
    not_null("always_on", Double, default=0.0, comment="joules had no node ever slept"),
    defaulted("grams", Double, 0.0, comment="of CO2 emitted"),
    comment="Energy by day, group and type.",
)

vcluster_energy = table(
    "vcluster_energy",
    Column(
        "day", Integer, primary_key=True, autoincrement=False, comment="days since the epoch, UTC"
    ),
    Column("vcluster_id", Id, primary_key=True, autoincrement=False),
    not_null("seconds", Double, comment="node-seconds"),
    not_null("joules", Double, comment="used"),
    not_null("always_on", Double, comment="joules had no node ever slept"),
    not_null("grams", Double, comment="of CO2 emitted"),
    comment="Energy by day and vcluster.",
)

energy_curve = table(
    "energy_curve",
    Column("source", String(500), primary_key=True, comment="a file or an address"),
    not_null("content", Document, comment="CSV; '': it was never read"),
    not_null("read_at", Time, comment="when the content was read last"),
    not_null("good_until", Time, comment="after that the content is too old"),
    not_null("fault", Text, comment="why it could not be read last; ''"),
    comment="The price of energy or the CO2 emitted for it, by the hour, as read last.",
)

marks = table(
    "marks",
    Column("name", String(64), primary_key=True),
    not_null("at", Time),
    defaulted("about", String(300), "", comment="of 'hold': why the site is held"),
    comment="How far work that goes on in time has come: 'energy' …",
)

claims = table(
    "claims",
    Column("name", String(64), primary_key=True, comment="what is claimed: 'manager' …"),
    not_null("owner", String(64)),
    not_null("generation", BigInteger, comment="+1 with each new owner; checked in every apply"),
    not_null("expires_at", Time),
    defaulted(
        "acts",
        BigInteger,
        0,
        comment="+1 with each act under it, so that an act and a take-over write the same row",
    ),
    comment="Who may do what only one may do at a time.",
)

server_parts = table(
    "server_parts",
    Column("server", String(64), primary_key=True, comment="the host's name, as in claims"),
    Column("part", String(16), primary_key=True, comment="edge, images, manager or web"),
    not_null("addresses", Words(2000), comment="by which nodes reach the host"),
    not_null("version", String(40), comment="of the program"),
    not_null("database_schema", String(16), comment="that the program was written for"),
    not_null("started_at", Time),
    not_null("seen_at", Time, comment="when the part renewed the row last, by its host's clock"),
    defaulted(
        "key",
        String(64),
        "",
        comment="of the tokens by which other hosts fetch images here; of images alone, else ''",
    ),
    comment="The parts of the server on each host, as each says of itself.",
)

database_lease = table(
    "database_lease",
    Column("id", Integer, primary_key=True, autoincrement=False, comment="always 1"),
    not_null("host", String(300), comment="the writer, HOST:PORT"),
    not_null("epoch", BigInteger, comment="+1 with each change of the host"),
    not_null("beat", BigInteger, comment="+1 with each renewal"),
    not_null("seconds", Double, comment="unchanged for so long, it may be taken over"),
    comment="Which host of a database cluster is the writer; no row where there is one host.",
)

maintenance_windows = table(
    "maintenance_windows",
    Column("id", Id, primary_key=True),
    not_null("state", String(16), comment="see cod/states.py"),
    Column("begins_at", Time, comment="when nodes that are still held are taken; null: never"),
    Column("ends_at", Time, comment="when nodes come back; null: when an administrator ends it"),
    not_null("reason", String(300)),
    not_null(
        "names", Text, comment="nodes as they were named; '' with `filter` '': all of the site"
    ),
    not_null("filter", Text, comment="the filter that they were meant by"),
    not_null(
        "drain",
        Boolean,
        comment="its nodes are given to nobody from now on, and go as they come free",
    ),
    not_null("stay_out", Boolean, comment="nodes do not come back at the end"),
    # two windows planned at once get the same bit: one of the transactions fails and is repeated
    not_null("bit", Integer, unique=True, comment="1, 2, 4 … while it is open, then -id"),
    Column(
        "warned",
        Time,
        comment="owners were told so many seconds before; null: when it was planned",
    ),
    not_null("created_at", Time),
    not_null("created_by", String(80)),
    defaulted(
        "revision",
        Integer,
        0,
        comment="how often its times were changed: a calendar program goes by it",
    ),
    comment="Times in which nodes are out of service.",
)

maintenance_nodes = table(
    "maintenance_nodes",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column("window_id", Id, ForeignKey("maintenance_windows.id"), primary_key=True, index=True),
    not_null("bit", Integer, comment="of the window"),
    not_null("taken", Boolean, comment="the window has put it out of service, and brings it back"),
    comment="Nodes of windows that are not over.",
)
