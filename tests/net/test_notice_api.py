"""Groups' settings and notices over the API and on the command line; notices among the events."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cod.cli import events, notice
from cod.client import ApiError
from cod.core import notices as core_notices
from cod.flows.notices import notices as flows
from cod.model import Effect, NoticeRules, Role, Site
from cod.pool import Pool
from cod.store.engine import Tx
from cod.store.people import groups
from cod.wire import webhook
from tests.net.apiserver import (
    ADMIN,
    NOW,
    READER,
    WEBHOOK_KEY,
    Served,
    add_node,
    as_json,
    run,
    said,
    serving,
)
from tests.net.credentials import as_user

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOOK = "https://hooks.example.org/secret-path"


def tell(served: Served, group: str | None, subject: str = "s", at: float = NOW) -> int:
    def step(tx: Tx) -> int:
        found = groups.by_name(tx, group) if group else None
        return core_notices.add(
            tx, kind="test", group_id=found and found.id, subject=subject, about="About it.", now=at
        ).id

    number: int = served.tx(step)
    return number


def refused(call: Callable[..., Any], *args: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args)
    return caught.value


# ---------------------------------------------------------------- groups


def test_a_group_is_made_shown_changed_and_removed(served: Served) -> None:
    api = served.local
    made = api.post("/groups", {"name": "physics", "priority": 3, "email": "a@x.org,b@x.org"})
    assert (made["email"], made["webhook"]) == ("a@x.org, b@x.org", "")
    assert api.get("/groups/physics") == made
    changed = api.patch(
        "/groups/physics", {"max_lease": 60.0, "default_lease": 30.0, "webhook": HOOK}
    )
    assert changed == made | {"max_lease": 60.0, "default_lease": 30.0, "webhook": HOOK}
    assert served.effects == [Effect("wake", "notices")]
    assert api.patch("/groups/physics", {"default_lease": None}) == changed | {
        "default_lease": None
    }
    assert api.patch("/groups/physics", {"grace": 300.0})["grace"] == 300.0
    assert refused(api.patch, "/groups/physics", {"grace": 301.0}).field == "grace"
    assert refused(api.patch, "/groups/physics", {"grace": -1.0}).field == "grace"
    assert api.patch("/groups/physics", {"grace": None})["grace"] is None
    assert api.patch("/groups/physics", {"wipe": "purge"})["wipe"] == "purge"
    assert refused(api.patch, "/groups/physics", {"wipe": "tables"}).field == "wipe"
    assert api.patch("/groups/physics", {"wipe": None})["wipe"] is None
    assert api.delete("/groups/physics") is None
    assert refused(api.get, "/groups/physics").status == 404
    assert refused(api.patch, "/groups/physics", {"priority": 1}).status == 404
    assert refused(api.delete, "/groups/site").status == 409


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"priority": None}, None),
        ({"email": None}, None),
        ({"priority": 1.5}, "priority"),
        ({"priority": 10**9}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"max_lease": 0}, "max_lease"),
        ({"max_lease": -1.0}, "max_lease"),
        ({"max_lease": 1e300}, "max_lease"),
        ({"default_lease": "1h"}, "default_lease"),
        ({"default_lease": 90.0, "max_lease": 60.0}, "default_lease"),
        ({"email": "a b"}, "email"),
        ({"email": "a@x.org\nBcc: e@z.org"}, "email"),
        ({"webhook": "gopher://x/"}, "webhook"),
        ({"webhook": "http://localhost\r\n/"}, "webhook"),
        ({"webhook": "http://127.0.0.1/"}, "webhook"),
        ({"webhook": "x" * 2001}, "webhook"),
        ({"name": "other"}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_setting_names_its_field_and_stores_nothing(
    served: Served, body: Any, field: str | None
) -> None:
    before = served.local.get("/groups/site")
    error = refused(served.local.patch, "/groups/site", body)
    assert (error.status, error.field) == (422, field)
    assert served.local.get("/groups/site") == before


def test_infinity_and_nan_are_no_leases(served: Served) -> None:
    for text in ("NaN", "Infinity", "-Infinity", "1e999"):
        error = refused(served.local.patch, "/groups/site", {"max_lease": float(text)})
        assert error.status in (400, 422)


def test_a_webhook_on_the_server_itself_where_the_site_says_so(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> None:
    with serving(
        pool, reactor, in_reactor, replace(site, notices=NoticeRules(local_webhooks=True))
    ) as served:
        assert (
            served.local.patch("/groups/site", {"webhook": "http://127.0.0.1:9/"})["webhook"]
            == "http://127.0.0.1:9/"
        )


def test_a_webhooks_secret_is_not_for_readers(served: Served) -> None:
    site = served.tx(groups.by_name, "site")
    expected = webhook.secret(webhook.group_key(WEBHOOK_KEY, site.id, "site"))
    assert served.local.get("/groups/site/webhook-secret") == {"group": "site", "secret": expected}
    assert served.remote(ADMIN).get("/groups/site/webhook-secret")["secret"] == expected
    assert refused(served.remote(READER).get, "/groups/site/webhook-secret").status == 403
    assert refused(served.local.get, "/groups/none/webhook-secret").status == 404
    assert run(served, "group", "webhook-secret", "site").stdout == expected + "\n"
    assert as_json(served, "group", "webhook-secret", "site")["secret"] == expected


def test_a_secret_is_changed(served: Served) -> None:
    before = served.local.get("/groups/site/webhook-secret")["secret"]
    owner, member = as_user(served, "ann", "site"), as_user(served, "bob", "site", Role.MEMBER)
    after = owner.post("/groups/site/webhook-secret")["secret"]
    assert after != before
    assert served.local.get("/groups/site/webhook-secret")["secret"] == after
    assert refused(member.post, "/groups/site/webhook-secret").status == 403
    assert refused(member.get, "/groups/site/webhook-secret").status == 403
    assert said(served, "group", "webhook-secret", "site", "--new") != after + "\n"


def test_what_is_posted_is_the_groups_choice(served: Served) -> None:
    owner = as_user(served, "ann", "site")
    assert owner.patch("/groups/site", {"events": ["nodes", "notices"]})["events"] == [
        "notices",
        "nodes",
    ]
    assert served.local.get("/groups/site")["events"] == ["notices", "nodes"]
    assert refused(owner.patch, "/groups/site", {"events": ["gossip"]}).status == 422
    assert as_json(served, "group", "set", "site", "--events", "vclusters")["events"] == [
        "vclusters"
    ]
    assert as_json(served, "group", "set", "site", "--events", "")["events"] == []


def test_the_log_of_deliveries(served: Served) -> None:
    owner = as_user(served, "ann", "site")
    owner.patch("/groups/site", {"webhook": HOOK, "email": "a@x.org"})
    owner.post("/groups/site/test-notice")
    mail, hook = owner.get("/groups/site/deliveries")["items"]
    assert (hook["channel"], hook["to"], hook["state"], hook["kind"]) == (
        "webhook",
        "hooks.example.org",
        "waiting",
        "test",
    )
    assert "secret-path" not in json.dumps([mail, hook])
    assert owner.get("/groups/site/deliveries", channel="email")["items"] == [mail]
    for delivery in served.tx(flows.claim, "a", (), NOW, 60.0):
        served.tx(flows.failed, delivery, "answered 404", True, False, NOW)
    failed = owner.get("/groups/site/deliveries", state="given up")["items"]
    assert {one["error"] for one in failed} == {"answered 404"}
    again = owner.post(f"/groups/site/deliveries/{hook['id']}/resend")
    assert (again["state"], again["notice"], again["id"] != hook["id"]) == (
        "waiting",
        hook["notice"],
        True,
    )
    viewer, stranger = as_user(served, "eve", "site", Role.VIEWER), as_user(served, "bob", "other")
    assert len(viewer.get("/groups/site/deliveries")["items"]) == 3
    assert refused(viewer.post, f"/groups/site/deliveries/{hook['id']}/resend").status == 403
    assert refused(stranger.get, "/groups/site/deliveries").status == 404
    assert "given up" in said(served, "group", "deliveries", "site")
    assert as_json(served, "group", "resend", "site", mail["id"])["channel"] == "email"


# ---------------------------------------------------------------- notices


def test_notices_are_listed_and_shown(served: Served) -> None:
    served.local.patch("/groups/site", {"webhook": HOOK, "email": "a@x.org"})
    served.local.post("/groups", {"name": "other"})
    ids = [tell(served, "site"), tell(served, "other"), tell(served, None)]
    api = served.remote(READER)
    assert [each["id"] for each in api.get("/notices")["items"]] == ids[::-1]
    assert [each["id"] for each in api.get("/notices", above=ids[0], sort="id")["items"]] == ids[1:]
    assert [each["id"] for each in api.get("/notices", group="other")["items"]] == ids[1:2]
    with pytest.raises(ApiError, match="there is no vcluster 'none'"):
        api.get("/notices", vcluster="none")
    shown = api.get(f"/notices/{ids[0]}")
    assert shown["about"] == "About it."
    assert [(each["channel"], each["to"], each["state"]) for each in shown["deliveries"]] == [
        ("webhook", "hooks.example.org", "waiting"),
        ("email", "a@x.org", "waiting"),
    ]
    assert "secret-path" not in json.dumps(shown)
    (of_site,) = api.get(f"/notices/{ids[2]}")["deliveries"]
    assert (of_site["to"], api.get(f"/notices/{ids[2]}")["group"]) == (
        "the site's administrators",
        None,
    )
    for wrong in ("/notices/0", "/notices/x", "/notices/99999999999999999999"):
        assert refused(api.get, wrong).status == 404
    assert refused(api.get, "/notices?above=-1").status == 422
    assert refused(api.get, f"/notices?above={10**30}").status == 422


def test_how_deliveries_stand(served: Served) -> None:
    served.local.patch("/groups/site", {"webhook": HOOK, "email": "a@x.org"})
    number = tell(served, "site")
    post, mail = served.tx(flows.claim, "a", (), NOW, 60.0)
    served.tx(flows.failed, post, "no answer", False, True, NOW)
    served.tx(flows.succeeded, mail, "", NOW + 1)
    hook, sent = served.local.get(f"/notices/{number}")["deliveries"]
    assert (hook["state"], hook["attempts"], hook["next_at"], hook["error"]) == (
        "waiting",
        1,
        NOW + 2,
        "no answer",
    )
    assert (sent["state"], sent["done_at"], sent["next_at"]) == ("delivered", NOW + 1, None)
    (again,) = served.tx(flows.claim, "a", (), NOW + 2, 60.0)
    served.tx(flows.failed, again, "gone", True, False, NOW + 3)
    assert served.local.get(f"/notices/{number}")["deliveries"][0]["state"] == "given up"
    lines = run(served, "notice", "show", str(number)).stdout
    assert "given up" in lines
    assert "gone" in lines
    assert "About it." in lines


def test_notices_on_the_command_line(served: Served) -> None:
    number = tell(served, "site", "web: lease ends")
    tell(served, None, "node n7 is quarantined")
    lines = run(served, "notice", "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "AT", "TO", "KIND", "SUBJECT", "DELIVERY"]
    assert "web: lease ends" in lines[1]
    assert "(site)" in lines[2]
    assert [each["id"] for each in as_json(served, "notice", "list", "--group", "site")] == [number]
    assert as_json(served, "notice", "show", str(number))["subject"] == "web: lease ends"
    assert "no notice 99" in run(served, "notice", "show", "99", code=1).stderr


def test_a_test_notice_waits_for_the_first_attempts(served: Served) -> None:
    assert "neither e-mail" in run(served, "notice", "test", "site", code=1).stderr
    served.local.patch("/groups/site", {"webhook": HOOK})
    over = threading.Event()

    def deliver() -> None:
        good = [True, False]
        while not over.wait(0.02):
            for delivery in served.tx(flows.claim, "a", (), NOW, 60.0):
                if good.pop(0):
                    served.tx(flows.succeeded, delivery, "", NOW)
                else:
                    served.tx(flows.failed, delivery, "answered 404", False, False, NOW)

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        assert "delivered" in run(served, "notice", "test", "site").stdout
        failed = run(served, "notice", "test", "site", code=1)
    finally:
        over.set()
        thread.join()
    assert "answered 404" in failed.stdout


def test_a_test_that_nobody_delivers_ends(served: Served) -> None:
    served.local.patch("/groups/site", {"webhook": HOOK})
    value = served.local.post("/groups/site/test-notice")
    assert served.effects[-1] == Effect("wake", "notices")
    assert notice.tried(served.local, value, 0.0)["deliveries"][0]["state"] == "waiting"


def test_groups_on_the_command_line(served: Served) -> None:
    run(
        served,
        "group",
        "create",
        "physics",
        "--priority",
        "3",
        "--max-lease",
        "2d",
        "--email",
        "a@x.org",
    )
    value = as_json(served, "group", "set", "physics", "--default-lease", "8h", "--webhook", HOOK)
    assert (value["default_lease"], value["max_lease"], value["webhook"]) == (
        8 * 3600.0,
        2 * 86400.0,
        HOOK,
    )
    value = as_json(
        served,
        "group",
        "set",
        "physics",
        "--default-lease",
        "none",
        "--email",
        "",
        "--priority",
        "0",
    )
    assert (value["default_lease"], value["email"], value["priority"]) == (None, "", 0)
    assert as_json(served, "group", "set", "physics", "--wipe", "purge")["wipe"] == "purge"
    assert "purge" in run(served, "group", "show", "physics").stdout
    assert as_json(served, "group", "set", "physics", "--wipe", "none")["wipe"] is None
    assert "physics" in run(served, "group", "show", "physics").stdout
    assert run(served, "group", "set", "physics", code=2).stderr.startswith("Usage:")
    assert run(served, "group", "set", "physics", "--max-lease", "soon", code=2)
    assert (
        "should be an e-mail address"
        in run(served, "group", "set", "physics", "--email", "x", code=1).stderr
    )
    assert run(served, "group", "delete", "physics").stdout == "physics: deleted\n"


# ---------------------------------------------------------------- events


def test_notices_are_among_the_events(served: Served) -> None:
    add_node(served, "n1", 1)
    old = tell(served, "site", "old", NOW)
    stream = served.remote(READER).events(after=0)
    assert next(stream)[0] == "transition"
    kind, value = next(stream)
    assert (kind, value["id"], value["subject"], value["group"]) == ("notice", old, "old", "site")
    new = tell(served, "site", "new", NOW + 1)
    assert next(stream)[1]["id"] == new, "each once"
    stream.close()
    assert events.line(kind, value).endswith(f"notice {old} to site: old")


def test_who_comes_back_gets_the_notices_since(served: Served) -> None:
    tell(served, "site", "early", NOW - 5)
    add_node(served, "n1", 1)
    add_node(served, "n2", 2)
    late = tell(served, "site", "late", NOW + 1)
    stream = served.local.events(after=served.local.get("/nodes/n1")["history"][0]["id"])
    (kind, transition), (other, told) = next(stream), next(stream)
    stream.close()
    assert (kind, transition["node"], other, told["id"]) == ("transition", "n2", "notice", late)
