"""Tables of notices to groups, and of messages to VCMs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Text

from cod.store.tables.base import Document, Id, Name, Time, defaulted, not_null, table

notices = table(
    "notices",
    Column("id", Id, primary_key=True),
    not_null("at", Time),
    not_null("kind", String(16), comment="ready, lease, reclaim, request, hardware …"),
    Column(
        "group_id",
        Id,
        ForeignKey("groups.id"),
        index=True,
        comment="whom it concerns; null: the site",
    ),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    not_null("subject", String(200)),
    not_null("about", Text, comment="the sentences"),
    Column(
        "events", Document, comment="JSON of what happened, for programs; null: a notice for people"
    ),
    defaulted(
        "link",
        String(300),
        "",
        comment="path of the portal's page where something can be done about it; ''",
    ),
    Index(None, "kind", "at"),
    comment="What groups and the site are told.",
)

notice_sends = table(
    "notice_sends",
    Column("id", Id, primary_key=True),
    not_null("notice_id", Id, ForeignKey("notices.id"), index=True),
    not_null("channel", String(8), comment="webhook or email"),
    not_null("target", Text, comment="URL or addresses; '': the administrators of the site file"),
    not_null("attempts", Integer, default=0),
    not_null("next_at", Time, comment="when to try"),
    Column("claimed_by", String(64)),
    Column("claim_expires", Time),
    Column("done_at", Time, comment="set: delivered or given up"),
    not_null("delivered", Boolean, default=False),
    not_null(
        "error", Text, default="", comment="of the last attempt; if delivered: who refused it"
    ),
    Index(None, "done_at", "next_at"),
    comment="Deliveries of notices; run at least once.",
)

notice_reads = table(
    "notice_reads",
    Column("user_id", Id, ForeignKey("users.id"), primary_key=True),
    Column("notice_id", Id, ForeignKey("notices.id"), primary_key=True, index=True),
    comment="Single notices that people have read, later than their users.notices_read.",
)

notice_choices = table(
    "notice_choices",
    Column("user_id", Id, ForeignKey("users.id"), primary_key=True),
    Column("kind", String(16), primary_key=True, index=True),
    not_null("mail", String(8), comment="at-once, daily or never"),
    not_null("chosen_at", Time, comment="older notices go by the choice of before"),
    comment="Kinds of notices for which people have chosen when they come by mail.",
)

notice_digests = table(
    "notice_digests",
    Column("user_id", Id, ForeignKey("users.id"), primary_key=True),
    Column("notice_id", Id, ForeignKey("notices.id"), primary_key=True, index=True),
    comment="Notices that wait for their people's daily mail.",
)

vcms = table(
    "vcms",
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), primary_key=True),
    not_null(
        "serial", String(64), default="", comment="of its certificate, hex; '': known by address"
    ),
    not_null("address", String(15), default="", comment="the only one it may come from; '': any"),
    not_null("enrolled_at", Time),
    not_null(
        "sequence", BigInteger, default=0, comment="of the last message that was put in its outbox"
    ),
    not_null("acked", BigInteger, default=0, comment="up to which it has dealt with them"),
    not_null("about", String(200), default="", comment="what it says it is"),
    Column("server", String(64), comment="the server that holds its connection; null: it is away"),
    not_null("epoch", BigInteger, default=0, comment="newest wins; an older connection is closed"),
    Column("connected_at", Time, comment="when it came, or went"),
    Column(
        "head",
        Name,
        comment="host name of the vcluster's node that it runs on; null: it runs elsewhere",
    ),
    Column(
        "ends_at",
        Time,
        comment="when its certificate ends; null: it has none, or has not shown it since",
    ),
    Column(
        "next_serial",
        String(64),
        comment="of the certificate that it got for this one and has not shown yet",
    ),
    Column("next_ends_at", Time, comment="when that one ends"),
    Column("warned_at", Time, comment="when its group was last told of the certificate's end"),
    comment=(
        "Virtual cluster managers. A row is what lets one speak for its vcluster, and choose its"
        " nodes."
    ),
)

vcm_invitations = table(
    "vcm_invitations",
    Column("vcluster_id", Id, ForeignKey("vcms.vcluster_id"), primary_key=True),
    not_null("node_id", Id, ForeignKey("nodes.id"), index=True, comment="whom it was given to"),
    not_null("digest", String(64), comment="SHA-256 of the invitation, which is kept nowhere"),
    not_null("expires_at", Time),
    Column(
        "taken_by", String(64), comment="SHA-256 of the public key that has a certificate for it"
    ),
    comment=(
        "What the VCM on a vcluster's head trades for its certificate; written when the head is"
        " primed."
    ),
)

outbox = table(
    "outbox",
    Column("vcluster_id", Id, ForeignKey("vcms.vcluster_id"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    not_null("verb", String(32), comment="as in docs/nmp"),
    not_null("body", Document, comment="its fields, as JSON"),
    not_null("at", Time),
    comment="What COD owes its VCMs: kept until they have acknowledged it.",
)
