"""The portal's pages about people and the audit: links that are shown once, who is let in, and who
did it."""

from __future__ import annotations

from dataclasses import replace
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest

from cod.flows.people import sshkeys
from cod.model import Mail, Role, Site, SiteRef, Who
from cod.store.people import groups, people
from tests.net import receivers
from tests.net.apiserver import NOW, Served
from tests.net.portalclient import Browser, signed_in

pytestmark = pytest.mark.slow

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f bob@host"


def owner(served: Served, name: str = "olga") -> Who:
    group = served.tx(groups.by_name, "physics") or served.tx(groups.add, "physics", NOW)
    return Who(f"user:{name}", user_id=2, roles={group.id: Role.OWNER})


def test_an_administrator_adds_a_user_who_sets_a_password(served: Served) -> None:
    page = (
        signed_in(served)
        .get("/people")
        .send("/people", name="new", full_name="<b>New</b>", email="new@example.org")
    )
    assert page.status == 200, page.words
    assert "shown only once" in page.words
    link = page.tree.xpath("//pre")[0].text_content()
    assert "/invitation#" in link
    visitor = Browser(served.server.ports[0])
    asked = visitor.get("/invitation").send("/invitation", code=link)
    assert "A new password for new" in asked.words
    home = asked.send("/invitation/accept", password="four quiet words here")
    assert home.title.startswith("Overview"), home.words
    again = Browser(served.server.ports[0]).get("/invitation").send("/invitation", code=link)
    assert again.status >= 400, "a link works once"
    assert "<b>New</b>" in signed_in(served).get("/people").words  # as text


def test_an_administrator_adds_a_key_for_a_user(served: Served) -> None:
    served.tx(people.add, "bob", NOW)
    page = signed_in(served).get("/people/bob").send("/people/bob/keys", key=KEY)
    assert "The key is added." in page.words
    [key] = served.tx(sshkeys.of_user, "bob")
    page = page.send(f"/people/bob/keys/{key.id}/remove")
    assert "The key is deleted." in page.words
    assert served.tx(sshkeys.of_user, "bob") == []


def change(served: Served, **context: Any) -> None:
    """Answer requests with another context."""
    api = served.server._apis[1]
    api.context = replace(api.context, **context)
    assert api.portal
    api.portal.context = api.context


def test_a_link_has_a_name_that_people_can_reach(served: Served, site: Site) -> None:
    """Where the site file names none, the host's own name, which nobody else may look up, went into
    links."""
    reached = {"names": frozenset({"cod.example.org"}), "fingerprint": lambda: "ab" * 32}
    browser = signed_in(served)
    for named, host, wanted in (
        (False, "cod.example.org:8443", "https://cod.example.org:8443/"),
        (False, "127.0.0.1:8443", "https://inner/"),
        (False, "localhost", "https://inner/"),
        (True, "cod.example.org:8443", "https://inner/"),
    ):
        change(
            served,
            site=SiteRef(
                replace(site, signin=replace(site.signin, url="https://inner", named=named))
            ),
            **reached,
        )
        browser.host = host
        page = browser.get("/people").send("/people/invite", email="")
        link = page.tree.xpath("//pre")[0].text_content()
        assert link.startswith(f"{wanted}invitation#"), (named, host)
        assert ":".join(["AB"] * 32) in page.words, "the certificate's fingerprint"


def test_a_letter_leads_to_the_site_whatever_the_host_header_says(
    served: Served, site: Site
) -> None:
    """An owner had the site itself send a letter with a link to a machine of theirs: any address
    passes as a host."""
    browser = signed_in(served, owner(served))
    browser.host = "203.0.113.9:8443"
    with receivers.serving() as box:
        mail = Mail(host="127.0.0.1", port=box.port, tls="none", sender="cod@example.org")
        signin = replace(site.signin, url="https://inner", named=False)
        change(served, site=SiteRef(replace(site, mail=mail, signin=signin)))
        page = browser.get("/groups/physics").send(
            "/groups/physics/invite", email="bob@example.org", mail="true"
        )
    assert page.status == 200, page.words
    link = page.tree.xpath("//pre")[0].text_content()
    assert link.startswith("https://inner/invitation#")
    ((_, _, content),) = box.got
    letter = message_from_bytes(content, policy=default).get_content()
    assert (link in letter, "203.0.113.9" in letter) == (True, False)


def test_a_private_key_is_not_shown_again(served: Served) -> None:
    page = signed_in(served).get("/account")
    secret = (
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----"
    )
    refused = page.send("/account/keys", key=secret, name="mine")
    assert refused.status == 422
    assert "this is a private key" in refused.words
    assert "b3BlbnNzaC1rZXk" not in refused.text
    assert dict(refused.fields("/account/keys"))["name"] == "mine", (
        "the rest of what was typed stays"
    )


def test_a_link_to_the_site_can_be_taken_back(served: Served) -> None:
    page = (
        signed_in(served)
        .get("/people")
        .send("/people/invite", email="new@example.org", lifetime="3d")
    )
    link = page.tree.xpath("//pre")[0].text_content()
    page = page.browser.get("/people")
    assert "new@example.org" in page.words
    (path,) = page.tree.xpath("//form[contains(@action, '/revoke')]/@action")
    assert "The link is revoked." in page.send(path).words
    assert (
        Browser(served.server.ports[0]).get("/invitation").send("/invitation", code=link).status
        >= 400
    )


def test_a_user_is_changed_and_signed_out(served: Served) -> None:
    who = owner(served)
    theirs, ours = signed_in(served, who), signed_in(served)
    assert theirs.get("/").title.startswith("Overview")
    page = ours.get("/people/olga").send("/people/olga/sign-out")
    assert "signed out everywhere" in page.words
    assert theirs.get("/").title.startswith("Sign in")
    disabled = page.send("/people/olga/change", disabled="true")
    assert "disabled" in disabled.words
    user = served.tx(people.by_name, "olga")
    assert user.disabled_at is not None


def test_a_user_is_deleted(served: Served) -> None:
    who = owner(served)
    theirs, ours = signed_in(served, who), signed_in(served)
    assert theirs.get("/").title.startswith("Overview")
    page = ours.get("/people/olga")
    assert "Delete olga for good?" in page.words
    refused = page.send("/people/olga/delete")
    assert (refused.status, "last owner of physics" in refused.words) == (409, True)
    served.tx(people.set_role, min(who.roles), served.tx(people.by_name, "ann").id, Role.OWNER)
    assert "olga is deleted." in refused.send("/people/olga/delete").words
    assert theirs.get("/").title.startswith("Sign in")
    assert ours.get("/people/olga").status == 404


def test_people_are_the_administrators(served: Served) -> None:
    browser = signed_in(served, owner(served))
    assert browser.get("/people").status == 403
    assert browser.get("/people/ann").status == 403


def test_the_audit_says_who_did_what(served: Served) -> None:
    administrator = signed_in(served)
    administrator.get("/people").send("/people", name="new", email="a@example.org")
    page = administrator.get("/audit")
    assert page.status == 200, page.words
    assert "user:ann" in page.words
    assert "a@example.org" in page.words
    assert "user:ann" not in administrator.get("/audit", actor="user:bob").tree.xpath(
        "string(//main//table)"
    )
    assert "user:ann" in administrator.get("/audit", actor="ann").tree.xpath(
        "string(//main//table)"
    )
    assert "user:ann" not in administrator.get("/audit", actor="nn").tree.xpath(
        "string(//main//table)"
    )
    theirs = signed_in(served, owner(served)).get("/audit")
    assert theirs.status == 200
    assert "a@example.org" not in theirs.words
