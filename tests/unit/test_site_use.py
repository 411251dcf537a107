"""What is said of a group's part of the site, and of what would change it."""

from __future__ import annotations

from dataclasses import replace

from cod.policy.sharing.site_use import GroupNow, OthersPart, SiteUse, changes, sentence

DAYS = 30 * 86400.0
USE = SiteUse(
    "chem",
    DAYS,
    0.04,
    (OthersPart("higher", 2, 0.61), OthersPart("equal", 1, 0.15), OthersPart("lower", 3, 0.001)),
    0.2,
    0.10,
)
NOW = GroupNow(held=3, node_limit=None, waiting=0, hours_used=0.0, hours_limit=None)


def test_the_sentence_names_the_share_the_others_and_what_was_free() -> None:
    assert sentence(USE) == (
        "chem used 4 % of the site in 30 d; its share is 10 %; 2 groups of higher priority"
        " used 61 %; 1 group of its priority used 15 %; 20 % were free."
    )
    assert "its share" not in sentence(replace(USE, share=None))


def test_free_nodes_and_no_request_are_an_invitation() -> None:
    said = list(changes(USE, NOW))
    assert said[0] == "No request of it waits. 20 % of the site were free: request more nodes."
    assert any("higher priority go first" in one for one in said)
    assert said[-1].startswith("It has used less than its share")


def test_limits_come_first_and_waiting_beside_free_nodes_names_the_requests_page() -> None:
    bound = GroupNow(held=3, node_limit=3, waiting=2, hours_used=100.0, hours_limit=100.0)
    said = list(changes(USE, bound))
    assert said[0].startswith("It holds 3 nodes, which is its limit")
    assert said[1].startswith("Its node-hours of the month are used")
    assert said[2].startswith("2 of its requests wait. Nodes were free, too")
    full = list(changes(replace(USE, free=0.0), replace(NOW, waiting=2)))
    assert full[0] == "2 of its requests wait. Nothing was free."


def test_where_shares_are_off_the_order_of_requests_counts() -> None:
    assert list(changes(replace(USE, share=None), NOW))[-1].startswith("Shares are off")
    more = list(changes(replace(USE, own=0.2), NOW))
    assert more[-1].startswith("It has used more than its share")


def test_a_small_part_is_said_without_an_exponent() -> None:
    assert "chem used less than 0.1 % of the site" in sentence(replace(USE, own=1e-7))
    assert "chem used 0 % of the site" in sentence(replace(USE, own=0.0))
    assert "chem used 0.1 % of the site" in sentence(replace(USE, own=0.001))
