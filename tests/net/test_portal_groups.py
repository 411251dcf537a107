"""The portal's pages about groups: members, links, how they are told things; what they show to
whom."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from typing import Any

import pytest

from cod.model import Role
from cod.store.people import groups, people
from tests.net.apiserver import NOW, Served
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import signed_in

pytestmark = pytest.mark.slow

PHYSICS = "/groups/physics"


def group(served: Served, name: str = "physics") -> Any:
    return served.tx(groups.by_name, name)


def role(served: Served, user: str) -> Role | None:
    def read(tx: Any) -> Role | None:
        found = people.by_name(tx, user)
        return people.roles(tx, found.id).get(groups.by_name(tx, "physics").id) if found else None

    return served.tx(read)


def test_groups_are_ones_own(there: Served) -> None:
    page = browse(there).get("/groups")
    assert "physics owner 13" in page.words
    assert "web" not in page.tree.xpath("string(//tbody)")
    assert "New group" not in page.words
    assert browse(there).get("/groups/web").status == 404
    assert "No group matches this filter." in browse(there).get("/groups", q="nothing").words


def test_what_it_has_and_uses(there: Served) -> None:
    page = browse(there, "viewer").get(PHYSICS)
    assert "1312 in use 1 installing" in page.words
    assert "512.0 MiB" in page.words
    assert "kWh" in page.words
    assert not page.tree.xpath("//main//form[contains(@action, 'settings')]")


def test_what_a_role_may_is_told_in_plain_words(there: Served) -> None:
    page = browse(there).get(PHYSICS)
    terms = page.tree.xpath("//dl[@class='help']/dt/text()")
    texts = page.tree.xpath("//dl[@class='help']/dd/text()")
    assert dict(zip(terms, texts, strict=True)) == {
        "owner": "manages members and settings, and uses the group's resources",
        "member": "uses the group's resources",
        "viewer": "read only",
        "resize": "resizes clusters, extends leases, releases nodes",
        "consoles": "reads the consoles of nodes",
        "capture": "saves nodes as images",
        "invite": "invites people, in the same role at most",
    }


def test_adding_changing_and_removing_a_member(there: Served) -> None:
    there.tx(people.add, "zoe", NOW)
    assert "Add an existing user" not in browse(there).get(PHYSICS).words, "owners invite"
    browser = signed_in(there)
    nobody = browser.get(PHYSICS).send(f"{PHYSICS}/members", user="nobody", role="viewer")
    assert nobody.status == 404
    assert "there is no user &#39;nobody&#39;" in nobody.text
    assert ("user", "nobody") in nobody.fields(f"{PHYSICS}/members")
    page = nobody.send(f"{PHYSICS}/members", user="zoe", role="viewer")
    assert "zoe is viewer of physics." in page.words
    page = page.send(f"{PHYSICS}/members/zoe/role", role="member")
    assert role(there, "zoe") is Role.MEMBER
    assert "zoe is no longer in physics" in page.send(f"{PHYSICS}/members/zoe/remove").words
    assert role(there, "zoe") is None


def test_the_last_owner_stays(there: Served) -> None:
    page = (
        browse(there, name="olga").get(PHYSICS).send(f"{PHYSICS}/members/olga/role", role="viewer")
    )
    assert page.status == 409
    assert "olga is the last owner of physics" in page.words
    assert role(there, "olga") is Role.OWNER


def test_a_refusal_stands_open_beside_the_button_that_was_pressed(there: Served) -> None:
    browser = browse(there, name="olga")
    page = browser.get(PHYSICS).send(f"{PHYSICS}/members/olga/remove")
    assert page.status == 409
    [refused] = page.tree.xpath("//details[contains(@class, 'confirm')][@open]")
    assert "olga is the last owner of physics" in refused.text_content()


def test_leaving(there: Served) -> None:
    page = browse(there, "member", name="max").get(PHYSICS).send(f"{PHYSICS}/members/max/remove")
    assert page.path == "/groups"
    assert role(there, "max") is None


def test_a_link_for_an_invitation_is_shown_once_and_can_be_taken_back(there: Served) -> None:
    browser = browse(there)
    made = browser.get(PHYSICS).send(f"{PHYSICS}/invite", role="viewer", email="new@example.org")
    (link,) = made.tree.xpath("//pre/text()")
    assert "/invitation#" in link
    page = browser.get(PHYSICS)
    assert "for new@example.org" in page.words
    assert link.partition("#")[2] not in page.text
    (path,) = page.tree.xpath("//form[contains(@action, '/revoke')]/@action")
    assert "The link is revoked." in page.send(path).words


def test_owners_come_to_what_was_changed_in_their_group(there: Served) -> None:
    audit = f"/audit?group={PHYSICS.rpartition('/')[2]}"
    page = browse(there, name="olga").get(PHYSICS).send(f"{PHYSICS}/settings", default_lease="3d")
    assert audit in page.tree.xpath("//main//a/@href")
    assert "default_lease" in page.browser.get(audit).tree.xpath("string(//tbody)")
    assert audit not in browse(there, "viewer").get(PHYSICS).tree.xpath("//main//a/@href")


def test_settings(there: Served) -> None:
    browser = browse(there)
    wrong = browser.get(PHYSICS).send(
        f"{PHYSICS}/settings", default_lease="long", email="kept@example.org"
    )
    assert wrong.status == 422
    assert ("email", "kept@example.org") in wrong.fields(f"{PHYSICS}/settings")
    page = wrong.send(
        f"{PHYSICS}/settings",
        default_lease="3d",
        email="",
        events="nodes",
        webhook="https://hooks.example.org/x",
        wipe="purge",
    )
    assert "Saved." in page.words, page.words
    assert ("wipe", "purge") in page.fields(f"{PHYSICS}/settings")
    told = page.tree.xpath("//dt[text()='Erasure']/following-sibling::dd[1]")
    assert "purged where disks can" in told[0].text_content()
    now = group(there)
    assert (now.default_lease, now.email, now.events) == (3 * 86400, "", ("nodes",))
    assert now.wipe == "purge"
    emptied = browser.get(PHYSICS).send(
        f"{PHYSICS}/settings", default_lease="", webhook="", wipe=""
    )
    assert emptied.status == 200
    assert (group(there).default_lease, group(there).wipe) == (None, None)


def test_the_webhooks_secret_is_the_owners_alone(there: Served) -> None:
    browser = browse(there)
    browser.get(PHYSICS).send(f"{PHYSICS}/settings", webhook="https://hooks.example.org/x")
    shown = browser.get(PHYSICS).send(f"{PHYSICS}/webhook-secret")
    (secret,) = shown.tree.xpath("//pre/text()")
    changed = browser.get(PHYSICS).send(f"{PHYSICS}/webhook-secret/change")
    assert changed.tree.xpath("//pre/text()") != [secret]
    other = browse(there, "member")
    token = [pair for pair in other.get("/groups").fields("/sign-out") if pair[0] == "csrf"]
    for what in ("webhook-secret", "settings", "invite", "members", "test"):
        assert other.post(
            f"{PHYSICS}/{what}", [*token, ("user", "max"), ("role", "viewer")]
        ).status in (403, 422), what
    assert "hooks.example.org" not in other.get(PHYSICS).text


def test_a_test_notice_and_its_log(there: Served) -> None:
    page = browse(there).get(PHYSICS).send(f"{PHYSICS}/test")
    assert "A test notice is on its way" in page.words
    log = page.browser.get(f"{PHYSICS}/deliveries")
    assert "waiting" in log.words
    assert (
        "No delivery matches this filter"
        in page.browser.get(f"{PHYSICS}/deliveries", state="delivered").words
    )


def test_limits_are_the_administrators(there: Served) -> None:
    page = signed_in(there).get(PHYSICS)
    wrong = page.send(f"{PHYSICS}/limits", image_quota="much")
    assert wrong.status == 422
    assert "500 GB" in wrong.words
    assert (
        "Saved."
        in wrong.send(f"{PHYSICS}/limits", priority="7", max_lease="", image_quota="1 GiB").words
    )
    now = group(there)
    assert (now.priority, now.max_lease, now.image_quota) == (7, None, 2**30)
    page.browser.get(PHYSICS).send(f"{PHYSICS}/limits", image_quota="777 GB")
    page.browser.get(PHYSICS).send(f"{PHYSICS}/limits", priority="8")
    assert (group(there).priority, group(there).image_quota) == (
        8,
        777 * 10**9,
    ), "what is not typed anew stays"
    page.browser.get(PHYSICS).send(f"{PHYSICS}/limits", image_quota="1 GiB")
    owner = browse(there)
    assert "512.0 MiB of 1.0 GiB" in owner.get(PHYSICS).words
    token = [pair for pair in owner.get("/groups").fields("/sign-out") if pair[0] == "csrf"]
    assert owner.post(f"{PHYSICS}/limits", [*token, ("priority", "99")]).status == 403


def test_making_and_removing_a_group(there: Served) -> None:
    browser = signed_in(there)
    assert browser.get("/groups").send("/groups", name="physics").status == 409
    made = browser.get("/groups").send("/groups", name="chemistry", priority="3")
    assert "Group chemistry is created." in made.words
    assert "Group chemistry is deleted." in made.send("/groups/chemistry/remove").words
    assert browser.get(PHYSICS).send(f"{PHYSICS}/remove").status == 409


def test_the_timeline_of_a_group_is_for_those_who_see_it(there: Served) -> None:
    browser = browse(there)
    page = browser.get("/timeline", group="physics")
    assert "Timeline of physics" in page.words
    assert page.tree.xpath("//figure//@data-zone"), "the script says the zone of its times there"
    assert page.tree.xpath(
        "//a[contains(@href, 'group=physics') and contains(@href, 'format=csv')]"
    )
    assert browser.get("/timeline", vcluster="batch").status == 200
    assert browser.get("/timeline", group="web").status == 404
    assert browser.get("/timeline", vcluster="farm").status == 404


def test_users_shares_are_shown_and_its_owners_set_them(there: Served) -> None:
    viewer, owner = browse(there, "viewer"), browse(there)
    assert "Users' shares" not in viewer.get(PHYSICS).words
    page = signed_in(there).get(PHYSICS)
    assert "Users' shares are on." in page.send(f"{PHYSICS}/user-shares").words
    assert browse(there).get("/shares").tree.xpath(f"//main//a[@href='{PHYSICS}#users']")
    path = f"{PHYSICS}/members/viewer-physics/shares"
    page = owner.get(PHYSICS).send(path, shares="2.5")
    assert "viewer-physics has the shares 2.5 in physics." in page.words
    assert dict(page.fields(path))["shares"] == "2.5"
    assert role(there, "viewer-physics") is Role.VIEWER
    loaded = page  # and meanwhile another owner changes the role
    owner.get(PHYSICS).send(f"{PHYSICS}/members/viewer-physics/role", role="member")
    loaded.send(path, shares="1.5")
    assert role(there, "viewer-physics") is Role.MEMBER
    page = page.send(path, shares="many")
    assert "should be" in page.tree.xpath("string(//*[@role='alert'])")
    page = viewer.get(PHYSICS)
    table = page.tree.xpath("//*[@id='users']/following::tbody[1]")[0]
    assert "viewer-physics" in table.text_content()
    assert not table.xpath(".//form")
