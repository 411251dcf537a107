"""A site with people, groups and vclusters whose nodes run, for tests of the LDAP server."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from sqlalchemy import insert, update

from cod.flows.people import people
from cod.model import ipv4
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.people import people as rows

NOW = 1_000_000.0


def user(
    tx: Tx, name: str, roles: Mapping[str, str] | None = None, *, keys: int = 1, admin: bool = False
) -> int:
    """A user with roles by group, and keys. Returns the uid."""
    made = people.create(
        tx,
        name,
        full_name=f"{name.title()} Example",
        email=f"{name}@example.org",
        admin=admin,
        now=NOW,
    )
    for group, role in (roles or {}).items():
        groups.ensure(tx, group, NOW)
        people.set_role(tx, group=group, user=name, role=role)
    for number in range(keys):
        key = base64.b64encode(f"{name}{number}".encode()).decode()
        tx.execute(
            insert(t.ssh_keys).values(
                user_id=made.id,
                name=f"{name}@desk{number}",
                algorithm="ssh-ed25519",
                key=key,
                fingerprint=key,
                created_at=NOW,
            )
        )
    assert made.uid is not None
    return made.uid


def vcluster(tx: Tx, name: str, group: str, addresses: Mapping[str, str]) -> int:
    """A vcluster of the group with active nodes: addresses by host name."""
    template = new_id(
        tx.execute(
            insert(t.config_templates).values(
                name=f"{group}/{name}",
                revision=1,
                document="<template/>",
                digest="",
                created_at=NOW,
            )
        )
    )
    made = new_id(
        tx.execute(
            insert(t.vclusters).values(
                name=name,
                live_name=name,
                group_id=groups.ensure(tx, group, NOW).id,
                state="active",
                template_id=template,
                size=len(addresses),
                creation_size=1,
                attributes="",
                lease_time=60.0,
                created_at=NOW,
            )
        )
    )
    for host, address in addresses.items():
        mac = "52:54:" + ":".join(f"{byte:02x}" for byte in ipv4(address).to_bytes(4, "big"))
        node = nodes.add(tx, name=f"{name}-{host}", boot_mac=mac, now=NOW, cause="", actor="")
        tx.execute(
            update(t.nodes)
            .where(t.nodes.c.id == node.id)
            .values(vcluster_id=made, hostname=host, state=NodeState.ACTIVE)
        )
        tx.execute(
            insert(t.bindings).values(
                address=ipv4(address),
                mac=mac,
                kind="vcluster",
                node_id=node.id,
                subnet="lab",
                hostname=host,
                state="bound",
                expires_at=NOW * 9,
            )
        )
    return made


def physics_and_chemistry(tx: Tx) -> None:
    """Two groups with a vcluster each: `pool` on 127.0.7.1 and .2, `web` on 127.0.8.1; ann, bob,
    vera in physics, carl in chemistry, root-like admin ada in none."""
    user(tx, "ann", {"physics": "owner"}, keys=2)
    user(tx, "bob", {"physics": "member"})
    user(tx, "vera", {"physics": "viewer"})
    user(tx, "carl", {"chemistry": "owner"})
    user(tx, "ada", admin=True)
    vcluster(tx, "pool", "physics", {"n1": "127.0.7.1", "n2": "127.0.7.2"})
    vcluster(tx, "web", "chemistry", {"n1": "127.0.8.1"})


def group_id(tx: Tx, name: str) -> int:
    """A group's id."""
    return groups.named(tx, name).id


def disable(tx: Tx, name: str) -> None:
    """The user may not sign in any more."""
    rows.change(tx, rows.named(tx, name).id, disabled_at=NOW)
