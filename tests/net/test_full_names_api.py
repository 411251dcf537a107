"""Full names of images and templates at the doors: paths in both spellings, answers to strangers,
forms, commands."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import insert

from cod.cli.root import cod
from cod.client import ApiError, Client, full_name, path_of
from cod.store import tables as t
from cod.store.images import images
from cod.store.people import groups
from cod.web.api import openapi
from cod.web.api.resources import ROUTE_MAP, ROUTES
from cod.web.api.routes import matched
from cod.web.http.request import unquoted
from tests.net.apiserver import NOW, Served, add_node
from tests.net.credentials import as_user
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import signed_in

pytestmark = pytest.mark.slow

NEW, FORM = "/templates/new", "/templates/form"
TEMPLATE = '<template name="x"><image target="disk" name="debian-12"/></template>'
SPELLINGS = ("physics/execd", "physics%2Fexecd", "physics%2fexecd")


@pytest.fixture
def owner(there: Served) -> Client:
    return as_user(there, "ann", "physics")


def missing(client: Client, method: str, path: str, body: Any = None) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        client.call(method, path, body)
    return caught.value.status, caught.value.detail


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        (
            "POST",
            "/vclusters",
            {"name": "x", "size": 1, "template": "debian", "group": "web"},
            "group",
        ),
        ("POST", "/match", {"count": 1, "group": "web"}, "group"),
        ("POST", "/match", {"count": 1, "vcluster": "farm"}, "vcluster"),
        ("POST", "/vclusters/batch/moves", {"to": "farm", "nodes": 1}, "to"),
        ("POST", "/volumes", {"name": "x", "size": 2**30, "group": "web"}, "group"),
        ("POST", "/templates", {"document": TEMPLATE, "group": "web"}, "group"),
        ("GET", "/timeline?vcluster=farm", None, "vcluster"),
        ("GET", "/energy?group=web", None, "group"),
        ("GET", "/vclusters/farm", None, "name"),
    ],
)
def test_what_is_not_seen_is_said_at_the_field_that_names_it(
    owner: Client, method: str, path: str, body: Any, field: str
) -> None:
    with pytest.raises(ApiError) as caught:
        owner.call(method, path, body)
    assert (caught.value.status, caught.value.code, caught.value.field) == (404, "not_found", field)


def test_who_names_no_group_is_told_to(owner: Client) -> None:
    body = {"name": "x", "size": 1, "template": "debian"}
    assert "name a group of yours" in missing(owner, "POST", "/vclusters", body)[1]


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("method", "path", "pattern", "name"),
    [
        ("GET", "/images/debian", "/images/{name}", "debian"),
        ("GET", "/images/g/debian", "/images/{name}", "g/debian"),
        ("GET", "/images/g%2Fdebian", "/images/{name}", "g/debian"),
        ("GET", "/images/g/verify", "/images/{name}", "g/verify"),
        ("POST", "/images/debian/verify", "/images/{name}/verify", "debian"),
        ("POST", "/images/g/debian/verify", "/images/{name}/verify", "g/debian"),
        ("POST", "/images/g/verify/verify", "/images/{name}/verify", "g/verify"),
        ("DELETE", "/images/g/verify", "/images/{name}", "g/verify"),
        ("GET", "/templates/g/web@3", "/templates/{name}", "g/web@3"),
        ("GET", "/templates/g%2Fweb%403", "/templates/{name}", "g/web@3"),
        ("POST", "/templates/check", "/templates/check", None),
    ],
)
def test_a_name_takes_one_segment_or_two(
    method: str, path: str, pattern: str, name: str | None
) -> None:
    route, names, _ = ROUTE_MAP.find(method, unquoted(path))
    assert route is not None
    assert (route.path, names.get("name")) == (pattern, name)


@pytest.mark.parametrize(
    "path",
    ["/images/a/b/c", "/images//b", "/images/a/", "/templates/a/b/c", "/nodes/a/b", "/images"],
)
def test_no_more_than_two_and_of_images_and_templates_alone(path: str) -> None:
    assert matched("/images/{name}", path) is None
    assert matched("/templates/{name}", path) is None
    assert matched("/nodes/{name}", path) is None


@pytest.mark.parametrize("name", SPELLINGS)
def test_both_spellings_are_the_same_image(owner: Client, name: str) -> None:
    assert owner.get(f"/images/{name}")["name"] == "physics/execd"
    assert (
        owner.get(f"/templates/{name.replace('execd', 'execution-host')}@1")["name"]
        == "physics/execution-host"
    )
    assert missing(owner, "DELETE", f"/images/{name}") == (
        409,
        "the image 'physics/execd' is used by physics/execution-host@1",
    )


def test_a_location_is_where_the_thing_is(owner: Client) -> None:
    text = '<template name="web"><image target="disk" name="execd"/></template>'
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {owner._token}"}
    host, _, port = owner.server.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request(
        "POST", "/api/v1/templates", json.dumps({"document": text, "group": "physics"}), headers
    )
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Location"]) == (
        201,
        "/api/v1/templates/physics/web@1",
    ), answer.read()
    connection.close()
    assert owner.get(answer.headers["Location"].removeprefix("/api/v1"))["name"] == "physics/web"


def test_the_document_of_the_api_says_how_names_are_written() -> None:
    paths = openapi.document()["paths"]
    for path in (
        "/api/v1/images/{name}",
        "/api/v1/templates/{name}",
        "/api/v1/images/{name}/verify",
    ):
        for operation in paths[path].values():
            (parameter,) = [one for one in operation["parameters"] if one["in"] == "path"]
            assert "%2F" in parameter["description"]


# ---------------------------------------------------------------- what others are told


@pytest.mark.parametrize("kind", ["images", "templates"])
def test_what_is_anothers_and_what_is_not_there_are_answered_alike(
    owner: Client, kind: str
) -> None:
    theirs = {"images": "nginx", "templates": "web-server"}[kind]
    for name, none in (
        (f"web/{theirs}", "web/nothing"),
        (f"web/{theirs}", "nobody/nothing"),
        (theirs, "nothing"),
    ):
        for method in ("GET", "DELETE"):
            told = [missing(owner, method, path_of(kind, one)) for one in (name, none)]
            assert told[0][0] == 404
            assert (told[0][0], told[0][1].replace(name, "*")) == (
                told[1][0],
                told[1][1].replace(none, "*"),
            )


def test_a_bare_name_of_ones_own_is_answered_with_the_full_one(
    there: Served, owner: Client
) -> None:
    assert missing(owner, "GET", "/images/execd") == (
        404,
        "there is no image 'execd': is 'physics/execd' meant?",
    )
    assert (
        missing(there.local, "GET", "/templates/web-server")[1]
        == "there is no template 'web-server': is 'web/web-server' meant?"
    )
    page = browse(there).get("/images/execd")
    assert page.status == 404
    assert "is 'physics/execd' meant?" in page.words


def test_squatting_and_requests_by_a_bare_name(there: Served, owner: Client) -> None:
    there.tx(
        images.add,
        name="physics/debian-12",
        group_id=2,
        state="ready",
        format="raw",
        content="disk",
        size=4096,
        created_at=NOW,
        digest="0" * 64,
    )
    assert (
        missing(owner, "POST", "/uploads", {"name": "debian-12", "size": 5, "group": "physics"})[0]
        == 409
    )
    assert (
        as_user(there, "zoe", "web").post(
            "/uploads", {"name": "debian-12", "size": 5, "group": "web"}
        )["name"]
        == "web/debian-12"
    )
    made = owner.post(
        "/vclusters", {"name": "v", "size": 1, "template": "execution-host", "group": "physics"}
    )
    assert made["template"] == "physics/execution-host@1"
    again = owner.post(
        "/match", {"count": 1, "template": "physics/execution-host", "group": "physics"}
    )
    assert again["room"] > 1


def test_members_of_the_group_site_own_nothing_for_everybody(there: Served) -> None:
    """The site's images and templates are everybody's: administrators add them, whatever the site
    is called."""
    member, node = (
        as_user(there, "sid", "site"),
        add_node(there, "free", 99, state="inactive", disk="foreign"),
    )
    group_id = there.tx(groups.by_name, "site").id
    there.tx(
        lambda tx: tx.execute(
            insert(t.node_permissions).values(node_id=node.id, group_id=group_id, right="use")
        )
    )
    text = '<template name="debian"><image target="disk" name="debian-12"/></template>'
    before = there.local.get("/templates/debian")["revision"]
    for method, path, body in (
        ("POST", "/templates", {"document": text, "group": "site"}),
        ("POST", "/uploads", {"name": "new", "size": 5, "group": "site"}),
        ("POST", "/nodes/free/capture", {"image": "new", "group": "site"}),
    ):
        for group in ("site", ""):
            assert missing(member, method, path, body | {"group": group}) == (
                403,
                "only the site's administrators may do that",
            ), path
        for address in ("/images/new", NEW):
            fields = (
                browse(there, "member", "site")
                .get(address)
                .tree.xpath("//select[@name='group']/option/@value")
            )
            assert fields == [], "what would be refused is not offered"
    assert there.local.get("/templates/debian")["revision"] == before
    assert (
        there.local.post("/templates", {"document": text + "\n", "group": "site"})["revision"]
        == before + 1
    )


# ---------------------------------------------------------------- forms


def test_what_is_chosen_in_a_form_is_what_is_meant_though_the_group_has_its_own(
    there: Served,
) -> None:
    """Forms offered the site's `debian` under the name that means the group's own."""
    for name, group in (("debian-12", "physics"), ("debian", "physics")):
        there.tx(
            images.add,
            name=f"{group}/{name}",
            group_id=there.tx(groups.by_name, group).id,
            state="ready",
            format="raw",
            content="disk",
            size=4096,
            created_at=NOW,
            digest="0" * 64,
        )
    text = '<template name="debian"><image target="disk" name="debian"/></template>'
    there.local.post("/templates", {"document": text, "group": "physics"})
    browser = browse(there)
    page = browser.get("/vclusters/new", template="debian")
    assert dict(page.fields("/vclusters"))["template"] == "site/debian"
    page.send("/vclusters", name="plain", size=1)
    assert there.local.get("/vclusters/plain")["template"] == "debian@1"
    page.send("/vclusters", name="own", size=1, template="physics/debian")
    assert there.local.get("/vclusters/own")["template"] == "physics/debian@1"
    offered = browser.get("/vclusters/plain/ask").tree.xpath(
        "//select[@name='tuples.0.template']/option/@value"
    )
    assert {"site/debian", "physics/debian", "execution-host"} & set(offered) == {
        "site/debian",
        "physics/debian",
    }
    page = browser.get(NEW, image="debian-12")
    assert dict(page.fields(FORM))["image"] == "site/debian-12"
    done = page.send(FORM, name="mine")
    assert done.tree.xpath("//p[starts-with(., 'Images:')]/a/@href") == ["/images/debian-12"]
    assert dict(browser.get(NEW, like="physics/mine").fields(FORM))["image"] == "site/debian-12"


def test_the_form_for_a_groups_image_is_the_groups(there: Served) -> None:
    """An administrator's form began as the site's, whose templates cannot name the image."""
    page = signed_in(there).get(NEW, image="physics/execd")
    fields = dict(page.fields(FORM))
    assert (fields["group"], fields["image"]) == ("physics", "physics/execd")
    done = page.send(FORM, name="mine")
    assert "physics/mine is saved as revision 1." in done.words, done.words
    assert done.tree.xpath("//p[starts-with(., 'Images:')]/a/@href") == ["/images/physics/execd"]


def test_a_document_with_a_bare_name_keeps_it_in_the_form(there: Served) -> None:
    page = browse(there).get(NEW, like="physics/execution-host")
    assert dict(page.fields(FORM))["image"] == "execd"
    done = page.send(FORM, description="Other words.")
    assert "physics/execution-host is saved as revision 2." in done.words
    assert done.tree.xpath("//p[starts-with(., 'Images:')]/a/@href") == ["/images/physics/execd"]


def test_pages_link_to_what_groups_own(there: Served) -> None:
    browser = browse(there)
    for page, address in (
        ("/images", "/images/physics/execd"),
        ("/templates", "/templates/physics/execution-host"),
        ("/templates", "/images/physics/execd"),
        ("/vclusters", "/templates/physics/execution-host%401"),
    ):
        assert address in browser.get(page).tree.xpath("//main//a/@href"), (page, address)
        assert browser.get(address).status == 200


# ---------------------------------------------------------------- the command line


def test_the_command_line_says_names_in_full(there: Served, owner: Client, tmp_path: Path) -> None:
    def ran(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(
            cod, ["--server", owner.server, "--token", str(owner._token), *words]
        )
        assert result.exit_code == code, result.output
        return result.output if code else result.stdout

    file = tmp_path / "web.xml"
    file.write_text('<template name="web"><image target="disk" name="execd"/></template>')
    assert json.loads(ran("template", "add", str(file), "--json"))["name"] == "physics/web"
    assert ran("template", "show", "physics/web@1").strip() == file.read_text()
    assert "physics/execd" in ran("image", "show", "physics/execd")
    assert "is 'physics/execd' meant?" in ran("image", "show", "execd", code=1)
    assert "physics/web@1: retired" in ran("template", "retire", "physics/web")
    disk = tmp_path / "d.img"
    disk.write_bytes(b"x" * 4096)
    for _again in range(2):
        made = json.loads(ran("image", "add", "mine", str(disk), "--raw", "--json"))
        assert (made["name"], made["state"]) == ("physics/mine", "ingesting")
    assert (
        full_name("a", "g"),
        full_name("g/a", "g"),
        full_name("a", ""),
        full_name("a", "site"),
    ) == ("g/a", "g/a", "a", "a")


def test_the_longest_names_are_found_at_every_door(there: Served, tmp_path: Path) -> None:
    """An upload of a name of more than 100 characters could be neither gone on with nor cancelled
    by its name."""
    group, own = "g" * 63, "n" * 63
    client, full = as_user(there, "lou", group), f"{group}/{own}"
    client.post("/uploads", {"name": own, "size": 4096, "group": group})
    assert [one["name"] for one in client.items("/uploads", q=full)] == [full]
    words = ["--server", client.server, "--token", str(client._token), "image", "cancel", full]
    result = CliRunner().invoke(cod, words)
    assert (result.exit_code, result.output.strip()) == (0, f"{full}: its upload is given up")
    there.tx(
        images.add,
        name=full,
        group_id=there.tx(groups.by_name, group).id,
        state="ready",
        format="raw",
        content="disk",
        size=4096,
        created_at=NOW,
        digest="0" * 64,
    )
    text = f'<template name="{own}"><image target="disk" name="{full}"/></template>'
    made = client.post("/templates", {"document": text, "group": group})
    assert client.get(path_of("templates", f"{full}@1"))["name"] == made["name"] == full
    assert (
        client.post(
            "/vclusters", {"name": "v", "size": 1, "template": f"{full}@1", "group": group}
        )["template"]
        == f"{full}@1"
    )
    assert client.get("/vclusters", q="v")["items"][0]["template"] == f"{full}@1"
    for page in (
        "/images",
        "/templates",
        "/vclusters",
        path_of("images", full),
        path_of("templates", f"{full}@1"),
    ):
        assert browse(there, group=group).get(page).status == 200
    assert there.local.get("/audit", q=own)["items"]
    after = client.get("/images", limit=1, sort="-name")["next"]
    assert client.get("/images", limit=1, sort="-name", after=after)["items"][0]["name"] != full
