"""Tables of users and groups: credentials, roles, invitations, and the audit."""

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
    UniqueConstraint,
)

from cod.choices import NoticeFormat
from cod.store.tables.base import Document, Exact, Id, Name, Time, defaulted, not_null, table

users = table(
    "users",
    Column("id", Id, primary_key=True),
    not_null("name", Name, unique=True, comment="sign-in name"),
    not_null("full_name", String(200), default=""),
    not_null("email", String(254), default=""),
    not_null("created_at", Time),
    Column("disabled_at", Time, comment="set: may not sign in"),
    defaulted("admin", Boolean, False, comment="a site administrator"),
    defaulted(
        "password",
        String(200),
        "",
        comment="argon2id in its own notation; '': none, signs in elsewhere or not yet",
    ),
    defaulted("directory", String(16), "", comment="where it signs in: '' here, ldap or oidc"),
    Column("subject", Exact, unique=True, comment="its name there; null: signs in here"),
    Column("signed_in_at", Time, comment="when it last came in by showing who it is; null: never"),
    Column(
        "absent_at",
        Time,
        comment="since when its directory does not know it any more; null: it does",
    ),
    Column("uid", BigInteger, unique=True, comment="its POSIX number on nodes"),
    Column("gid", BigInteger, comment="of its primary group: its own where it is the uid"),
    Column("checklist_over_at", Time, comment="when it dismissed its first steps; null: never"),
    defaulted(
        "shell", String(100), "", comment="login shell on nodes, from its directory; '': the site's"
    ),
    defaulted(
        "home",
        String(255),
        "",
        comment="home directory on nodes, from its directory; '': the site's",
    ),
    defaulted(
        "primary_group",
        String(63),
        "",
        comment="name of the group `gid`, from its directory; '': not known",
    ),
    defaulted("admin_given", Boolean, False, comment="`admin` comes from a group of its directory"),
    defaulted(
        "notices_read",
        Id,
        0,
        comment="notices up to this id are read, beside those in notice_reads",
    ),
    Index("ix_users_admin", "admin"),
    comment="People. Credentials are issued by the site's administrator.",
)

groups = table(
    "groups",
    Column("id", Id, primary_key=True),
    not_null("name", Name, unique=True),
    not_null("priority", Integer, default=0, comment="set by the administrator; larger goes first"),
    Column("default_lease", Time, comment="seconds; null: the site's"),
    Column(
        "max_lease", Time, comment="seconds of a whole lease, with all extensions; null: no limit"
    ),
    Column(
        "image_quota",
        BigInteger,
        comment="bytes that its images and uploads may take; null: the site's",
    ),
    Column(
        "volume_quota",
        BigInteger,
        comment="bytes that its volumes may have together; null: the site's",
    ),
    defaulted("email", Text, "", comment="whom to tell: addresses, separated by commas"),
    defaulted("webhook", Text, "", comment="URL that notices are posted to, or ''"),
    defaulted(
        "webhook_format",
        String(16),
        "json",
        comment=f"{', '.join(NoticeFormat)}: what the webhook expects",
    ),
    defaulted(
        "webhook_events",
        String(40),
        "notices",
        comment="what is posted: notices, vclusters, nodes; with spaces between",
    ),
    defaulted(
        "webhook_turn",
        Integer,
        0,
        comment="how often the webhook's secret was changed; part of what it is derived from",
    ),
    Column("gid", BigInteger, unique=True, comment="its POSIX number on nodes"),
    defaulted(
        "shares",
        Double,
        1.0,
        comment="what it is to have of the site, in proportion to the other groups'",
    ),
    defaulted("guarantee", Integer, 0, comment="nodes that are not taken from it for others"),
    Column("node_limit", Integer, comment="nodes that it may hold at once; null: the site's"),
    Column("budget", Double, comment="money of a month, to be warned by; null: none"),
    Column("hours_limit", Double, comment="node-hours that it may use in a month; null: no limit"),
    Column(
        "parent_id",
        Id,
        ForeignKey("groups.id"),
        comment="the group that it is a subgroup of; null: of none",
    ),
    Column(
        "faded_usage",
        Double,
        comment=(
            "node-seconds, weighted by types' costs, not faded at faded_at; null: not counted yet"
        ),
    ),
    Column("faded_at", Time),
    Column("grace", Time, comment="seconds to give nodes back after a reclaim; null: the site's"),
    Column(
        "wipe",
        String(8),
        comment="zero or purge: how the disks of its nodes are erased at least; null: the site's",
    ),
    Column("odd_turn", Integer, comment="the last turn for which it has an odd node of its share"),
    not_null("created_at", Time),
    Column(
        "created_by",
        Name,
        comment="the user who created it by the site's rule; null: an administrator did",
    ),
    defaulted(
        "user_shares",
        Boolean,
        False,
        comment="its requests are ranked by what their users have used",
    ),
    comment="Groups own vclusters, images and templates, and give requests their priority.",
)

