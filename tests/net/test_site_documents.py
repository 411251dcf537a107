"""The site's documents: compared, applied and written by the command line and the API, by a real
server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select

from cod.cli.root import cod
from cod.client import ApiError
from cod.flows.people import tokens
from cod.flows.scheduler import vclusters
from cod.model import (
    AskedVcluster,
    FileServer,
    Nmp,
    Role,
    Site,
    Switch,
    VolumeRules,
    Who,
)
from cod.pool import Pool
from cod.security.ca import Ca
from cod.store import tables as t
from cod.store.images import images
from cod.store.nodes import types
from cod.store.people import groups, people
from cod.web.api.resources.documents.kinds import KINDS
from tests.contexts import flow_context
from tests.net.apiserver import NOW, READER, Served, add_node, as_json, run, serving
from tests.net.rawhttp import ask
from tests.repeats import contents

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs/examples/site.d"
LEAF = Switch("leaf", "ovs", "unix:/run/ovs/db.sock", provisioning_vlan=10)
NAS = FileServer("nas", "ganesha", "10.77.0.5", "/srv/cod")
HOOK = "https://hooks.example.org/T0/verysecret"


@pytest.fixture
def there(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> Iterator[Served]:
    """A site with people, nodes and an image, and without groups of its own."""
    site = replace(
        site,
        switches=(LEAF,),
        fileservers=(NAS,),
        volumes=VolumeRules(quota=2**40),
        nmp=Nmp(plain_port=8072),
    )
    with serving(pool, reactor, in_reactor, site, Ca(tmp_path / "ca", "test")) as served:
        large = served.tx(types.of, '<node><memory mib="2048"/></node>', NOW).id
        served.tx(lambda tx: tx.execute(t.node_types.update().values(name="large")))
        for number in range(1, 5):
            add_node(served, f"n{number}", number, state="inactive", type_id=large)
        for name in ("ann", "bob"):
            served.tx(people.add, name, NOW)
        served.tx(
            images.add,
            name="debian",
            state="ready",
            format="raw",
            content="disk",
            size=4096,
            created_at=NOW,
            digest="0" * 64,
        )
        yield served


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return str(path)


def apply(there: Served, tmp_path: Path, text: str, *more: str, code: int = 0) -> str:
    return run(there, "apply", "-f", file(tmp_path, text), "--yes", *more, code=code).output


def audit(there: Served) -> list[Any]:
    return there.local.every("/audit")


def test_the_example_is_applied_and_a_second_time_nothing_is_written(there: Served) -> None:
    assert run(there, "diff", "-f", EXAMPLE, code=1).stdout.startswith("+ group physics\n")
    assert there.local.get("/groups")["total"] == 1, "a comparison changes nothing"
    before = len(audit(there))
    done = run(there, "apply", "-f", EXAMPLE, "--yes")
    assert done.stdout.endswith("Applied 11 changes.\n")
    newest, *older = audit(there)
    assert (newest["action"], len(older)) == ("documents apply", before)
    first = newest["after"]["changes"][0]
    assert (first["action"], first["kind"], first["thing"]) == ("create", "group", "physics")
    assert {"field": "max_lease", "before": None, "after": "30 d"} in first["fields"]
    group = there.local.get("/groups/physics")
    assert (group["priority"], group["max_lease"], group["image_quota"]) == (10, 30 * 86400, 5e11)
    members = there.local.get("/groups/chemistry/members")["items"]
    assert [(one["user"], one["role"], sorted(one["rights"])) for one in members] == [
        ("ann", "owner", []),
        ("bob", "member", ["consoles", "resize"]),
    ]
    assert there.local.get("/shares/physics")["guarantee"] == 1
    assert there.local.get("/types/large")["cost"] == 2
    assert there.local.get("/blocks/rack1")["nodes"] == 2
    assert there.local.get("/templates/physics/web")["revision"] == 1
    assert there.local.get("/volumes/physics/data")["size"] == 200 * 10**9

    rows = there.tx(contents)
    assert run(there, "diff", "-f", EXAMPLE).stdout == "Nothing differs.\n"
    assert run(there, "apply", "-f", EXAMPLE, "--yes").stdout == "Nothing differs.\n"
    documents = [{"kind": "group", "name": "physics", "priority": 10}]
    there.local.post("/documents/apply", {"documents": documents}, key="x")
    kept = there.tx(contents)
    assert {name for name in kept if kept[name] != rows[name]} <= {"replies"}


def test_what_get_writes_is_what_there_is(there: Served, tmp_path: Path) -> None:
    run(there, "apply", "-f", EXAMPLE, "--yes")
    run(there, "port", "set", "n1", "leaf", "p1")
    there.tx(lambda tx: tx.execute(t.groups.update().values(gid=None)))  # as without [posix]
    written = run(there, "get", "all").stdout
    assert "max_lease: 30 d" in written
    assert "name: physics/web\ndocument: |\n  <template" in written
    assert "kind: port\nname: n1\nswitch: leaf\nport: p1\n" in written
    path = file(tmp_path, written)
    assert run(there, "diff", "-f", path).stdout == "Nothing differs.\n"
    some = as_json(there, "get", "group,share", "physics")
    assert [each["kind"] for each in some] == ["group", "share"]
    assert "no group 'gone'" in run(there, "get", "group", "gone", code=1).output
    assert "should be group, member" in run(there, "get", "grupp", code=1).output


def test_secrets_do_not_come_out(
    there: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHYSICS_HOOK", HOOK)
    text = "kind: group\nname: physics\nwebhook: {env: PHYSICS_HOOK}\n"
    said = apply(there, tmp_path, text)
    assert "+webhook: secret, digest " in said
    secret = (
        '<template name="own"><image target="disk" name="debian"/><personalise seed="nocloud">'
        '<user-data secret="yes">#cloud-config\npassword: verysecret</user-data>'
        "</personalise></template>"
    )
    (tmp_path / "own.xml").write_text(secret)
    text += "---\nkind: template\nname: physics/own\ndocument: {file: own.xml}\n"
    said += apply(there, tmp_path, text)
    said += run(there, "get", "all").stdout
    assert "# webhook: it is set, and left out because it has a secret" in said
    assert "# document: it is set" in said
    said += json.dumps(audit(there)) + json.dumps(as_json(there, "get", "all"))
    (tmp_path / "own.xml").write_text(secret.replace("verysecret", "verysecret2"))
    said += run(there, "diff", "-f", file(tmp_path, text), code=1).stdout
    assert "verysecret" not in said
    assert there.local.get("/groups/physics")["webhook"] == HOOK


def test_every_fault_is_told_with_its_place_and_nothing_is_done(
    there: Served, tmp_path: Path
) -> None:
    text = (
        "kind: group\nname: physics\nmax_leese: 7 d\n---\n"
        "kind: gruop\nname: x\n---\n"
        "kind: group\nname: chemistry\npriority: high\nmax_lease: soon\n---\n"
        "kind: block\nname: rack1\nnodes:\n- n1\n- N1\n---\n"
        "kind: block\nname: rack2\nnodes: ['n[1']\n---\n"
        "kind: group\nname: chemistry\n---\n"
        "kind: template\nname: web\ndocument: <template/>\n---\n"
        "kind: member\nname: 5\n---\n"
        "kind: block\nname: rack3\nnodes: ['n[1-10000]', 'n[1-2]']\n"
    )
    lines = apply(there, tmp_path, text, code=1).splitlines()
    told = [line.replace(str(tmp_path), "DIR").removeprefix("Error: ") for line in lines]
    wanted = [
        ":3: max_leese: is no field of a group, which has priority, default_lease, ",
        ":5: kind: should be group, member, type, share, block, template, volume, port, vcm",
        ":10: priority: should be a whole number",
        ":11: max_lease: should be a length of time such as 45min, 12h or 3 days",
        ":17: nodes.1: should be lower-case letters",
        ":21: nodes: a range ends with ]",
        ":28: document: line 1",
        ":31: name: should be a text",
        ":35: nodes: should have at most 10,000 entries",
    ]
    for sentence in wanted:
        assert any(f"DIR/site.yaml{sentence}" in line for line in told), (sentence, told)

    text = (
        "kind: group\nname: physics\n---\n"
        "kind: group\nname: chemistry\ndefault_lease: 8 d\nmax_lease: 7 d\n---\n"
        "kind: member\nname: physics/eve\nrole: owner\n---\n"
        "kind: share\nname: biology\nshares: 2\n---\n"
        "kind: block\nname: rack1\nnodes: ['n[1-2]', n9]\n"
    )
    error = json.loads(apply(there, tmp_path, text, "--json", code=1))["error"]
    assert error["code"] == "invalid"
    found = {one["field"].rpartition("/")[2]: one["detail"] for one in error["errors"]}
    assert found == {
        "site.yaml:6: default_lease": (
            "default_lease 691200 s should not be longer than max_lease 604800 s"
        ),
        "site.yaml:10: name": "there is no user 'eve'",
        "site.yaml:14: name": "there is no group 'biology'",
        "site.yaml:19: nodes": "there is no node 'n9'",
    }
    assert there.local.get("/groups")["total"] == 1
    assert "name: another document is of group physics, too" in apply(
        there, tmp_path, "kind: group\nname: physics\n---\nkind: group\nname: physics\n", code=1
    )


def test_what_was_changed_after_the_comparison_is_not_overwritten(there: Served) -> None:
    there.local.post("/groups", {"name": "physics"})
    asked = {"documents": [{"kind": "group", "name": "physics", "priority": 5}]}
    plan = there.local.post("/documents/check", asked)["plan"]
    there.local.patch("/groups/physics", {"priority": 7})
    with pytest.raises(ApiError) as error:
        there.local.post("/documents/apply", {**asked, "plan": plan})
    assert error.value.status == 412
    assert there.local.get("/groups/physics")["priority"] == 7
    there.local.patch("/groups/physics", {"email": "a@example.org", "priority": 0})
    there.local.post("/documents/apply", {**asked, "plan": plan})  # of no matter to the plan
    assert there.local.get("/groups/physics")["priority"] == 5


def test_only_what_was_applied_before_is_pruned_and_only_if_told(
    there: Served, tmp_path: Path
) -> None:
    there.local.post("/groups", {"name": "byhand"})
    there.local.post("/blocks", {"name": "rack2"})
    text = (
        "kind: group\nname: physics\n---\nkind: member\nname: physics/ann\nrole: owner\n---\n"
        "kind: block\nname: rack1\nnodes: [n1]\n---\nkind: block\nname: rack2\n"
    )
    assert apply(there, tmp_path, text).endswith("Applied 3 changes.\n")
    rest = "kind: block\nname: rack3\n"
    said = apply(there, tmp_path, rest)
    left = "block rack1, block rack2, group physics, member physics/ann. --prune deletes"
    assert f"Applied before, and in no document now: {left}" in said
    assert there.local.get("/blocks/rack1")["nodes"] == 1
    path = file(tmp_path, rest)
    asked = CliRunner().invoke(
        cod, ["--server", str(there.socket), "apply", "-f", path, "--prune"], input="n\n"
    )
    assert (asked.exit_code, "Delete 3?" in asked.output) == (1, True)
    assert "nothing was done, since nobody said yes: a script says it by --yes" in asked.output
    assert there.local.get("/groups/physics")
    said = apply(there, tmp_path, rest, "--prune")
    assert said.splitlines() == [
        "- block rack1",
        "- block rack2",
        "- group physics",
        "Applied 3 changes.",
    ]
    assert {one["name"] for one in there.local.items("/groups")} == {"byhand", "site"}
    assert {one["name"] for one in there.local.items("/blocks")} == {"rack3"}
    assert apply(there, tmp_path, rest, "--prune") == "Nothing differs.\n"
    nothing = apply(there, tmp_path, "# empty\n", "--prune", code=1)
    assert "a prune without documents would delete all" in nothing


def test_a_group_that_owns_something_is_not_pruned_and_the_rest_stays(
    there: Served, tmp_path: Path
) -> None:
    run(there, "apply", "-f", EXAMPLE, "--yes")
    said = apply(there, tmp_path, "kind: block\nname: rack1\n", "--prune", code=1)
    assert "group physics: group physics owns 1 volumes" in said
    assert there.local.get("/templates/physics/web")["revision"] == 1


def test_nodes_move_between_blocks_and_a_contradiction_is_refused(
    there: Served, tmp_path: Path
) -> None:
    blocks = "kind: block\nname: rack1\nnodes: [{}]\n---\nkind: block\nname: rack2\nnodes: [{}]\n"
    apply(there, tmp_path, blocks.format("n1, n2", "n3"))
    said = apply(there, tmp_path, blocks.format("n3", "n1"))
    assert "  -- n2" in said
    nodes = {one["name"]: one["block"] for one in there.local.items("/nodes")}
    assert nodes == {"n1": "rack2", "n2": None, "n3": "rack1", "n4": None}
    wrong = apply(there, tmp_path, blocks.format("n1", "n1"), code=1)
    assert "nodes: COD makes [] of it" in wrong


def test_the_last_owner_is_replaced_by_another_in_one_go(there: Served, tmp_path: Path) -> None:
    member = "kind: member\nname: physics/{}\nrole: {}\n---\n"
    group = "kind: group\nname: physics\n---\n"
    apply(there, tmp_path, group + member.format("ann", "owner"))
    apply(there, tmp_path, member.format("ann", "viewer") + member.format("bob", "owner"))
    found = {
        one["user"]: one["role"] for one in there.local.get("/groups/physics/members")["items"]
    }
    assert found == {"ann": Role.VIEWER, "bob": Role.OWNER}
    wrong = apply(there, tmp_path, member.format("bob", "member"), code=1)
    assert "bob is the last owner of physics" in wrong


def test_a_vcm_is_enrolled_and_its_key_is_no_matter_of_documents(
    there: Served, tmp_path: Path, site: Site
) -> None:
    template = "kind: template\nname: debian\ndocument: {file: debian.xml}\n"
    (tmp_path / "debian.xml").write_text(
        '<template name="debian"><image target="disk" name="debian"/></template>'
    )
    apply(there, tmp_path, template)
    asked = AskedVcluster(name="pool", size=1, template="debian", group="site")
    there.tx(vclusters.create, flow_context(site, NOW), asked)
    vcm = "kind: vcm\nname: pool\naddress: 10.77.0.9\nplain: {}\n"
    assert "is shown once" in apply(there, tmp_path, vcm.format("false"), code=1)
    apply(there, tmp_path, vcm.format("true"))
    assert there.local.get("/vclusters/pool/vcm")["address"] == "10.77.0.9"
    assert run(there, "diff", "-f", tmp_path / "site.yaml").stdout.startswith("Nothing differs.\n")
    assert "no vcluster 'gone'" in apply(
        there, tmp_path, vcm.format("true").replace("pool", "gone"), code=1
    )


def test_a_token_that_may_only_read_compares(there: Served) -> None:
    asked = {"documents": [{"kind": "group", "name": "physics"}]}
    assert there.remote(READER).post("/documents/check", asked)["changes"]
    with pytest.raises(ApiError, match="may only read"):
        there.remote(READER).post("/documents/apply", asked)
    assert there.tx(groups.by_name, "physics") is None


def test_the_dry_run_changes_nothing(there: Served, tmp_path: Path) -> None:
    said = apply(there, tmp_path, "kind: group\nname: physics\n", "--dry-run")
    assert said == "+ group physics\n"
    assert as_json(there, "group", "list")[0]["name"] == "site"
    found = json.loads(apply(there, tmp_path, "kind: group\nname: physics\n", "--json"))
    assert [each["action"] for each in found["changes"]] == ["create"]


WEB = '<template name="web"><image target="disk" name="debian"/></template>'
PUTS: list[tuple[str, dict[str, Any], str]] = [
    ("/groups/physics", {"priority": 5, "webhook": HOOK}, "priority"),
    ("/shares/physics", {"guarantee": 1}, "guarantee"),
    ("/types/large", {"cost": 2}, "cost"),
    ("/blocks/rack1", {"nodes": ["n[1-2]"]}, ""),
    ("/templates/physics/web", {"document": WEB}, "document"),
    ("/volumes/physics/data", {"size": 2**30}, "size"),
    ("/vclusters/pool/vcm", {"plain": True, "address": "10.77.0.9"}, "address"),
]


def raw(
    there: Served,
    method: str,
    path: str,
    body: Any,
    headers: dict[str, str],
    token: str | None = None,
) -> tuple[int, dict[str, str], Any]:
    """(status, headers, answer) by the local administrator or another."""
    return ask(there, method, f"/api/v1{path}", json.dumps(body).encode(), token, headers)


def put(there: Served, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
    return raw(there, "PUT", path, body, {n.replace("_", "-"): v for n, v in headers.items()})


def member(there: Served, role: str) -> None:
    """Make two groups, and ann, who has a token, a member of physics."""
    for name in ("physics", "chemistry"):
        there.local.post("/groups", {"name": name, "priority": 3})
    there.local.call("PUT", "/groups/physics/members/ann", {"role": role})
    who = Who("user:ann", user_id=there.tx(people.by_name, "ann").id)
    there.tx(tokens.make, who=who, name="cli", token="cod_ann", now=NOW)


def pool_of(there: Served, site: Site, group: str, document: str = WEB) -> None:
    """Make the vcluster pool, with a template of its own."""
    there.local.call("PUT", "/templates/pool", {"document": document.replace('"web"', '"pool"')})
    asked = AskedVcluster(name="pool", size=1, template="pool", group=group)
    there.tx(vclusters.create, flow_context(site, NOW), asked)


def test_a_put_makes_a_thing_or_changes_it_and_a_second_one_writes_nothing(
    there: Served, site: Site
) -> None:
    pool_of(there, site, "site")
    for path, fields, shown in PUTS:
        before = len(audit(there))
        made = path not in ("/shares/physics", "/types/large")
        status, headers, done = put(there, path, fields)
        assert (status, headers.get("Location")) == (
            (201, f"/api/v1{path}") if made else (200, None)
        )
        assert done == there.local.get(path), path
        assert not shown or done[shown] == fields[shown]
        newest, *older = audit(there)
        assert len(older) == before, path
        assert "verysecret" not in json.dumps(newest)
        rows = there.tx(contents)
        for same in (fields, {}):
            status, headers, again = put(there, path, same)
            assert (status, "Location" in headers, again) == (200, False, done), path
        kept = there.tx(contents)
        assert {name for name in kept if kept[name] != rows[name]} == set(), path
    assert {one["name"]: one["block"] for one in there.local.items("/nodes")}["n2"] == "rack1"
    there.local.call("PUT", "/blocks/rack1", {"nodes": ["n3"]})
    with pytest.raises(ApiError, match="nodes"):
        there.local.call("PUT", "/blocks/rack1", {"nodes": None})
    assert {one["name"]: one["block"] for one in there.local.items("/nodes")} == {
        "n1": None,
        "n2": None,
        "n3": "rack1",
        "n4": None,
    }
    there.local.call("PUT", "/groups/physics", {"email": "a@example.org"})
    group = there.local.get("/groups/physics")
    assert (group["priority"], group["webhook"], group["email"]) == (5, HOOK, "a@example.org")
    there.local.call(
        "PUT", "/templates/physics/web", {"document": WEB.replace('name="web"', 'name="web" ')}
    )
    assert there.local.get("/templates/physics/web")["revision"] == 2


def test_a_null_that_stands_for_no_value_is_as_left_out(
    there: Served, site: Site, tmp_path: Path
) -> None:
    seed = '<personalise seed="nocloud"/></template>'
    pool_of(there, site, "site", WEB.replace("</template>", seed))
    there.local.call("PUT", "/groups/physics", {})
    for path, fields, shown in (
        ("/volumes/physics/data", {"size": 2**30, "fileserver": None, "sec": None}, ("sec", "sys")),
        ("/vclusters/pool/vcm", {"inside": True, "head": None}, ("head", "n1")),
    ):
        assert put(there, path, fields)[0] == 201
        rows = there.tx(contents)
        status, _, done = put(there, path, fields)
        assert (status, done[shown[0]]) == (200, shown[1])
        assert there.tx(contents) == rows
    assert put(there, "/volumes/physics/data", {"size": None})[0] == 200
    assert put(there, "/volumes/physics/more", {"size": None})[2]["field"] == "size"
    text = "kind: member\nname: physics/ann\nrole: {}\nrights: null\nshares: null\n"
    assert apply(there, tmp_path, text.format("owner")).endswith("Applied 1 change.\n")
    assert apply(there, tmp_path, text.format("null")) == "Nothing differs.\n"


def test_a_thing_is_read_by_itself(there: Served, site: Site) -> None:
    """Otherwise each PUT of a thing would read all things of its kind."""
    pool_of(there, site, "site")
    for path, fields, _ in PUTS:
        put(there, path, fields)
        put(there, path.replace("physics", "chemistry").replace("rack1", "rack2"), fields)
    named = {
        "group": "physics",
        "type": "large",
        "block": "rack1",
        "template": "physics/web",
        "volume": "physics/data",
        "vcm": "pool",
    }
    for kind, name in named.items():
        everything = there.tx(KINDS[kind].things, None)
        assert len(everything) > 1 or kind in ("type", "vcm")
        assert there.tx(KINDS[kind].things, name) == {name: everything[name]}
        assert there.tx(KINDS[kind].things, "gone") == {}


@pytest.mark.parametrize(
    ("path", "status", "missing"),
    [
        ("/groups/physics", 201, None),
        ("/blocks/rack1", 201, None),
        ("/types/large", 200, None),
        ("/types/huge", 404, "name"),
        ("/shares/site", 200, None),
        ("/shares/physics", 404, "name"),
        ("/templates/web", 422, "document"),
        ("/volumes/site/data", 422, "size"),
        ("/vclusters/pool/vcm", 422, "inside"),
        ("/groups/site/members/ann", 422, "role"),
        ("/nodes/n1/port", 422, "switch"),
    ],
)
def test_a_put_without_fields_makes_what_has_a_default_for_each(
    there: Served, site: Site, path: str, status: int, missing: str | None
) -> None:
    if "pool" in path:
        pool_of(there, site, "site")
    rows = there.tx(contents)
    done, headers, answer = put(there, path, {})
    assert (done, answer.get("field"), "Location" in headers) == (status, missing, status == 201)
    if status == 201:
        assert put(there, path, {})[::2] == (200, answer)
        assert answer == there.local.get(path)
    else:
        assert there.tx(contents) == rows


def test_a_put_may_be_bound_to_there_being_a_thing_or_none(there: Served) -> None:
    before = there.tx(contents)
    for path, fields in (
        ("/groups/physics", {"priority": 5}),
        ("/groups/site/members/ann", {"role": "member"}),
    ):
        for wanted in ("*", '"x"'):
            status, _, answer = put(there, path, fields, If_Match=wanted)
            assert (status, answer["code"]) == (412, "changed")
        assert there.tx(contents) == before, "nothing was made"
        for tries in range(2):
            dry = put(there, f"{path}?dry_run=true", fields, If_None_Match="*")
            assert dry[0] == (412 if tries else 200)
            status, _, answer = put(there, path, fields, If_None_Match="*")
            assert (status, answer.get("code")) == ((412, "changed") if tries else (201, None))
        _, tag = there.local.seen(path)
        assert put(there, path, fields, If_None_Match=f'"x", W/{tag}')[0] == 412
        assert put(there, path, fields, If_None_Match='"x"')[0] == 200
        assert put(there, path, fields, If_Match="*")[0] == 200
        assert put(there, path, fields, If_Match=f'"x", {tag}')[0] == 200
        before = there.tx(contents)
    patched = {"priority": 9}, {"If-None-Match": "*"}
    assert raw(there, "PATCH", "/groups/physics", *patched)[0] == 412
    assert raw(there, "POST", "/blocks", {"name": "b"}, {"If-None-Match": "*"})[0] == 412
    assert there.tx(contents) == before


@pytest.mark.parametrize(
    ("path", "fields", "status", "sentence"),
    [
        ("/groups/physics", {"colour": 1}, 422, "colour"),
        ("/groups/physics", {"default_lease": 9, "max_lease": 8}, 422, "should not be longer"),
        ("/types/huge", {"cost": 2}, 404, "no node type"),
        ("/shares/physics", {"shares": 2}, 404, "no group 'physics'"),
        ("/blocks/rack1", {"nodes": ["n9"]}, 404, "no node 'n9'"),
        ("/templates/site", {"document": WEB}, 422, "is called 'web'"),
        ("/templates/site", {"document": None}, 422, "document cannot be null"),
        ("/templates/site/web", {"document": WEB}, 422, "name: a template is named .* the site's"),
        ("/templates/web@1", {}, 422, "name: a template is named GROUP/NAME"),
        ("/volumes/data", {"size": 2**30}, 422, "name: a volume is named GROUP/NAME"),
        ("/volumes/physics/data", {"size": 2**30}, 404, "no group 'physics'"),
        ("/vclusters/pool/vcm", {"plain": True, "address": "10.77.0.9"}, 404, "no vcluster 'pool'"),
    ],
)
def test_a_put_is_refused_as_what_makes_the_thing_is(
    there: Served, path: str, fields: Any, status: int, sentence: str
) -> None:
    rows = there.tx(contents)
    with pytest.raises(ApiError, match=sentence) as error:
        there.local.call("PUT", path, fields)
    assert error.value.status == status
    assert there.tx(contents) == rows


def test_a_put_changes_what_its_path_names_and_nothing_else(there: Served) -> None:
    rows = there.tx(contents)
    with pytest.raises(ApiError, match="renames nothing"):
        there.local.call("PUT", "/types/large", {"name": "other", "cost": 9})
    assert there.tx(contents) == rows


def test_a_put_is_in_the_audit_of_the_things_group(there: Served) -> None:
    there.local.call("PUT", "/groups/physics", {"priority": 5})
    there.local.call("PUT", "/groups/physics", {"priority": 6})
    there.local.call("PUT", "/templates/physics/web", {"document": WEB})
    of, action = t.audit.c.group_id, t.audit.c.action
    physics = there.tx(groups.by_name, "physics").id
    rows = there.tx(lambda tx: tx.execute(select(action, of).order_by(t.audit.c.id)).all())
    assert rows[-2:] == [("group set", physics), ("template set", physics)]
    assert "debian" not in json.dumps(audit(there)[0])


def test_a_put_tells_nobody_by_a_tag_what_is_there(there: Served) -> None:
    member(there, "owner")
    for header in ("If-Match", "If-None-Match"):
        for wanted in ('"x"', "*"):
            first, second = (
                raw(there, "PUT", path, {"priority": 1}, {header: wanted}, "cod_ann")
                for path in ("/groups/chemistry", "/groups/biology")
            )
            assert first[0] == second[0] == (412 if header == "If-Match" else 403)
            assert first[2]["detail"] == second[2]["detail"]


def test_who_may_not_change_a_thing_is_told_so_before_all_else(there: Served, site: Site) -> None:
    member(there, "viewer")
    there.local.call("PUT", "/groups/physics", {"webhook": HOOK})
    there.local.call("PUT", "/volumes/physics/data", {"size": 2**30, "fileserver": "nas"})
    pool_of(there, site, "physics")
    for path, fields, refused in (
        ("/volumes/physics/data", {"fileserver": "other"}, (409, "fileserver")),
        ("/vclusters/pool/vcm", {"plain": False}, (422, "inside")),
        ("/groups/physics", {"webhook": HOOK}, (200, None)),
        ("/groups/physics", {"webhook": HOOK + "r"}, (200, None)),
    ):
        asked = raw(there, "PUT", path, fields, {}, "cod_ann")
        assert (asked[0], asked[2]["code"]) == (403, "forbidden"), path
        status, _, answer = put(there, path, fields)
        assert (status, answer.get("field")) == refused


def test_a_put_wants_the_rights_of_what_it_stands_for(there: Served) -> None:
    for path, fields, _ in PUTS:
        with pytest.raises(ApiError, match="may only read"):
            there.remote(READER).call("PUT", path, fields)
    member(there, "owner")
    there.local.call("PUT", "/templates/chemistry/web", {"document": WEB})
    ann = there.remote("cod_ann")
    assert ann.call("PUT", "/templates/physics/web", {"document": WEB})["revision"] == 1
    assert ann.call("PUT", "/groups/physics", {"email": "a@example.org"})["priority"] == 3
    refused = []
    for path, fields in (
        ("/groups/physics", {"priority": 4}),
        ("/groups/chemistry", {"priority": 3}),  # as it is, which is not said
        ("/groups/biology", {"priority": 3}),
        ("/types/large", {"cost": 9}),
        ("/blocks/rack1", {"nodes": ["n1"]}),
        ("/templates/chemistry/web", {"document": WEB}),
        ("/volumes/chemistry/data", {"size": 2**30}),
    ):
        with pytest.raises(ApiError) as error:
            ann.call("PUT", path, fields)
        refused.append((path, error.value.status))
    assert {status for _, status in refused} <= {403, 404}, refused
    assert dict(refused)["/groups/chemistry"] == dict(refused)["/groups/biology"]


def test_a_put_is_bound_to_what_was_seen_and_no_matter_of_a_prune(
    there: Served, tmp_path: Path
) -> None:
    there.local.call("PUT", "/groups/physics", {"priority": 5})
    _, tag = there.local.seen("/groups/physics")
    there.local.patch("/groups/physics", {"priority": 6})
    with pytest.raises(ApiError) as error:
        there.local.call("PUT", "/groups/physics", {"priority": 7}, match=tag)
    assert error.value.status == 412
    assert (
        there.local.call("PUT", "/groups/biology?dry_run=true", {"priority": 1})["before"] is None
    )
    assert there.tx(groups.by_name, "biology") is None
    said = apply(there, tmp_path, "kind: block\nname: rack3\n", "--prune")
    assert said.splitlines() == ["+ block rack3", "Applied 1 change."]
    assert there.local.get("/groups/physics")["priority"] == 6
