"""Shares, guarantees and limits on the command line and on their page."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import delete, select, update

from cod.model import Site
from cod.policy.sharing.shares import ShareAccount
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import types
from cod.store.people import groups
from tests.fair_tree import ranks, sets
from tests.net.apiserver import NOW, Served, as_json, run, said
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.test_people_api import user
from tests.store.manager_world import add_node

pytestmark = pytest.mark.slow

HOUR, WEEK = 3600.0, 7 * 86400.0


@pytest.fixture
def site(site: Site) -> Site:
    """A site whose usage fades by half in a week."""
    return replace(site, policy=replace(site.policy, fair_half_life=WEEK))


def test_the_worked_example_is_told(there: Served) -> None:
    """Figures of Slurm's documentation, by the command; groups without shares have no part in
    them."""
    there.tx(lambda tx: tx.execute(update(t.groups).values(shares=0.0)))
    for name, shares, usage in (("a", 40, 600), ("b", 30, 300), ("c", 30, 100)):
        there.tx(groups.add, name, NOW, shares=shares, faded_usage=usage * HOUR, faded_at=NOW)
    found = {one["group"]: one for one in as_json(there, "shares")}
    assert [found[name]["ratio"] for name in "abc"] == pytest.approx([2 / 3, 1.0, 3.0], rel=1e-3)
    assert [found[name]["rank"] for name in "abc"] == [3, 2, 1]
    assert [found[name]["usage"] for name in "abc"] == pytest.approx(
        [600.0, 300.0, 100.0], rel=1e-3
    )


def test_an_administrator_sets_what_a_group_may_hold(there: Served) -> None:
    value = as_json(
        there,
        "group",
        "set",
        "physics",
        "--shares",
        "40",
        "--guarantee",
        "2",
        "--limit",
        "20",
        "--hours",
        "5000",
    )
    assert (value["shares"], value["guarantee"], value["node_limit"], value["hours_limit"]) == (
        40.0,
        2,
        20,
        5000.0,
    )
    assert as_json(there, "shares", "physics")["node_limit"] == 20
    assert {one["group"] for one in as_json(there, "shares")} == {"physics", "site", "web"}
    page = browse(there).get("/shares")
    assert "20 nodes" in page.words
    assert "web" not in page.tree.xpath("//main//th/a/text()"), "of groups that one is in"
    assert (
        as_json(there, "group", "set", "physics", "--limit", "none", "--hours", "none")[
            "hours_limit"
        ]
        is None
    )


@pytest.mark.parametrize("limits", [["²"], ["-3"], ["=4"], ["gpu="], ["20", "none"]], ids=" ".join)
def test_a_limit_that_is_none_is_refused(there: Served, limits: list[str]) -> None:
    refused = run(
        there,
        "group",
        "set",
        "physics",
        *(word for one in limits for word in ("--limit", one)),
        code=2,
    )
    assert "--limit takes a number such as 20" in refused.stderr


def test_the_portal_says_when_a_guarantee_can_be_called_in(there: Served) -> None:
    def page(nodes: int) -> str:
        there.tx(lambda tx: tx.execute(update(t.groups).values(guarantee=nodes)))
        return str(browse(there).get("/shares").words)

    few, many = "the site has too few nodes", "all from"
    assert few in page(1_000)
    there.tx(lambda tx: tx.execute(update(t.vclusters).values(creation_size=999)))
    there.tx(lambda tx: tx.execute(update(t.vclusters).values(expires_at=NOW + 86400.0)))
    assert many in page(1)
    there.tx(lambda tx: tx.execute(update(t.vclusters).values(creation_size=0)))
    assert few not in page(1)
    assert many not in page(1)


def test_shares_and_guarantees_of_a_type_are_set_and_shown(there: Served) -> None:
    node = there.tx(lambda tx: add_node(tx, 77))
    (kind,) = [each.name for each in there.tx(types.every) if each.id == node.type_id]
    value = as_json(there, "group", "set", "physics", "--guarantee", f"{kind}=1")
    assert value["guarantee"] == 0
    value = as_json(there, "group", "set", "physics", "--shares", "2", "--shares", f"{kind}=2.5")
    assert value["shares"] == 2.0
    (own,) = value["types"]
    assert (own["type"], own["shares"], own["guarantee"]) == (kind, 2.5, 1)
    assert f"physics: {kind}" in said(there, "shares")
    assert f"{kind}: 1" in browse(there).get("/shares").words
    none = as_json(there, "group", "set", "physics", "--guarantee", "none", "--shares", "none")
    assert (none["shares"], none["types"]) == (2.0, [])
    refused = run(there, "group", "set", "physics", "--guarantee", f"{kind}=half", code=2)
    assert "--guarantee takes a number such as 20" in refused.stderr


def test_no_command_is_done_by_half(there: Served) -> None:
    refused = run(there, "group", "set", "physics", "--shares", "9", "--priority", "9", code=2)
    assert "set by a command of their own" in refused.stderr
    assert as_json(there, "shares", "physics")["shares"] == 1.0


def test_who_has_no_number_has_a_dash(there: Served) -> None:
    """Groups of a database that was made by hand, or restored from before numbers."""
    assert "None" not in said(there, "group", "list")
    words = browse(there).get("/groups/physics").words
    assert "GID" in words
    assert "GID None" not in words


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_ranks_told_are_those_of_another_fair_tree(there: Served, count: int) -> None:
    """Random groups one set after the other, beside the groups of the site, which have no
    shares."""
    there.tx(lambda tx: tx.execute(update(t.groups).values(shares=0.0)))
    own = [ShareAccount(one.id, 0, 0) for one in there.tx(groups.every)]
    for tree in sets(count):
        ids = there.tx(lambda tx, tree=tree: _founded(tx, tree))
        moved = [
            ShareAccount(ids[one.id], one.shares, one.usage, ids.get(one.parent, 0)) for one in tree
        ]
        wanted = ranks([*own, *moved])
        found = {one["group"]: one["rank"] for one in as_json(there, "shares")}
        assert {one: found[f"g{one}"] for one in ids} == {one: wanted[ids[one]] for one in ids}
        there.tx(lambda tx, ids=ids: _removed(tx, ids))


def _founded(tx: Tx, tree: list[ShareAccount]) -> dict[int, int]:
    """Add groups; return their ids by the accounts'."""
    ids = {
        one.id: groups.add(
            tx, f"g{one.id}", NOW, shares=one.shares, faded_usage=one.usage, faded_at=NOW
        ).id
        for one in tree
    }
    for one in tree:
        groups.change(tx, ids[one.id], parent_id=ids.get(one.parent))
    return ids


