"""How many changes a person may make in a minute."""

from __future__ import annotations

import pytest

from cod.model import Who
from cod.web.http.errors import HttpProblem
from cod.web.http.rate_limits import RateLimits


def test_changes_are_rationed_for_each_person_with_all_their_tokens() -> None:
    now = [1000.0]
    limits = RateLimits(lambda: now[0])
    ann, her_token = Who("user:ann", user_id=1), Who("token:t@ann", user_id=1)
    for _ in range(30):
        limits.change(ann, 60)
        limits.change(her_token, 60)
    with pytest.raises(HttpProblem, match="60 changes in a minute") as refused:
        limits.change(ann, 60)
    assert (refused.value.status, refused.value.headers()["Retry-After"]) == (429, "1")
    limits.change(Who("user:bob", user_id=2), 60)  # others go on
    limits.change(Who("user:root", local=True), 60)
    now[0] += 1.0
    limits.change(ann, 60)
    with pytest.raises(HttpProblem):
        limits.change(ann, 60)
    limits.change(ann, 0)  # no limit
    for _ in range(100):
        limits.change(Who("nobody"), 60)  # signing in is slowed by its own rules
