"""People over the API and the command line: accounts, members, links, keys, tokens, the audit."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cod.client import ApiError, Client
from cod.flows.people import people, tokens
from cod.model import Mail, SignInRules, Site, Who
from cod.pool import Pool
from cod.store.people import audit, groups
from tests import ldap_site
from tests.net import receivers
from tests.net.apiserver import ADMIN, NOW, READER, Served, as_json, run, said, serving

PASSWORD = "correct horse battery"
TEMPLATE = f"""<template name="web"><image target="disk" url="http://10.0.0.9/a.zst" size="1" sha256="{"ab" * 32}"
compression="zstd"/></template>"""
pytestmark = [pytest.mark.usefixtures("quick_passwords"), pytest.mark.slow]


def key_line(number: int = 1, name: str = "ann@laptop") -> str:
    public = Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)).public_key()
    return f"{public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {name}"


def refused(call: Callable[..., Any], *args: Any, **named: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args, **named)
    return caught.value


def secret_of(link: str) -> str:
    return link.partition("/invitation#")[2]


def user(
    served: Served, name: str, group: str = "", role: str = "member", **columns: Any
) -> Client:
    """A user, and a client with a token of theirs."""
    made = served.tx(people.create, name, now=NOW, **columns)
    if group:
        served.tx(groups.ensure, group, NOW)
        served.tx(people.set_role, group=group, user=name, role=role)
    who = Who(f"user:{name}", user_id=made.id)
    served.tx(tokens.make, who=who, name="test", token=f"cod_{name}", now=NOW)
    return served.remote(f"cod_{name}")


@pytest.fixture
def ann(served: Served) -> Iterator[Client]:
    """An owner of the group 'physics'."""
    client = user(
        served, "ann", "physics", "owner", full_name="Ann Example", email="ann@example.org"
    )
    yield client
    client.close()


# ---------------------------------------------------------------- from nothing to a group


def test_a_site_begins_with_a_link_for_its_first_administrator(served: Served) -> None:
    made = as_json(served, "user", "add", "root", "--admin", "--full-name", "Root")
    assert (made["user"], made["mailed"], made["unsent"]) == ("root", False, "")
    nobody = served.remote(None)
    assert nobody.post(
        "/invitations/accept", {"secret": secret_of(made["link"]), "password": PASSWORD}
    ) == {"user": "root"}
    token = nobody.post("/sign-in", {"name": "root", "password": PASSWORD, "token": "first"})
    assert token["name"] == "first@root"
    me = served.remote(token["token"]).get("/me")
    assert (me["name"], me["admin"], me["user"]["full_name"]) == ("token:first@root", True, "Root")
    assert (
        refused(
            nobody.post,
            "/invitations/accept",
            {"secret": secret_of(made["link"]), "password": PASSWORD},
        ).status
        == 404
    )


def test_an_owner_invites_a_member_who_comes(served: Served, ann: Client) -> None:
    link = ann.post("/groups/physics/invitations", {"role": "viewer", "email": "bob@example.org"})
    assert [each["email"] for each in ann.get("/invitations")["items"]] == ["bob@example.org"]
    nobody = served.remote(None)
    told = {
        "secret": secret_of(link["link"]),
        "password": PASSWORD,
        "name": "bob",
        "full_name": "Bob",
    }
    assert (
        refused(nobody.post, "/invitations/accept", told | {"password": "bob bob bob bob"}).status
        == 422
    )
    assert nobody.post("/invitations/accept", told) == {"user": "bob"}
    members = {each["user"]: each["role"] for each in ann.get("/groups/physics/members")["items"]}
    assert members == {"ann": "owner", "bob": "viewer"}
    served.tx(people.create, "eve", now=NOW, full_name="Eve", email="eve@example.org")
    enlisted = refused(ann.call, "PUT", "/groups/physics/members/eve", {"role": "viewer"})
    assert (enlisted.status, enlisted.code) == (403, "forbidden")
    assert "Invite them" in str(enlisted)
    assert refused(ann.get, "/users/eve").status == 404, "and so her address stays hers"
    for method, body in (("PUT", {"role": "viewer"}), ("GET", None), ("DELETE", None)):
        known, unknown = (
            refused(ann.call, method, f"/groups/physics/members/{name}", body)
            for name in ("eve", "nil")
        )
        assert (known.status, known.code, str(known).replace("eve", "nil")) == (
            unknown.status,
            unknown.code,
            str(unknown),
        ), "an owner cannot tell who has an account"
    served.local.call("PUT", "/groups/physics/members/eve", {"role": "viewer"})
    ann.call("PUT", "/groups/physics/members/eve", {"role": "member"})
    served.local.delete("/groups/physics/members/eve")
    ann.call("PUT", "/groups/physics/members/bob", {"role": "owner"})
    ann.delete("/groups/physics/members/ann")  # one may leave, as long as somebody else owns it
    assert refused(ann.get, "/groups/physics").status == 404
    assert refused(ann.post, "/groups/physics/invitations", {}).status == 404


def test_a_link_goes_by_mail_where_there_is_a_mail_server(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> None:
    with receivers.serving() as box:
        mail = Mail(host="127.0.0.1", port=box.port, tls="none", sender="cod@example.org")
        there = replace(site, mail=mail, signin=SignInRules(url="https://cod.example.org"))
        with serving(pool, reactor, in_reactor, there) as served:
            body = {"name": "bob", "email": "bob@example.org", "mail": True}
            made = served.local.post("/users", body)
            unaddressed = served.local.post("/invitations", {"mail": True})
    assert (made["mailed"], made["unsent"]) == (True, "")
    assert (unaddressed["mailed"], unaddressed["unsent"]) == (
        False,
        "there is no address to send it to",
    )
    ((sender, to, content),) = box.got
    assert (sender, to) == ("cod@example.org", ["bob@example.org"])
    letter = message_from_bytes(content, policy=default)
    assert made["link"] in letter.get_content()
    assert made["link"].startswith("https://cod.example.org/invitation#")


def test_without_a_mail_server_the_link_is_there_all_the_same(served: Served) -> None:
    made = served.local.post("/invitations", {"email": "bob@example.org", "mail": True})
    assert (made["mailed"], bool(made["unsent"]), "#" in made["link"]) == (False, True, True)


def test_a_group_without_an_owner_is_an_administrators_word(served: Served, ann: Client) -> None:
    assert refused(ann.call, "PUT", "/groups/physics/members/ann", {"role": "viewer"}).status == 409
    assert (
        refused(
            ann.call, "PUT", "/groups/physics/members/ann", {"role": "viewer", "force": True}
        ).status
        == 403
    )
    forced = served.local.call(
        "PUT", "/groups/physics/members/ann", {"role": "viewer", "force": True}
    )
    assert forced["role"] == "viewer"


def test_links_are_taken_back_by_their_groups_owners(served: Served, ann: Client) -> None:
    eve = user(served, "eve", "chemistry", "owner")
    made = ann.post("/groups/physics/invitations", {})
    site = served.local.post("/invitations", {"email": "x@example.org"})
    for client, number in ((eve, made["id"]), (ann, site["id"])):
        assert refused(client.delete, f"/invitations/{number}").status == 404
    assert eve.get("/invitations")["items"] == []
    ann.delete(f"/invitations/{made['id']}")
    assert len(served.local.get("/invitations")["items"]) == 1


def test_letters_are_counted_and_links_are_not(served: Served, ann: Client) -> None:
    """Somebody who has letters sent to strangers all day is slowed, also where the mail server
    refuses them."""
    for _ in range(20):
        ann.post("/groups/physics/invitations", {"email": "x@example.org", "mail": True})
    slow = refused(
        ann.post, "/groups/physics/invitations", {"email": "x@example.org", "mail": True}
    )
    assert (slow.status, "20 letters" in str(slow), "try again in 180 s" in str(slow)) == (
        429,
        True,
        True,
    )
    assert refused(ann.post, "/groups/physics/test-notice").status == 429
    ann.post("/groups/physics/invitations", {"email": "x@example.org"})
    served.clock.now += 180.0
    ann.post("/groups/physics/invitations", {"email": "x@example.org", "mail": True})


# ---------------------------------------------------------------- users


def test_users_are_changed_by_administrators_alone(served: Served, ann: Client) -> None:
    assert ann.get("/users/ann")["groups"] == [{"group": "physics", "role": "owner"}]
    assert refused(ann.patch, "/users/ann", {"admin": True}).status == 403
    assert refused(ann.post, "/users", {"name": "x"}).status == 403
    changed = served.local.patch("/users/ann", {"email": "a@example.org", "full_name": None})
    assert (changed["email"], changed["full_name"]) == ("a@example.org", "Ann Example")
    assert served.local.patch("/users/ann", {"disabled": True})["disabled"] is True
    assert refused(ann.get, "/me").status == 401


def test_who_is_deleted_is_out_at_once_and_stays_in_the_audit(served: Served, ann: Client) -> None:
    bob = user(served, "bob", "physics")
    assert refused(ann.delete, "/users/bob").status == 403
    served.local.delete("/users/bob")
    assert refused(bob.get, "/me").status == 401
    assert refused(served.local.get, "/users/bob").status == 404
    (row,) = served.local.get("/audit?action=user%20delete")["items"]
    assert (row["thing"], row["before"]["name"], row["after"]) == ("bob", "bob", None)


def test_what_somebody_is_elsewhere_is_not_shown(served: Served, ann: Client) -> None:
    bob = user(served, "bob", "physics")
    served.tx(groups.ensure, "chemistry", NOW)
    served.tx(people.set_role, group="chemistry", user="bob", role="owner")
    assert ann.get("/users/bob")["groups"] == [{"group": "physics", "role": "member"}]
    assert len(bob.get("/users/bob")["groups"]) == len(bob.get("/me")["groups"]) == 2
    user(served, "eve", "chemistry")
    stranger, nobody = (refused(ann.get, f"/users/{name}") for name in ("eve", "none"))
    assert (stranger.status, str(stranger).replace("eve", "none")) == (nobody.status, str(nobody))
    assert [each["name"] for each in ann.get("/users")["items"]] == ["ann", "bob"]


def test_ones_own_account(served: Served, ann: Client) -> None:
    assert ann.patch("/me", {"full_name": "Ann E."})["user"]["full_name"] == "Ann E."
    assert refused(ann.patch, "/me", {"email": "no"}).field == "email"
    assert refused(ann.patch, "/me", {"admin": True}).status == 422
    program = served.remote(ADMIN).get("/me")
    assert (program["name"], program["admin"], program["user"]) == ("token:ci", True, None)
    assert refused(served.remote(ADMIN).patch, "/me", {"full_name": "x"}).status == 409
    assert refused(served.remote(READER).patch, "/me", {"full_name": "x"}).status == 403


def test_a_password_is_changed_by_the_one_who_knows_it(served: Served, ann: Client) -> None:
    link = served.local.post("/users/ann/password-link", {})
    served.remote(None).post(
        "/invitations/accept", {"secret": secret_of(link["link"]), "password": PASSWORD}
    )
    wrong = refused(ann.call, "PUT", "/me/password", {"old": "no" * 8, "new": PASSWORD + "!"})
    assert (wrong.status, wrong.code, wrong.field) == (401, "unauthorised", "old")
    slow = refused(ann.call, "PUT", "/me/password", {"old": PASSWORD, "new": PASSWORD + "!"})
    assert (slow.status, slow.code) == (429, "slow_down")
    served.clock.now += 2
    assert refused(ann.call, "PUT", "/me/password", {"old": PASSWORD, "new": "short"}).status == 422
    assert ann.call("PUT", "/me/password", {"old": PASSWORD, "new": PASSWORD + "!"}) == {"ended": 0}
    told = {"name": "ann", "password": PASSWORD + "!", "token": "t"}
    assert served.remote(None).post("/sign-in", told)["name"] == "t@ann"


def test_who_guesses_is_told_how_long_to_wait(served: Served) -> None:
    answers = []
    for _ in range(2):
        line = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
        line.request(
            "POST",
            "/api/v1/sign-in",
            json.dumps({"name": "ann", "password": "x", "token": "t"}),
            {"Content-Type": "application/json"},
        )
        reply = line.getresponse()
        answers.append((reply.status, reply.getheader("Retry-After")))
        line.close()
    assert answers == [(401, None), (429, "1")]


def test_unknown_names_and_wrong_passwords_are_told_alike(served: Served, ann: Client) -> None:
    answers = []
    for name in ("ann", "nobody"):
        error = refused(
            served.remote(None).post, "/sign-in", {"name": name, "password": "x" * 12, "token": "t"}
        )
        answers.append((error.status, error.code, str(error)))
        served.clock.now += 5
    assert answers == [(401, "unauthorised", "name or password is wrong")] * 2


# ---------------------------------------------------------------- keys and tokens


def test_an_administrator_adds_a_key_for_somebody(
    served: Served, ann: Client, tmp_path: Path
) -> None:
    file = tmp_path / "ann.pub"
    file.write_text(key_line())
    run(served, "key", "add", str(file), "--user", "ann", "--name", "given")
    (key,) = ann.get("/me/keys")["items"]
    assert (key["name"], key["given"]) == ("given", False)
    assert "given" in run(served, "key", "list", "--user", "ann").stdout
    for method, path in (
        (ann.get, "/users/ann/keys"),
        (ann.delete, f"/users/ann/keys/{key['id']}"),
    ):
        assert refused(method, path).status == 403
    (row, *_) = served.tx(audit.every)
    assert (row.action, row.thing) == ("key create", "ann")
    run(served, "key", "remove", str(key["id"]), "--user", "ann")
    assert ann.get("/me/keys")["items"] == []
    assert refused(served.local.post, "/users/sync", {}).status == 404, "the site has no directory"


def test_keys_are_added_listed_and_removed(served: Served, ann: Client) -> None:
    made = ann.post("/me/keys", {"key": key_line()})
    assert made["name"] == "ann@laptop"
    assert ann.get(f"/me/keys/{made['id']}") == made
    (listed,) = ann.get("/groups/physics/keys")["items"]
    assert (listed["user"], listed["fingerprint"], listed["line"]) == (
        "ann",
        made["fingerprint"],
        key_line(),
    )
    assert run(served, "member", "keys", "physics", "--lines").stdout == key_line() + "\n"
    bob = user(served, "bob", "physics", "viewer")
    assert refused(bob.get, f"/me/keys/{made['id']}").status == 404
    assert refused(bob.delete, f"/me/keys/{made['id']}").status == 404
    assert refused(ann.post, "/me/keys", {"key": "ssh-rsa AAAA"}).field == "key"
    ann.delete(f"/me/keys/{made['id']}")
    assert ann.get("/me/keys")["items"] == []


def test_a_token_for_one_group_gets_at_nothing_else(served: Served, ann: Client) -> None:
    served.tx(groups.ensure, "chemistry", NOW)
    served.tx(people.set_role, group="chemistry", user="ann", role="owner")
    made = ann.post("/me/tokens", {"name": "ci", "group": "physics", "lifetime": 3600})
    assert ann.get("/me/tokens")["items"][0] | {"created_at": 0} == {
        "name": "ci@ann",
        "scope": "write",
        "group": "physics",
        "created_at": 0,
        "expires_at": NOW + 3600,
    }
    narrow = served.remote(made["token"])
    assert [each["name"] for each in narrow.get("/groups")["items"]] == ["physics"]
    assert refused(narrow.get, "/groups/chemistry").status == 404
    for path, body in (("/me/tokens", {"name": "more"}), ("/me/keys", {"key": key_line()})):
        assert refused(narrow.post, path, body).status == 403
    # as an owner, she may; as the last, not
    assert refused(narrow.delete, "/groups/physics/members/ann").status == 409
    ann.delete("/me/tokens/ci")
    assert refused(narrow.get, "/me").status == 401


def test_a_token_that_reads_changes_nothing(served: Served, ann: Client) -> None:
    made = ann.post("/me/tokens", {"name": "eye", "scope": "read"})
    eye = served.remote(made["token"])
    assert eye.get("/me")["writes"] is False
    assert refused(eye.post, "/me/keys", {"key": key_line()}).status == 403


def test_the_sites_tokens_are_made_by_administrators(served: Served, ann: Client) -> None:
    assert refused(ann.get, "/tokens").status == 403
    made = served.local.post("/tokens", {"name": "grafana"})
    assert served.remote(made["token"]).get("/me")["writes"] is False
    assert {each["name"] for each in served.local.get("/tokens")["items"]} == {
        "ci",
        "eye",
        "grafana",
        "old",
    }
    served.local.delete("/tokens/test@ann")
    assert refused(ann.get, "/me").status == 401


def test_metrics_are_the_administrators(served: Served, ann: Client) -> None:
    assert refused(ann.call, "GET", "/../../metrics").status in (403, 404)


# ---------------------------------------------------------------- the audit


def rows(client: Client, **query: Any) -> list[Any]:
    return list(client.get("/audit", **query)["items"])


def test_every_change_is_put_down_with_before_and_after(served: Served, ann: Client) -> None:
    served.local.patch("/groups/physics", {"priority": 7})
    ann.patch("/groups/physics", {"email": "team@example.org"})
    second, first = rows(ann, action="group")[:2]
    assert (first["actor"], first["address"], first["thing"]) == ("user:root", "", "physics")
    assert (first["before"], first["after"]) == ({"priority": 0}, {"priority": 7})
    assert (second["actor"], second["address"], second["group"]) == (
        "token:test@ann",
        "127.0.0.1",
        "physics",
    )
    assert second["after"] == {"email": "team@example.org"}


def test_what_is_made_and_what_goes_is_put_down(served: Served, ann: Client) -> None:
    served.local.post("/groups", {"name": "new", "priority": 3})
    served.local.delete("/groups/new")
    gone, made = rows(served.local, thing="new")
    assert (made["action"], made["before"], made["after"]["priority"]) == ("group create", None, 3)
    assert (gone["action"], gone["before"]["priority"], gone["after"]) == ("group delete", 3, None)


def test_of_a_vcluster_the_sizes_are_compared_and_not_its_nodes(served: Served) -> None:
    served.local.post("/templates", {"document": TEMPLATE, "group": "site"})
    served.local.post("/vclusters", {"name": "vc", "size": 1, "template": "web", "group": "site"})
    served.local.delete("/vclusters/vc")
    gone, made = rows(served.local, action="vcluster")
    assert (made["action"], made["after"]["size"], made["before"]) == ("vcluster create", 1, None)
    assert (gone["action"], gone["thing"]) == ("vcluster delete", "vc")
    assert "nodes" not in gone["before"]


def test_what_was_refused_and_what_only_looks_is_not_put_down(served: Served, ann: Client) -> None:
    before = len(rows(served.local))
    refused(ann.patch, "/groups/physics", {"priority": 7})
    refused(served.local.delete, "/groups/none")
    served.local.post("/templates/check", {"document": "<x/>"})
    assert len(rows(served.local)) == before


def test_secrets_stay_out_of_the_audit(served: Served, ann: Client) -> None:
    link = ann.post("/groups/physics/invitations", {"role": "member"})["link"]
    token = ann.post("/me/tokens", {"name": "ci"})["token"]
    secret_url = "https://hooks.example.org/services/T0000/XXXXXXXX"
    ann.patch("/groups/physics", {"webhook": secret_url})
    refused(
        served.remote(None).post,
        "/sign-in",
        {"name": "my secret password", "password": PASSWORD, "token": "t"},
    )
    served.remote(None).post(
        "/invitations/accept", {"secret": secret_of(link), "password": PASSWORD, "name": "bob"}
    )
    text = json.dumps(rows(served.local))
    for secret in (secret_of(link), token, "XXXXXXXX", PASSWORD, "my secret password"):
        assert secret not in text
    assert "https://hooks.example.org/…" in json.dumps(rows(served.local), ensure_ascii=False)
    assert {"invitation create", "token create", "invitation accept", "sign-in failed"} <= {
        row["action"] for row in rows(served.local)
    }


def test_owners_see_their_groups_rows_and_nobody_elses(served: Served, ann: Client) -> None:
    eve, bob = user(served, "eve", "chemistry", "owner"), user(served, "bob", "physics")
    for group in ("physics", "chemistry"):
        served.local.patch(f"/groups/{group}", {"priority": 5})
    served.local.patch("/users/bob", {"full_name": "Bob"})
    assert {row["group"] for row in rows(ann)} == {"physics"}
    assert {row["group"] for row in rows(eve)} == {"chemistry"}
    assert rows(bob) == []
    assert {row["group"] for row in rows(served.local)} == {"physics", "chemistry", None}
    assert refused(rows, eve, group="physics").field == "group"


def test_the_audit_is_filtered_and_comes_in_parts(served: Served) -> None:
    for number in range(5):
        served.clock.now = NOW + number
        served.local.patch("/groups/site", {"priority": number + 1})
    page = served.local.get("/audit", limit=2, thing="site")
    assert ([row["after"]["priority"] for row in page["items"]], page["total"]) == ([5, 4], 5)
    rest = served.local.get("/audit", limit=9, thing="site", after=page["next"])
    assert [row["after"]["priority"] for row in rest["items"]] == [3, 2, 1]
    assert [row["at"] for row in rows(served.local, since=NOW + 1, until=NOW + 3)] == [
        NOW + 2,
        NOW + 1,
    ]
    assert rows(served.local, actor="user:nobody") == rows(served.local, action="group%") == []


# ---------------------------------------------------------------- the command line


def test_the_command_line_does_it_all(served: Served, ann: Client) -> None:
    assert "ann@example.org" in said(served, "user", "list")
    assert "physics" in said(served, "user", "show", "ann")
    run(served, "user", "set", "ann", "--email", "a@example.org")
    assert "/invitation#" in said(served, "user", "password-link", "ann")
    assert as_json(served, "member", "list", "physics")[0]["role"] == "owner"
    assert "/invitation#" in said(served, "user", "add", "bob")
    run(served, "member", "set", "physics", "bob", "viewer")
    run(served, "member", "remove", "physics", "bob")
    assert "last owner" in said(served, "member", "remove", "physics", "ann", code=1)
    assert "/invitation#" in said(
        served, "invite", "group", "physics", "--role", "owner", "--expires", "1d"
    )
    assert "/invitation#" in said(served, "group", "invite", "physics", "--role", "viewer")
    assert "/invitation#" in said(served, "user", "invite", "--email", "x@example.org")
    number = as_json(served, "invite", "list")[0]["id"]
    run(served, "invite", "revoke", number)
    assert "group change" in said(served, "audit", "--limit", "50") or "user change" in said(
        served, "audit"
    )
    assert as_json(served, "audit", "--action", "user change")[0]["after"] == {
        "email": "a@example.org"
    }
    run(served, "user", "disable", "ann")
    assert "disabled" in said(served, "user", "list")
    run(served, "user", "enable", "ann")
    assert "last owner of physics" in said(served, "user", "delete", "ann", code=1)
    run(served, "user", "delete", "bob")
    assert "bob" not in said(served, "user", "list")


def test_the_command_line_minds_ones_own_account(
    served: Served, ann: Client, tmp_path: Any
) -> None:
    file = tmp_path / "id.pub"
    file.write_text(key_line() + "\n")
    mine = ("--server", f"http://127.0.0.1:{served.server.ports[0]}", "--token", "cod_ann")
    from click.testing import CliRunner

    from cod.cli.root import cod

    def own(*words: object) -> str:
        result = CliRunner().invoke(cod, [*mine, *map(str, words)])
        assert result.exit_code == 0, result.output
        return result.output

    assert "SHA256:" in own("key", "add", file)
    assert "ann@laptop" in own("key", "list")
    own("key", "remove", json.loads(own("key", "list", "--json"))[0]["id"])
    assert own("token", "create", "ci", "--mine", "--group", "physics").startswith("cod_")
    assert "ci@ann" in own("token", "list", "--mine")
    # a token of the site, which may do everything, is for no single group
    wider = CliRunner().invoke(cod, [*mine, "token", "create", "all", "--group", "physics"])
    assert wider.exit_code == 2, wider.output
    assert "--group goes with --mine" in wider.output
    own("token", "revoke", "ci", "--mine")
    assert own("session", "list", "--json") == "[]\n"
    assert "0" in own("session", "end", "--all")
    assert "token:test@ann" in own("session", "whoami")


def test_a_removal_names_the_nodes_with_open_sessions(served: Served) -> None:
    served.tx(ldap_site.physics_and_chemistry)
    gone = served.local.delete("/groups/physics/members/bob")
    assert gone == {
        "group": "physics",
        "user": "bob",
        "nodes": ["n1.pool", "n2.pool"],
        "command": "pkill -KILL -u bob",
    }
