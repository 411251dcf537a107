"""Machines entered by the command line and the API, by a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cod.cli.nodes import inventory
from cod.client import ApiError
from tests.net.apiserver import READER, Served, add_node, as_json, run

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"


def written(tmp_path: Path, content: str) -> str:
    path = tmp_path / "machines.csv"
    path.write_text(content)
    return str(path)


def test_a_machine_is_added_shown_and_deleted(served: Served) -> None:
    told = run(served, "node", "add", "r1-01", "--mac", A.upper(), "--block", "rack1").stdout
    assert told.startswith("r1-01 is expected. Power it on")
    (node,) = as_json(served, "node", "list", "--state", "expected")
    assert (node["name"], node["boot_mac"], node["block"]) == ("r1-01", A, "rack1")
    wrong = run(served, "node", "add", "r1-02", "--mac", "nonsense", code=1).stderr
    assert "'nonsense' is no MAC" in wrong
    wrong = run(served, "node", "add", "r1-02", "--mac", A, code=1).stderr
    assert "that machine is node r1-01 already" in wrong
    run(served, "node", "delete", "r1-01")
    assert as_json(served, "node", "list") == []


def test_a_list_is_tried_then_entered_then_entered_again(served: Served, tmp_path: Path) -> None:
    add_node(served, "n1", 1)
    content = (
        "name,mac,rack,bmc,colour\n"
        f"r1-01,{A},R1,10.1.0.1,red\n"
        "r1-02,52:54:00:00:00:01,R1,,red\n"
        "r1-03,,R1,,red\n"
        f"r1-04,{A},,,red\n"
        "not/a name,,,,red\n"
    )
    asked = ("node", "import", "csv", written(tmp_path, content))
    tried = run(served, *asked, "--dry-run", code=1).stdout
    assert "Would be: 1 added, 1 changed, 3 refused." in tried
    assert [node["name"] for node in as_json(served, "node", "list")] == ["n1"]
    said = run(served, *asked, code=1).stdout
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "line 2 r1-01 added -" in lines
    assert "line 3 r1-02 changed expected, name n1 → r1-02, block r1" in lines
    assert any(line.startswith("line 4 r1-03 refused nothing tells") for line in lines)
    assert "colour 1 line 1 no column of this name is known" in lines
    names = {node["name"]: node for node in as_json(served, "node", "list")}
    assert set(names) == {"r1-01", "r1-02"}
    assert names["r1-01"]["power"]["driver"] == "ipmi"
    again = json.loads(run(served, *asked, "--json", code=1).stdout)
    outcomes = [one["outcome"] for one in again["machines"]]
    assert outcomes == ["unchanged", "unchanged", "refused", "refused", "refused"]
    assert again["not_taken"][0]["what"] == "colour"


def test_what_commands_read_may_come_by_standard_input(served: Served) -> None:
    added = run(served, "node", "import", "csv", "-", stdin=f"\ufeffname,mac\nr1-01,{A}\n".encode())
    assert added.stdout.endswith("\n1 added.\n")
    wrong = run(served, "node", "import", "csv", "-", stdin=b"\xff", code=1).stderr
    assert wrong == "Error: -: is not UTF-8\n"
    stack = "<cfg/>"
    assert "-:1: <cfg>" in run(served, "template", "check", "-", stdin=stack, code=1).output
    assert "cfg" in run(served, "template", "add", "-", stdin=stack, code=1).output
    match = ("request", "match", "--count", 1, "--attributes", "-")
    assert "cfg" in run(served, *match, stdin=stack, code=1).output
    create = ("vcluster", "create", "web", "--size", 1, "--template", "t", "--attributes", "-")
    assert "no template" in run(served, *create, stdin=stack, code=1).output
    key = ("key", "add", "-", "--user", "ann")
    assert "no user 'ann'" in run(served, *key, stdin="no key", code=1).output


def test_a_list_that_is_wrong_is_refused_by_its_lines(served: Served, tmp_path: Path) -> None:
    content = f"name,mac,uuid\nr1-01,{A},\n,52:54:00:00:00:01,\nr1-03,,{'x' * 37}\n"
    path = written(tmp_path, content)
    wrong = run(served, "node", "import", "csv", path, code=1)
    assert "line 4, uuid: should be" in wrong.stderr
    assert as_json(served, "node", "list") == []
    written(tmp_path, content.replace("x", ""))
    said = run(served, "node", "import", "csv", path, code=1).stdout
    assert "the machine has no name that can be a host name" in said
    assert "r1-01" in said
    said = run(served, "node", "import", "xcat", path, code=1).stdout
    assert said == "The list has no machines.\n"


def test_a_fault_of_no_machine_is_said_as_the_server_has_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "MOST", 501)  # of a server that takes more
    path = written(tmp_path, "name\n" + "".join(f"n{number}\n" for number in range(501)))
    wrong = run(served, "node", "import", "csv", path, code=1).stderr
    assert wrong == "Error: machines: should have at most 500 entries\n"


def test_what_is_exported_is_imported_without_a_change(served: Served, tmp_path: Path) -> None:
    run(served, "node", "add", "r1-01", "--mac", A, "--serial", "B5TN222", "--block", "rack1")
    run(served, "node", "add", "r1-02", "--mac", B, "--mac", "52:54:00:00:00:01")
    path = written(tmp_path, run(served, "node", "export").stdout)
    assert run(served, "node", "import", "csv", path).stdout == "2 unchanged.\n"


def test_a_list_of_many_is_entered_in_parts(served: Served, tmp_path: Path) -> None:
    rows = (
        f"n{number},52:54:00:00:{number >> 8:02x}:{number & 255:02x}\n" for number in range(1201)
    )
    path = written(tmp_path, "name,mac\n" + "".join(rows))
    assert run(served, "node", "import", "csv", path).stdout.endswith("\n1201 added.\n")
    with open(path, "a") as file:
        file.write("again,52:54:00:00:00:02\n")
    told = run(served, "node", "import", "csv", path, code=1).stdout
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[1] == "line 1203 again refused the MAC 52:54:00:00:00:02 is in two entries"
    assert lines[-1] == "1 refused, 1201 unchanged."


def test_an_audit_row_tells_what_was_entered(served: Served, tmp_path: Path) -> None:
    run(served, "node", "import", "csv", written(tmp_path, f"name,mac\nr1-01,{A}\n"))
    assert "r1-01" in run(served, "audit", "--json").stdout


def test_a_token_that_may_only_read_enters_no_machines(served: Served) -> None:
    for place in ("/nodes", "/inventory"):
        machine = {"name": "n1", "macs": [A]}
        body = machine if place == "/nodes" else {"machines": [machine]}
        with pytest.raises(ApiError) as refused:
            served.remote(READER).post(place, body)
        assert refused.value.status == 403
