"""Ranges, filters and actions for many nodes, by the API and the command line of a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, select, update

from cod.cli import show
from cod.client import ApiError
from cod.store import tables as t
from tests.net.apiserver import ADMIN, NOW, READER, Served, add_node, as_json, run
from tests.rows import add_template

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

TEMPLATE = '<template name="web"><image target="disk" name="red"/></template>'
UUID = "0a1b2c3d-0000-4000-8000-00000000000f"


@pytest.fixture
def site_of(served: Served) -> Served:
    """Four machines that wait for approval in rack r12, n1 to n4, and n5, which blue uses."""
    served.tx(add_template, "web", TEMPLATE, now=NOW)
    run(served, "vcluster", "create", "blue", "--size", "1", "--template", "web")
    for number in range(1, 5):
        add_node(served, f"n{number}", number, state="registering", serial=f"SN{number}00")
    used = {"state": "active", "vcluster_id": 1, "hostname": "h1", "template_id": 1}
    power = {"power_driver": "lab", "power_address": "/s#n5"}
    add_node(served, "n5", 5, assigned_at=NOW, reported_at=NOW, uuid=UUID, **used, **power)
    run(served, "node", "set", "n[1-4]", "--block", "r12", "--yes")
    return served


def listed(served: Served, *words: str) -> list[str]:
    return [node["name"] for node in as_json(served, "node", "list", *words)]


def test_lists_are_narrowed_by_names_and_filters(site_of: Served) -> None:
    assert listed(site_of, "n[2-3]") == ["n2", "n3"]
    assert listed(site_of, "@r12", "--where", "not n[1-2]") == ["n3", "n4"]
    assert listed(site_of, "--where", "owner = site") == ["n5"]
    assert listed(site_of, "--where", "blue or sn40") == ["n4", "n5"]
    assert listed(site_of, "--where", "state = free") == []
    wrong = run(site_of, "node", "list", "--where", "stat = free", code=1).stderr
    assert "where: at character 1: there is no field stat; is state meant?" in wrong
    assert "there is no node 'n6'" in run(site_of, "node", "list", "n[4-9]", code=1).stderr


@pytest.mark.parametrize("label", ["n5", "52-54-00-00-00-05", "5254.0000.0005", UUID.upper(), "h1"])
def test_a_node_is_named_by_what_identifies_it(site_of: Served, label: str) -> None:
    assert as_json(site_of, "node", "show", label)["name"] == "n5"
    assert as_json(site_of, "node", "keep", label)["name"] == "n5"


def test_many_nodes_are_shown(site_of: Served) -> None:
    assert [node["name"] for node in as_json(site_of, "node", "show", "n[1-2]")] == ["n1", "n2"]


def test_an_action_answers_for_each_node(site_of: Served) -> None:
    words = ("node", "approve", "n[4-6]")
    tried = run(site_of, *words, "--dry-run", code=1)
    assert tried.stdout == "n4: would be starting\n"
    assert "n6: would be refused: there is no node 'n6'" in tried.stderr
    assert listed(site_of, "--where", "state = registering") == ["n1", "n2", "n3", "n4"]
    done = run(site_of, *words, code=1)
    assert done.stdout == "n4: starting\n"
    assert "n5: refused: node n5 needs no approval: it is active" in done.stderr
    assert done.stderr.endswith("1 node done, 2 refused.\n")
    again = json.loads(run(site_of, *words, "--json", code=1).stdout)
    assert [(one["name"], one["outcome"], one["code"]) for one in again] == [
        ("n4", "refused", "conflict"), ("n5", "refused", "conflict"), ("n6", "refused", "not_found")
    ]  # fmt: skip
    assert run(site_of, "node", "approve", "--where", "state = registering").stdout == (
        "n1: starting\nn2: starting\nn3: starting\n"
    )


def test_names_come_from_a_file_and_from_standard_input(site_of: Served, tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_text("# those with a loud fan\nn1  SN200\n\n@r13 # nothing\n")
    words = ("node", "quarantine", "-f", str(path), "--reason", "loud fan")
    assert run(site_of, *words, code=1).stdout == "n1: out of service\nn2: out of service\n"
    assert "name nodes" in run(site_of, "node", "approve", code=2).stderr
    path.write_text("# none failed\n")
    for nobody in (("-f", str(path)), ("",)):  # all that the filter means are not meant
        refused = run(site_of, "node", "approve", *nobody, "--where", "rack = r12", code=2).stderr
        assert "names no node" in refused or "a name is empty" in refused
    body = {"names": [""], "where": "rack = r12", "action": "approve"}
    with pytest.raises(ApiError, match="names"):
        site_of.local.post("/nodes/actions", body)


def test_names_are_given_by_a_pattern(site_of: Served) -> None:
    said = run(site_of, "node", "rename", "@r12", "--to", "r12-[01-04]").stdout.splitlines()
    assert [line.partition(":")[0] for line in said] == ["r12-01", "r12-02", "r12-03", "r12-04"]
    wrong = run(site_of, "node", "rename", "@r12", "--to", "x[1-9]", code=1).stderr
    assert "to: these are 9 names, and 4 nodes are meant" in wrong
    assert "cod node rename" in run(site_of, "node", "set", "@r12", "--name", "x", code=2).stderr


def test_machines_are_approved_named_and_racked_at_once(site_of: Served) -> None:
    run(site_of, "node", "approve", "n[1-2]", "--to", "r9-[01-02]", "--block", "r9")
    assert listed(site_of, "@r9") == ["r9-01", "r9-02"]
    assert site_of.local.get("/nodes/r9-01")["state"] != "registering"
    body = {"names": ["n3"], "action": "approve", "to": "x[1-3]", "changes": {"tags": ["new"]}}
    [one] = site_of.local.post("/nodes/actions", body)["items"]
    assert one["name"] == "x1", "names may be left over"
    wrong = {"names": ["n4", "n5"], "action": "approve", "to": "y1"}
    with pytest.raises(ApiError, match="this is 1 name, and 2 nodes are meant"):
        site_of.local.post("/nodes/actions", wrong)


def test_many_nodes_are_not_shown_one_by_one(site_of: Served) -> None:
    """Show that a node more costs an action few statements, of which none shows the node: that was
    the most of what five hundred cost."""
    seen: list[str] = []

    def note(*said: object) -> None:
        seen.append(str(said[2]))

    def tagged(names: str, tag: str) -> list[str]:
        seen.clear()
        body = {"names": [names], "action": "tag", "tags": [tag]}
        assert len(site_of.local.post("/nodes/actions", body)["items"])
        return list(seen)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        one, four = tagged("n1", "gpu"), tagged("n[1-4]", "loan")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(four) - len(one) <= 3 * 9
    assert not [text for text in four if "bindings" in text]


def test_nodes_are_tagged_and_found_by_their_tags(site_of: Served) -> None:
    run(site_of, "node", "tag", "loan,GPU", "n[1-2]")
    run(site_of, "node", "tag", "loan", "n2", "--remove")
    assert "'a b' is no tag" in run(site_of, "node", "tag", "a b", "n2", code=1).stderr
    run(site_of, "node", "set", "n3", "--tags", "loan, old", "--position", "7")
    found = as_json(site_of, "node", "list", "--where", "tag = loan")
    assert [(one["name"], one["tags"], one["position"]) for one in found] == [
        ("n1", ["gpu", "loan"], None), ("n3", ["loan", "old"], "7")
    ]  # fmt: skip
    run(site_of, "node", "set", "n3", "--tags", "", "--position", "")
    node = site_of.local.get("/nodes/n3")
    assert (node["tags"], node["position"]) == ([], None)


def test_what_many_nodes_lose_is_asked_at_a_terminal(
    site_of: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "interactive", lambda: True)
    for words, question in (
        (("approve", "@r12"), "Approve 4 nodes: n1, n2, n3, n4?"),
        (
            ("quarantine", "n[1-5]", "--reason", "x"),
            "Take out of service 5 nodes: n1, n2, n3, n4, n5? Running work is lost in blue (1 node",
        ),
        (("quarantine", "n5", "--reason", "x"), "Take out of service n5 (in use by blue)?"),
        (("power", "off", "n[4-5]"), "Power off 1 node: n5 (1 refused)? Running work is lost in"),
        (("retire", "n1"), "Retire n1 from the site?"),
    ):
        assert question in " ".join(run(site_of, "node", *words, code=1).stderr.split())
    assert {node["state"] for node in as_json(site_of, "node", "list")} == {"registering", "active"}
    assert run(site_of, "node", "approve", "n1").stdout == "n1: starting\n", "one is not asked"


def test_an_action_is_asked_once_under_its_key_and_noted_once(site_of: Served) -> None:
    body = {"names": ["n[1-2]"], "where": "rack = r12", "action": "quarantine", "reason": "smoke"}
    api = site_of.remote(ADMIN)
    first = api.post("/nodes/actions", body, key="once")
    assert [(one["name"], one["state"]) for one in first["items"]] == [
        ("n1", "quarantined"), ("n2", "quarantined")
    ]  # fmt: skip
    assert api.post("/nodes/actions", body, key="once") == first
    noted = [row for row in site_of.local.every("/audit") if row["action"] == "node action"]
    assert len(noted) == 2, "one of the block, one of this"
    assert noted[0]["after"] == {"action": "quarantine", "items": ["n1", "n2"]}
    with site_of.pool.engine.begin() as tx:
        tx.execute(t.node_permissions.insert().values(node_id=5, group_id=1, right="use"))
    api.post("/nodes/actions", {"names": ["n5"], "action": "power", "desired": "cycle"})
    rows = site_of.local.every("/audit", group="site")
    [power] = [row for row in rows if (row["action"], row["thing"]) == ("node power", "n5")]
    assert power["after"] == {"desired": "cycle"}, "those who hold the node see it"
    rows = site_of.local.every("/audit")
    assert [row["after"] for row in rows if row["action"] == "node quarantine"] == [
        {"reason": "smoke"}, {"reason": "smoke"}
    ]  # fmt: skip
    api.post("/nodes/actions", {"names": ["n99"], "action": "retire"})
    assert site_of.local.every("/audit") == rows, "nothing was done"
    assert {effect.what for effect in site_of.effects} >= {"manager"}
    api.post("/nodes/actions/check", {"names": ["n1"], "action": "restore"})
    assert site_of.local.get("/nodes/n1")["state"] == "quarantined"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"action": "approve"}, "name nodes in names"),
        ({"action": "approve", "names": [" "]}, "names"),
        ({"action": "power", "names": ["n1"]}, "desired is needed for power"),
        ({"action": "approve", "names": ["n1"], "reason": "x"}, "reason belongs to quarantine"),
        ({"action": "rename", "names": ["n1"]}, "to is needed for rename"),
        ({"action": "change", "names": ["n1"], "changes": {"name": "x"}}, "given by the action"),
        ({"action": "tag", "names": ["n1"]}, "tags is needed for tag"),
        ({"action": "approve", "names": ["n1"], "tags": ["a"]}, "tags belongs to tag"),
        ({"action": "restore", "names": ["n1"], "until": NOW + 9}, "until belongs to quarantine"),
        ({"action": "retire", "names": ["n1"], "burnin": {}}, "burnin belongs to burnin"),
        (
            {"action": "quarantine", "names": ["n1"], "reason": "x", "until": NOW},
            "that time is over",
        ),
        ({"action": "sell", "names": ["n1"]}, "approve"),
        ({"action": "approve", "where": "(" * 900}, "at most 20 parentheses"),
        ({"action": "approve", "names": ["n[1-999999999]"]}, "at most 5,000 names"),
        ({"action": "rename", "names": ["n1"], "to": "x["}, "a range ends with ]"),
        ({"action": "approve", "where": "rack = r9"}, "no node matches"),
    ],
)
def test_a_wrong_action_says_what_is_wrong(site_of: Served, body: object, sentence: str) -> None:
    for place in ("/nodes/actions", "/nodes/actions/check"):
        with pytest.raises(ApiError) as refused:
            site_of.local.post(place, body)
        assert sentence in str(refused.value)
        assert refused.value.status in (404, 422)


def test_a_token_that_may_only_look_may_look_what_an_action_would_do(site_of: Served) -> None:
    body = {"names": ["n1"], "action": "approve"}
    reader = site_of.remote(READER)
    with pytest.raises(ApiError, match="only"):
        reader.post("/nodes/actions", body)
    assert reader.post("/nodes/actions/check", body)["items"][0]["outcome"] == "done"
    with site_of.pool.engine.begin() as tx:
        assert set(tx.scalars(select(t.nodes.c.state))) == {"registering", "active"}


def test_nodes_are_out_of_service_until_a_moment(site_of: Served) -> None:
    words = ("node", "quarantine", "--reason", "lent", "--until", "2030-01-01T00:00Z")
    assert (
        "n1 is not approved: it cannot return by itself"
        in run(site_of, *words, "n1", code=1).output
    )
    assert run(site_of, *words, "n5").stdout == "n5: out of service\n"
    assert site_of.local.get("/nodes/n5")["deadline"] == 1_893_456_000.0
    site_of.local.post("/nodes/n5/quarantine", {"reason": "sold"})
    node = site_of.local.get("/nodes/n5")
    assert (node["reason"], node["deadline"]) == ("sold", None)


def test_a_machine_set_aside_unapproved_does_not_return_by_a_later_time(site_of: Served) -> None:
    with site_of.pool.engine.begin() as tx:
        tx.execute(update(t.nodes).where(t.nodes.c.name == "n1").values(reported_at=NOW))
    site_of.local.post("/nodes/n1/quarantine", {"reason": "not ours"})
    body = {"reason": "not ours", "until": 1_893_456_000.0}
    with pytest.raises(ApiError, match="n1 is not approved: it cannot return by itself"):
        site_of.local.post("/nodes/n1/quarantine", body)
    assert site_of.local.get("/nodes/n1")["deadline"] is None


def test_no_other_work_stops_than_what_was_confirmed(site_of: Served) -> None:
    body = {"names": ["n[4-5]"], "action": "quarantine", "reason": "smoke", "stops": []}
    said = site_of.local.post("/nodes/actions", body)["items"]
    assert [(one["name"], one["outcome"], one["code"]) for one in said] == [
        ("n4", "done", ""), ("n5", "refused", "conflict")
    ]  # fmt: skip
    assert said[1]["about"] == "the work of blue on node n5 would stop"
    said = site_of.local.post("/nodes/actions", body | {"names": ["n5"], "stops": ["blue"]})
    assert said["items"][0]["outcome"] == "done"


def test_free_nodes_are_burnt_in_together(site_of: Served) -> None:
    for number in (6, 7):
        add_node(site_of, f"n{number}", number, state="inactive", disk="clean")
    words = ("node", "burnin", "n[5-7]", "--tests", "memory", "--seconds", "600")
    tried = run(site_of, *words, "--dry-run", code=1)
    assert "n5: would be refused: node n5 is held by a vcluster" in tried.stderr
    assert site_of.local.get("/nodes/n6")["state"] == "inactive"
    assert run(site_of, *words, code=1).stdout == "n6: testing\nn7: testing\n"
    wanted = site_of.local.get("/nodes/n7/burnin")
    assert (wanted["tests"], wanted["seconds"], wanted["erase"]) == (["memory"], 600, False)
    assert "are for one node" in run(site_of, *words, "--wait", code=2).stderr
