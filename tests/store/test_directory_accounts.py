"""Accounts of the site's directory on nodes: shells, home directories, primary groups."""

from __future__ import annotations

from cod.flows.people import ldap, people
from cod.model import LdapFilter, LdapSearch, Role, Site
from cod.store.engine import Tx
from cod.store.people import people as rows
from tests import ldap_site

BASE = "dc=pool,dc=cod,dc=test"
GROUPS = LdapFilter("equal", "objectclass", ("posixGroup",))
CLERKS = f"cn=clerks,ou=groups,{BASE}"


def furnished(tx: Tx) -> None:
    """Bob and Dan of physics have an account of the directory, and the same primary group."""
    ldap_site.physics_and_chemistry(tx)
    ldap_site.user(tx, "dan", {"physics": "member"})
    for name in ("bob", "dan"):
        account = {"shell": "/usr/bin/zsh", "home": f"/export/{name}"}
        rows.change(tx, rows.named(tx, name).id, gid=31999, primary_group="clerks", **account)


def found(tx: Tx, site: Site, filter_: LdapFilter, page: int | None = None) -> list[str]:
    names, cookie = [], ""
    for _ in range(20):
        asked = LdapSearch(BASE, 2, filter_, page=page, cookie=cookie)
        answer = ldap.search(tx, address="127.0.7.1", search=asked, site=site)
        names += [entry.dn for entry in answer.entries]
        cookie = answer.cookie
        if not cookie:
            break
    return names


def test_an_account_has_what_the_directory_says(tx: Tx, site: Site) -> None:
    furnished(tx)
    maps = ldap.nis_domain(tx, name="pool", site=site).maps
    passwd = [line.split(" ", 1)[1].split(":") for line in maps["passwd.byname"]]
    assert {(line[0], line[3], *line[5:]) for line in passwd} == {
        ("ann", "20000", "/home/ann", "/bin/bash"),
        ("bob", "31999", "/export/bob", "/usr/bin/zsh"),
        ("dan", "31999", "/export/dan", "/usr/bin/zsh"),
    }
    assert sorted(line.split()[0] for line in maps["group.byname"]) == ["ann", "clerks", "physics"]
    assert "31999 clerks:*:31999:" in maps["group.bygid"]


def test_a_shared_primary_group_is_found_once_by_pages_name_and_number(tx: Tx, site: Site) -> None:
    furnished(tx)
    whole = found(tx, site, GROUPS)
    assert len(whole) == len(set(whole)) == 3
    assert CLERKS in whole
    assert found(tx, site, GROUPS, page=1) == whole
    for attribute, value in (("cn", "clerks"), ("gidnumber", "31999")):
        both = LdapFilter("and", parts=(GROUPS, LdapFilter("equal", attribute, (value,))))
        assert found(tx, site, both) == [CLERKS]


def test_a_group_that_is_called_as_the_vclusters_is_not_shown_twice(tx: Tx, site: Site) -> None:
    furnished(tx)
    rows.change(tx, rows.named(tx, "bob").id, primary_group="physics")
    rows.change(tx, rows.named(tx, "dan").id, primary_group="physics")
    assert len(found(tx, site, GROUPS)) == 2


def test_what_the_directory_gave_stays_its_own_when_it_is_said_again(tx: Tx, site: Site) -> None:
    furnished(tx)
    dan = rows.named(tx, "dan")
    group = next(iter(rows.roles(tx, dan.id)))
    rows.set_role(tx, group, dan.id, Role.OWNER, given=True)
    rows.change(tx, dan.id, admin=True, admin_given=True)
    people.set_role(tx, group="physics", user="dan", role="owner")
    people.change(tx, "dan", {"admin": True}, now=1e9)
    assert rows.given_roles(tx, dan.id) == {"physics": (Role.OWNER, True)}
    assert rows.named(tx, "dan").admin_given
    people.set_role(tx, group="physics", user="dan", role="member", force=True)
    people.change(tx, "dan", {"admin": False}, now=1e9)
    assert rows.given_roles(tx, dan.id) == {"physics": (Role.MEMBER, False)}
    assert not rows.named(tx, "dan").admin_given
