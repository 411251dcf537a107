"""How many changes a person may make in a minute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cod.model import Who
from cod.tokenbucket import Buckets
from cod.web.api.calls import count_change
from cod.web.http.errors import HttpProblem


def test_changes_are_rationed_for_each_person_with_all_their_tokens() -> None:
    now, policy = [1000.0], SimpleNamespace(changes=60)
    context: Any = SimpleNamespace(
        clock=lambda: now[0],
        site=SimpleNamespace(current=SimpleNamespace(policy=policy)),
        changes=Buckets(),
    )
    ann, her_token = Who("user:ann", user_id=1), Who("token:t@ann", user_id=1)
    for _ in range(30):
        count_change(context, ann)
        count_change(context, her_token)
    with pytest.raises(HttpProblem, match="60 changes in a minute") as refused:
        count_change(context, ann)
    assert (refused.value.status, refused.value.headers()["Retry-After"]) == (429, "1")
    count_change(context, Who("user:bob", user_id=2))  # others go on
    count_change(context, Who("user:root", local=True))
    now[0] += 1.0
    count_change(context, ann)
    with pytest.raises(HttpProblem):
        count_change(context, ann)
    for _ in range(100):
        count_change(context, Who("nobody"))  # signing in is slowed by its own rules
    policy.changes = 0  # no limit
    count_change(context, ann)


def test_a_full_bucket_is_not_kept_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Buckets, "MANY", 2)
    buckets = Buckets()
    names = [f"user{number}" for number in range(6)]
    for name in names:
        assert buckets.of(name, 0.0, rate=1.0, burst=1.0).take(0.0)
    assert not buckets.of("user0", 0.5, rate=1.0, burst=1.0).take(0.5)  # not full yet: it is kept
    for number in range(6, 20):  # twice as many as were kept: they are looked through again
        buckets.of(f"user{number}", 2.0, rate=1.0, burst=1.0)
    assert not any(name in buckets for name in names)
    assert "user19" in buckets
