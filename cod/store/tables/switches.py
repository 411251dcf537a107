"""Switches and their ports: the VLAN that COD wants on each port, and the VLAN that was last read
from it."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from cod.store.tables.base import Exact, Id, Mac, Name, Time, not_null, table

switches = table(
    "switches",
    Column("name", Name, primary_key=True, comment="of the site file's [[switch]]"),
    not_null(
        "epoch", Integer, default=0, comment="+1 with each claim; fences sessions that are late"
    ),
    Column("claimed_by", String(64), comment="the server that has a session with it"),
    Column("claim_expires", Time),
    not_null("next_at", Time, default=0.0, comment="no session before"),
    not_null("failures", Integer, default=0, comment="sessions that failed since one succeeded"),
    not_null("reason", Text, default="", comment="why the last session failed; '': it did not"),
    not_null("about", String(200), default="", comment="what the switch says of itself"),
    Column("tried_at", Time, comment="when the last session ended"),
    Column("answered_at", Time, comment="when the last session that succeeded ended"),
    not_null(
        "check_wanted", Boolean, default=False, comment="a session is wanted, ports due or not"
    ),
    comment="Sessions with switches: one at a time with each, by whichever server has the claim.",
)

switch_ports = table(
    "switch_ports",
    Column("id", Id, primary_key=True),
    not_null("switch", Name, comment="of the site file's [[switch]]"),
    not_null("port", Exact, comment="as its driver calls it"),
    Column(
        "node_id",
        Id,
        ForeignKey("nodes.id"),
        index=True,
        comment="null: no known NIC is on it (any more)",
    ),
    Column("mac", Mac, unique=True, comment="of the NIC"),
    not_null("source", String(8), comment="lldp, or manual: a manual entry stays"),
    not_null("seen_at", Time, comment="when that was last said"),
    Column("wanted_vlan", Integer, comment="null: the switch's provisioning VLAN"),
    not_null(
        "seq", Integer, default=0, comment="+1 with each wish; 0: COD has never changed the port"
    ),
    not_null("wished_at", Time, default=0.0),
    Column("applied_vlan", Integer, comment="as last read from the switch; null: not known"),
    not_null("applied_seq", Integer, default=0, comment="the newest wish that was read back"),
    Column("verified_at", Time, comment="when it was last read"),
    not_null(
        "attempts", Integer, default=0, comment="failed attempts since the wish, or verification"
    ),
    Column("next_at", Time, comment="when to change or to verify it; null: nothing is due"),
    not_null("reason", Text, default="", comment="why the last attempt failed; '': it did not"),
    not_null(
        "given_up", Boolean, default=False, comment="the wish is not tried any more (see reason)"
    ),
    Column(
        "corrected_at",
        Time,
        comment="when it was last found in another VLAN than COD had put it in",
    ),
    UniqueConstraint("switch", "port"),
    Index(None, "switch", "next_at"),
    comment=(
        "Switch ports as desired state. The newest wish has the last word; outcomes of older ones"
        " are dropped."
    ),
)
