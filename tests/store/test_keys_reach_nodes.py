"""SSH keys: whose they are, and that those of a vcluster's group are in its nodes' seeds and no
others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cod.flows.people import people, sshkeys
from cod.model import Node, Refused, Site, Who
from cod.policy.people import sshkeys as policy
from cod.states import NodeState
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.people import people as rows
from cod.wire.confd import messages
from tests.store.agentlab import NOW, TEMPLATE, Lab
from trampoline import seed


def line(name: str) -> str:
    public = Ed25519PrivateKey.generate().public_key()
    return f"{public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {name}"


def person(tx: Tx, name: str, group: str = "", role: str = "member", keys: int = 1) -> list[str]:
    """A user with keys; the lines."""
    user = people.create(tx, name, now=NOW)
    if group:
        groups.ensure(tx, group, NOW)
        people.set_role(tx, group=group, user=name, role=role)
    lines = [line(f"{name}-{number}") for number in range(keys)]
    for each in lines:
        sshkeys.add(tx, who=Who(f"user:{name}", user_id=user.id), line=each, now=NOW)
    return lines


def who(tx: Tx, name: str) -> Who:
    user = rows.by_name(tx, name)
    assert user is not None
    return Who(f"user:{name}", user_id=user.id)


def test_keys_are_their_users_own(tx: Tx) -> None:
    person(tx, "bob")
    (first,) = person(tx, "ann")
    ann, bob = who(tx, "ann"), who(tx, "bob")
    with pytest.raises(Refused, match="already"):
        sshkeys.add(tx, who=ann, line=first, now=NOW)
    assert sshkeys.add(tx, who=bob, line=first, name="shared", now=NOW).name == "shared"
    theirs = sshkeys.mine(tx, ann)[0]
    with pytest.raises(Refused, match="no key"):
        sshkeys.remove(tx, who=bob, key_id=theirs.id)
    sshkeys.remove(tx, who=ann, key_id=theirs.id)
    assert sshkeys.mine(tx, ann) == []
    with pytest.raises(Refused, match="only people"):
        sshkeys.add(tx, who=Who("token:ci", admin=True), line=first, now=NOW)
    with pytest.raises(Refused, match="a line"):
        sshkeys.add(tx, who=ann, line=first, name="two\nlines", now=NOW)


def test_nobody_has_more_keys_than_fit(tx: Tx) -> None:
    person(tx, "ann", keys=policy.MOST)
    with pytest.raises(Refused, match="as many as"):
        sshkeys.add(tx, who=who(tx, "ann"), line=line("one more"), now=NOW)


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    return Lab(tx, site)


def seeded(lab: Lab) -> Node:
    """A node that is being primed for a vcluster of the group 'physics'."""
    lab.machine(1, "trampoline")
    lab.boots(1)
    vcluster = lab.vcluster(lab.template(), group="physics")
    lab.assign(1, vcluster)
    assert lab.node(1).state == NodeState.PRIME
    return lab.node(1)


def test_the_groups_keys_are_in_the_seed_and_no_others(lab: Lab) -> None:
    ann, bob = person(lab.tx, "ann", "physics", "owner", keys=2), person(lab.tx, "bob", "physics")
    for name, group, role in (
        ("vera", "physics", "viewer"),
        ("eve", "chemistry", "owner"),
        ("dan", "physics", "member"),
    ):
        person(lab.tx, name, group, role)
    people.change(lab.tx, "dan", {"disabled": True}, now=NOW)
    seeded(lab)
    files = lab.order(1).seed
    assert files["authorized_keys"].splitlines() == [*ann, *bob]
    assert json.loads(files["meta-data"])["public-keys"] == [*ann, *bob]
    assert json.loads(files["vendor-data"].partition("\n")[2]) == {"disable_root": False}
    assert lab.order(1) == lab.order(1)


def test_who_has_left_and_a_key_that_was_removed_are_not_in_the_next_priming(lab: Lab) -> None:
    (first, second), bob = (
        person(lab.tx, "ann", "physics", "owner", keys=2),
        person(lab.tx, "bob", "physics"),
    )
    seeded(lab)
    assert lab.order(1).seed["authorized_keys"].splitlines() == [first, second, *bob]
    people.remove(lab.tx, group="physics", user="bob")
    sshkeys.remove(
        lab.tx, who=who(lab.tx, "ann"), key_id=sshkeys.mine(lab.tx, who(lab.tx, "ann"))[0].id
    )
    assert lab.order(1).seed["authorized_keys"].splitlines() == [second]


def test_a_group_without_keys_changes_nothing_in_the_seed(lab: Lab) -> None:
    person(lab.tx, "vera", "physics", "viewer")
    seeded(lab)
    assert set(lab.order(1).seed) == {"meta-data", "network-config", "user-data"}


def test_a_template_without_a_seed_has_none_with_keys_either(lab: Lab) -> None:
    person(lab.tx, "ann", "physics")
    lab.machine(1, "trampoline")
    lab.boots(1)
    document = TEMPLATE.replace(
        '<personalise seed="nocloud"><user-data>#cloud-config</user-data></personalise>', ""
    )
    lab.assign(1, lab.vcluster(lab.template(document=document), group="physics"))
    assert lab.order(1).seed == {}


def test_the_disk_has_them_as_they_were_added(lab: Lab, tmp_path: Path) -> None:
    """Over the wire, and as a foreign program reads the file system that the agent writes."""
    lines = person(lab.tx, "ann", "physics", keys=2)
    seeded(lab)
    seed_files = messages.order_from(messages.order_element(lab.order(1))).seed
    (tmp_path / "seed").write_bytes(seed.build(seed_files, seed.least_size(seed_files)))
    read = subprocess.run(
        ["mtype", "-i", tmp_path / "seed", "::authorized_keys"], capture_output=True, check=True
    )
    assert read.stdout.decode().splitlines() == lines


def test_no_group_has_more_keys_than_a_message_carries() -> None:
    lines = ["k" * 999] * 1000
    assert len(policy.fitting(lines)) == policy.MOST_OF_A_NODE // 1000
    assert policy.fitting(lines[:3]) == lines[:3]