def _removed(tx: Tx, ids: dict[int, int]) -> None:
    """Take away the groups, subgroups first."""
    mine = t.groups.c.id.in_(ids.values())
    tx.execute(update(t.groups).where(mine).values(parent_id=None))
    tx.execute(delete(t.groups).where(mine))


def test_users_shares_are_set_and_shown(there: Served) -> None:
    ann = user(there, "ada", "physics", "owner")
    assert as_json(there, "group", "set", "physics", "--user-shares")["user_shares"] is True
    as_json(there, "member", "set", "physics", "ada", "owner", "--shares", "3")
    assert as_json(there, "member", "set", "physics", "ada", "owner")["shares"] == 3.0
    (template, *_) = [one["name"] for one in ann.get("/templates")["items"]]
    wanted = {"name": "hers", "size": 1, "template": template, "group": "physics"}
    ann.call("POST", "/vclusters", wanted)
    creator = there.tx(
        lambda tx: tx.scalar(
            select(t.users.c.name)
            .join_from(t.vclusters, t.users, t.vclusters.c.user_id == t.users.c.id)
            .where(t.vclusters.c.name == "hers")
        )
    )
    assert creator == "ada"
    found = {one["user"]: one for one in as_json(there, "shares", "physics", "--users")}
    assert (found["ada"]["shares"], found["ada"]["rank"], found["ada"]["ratio"]) == (3.0, 1, None)
    assert "ada" in said(there, "shares", "physics", "--users")
    assert "needs a GROUP" in run(there, "shares", "--users", code=2).stderr
    assert as_json(there, "group", "set", "physics", "--no-user-shares")["user_shares"] is False
