"""Switches and their ports: the VLAN that COD wants on each port, and the VLAN that was last read
from it."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from cod.store.tables.base import Exact, Id, Mac, Name, Time, table

switches = table(
    "switches",
    Column("name", Name, primary_key=True, comment="of the site file's [[switch]]"),
    Column(
        "epoch",
        Integer,
        nullable=False,
        default=0,
        comment="+1 with each claim; fences sessions that are late",
    ),
    Column("claimed_by", String(64), comment="the server that has a session with it"),
    Column("claim_expires", Time),
    Column("next_at", Time, nullable=False, default=0.0, comment="no session before"),
    Column(
        "failures",
        Integer,
        nullable=False,
        default=0,
        comment="sessions that failed since one succeeded",
    ),
    Column(
        "reason",
        Text,
        nullable=False,
        default="",
        comment="why the last session failed; '': it did not",
    ),
    Column(
        "about", String(200), nullable=False, default="", comment="what the switch says of itself"
    ),
    Column("tried_at", Time, comment="when the last session ended"),
    Column("answered_at", Time, comment="when the last session that succeeded ended"),
    Column(
        "check_wanted",
        Boolean,
        nullable=False,
        default=False,
        comment="a session is wanted, ports due or not",
    ),
    comment="Sessions with switches: one at a time with each, by whichever server has the claim.",
)

switch_ports = table(
    "switch_ports",
    Column("id", Id, primary_key=True),
    Column("switch", Name, nullable=False, comment="of the site file's [[switch]]"),
    Column("port", Exact, nullable=False, comment="as its driver calls it"),
    Column(
        "node_id",
        Id,
        ForeignKey("nodes.id"),
        index=True,
        comment="null: no known NIC is on it (any more)",
    ),
    Column("mac", Mac, unique=True, comment="of the NIC"),
    Column("source", String(8), nullable=False, comment="lldp, or manual: a manual entry stays"),
    Column("seen_at", Time, nullable=False, comment="when that was last said"),
    Column("wanted_vlan", Integer, comment="null: the switch's provisioning VLAN"),
    Column(
        "seq",
        Integer,
        nullable=False,
        default=0,
        comment="+1 with each wish; 0: COD has never changed the port",
    ),
    Column("wished_at", Time, nullable=False, default=0.0),
    Column("applied_vlan", Integer, comment="as last read from the switch; null: not known"),
    Column(
        "applied_seq",
        Integer,
        nullable=False,
        default=0,
        comment="the newest wish that was read back",
    ),
    Column("verified_at", Time, comment="when it was last read"),
    Column(
        "attempts",
        Integer,
        nullable=False,
        default=0,
        comment="failed attempts since the wish, or verification",
    ),
    Column("next_at", Time, comment="when to change or to verify it; null: nothing is due"),
    Column(
        "reason",
        Text,
        nullable=False,
        default="",
        comment="why the last attempt failed; '': it did not",
    ),
    Column(
        "given_up",
        Boolean,
        nullable=False,
        default=False,
        comment="the wish is not tried any more (see reason)",
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
