"""A webhook's address often is a secret: who is told it."""

from __future__ import annotations

import pytest

from tests.net.apiserver import ADMIN, READER, Served
from tests.net.test_people_api import user

HOOK = "https://hooks.example.org/T0/secret?key=1"


@pytest.mark.parametrize(
    ("role", "shown"),
    [("owner", HOOK), ("member", "hooks.example.org/…"), ("viewer", "hooks.example.org/…")],
)
def test_a_webhook_s_address_is_its_owners(served: Served, role: str, shown: str) -> None:
    who = user(served, "ann", "physics", role)
    served.local.patch("/groups/physics", {"webhook": HOOK})
    assert who.get("/groups/physics")["webhook"] == shown
    assert [each["webhook"] for each in who.get("/groups")["items"]] == [shown]
    who.close()


def test_a_token_that_reads_gets_no_secret(served: Served) -> None:
    served.local.post("/groups", {"name": "physics", "webhook": HOOK})
    assert served.remote(ADMIN).get("/groups/physics")["webhook"] == HOOK
    assert "secret" not in str(served.remote(READER).get("/groups"))