group_type_limits = table(
    "group_type_limits",
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    Column("type_id", Id, ForeignKey("node_types.id"), primary_key=True),
    not_null("nodes", Integer),
    comment="Nodes of a type that a group may hold at once.",
)

group_type_terms = table(
    "group_type_terms",
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    Column("type_id", Id, ForeignKey("node_types.id"), primary_key=True),
    not_null("guarantee", Integer, comment="nodes that are not taken for others"),
    Column("shares", Double, comment="as of the group, of nodes of the type; null: the group's"),
    comment="Guarantees and shares of nodes of a type, which are apart from those of all others.",
)

group_permissions = table(
    "group_permissions",
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True),
    Column("user_id", Id, ForeignKey("users.id"), primary_key=True),
    not_null("role", String(16), comment="owner, member or viewer"),
    defaulted(
        "rights",
        String(100),
        "",
        comment="resize, consoles, capture, invite: single rights beside the role",
    ),
    defaulted(
        "shares",
        Double,
        1.0,
        comment="in proportion to the other users' of the group, where it has users' shares",
    ),
    defaulted(
        "given", Boolean, False, comment="the role comes from a group of the user's directory"
    ),
    comment="Who may do what in a group's name.",
)

user_usage = table(
    "user_usage",
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True, autoincrement=False),
    Column(
        "user_id",
        Id,
        primary_key=True,
        autoincrement=False,
        comment="0: of vclusters whose creator is not known",
    ),
    not_null(
        "faded_usage",
        Double,
        comment="node-seconds, weighted by types' costs, not faded at faded_at",
    ),
    not_null("faded_at", Time),
    comment="What users have used in groups that have users' shares.",
)

posix_ids = table(
    "posix_ids",
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(3), primary_key=True, comment="uid or gid"),
    not_null(
        "holder", String(80), comment="user:NAME or group:NAME; it stays when they are deleted"
    ),
    not_null("given_at", Time),
    comment="Every POSIX number that was ever given, so that none is given to somebody else.",
)

api_tokens = table(
    "api_tokens",
    Column("id", Id, primary_key=True),
    not_null("name", Name, unique=True),
    Column("user_id", Id, ForeignKey("users.id"), comment="null: acts as the site's administrator"),
    not_null("scope", String(8), default="admin", comment="admin, or read: may look, not change"),
    Column(
        "group_id",
        Id,
        ForeignKey("groups.id"),
        index=True,
        comment="only for this group's things; null: no limit",
    ),
    not_null("digest", String(64), unique=True, comment="BLAKE2b-256 of the token, hex"),
    not_null("created_at", Time),
    Column("expires_at", Time, comment="null: never"),
    comment="Bearer tokens of the REST API. The token itself is shown once and not kept.",
)

web_sessions = table(
    "web_sessions",
    Column("id", Id, primary_key=True, comment="public name of the session"),
    not_null("digest", String(64), unique=True, comment="BLAKE2b-256 of the cookie, hex"),
    not_null("user_id", Id, ForeignKey("users.id"), index=True),
    not_null("created_at", Time),
    not_null("last_seen", Time, comment="written once a minute at most"),
    not_null("expires_at", Time, index=True),
    not_null("address", String(45), comment="signed in from"),
    not_null("browser", String(200), default="", comment="what it says it is"),
    comment="Browsers that are signed in. The cookie itself is not kept.",
)

