"""Who may do what: the whole table, by role and right; and what is said to whom it is refused."""

from __future__ import annotations

from itertools import product

import pytest

from cod.model import Owned, Refused, Right, Role, Who
from cod.policy.people import rights

GROUP, OTHER = 7, 8
THEIRS = Owned({GROUP})
SHARED = Owned(shared=True)
SITES = Owned()
MISSING = "there is no vcluster 'x'"

WHO = {
    "administrator": Who("user:root", admin=True),
    "owner": Who("user:olga", user_id=1, roles={GROUP: Role.OWNER}),
    "member": Who("user:mei", user_id=2, roles={GROUP: Role.MEMBER}),
    "viewer": Who("user:vic", user_id=3, roles={GROUP: Role.VIEWER}),
    "stranger": Who("user:sam", user_id=4, roles={OTHER: Role.OWNER}),
    "nobody's": Who("user:new", user_id=5),
}
RIGHTS = [Right.ANY, Right.SEE, Right.USE, Right.MANAGE, Right.ADMIN]

# who -> what is said for each of RIGHTS: y(es), m(issing), f(orbidden)
OF_A_GROUP = {
    "administrator": "yyyyy",
    "owner": "yyyyf",
    "member": "yyyff",
    "viewer": "yyfff",
    "stranger": "ymmmf",
    "nobody's": "ymmmf",
}
OF_THE_SITE = {
    "administrator": "yyyyy",
    "owner": "ymmmf",
    "member": "ymmmf",
    "viewer": "ymmmf",
    "stranger": "ymmmf",
    "nobody's": "ymmmf",
}
SHARED_BY_THE_SITE = {
    "administrator": "yyyyy",
    "owner": "yyfff",
    "member": "yyfff",
    "viewer": "yyfff",
    "stranger": "yyfff",
    "nobody's": "yyfff",
}
NOT_THERE = {
    "administrator": "yyyyy",
    "owner": "mmmmm",
    "member": "mmmmm",
    "viewer": "mmmmm",
    "stranger": "mmmmm",
    "nobody's": "mmmmm",
}


def said(who: Who, right: Right, owned: Owned | None) -> str:
    try:
        rights.require(who, right, owned, MISSING)
    except Refused as refused:
        return {"forbidden": "f", "not_found": "m"}[refused.code]
    return "y"


@pytest.mark.parametrize(
    ("owned", "table"),
    [(THEIRS, OF_A_GROUP), (SITES, OF_THE_SITE), (SHARED, SHARED_BY_THE_SITE), (None, NOT_THERE)],
)
def test_the_whole_table(owned: Owned | None, table: dict[str, str]) -> None:
    found = {
        name: "".join(said(who, right, owned) for right in RIGHTS) for name, who in WHO.items()
    }
    assert found == table


@pytest.mark.parametrize("right", RIGHTS)
def test_what_may_be_used_may_be_seen(right: Right) -> None:
    for who, owned in product(WHO.values(), (THEIRS, SITES, SHARED)):
        if right in (Right.USE, Right.MANAGE) and rights.may(who, right, owned):
            assert rights.may(who, Right.SEE, owned)


def test_one_of_several_groups_is_enough() -> None:
    both = Owned(frozenset({GROUP, OTHER}))
    assert rights.may(WHO["stranger"], Right.MANAGE, both)
    assert rights.may(WHO["viewer"], Right.SEE, both)
    assert not rights.may(WHO["viewer"], Right.USE, both)


def test_a_refusal_says_who_may() -> None:
    with pytest.raises(Refused, match="only members of its group"):
        rights.require(WHO["viewer"], Right.USE, THEIRS, MISSING)
    with pytest.raises(Refused, match="only the site's administrators"):
        rights.require(WHO["owner"], Right.ADMIN, THEIRS, MISSING)


def test_an_administrator_sees_all_and_others_what_their_groups_own() -> None:
    assert WHO["administrator"].groups is None
    assert WHO["owner"].groups == {GROUP}
    assert WHO["nobody's"].groups == frozenset()
