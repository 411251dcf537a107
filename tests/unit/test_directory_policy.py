"""What a directory's groups change, what of an account there is fit for nodes, and how much at once
is not believed."""

from __future__ import annotations

import pytest

from cod.model import GivenRole, Role
from cod.policy.people import directory

OWNER, MEMBER, VIEWER = Role.OWNER, Role.MEMBER, Role.VIEWER


def test_the_highest_role_of_several_groups_holds() -> None:
    given = [
        GivenRole("a", MEMBER),
        GivenRole("a", OWNER),
        GivenRole("a", VIEWER),
        GivenRole("b", VIEWER),
    ]
    assert directory.given(given) == (False, {"a": OWNER, "b": VIEWER})
    assert directory.given([GivenRole("", OWNER)]) == (True, {})


@pytest.mark.parametrize(
    ("held", "wanted", "changes"),
    [
        ({}, {"a": MEMBER}, {"a": MEMBER}),
        ({"a": (MEMBER, True)}, {"a": MEMBER}, {}),
        ({"a": (MEMBER, True)}, {"a": OWNER}, {"a": OWNER}),
        ({"a": (OWNER, True)}, {"a": VIEWER}, {"a": VIEWER}),
        ({"a": (MEMBER, True)}, {}, {"a": None}),
        ({"a": (VIEWER, False)}, {"a": OWNER}, {}),
        ({"a": (VIEWER, False)}, {}, {}),
    ],
)
def test_roles_of_somebody_here_stay_and_given_ones_follow(
    held: dict[str, tuple[Role, bool]], wanted: dict[str, Role], changes: dict[str, Role | None]
) -> None:
    assert directory.changes(held, wanted) == changes


def test_a_role_that_ends_or_falls_is_a_loss() -> None:
    held = {"a": (OWNER, True), "b": (MEMBER, True), "c": (VIEWER, True)}
    changed = directory.changes(held, {"a": MEMBER, "c": OWNER, "d": VIEWER})
    assert directory.losses(held, changed) == {"a", "b"}


def test_more_than_half_and_at_least_two_are_too_many() -> None:
    believed = [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (50, 100)]
    held = [(2, 2), (2, 3), (3, 4), (51, 100)]
    assert [pair for pair in believed + held if directory.too_many(*pair)] == held


@pytest.mark.parametrize("name", ["sudo", "docker", "Domain Users", "a:b", "", "x" * 33, "a\nb"])
def test_groups_that_a_system_has_rules_for_are_not_taken(name: str) -> None:
    assert directory.primary_group(name) == ""


def test_what_would_break_the_password_file_is_not_taken() -> None:
    assert directory.shell("/usr/bin/zsh") == "/usr/bin/zsh"
    assert [directory.shell(text) for text in ("zsh", "/bin/a b", "/bin/x:y", "/" + "a" * 100)] == [
        ""
    ] * 4
    assert directory.home("/export/home/ann") == "/export/home/ann"
    assert [directory.home(text) for text in ("home", "/a:b", "/a\nb", "/é", "/" + "a" * 255)] == [
        ""
    ] * 5