sign_ins = table(
    "sign_ins",
    Column("key", String(80), primary_key=True, comment="'name:NAME' or 'address:ADDRESS'"),
    not_null("failures", Integer, comment="since the last success, or since they were forgotten"),
    not_null("last_at", Time, index=True),
    not_null("open_at", Time, comment="when the next attempt is listened to"),
    comment="Failed sign-ins, which make the next one wait.",
)

invitations = table(
    "invitations",
    Column("id", Id, primary_key=True),
    not_null("digest", String(64), unique=True, comment="BLAKE2b-256 of the link's secret, hex"),
    Column(
        "group_id",
        Id,
        ForeignKey("groups.id"),
        index=True,
        comment="null: to the site, into no group",
    ),
    not_null("role", String(16), default="", comment="owner, member or viewer; '': none"),
    Column(
        "user_id",
        Id,
        ForeignKey("users.id"),
        index=True,
        comment="set: a new password for that user",
    ),
    not_null("email", String(254), default="", comment="for whom, as the inviter put it"),
    not_null("invited_by", String(80)),
    not_null("created_at", Time),
    not_null("expires_at", Time, index=True),
    Column("used_at", Time, comment="set: it has done its work"),
    comment=(
        "Links that make an account, add one to a group, or set a new password; each works once."
    ),
)

ssh_keys = table(
    "ssh_keys",
    Column("id", Id, primary_key=True),
    not_null("user_id", Id, ForeignKey("users.id"), index=True),
    not_null("name", String(200), comment="the key's comment"),
    not_null("algorithm", String(63), comment="ssh-ed25519 …"),
    not_null("key", Text, comment="base64, as in an authorized_keys file"),
    not_null("fingerprint", String(63), comment="SHA256:…, as ssh-keygen prints it"),
    not_null("created_at", Time),
    defaulted("given", Boolean, False, comment="it comes from the user's directory"),
    UniqueConstraint("user_id", "fingerprint"),
    comment="Public keys of users; those of a vcluster's group reach its nodes.",
)

audit = table(
    "audit",
    Column("id", Id, primary_key=True),
    not_null("at", Time, index=True),
    not_null("actor", String(80), comment="user:NAME, token:NAME, vcm:VCLUSTER …"),
    not_null("address", String(45), default="", comment="from where; '': the server itself"),
    not_null("action", String(40), comment="what was done: 'vcluster create' …"),
    not_null("thing", String(200), default="", comment="to what"),
    Column(
        "group_id",
        Id,
        index=True,
        comment="whose it is; null: the site's. No key: it outlives the group",
    ),
    not_null("before", Document, default="", comment="JSON of what changed; secrets left out"),
    not_null("after", Document, default="", comment="the same afterwards"),
    Column(
        "run",
        String(32),
        comment="random key of the run of the flow that made the change; null: of none",
    ),
    comment="Every change that somebody made.",
)

setting_changes = table(
    "setting_changes",
    Column("id", Id, primary_key=True),
    not_null("at", Time),
    not_null("actor", String(80), comment="as in the audit"),
    not_null("name", String(100), index=True, comment="'policy.inertia'"),
    Column("value", Document, comment="JSON, as the site file has it; null: what that says"),
    comment="Settings that were changed while the servers ran: of each, its newest row holds.",
)

replies = table(
    "replies",
    Column(
        "key",
        String(64),
        primary_key=True,
        comment="SHA-256 of who asked and the key that they gave",
    ),
    not_null("question", String(64), comment="SHA-256 of method, path, query and body"),
    not_null("status", Integer),
    not_null("body", Document, comment="JSON; '' where it had a secret in it, or nothing"),
    not_null("at", Time, index=True),
    comment="What was answered to questions that carried an Idempotency-Key; kept for a day.",
)

site_documents = table(
    "site_documents",
    not_null("kind", String(16), primary_key=True),
    not_null("name", String(127), primary_key=True, comment="of the thing, in full"),
    comment="Things that the site's documents named when they were applied; a prune may delete "
    "those that they name no more.",
)
