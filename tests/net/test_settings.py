"""The site's settings by API, command line and page: shown, changed, undone, and put down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from cod.client import ApiError
from cod.doctor.checks.settings import findings
from cod.doctor.finding import GOOD, UNSEEN, WARNING
from cod.flows import site_settings
from cod.flows.people import audit
from cod.model import ALL, Effect, HostPart, Who
from cod.service.process import Running
from cod.site.changes import SiteChanges
from cod.store import servers
from cod.store.site import settings as store
from cod.workers.settings import SettingsWatch
from tests.net.apiserver import NOW, SITE_FILE, Served, run, said
from tests.net.portalclient import signed_in
from tests.net.test_people_api import user

NAME = "policy.inertia"


def audited(served: Served) -> list[tuple[str, str, Any, Any]]:
    rows = served.tx(audit.every, ALL, None)
    return [
        (row.action, row.thing, json.loads(row.before or "0"), json.loads(row.after or "0"))
        for row in rows
        if row.thing == NAME
    ]


def test_a_setting_is_changed_undone_and_put_down(served: Served) -> None:
    api = served.local
    assert api.get(f"/settings/{NAME}")["source"] == "default"
    one = api.patch(f"/settings/{NAME}", {"value": "10 min"})
    assert (one["value"], one["text"], one["source"]) == (600.0, "10 min", "change")
    assert Effect("wake", "settings") in served.effects
    assert api.patch(f"/settings/{NAME}", {"value": 900})["text"] == "15 min"
    first, second = (each["id"] for each in reversed(api.get(f"/settings/{NAME}")["changes"]))
    undone = api.post(f"/settings/{NAME}/undo", {"change": second})
    assert (undone["text"], len(undone["changes"])) == ("10 min", 3)
    again = api.post(f"/settings/{NAME}/undo", {"change": second})
    assert len(again["changes"]) == 3, "it is undone already"
    back = api.post(f"/settings/{NAME}/undo", {"change": first})
    assert (back["value"], back["source"]) == (300.0, "default")
    assert audited(served) == [
        (
            "setting undo",
            NAME,
            {"source": "change", "value": 600.0},
            {"source": "default", "value": 300.0},
        ),
        ("setting undo", NAME, {"value": 900}, {"value": 600.0}),
        ("setting change", NAME, {"value": 600.0}, {"value": 900}),
        (
            "setting change",
            NAME,
            {"source": "default", "value": 300.0},
            {"source": "change", "value": 600.0},
        ),
    ]


def test_what_changes_nothing_is_no_change(served: Served) -> None:
    api = served.local
    api.patch(f"/settings/{NAME}", {"value": None})
    assert audited(served) == []
    api.patch(f"/settings/{NAME}", {"value": 600.0})
    api.patch(f"/settings/{NAME}", {"value": "600"})
    assert len(audited(served)) == 1


@pytest.mark.parametrize(
    ("name", "value", "status", "why"),
    [
        (NAME, -1, 422, "should be at least 0"),
        ("energy.warm_low", 9, 422, "should not be above warm_high 4"),
        ("policy.wipe", "tables", 409, "data that were not erased cannot be taken back"),
        ("subnet.0.network", "10.0.0.0/8", 409, "systemctl restart cod"),
        ("policy.nothing", 1, 404, "there is no setting 'policy.nothing'"),
    ],
)
def test_what_is_refused_says_why(
    served: Served, name: str, value: Any, status: int, why: str
) -> None:
    with pytest.raises(ApiError, match=why) as refused:
        served.local.patch(f"/settings/{name}", {"value": value})
    assert refused.value.status == status
    assert served.tx(site_settings.current) == []


def test_a_change_waits_for_a_server_that_would_not_obey_it(served: Served) -> None:
    old = HostPart("s2", "web", ("10.77.0.2",), "0.1.0", "0067", NOW, NOW)
    served.tx(servers.renew, old)
    with pytest.raises(ApiError, match=r"s2 runs version 0\.1\.0.*upgrade it first"):
        served.local.patch(f"/settings/{NAME}", {"value": 600})
    served.clock.now += servers.SILENT + 1
    served.local.patch(f"/settings/{NAME}", {"value": 600})


def test_a_secret_is_shown_to_nobody(served: Served) -> None:
    assert "s3cret" not in json.dumps(served.local.get("/settings"))
    assert "s3cret" not in signed_in(served).get("/settings").text
    assert "s3cret" not in signed_in(served).get("/settings/server.database").text


def test_the_command_line_lists_sets_and_undoes(served: Served) -> None:
    assert "15 min" in said(served, "settings", "set", NAME, "15min")
    listed = json.loads(said(served, "settings", "list", "--changed", "--json"))
    assert [(one["name"], one["text"]) for one in listed] == [(NAME, "15 min")]
    opened = json.loads(said(served, "settings", "list", "--open", "--json"))
    assert {one["fixed"] for one in opened} == {""}
    assert "5 min" in said(served, "settings", "undo", NAME)
    assert "5 min" in said(served, "settings", "set", NAME, "--site-file")
    run(served, "settings", "set", NAME, code=2)
    assert "was never changed" in said(served, "settings", "undo", "policy.fair", code=1)
    assert "should be a length of time" in said(served, "settings", "set", NAME, "soon", code=1)


def test_an_administrator_changes_and_undoes_in_the_browser(served: Served) -> None:
    browser = signed_in(served)
    page = browser.get("/settings")
    assert "can be changed here" in page.words
    assert "Conflicts" not in page.words
    drain = "/settings/policy.drain_grace"
    page = browser.get(drain)
    assert "Site file1 min" in page.words
    assert dict(page.fields(drain))["value"] == "1 min"
    wrong = page.send(drain, value="-5")
    assert "should be a length of time" in wrong.text
    assert dict(wrong.fields(drain))["value"] == "-5"
    done = page.send(drain, value="2 h")
    assert "policy.drain_grace is 2 h on all servers" in done.words
    assert "The site file says 1 min. The change counts" in done.words
    assert "Conflicts" in browser.get("/settings").words
    assert "is 1 min again" in done.send(f"{drain}/undo").words
    flag = browser.get("/settings/policy.power_cycle").send(
        "/settings/policy.power_cycle", value="no"
    )
    assert "policy.power_cycle is no on all servers" in flag.words
    back = flag.send("/settings/policy.power_cycle/take-back")
    assert "policy.power_cycle is yes, as in the site file" in back.words
    fixed = browser.get("/settings/policy.wipe")
    assert "systemctl reload cod" in fixed.words
    assert not [form for form in fixed.tree.forms if form.get("action") == "/settings/policy.wipe"]


def left_behind(served: Served, name: str, value: str) -> None:
    """Add a change as another program, or another site file, has allowed it."""
    served.tx(store.add, name=name, value=value, actor="user:ann", now=NOW)


def test_a_change_of_what_is_fixed_now_can_be_taken_back(served: Served) -> None:
    """So that what `cod doctor` advises can be done."""
    left_behind(served, "policy.wipe", '"tables"')
    with pytest.raises(ApiError, match="data that were not erased"):
        served.local.patch("/settings/policy.wipe", {"value": "purge"})
    assert served.local.get("/settings/policy.wipe")["problem"]
    back = served.local.patch("/settings/policy.wipe", {"value": None})
    assert (back["source"], back["problem"]) == ("default", "")
    with pytest.raises(ApiError, match="data that were not erased"):
        served.local.patch("/settings/policy.wipe", {"value": None})


@pytest.mark.parametrize(
    ("name", "value"),
    [("policy.wipe", '"tables"'), ("energy.warm_low", "9"), ("policy.inertia", "not json")],
)
def test_a_change_that_is_passed_over_is_taken_back_in_the_browser(
    served: Served, name: str, value: str
) -> None:
    left_behind(served, name, value)
    page = signed_in(served).get(f"/settings/{name}")
    assert "The change is not in effect" in page.words
    back = page.send(f"/settings/{name}/take-back")
    assert "as in the site file" in back.words
    assert "The change is not in effect" not in back.words
    with pytest.raises(StopIteration):
        back.fields(f"/settings/{name}/take-back")


def test_an_empty_text_is_a_value(served: Served) -> None:
    browser, parent = signed_in(served), "/settings/groups.parent"
    browser.get(parent).send(parent, value="physics")
    browser.get(parent).send(parent, value="")
    changes = served.tx(site_settings.current)
    assert [(one.name, one.value) for one in changes] == [("groups.parent", '""')]


class Taken:
    """A part that takes over changed settings, as `Running` does, and fails when it is told to."""

    def __init__(self, served: Served) -> None:
        self.fails, self.site = False, served.server.intake.site
        rules = SiteChanges(Path("site.toml"), SITE_FILE)
        context: Any = SimpleNamespace(site=self.site, changes=rules)
        self.running = Running("web", context, [])
        self.watch = SettingsWatch(None, served.pool, 0, self.obey)

    def obey(self, changes: Any) -> None:
        if self.fails:
            raise OSError("no room")
        self.running.obey(changes)


def test_what_could_not_be_taken_over_is_at_the_next_look(
    served: Served, in_reactor: Callable[..., Any]
) -> None:
    part = Taken(served)
    served.local.patch(f"/settings/{NAME}", {"value": 600})
    part.fails = True
    with pytest.raises(OSError, match="no room"):
        in_reactor(lambda: Deferred.fromCoroutine(part.watch.look()))
    part.fails = False
    in_reactor(lambda: Deferred.fromCoroutine(part.watch.look()))
    assert part.site.current.policy.inertia == 600


def test_a_running_server_acts_by_what_is_changed(
    served: Served, in_reactor: Callable[..., Any]
) -> None:
    """Show one setting of each of several tables by what the server does then."""
    part, api = Taken(served), served.local
    bob = user(served, "bob", email="bob@example.org")

    def change(name: str, value: Any) -> None:
        api.patch(f"/settings/{name}", {"value": value})
        in_reactor(lambda: Deferred.fromCoroutine(part.watch.look()))

    with pytest.raises(ApiError) as refused:
        bob.post("/groups", {"name": "lab", "email": "bob@example.org"})
    assert refused.value.status == 403
    change("groups.creators", "*")
    change("groups.priority", "-7")
    assert bob.post("/groups", {"name": "lab", "email": "bob@example.org"})["priority"] == -7

    change("images.open_uploads", 1)
    bob.post("/uploads", {"name": "debian", "size": 4096, "group": "lab"})
    with pytest.raises(ApiError, match="uploads"):
        bob.post("/uploads", {"name": "fedora", "size": 4096, "group": "lab"})

    change("energy.currency", "CHF")
    assert api.get("/energy")["currency"] == "CHF"

    browser = signed_in(served, Who("user:bob"))
    assert "The daily mail comes at 06:00 UTC" in browser.get("/account").words
    change("notices.digest_hour", 7)
    assert "The daily mail comes at 07:00 UTC" in browser.get("/account").words

    change("policy.changes", 1)
    bob.patch("/groups/lab", {"default_lease": 3600.0})
    with pytest.raises(ApiError) as refused:
        bob.patch("/groups/lab", {"default_lease": 7200.0})
    assert refused.value.status == 429


def test_doctor_tells_of_conflicts(served: Served) -> None:
    context: Any = SimpleNamespace(settings=SimpleNamespace(socket=served.socket))
    assert [(one.state, one.found) for one in findings(context)] == [
        (GOOD, "0 settings changed beside the site file")
    ]
    served.local.patch("/settings/policy.drain_grace", {"value": "2 h"})
    [odd] = findings(context)
    assert (odd.state, "policy.drain_grace is 2 h. The site file says 1 min." in odd.found) == (
        WARNING,
        True,
    )
    assert "cod settings set policy.drain_grace --site-file" in odd.remedy
    context.settings.socket = served.folder / "nowhere"
    assert [one.state for one in findings(context)] == [UNSEEN]
