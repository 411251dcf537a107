"""What an audit row says of a change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.people import audit


def test_only_what_differs_is_said() -> None:
    before = {"size": 2, "name": "web", "state": "active"}
    assert audit.changed(before, before | {"size": 4}) == ({"size": 2}, {"size": 4})
    assert audit.changed(before, before) == ({}, {})
    assert audit.changed({"a": 1}, {"b": 2}) == ({"a": 1, "b": None}, {"a": None, "b": 2})


def test_what_is_new_or_gone_is_said_whole() -> None:
    assert audit.changed(None, {"size": 2}) == (None, {"size": 2})
    assert audit.changed({"size": 2}, None) == ({"size": 2}, None)


@pytest.mark.parametrize(
    "name", ["password", "old", "new", "token", "secret", "key", "link", "certificate"]
)
def test_secrets_are_left_out_wherever_they_are(name: str) -> None:
    said = audit.tidy(
        {name: "hush", "inner": {name: "hush", "rest": 1}, "list": [{name: "hush", "other": 2}]}
    )
    assert "hush" not in str(said)
    assert said == {"inner": {"rest": 1}, "list": [{"other": 2}]}


def test_what_moves_by_itself_is_left_out() -> None:
    assert audit.changed({"last_seen": 1, "history": [1]}, {"last_seen": 2, "history": [1, 2]}) == (
        {},
        {},
    )


def test_a_webhooks_path_is_a_secret_and_that_it_changed_is_not() -> None:
    one, other = ({"webhook": f"https://h.example/T0/{path}"} for path in ("secret", "other"))
    before, after = audit.changed(one, other)
    assert before is not None
    assert after is not None
    assert before["webhook"].startswith("https://h.example/… (")
    assert before != after
    assert "secret" not in str(before)
    assert audit.tidy({"webhook": ""}) == {"webhook": ""}


def test_what_is_long_is_cut_and_things_are_named() -> None:
    nodes = [{"name": f"n{n}", "state": "active"} for n in range(999)]
    said: Any = audit.tidy({"document": "x" * 1000, "nodes": nodes})
    assert said["document"].endswith("… (1000 characters)")
    assert said["nodes"][:2] == ["n0", "n1"]
    assert said["nodes"][-1] == "… (999 in all)"


def test_a_thing_is_called_by_its_name_or_its_number() -> None:
    assert audit.named({"id": 7, "name": "web"}, None) == "web"
    assert audit.named({"id": 7, "name": ""}, {"name": "asked"}) == "asked"
    assert audit.named({"id": 7}, {}) == "7"
    assert audit.named(None) == ""


NAMES = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, VALUES, max_size=5))
def test_both_sides_name_the_same_values_and_any_can_be_kept(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    import json

    was, is_ = audit.changed(before, after)
    assert was is not None
    assert is_ is not None
    assert set(was) == set(is_)
    json.dumps([was, is_])
