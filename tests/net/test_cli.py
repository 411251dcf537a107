"""The command line against a real server: tables, JSON, exit codes, examples."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import update

from cod import init, recipes
from cod.cli import events, show, wait
from cod.cli.root import COMMANDS, cod
from cod.cli.show import SPAN, ago, live, size, stream, table
from cod.client import ApiError, Client, Unreachable, _Unix, find_server, path
from cod.core import requests as core_requests
from cod.model import ipv4
from cod.store import tables as t
from cod.store.nodes import conflicts, nodes
from tests.history_rows import note_erased
from tests.net.apiserver import ADMIN, NOW, READER, Served, add_node, as_json, run
from tests.rows import add_template

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

TEMPLATE = '<template name="web"><image target="disk" name="red"/></template>'


def web(served: Served) -> None:
    served.tx(add_template, "web", TEMPLATE, now=NOW)


# ---------------------------------------------------------------- nodes


def test_nodes_for_people_and_for_programs(served: Served) -> None:
    add_node(served, "n1", 1)
    add_node(served, "n2", 2, state="inactive")
    lines = run(served, "node", "list").stdout.splitlines()
    assert lines[0].split()[:2] == ["NODE", "STATE"]
    assert [line.split()[:2] for line in lines[1:]] == [["n1", "new"], ["n2", "free"]]
    for state in ("inactive", "free", "free,asleep"):
        (one,) = as_json(served, "node", "list", "--state", state)
        assert (one["name"], one["state"]) == ("n2", "inactive"), "JSON keeps the machine's word"
    assert "State free (inactive)" in " ".join(run(served, "node", "show", "n2").stdout.split())
    assert "52:54:00:00:00:01" in run(served, "node", "show", "n1").stdout
    assert as_json(served, "node", "show", "n1")["history"][0]["event"] == "seen"


def test_in_a_pipe_nothing_is_wrapped_or_padded(served: Served) -> None:
    add_node(served, "n1", 1)
    run(served, "node", "quarantine", "n1", "--reason", "a long story " * 60)
    lines = run(served, "node", "list").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("a long story " * 59 + "a long story")
    assert lines[0].endswith(" REASON")


def test_a_view_as_json_is_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    values = iter([[1], [1], [2, "ä"], [2, "ä"]])
    with pytest.raises(StopIteration):
        stream(lambda: next(values), period=0)
    assert capsys.readouterr().out == '[1]\n[2, "ä"]\n'


def test_a_view_in_a_pipe_is_a_table_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    tables = iter([table(["NAME"], rows) for rows in ([["n1"]], [["n1"]], [["n2"]])])
    with pytest.raises(StopIteration):
        live(lambda: next(tables), period=0)
    assert capsys.readouterr().out == "NAME\nn1\n\nNAME\nn2\n\n"


def test_a_filter_that_names_nothing_is_an_error(served: Served) -> None:
    add_node(served, "n1", 1)
    for kind in ("type", "block", "vcluster"):
        wrong = run(served, "node", "list", f"--{kind}", "mispelt", code=1).stderr
        assert f"there is no {kind} 'mispelt'" in wrong
    with pytest.raises(ApiError) as refused:
        served.local.get("/requests", vcluster="mispelt")
    assert (refused.value.status, refused.value.field) == (422, "vcluster")


def test_a_node_is_shown_with_its_hardware(served: Served) -> None:
    node = add_node(served, "n1", 1)
    served.tx(nodes.change, node, attributes='<node><memory mib="4096"/></node>')
    (line,) = [
        line for line in run(served, "node", "show", "n1").stdout.splitlines() if "memory" in line
    ]
    assert line.split() == ["memory/mib", "4096", "MiB"]


def test_a_nodes_power_is_shown_with_its_age(served: Served) -> None:
    node = add_node(served, "n1", 1)
    about = {"power_driver": "sim", "power_address": "n1", "power": "on"}
    served.tx(nodes.change, node, **about, power_seen_at=time.time() - 5 * 86400.0 - 7300.0)
    assert "on, 5 d 2 h ago (sim n1)" in run(served, "node", "show", "n1").stdout


def test_a_bmc_that_a_node_reports_is_proposed_until_it_is_used(served: Served) -> None:
    node = add_node(served, "n1", 1)
    report = '<node><bmc by="redfish" address="10.1.0.7"/></node>'
    served.tx(nodes.change, node, attributes=report)
    command = "cod node set n1 --power-driver redfish --power-address https://10.1.0.7"
    assert f"10.1.0.7 (redfish); use it: {command}" in run(served, "node", "show", "n1").stdout
    run(served, *command.split()[1:])
    shown = run(served, "node", "show", "n1").stdout
    assert "10.1.0.7 (redfish), switches n1" in shown
    assert "use it" not in shown


def test_a_vcluster_that_is_there_is_shown_where_one_is_to_be(served: Served) -> None:
    web(served)
    words = ("vcluster", "create", "blue", "--size", "1", "--template", "web", "--if-missing")
    made = as_json(served, *words)
    assert as_json(served, *words)["id"] == made["id"]
    served.local.post("/groups", {"name": "physics"})
    assert "blue" in run(served, *words, "--group", "physics", code=1).stderr  # another's


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "interactive", lambda: True)


def test_what_costs_somebody_nodes_is_asked_at_a_terminal(
    served: Served, at_terminal: None
) -> None:
    web(served)
    run(served, "vcluster", "create", "blue", "--size", "1", "--template", "web")
    add_node(served, "n1", 1)
    used = add_node(served, "n2", 2, state="active", power_driver="lab", power_address="/s#n2")
    served.tx(nodes.change, used, vcluster_id=1, hostname="h1", template_id=1, assigned_at=NOW)
    for words, question in (
        (("vcluster", "delete", "blue"), "Delete blue? It has 1 node; their disks are erased."),
        (("vcluster", "release", "blue", "h1"), "Release 1 node of blue?"),
        (("node", "retire", "n1"), "Retire n1 from the site? Disks stay as they are."),
        (("node", "power", "off", "n2"), "Power off n2 (in use by blue)? Running work is lost."),
        (("node", "power", "cycle", "n2"), "Power cycle n2 (in use by blue)?"),
    ):
        assert question in run(served, *words, code=1).stderr
    assert served.local.get("/vclusters/blue")["nodes"][0]["power"]["wanted"] is None
    assert run(served, "node", "power", "cycle", "n2", "--yes").stdout == "n2: in use\n"
    assert run(served, "node", "retire", "n1", "--yes").stdout == "n1: retired\n"
    assert run(served, "vcluster", "delete", "blue", "--yes").stdout == "blue: ended\n"


def test_a_nodes_history_tells_how_its_disks_were_erased(served: Served) -> None:
    add_node(served, "n1", 1)
    node = served.tx(nodes.by_name, "n1")
    disk = {"disk": "sda", "model": "M", "serial": "S1", "wwid": "", "size": 2**32}
    how = {"method": "write zeroes, discard", "seconds": 12.5, "checked": 40 << 20}
    served.tx(note_erased, node, json.dumps([disk | how]))
    assert as_json(served, "node", "history", "n1")[0]["erased"] == [disk | how]
    said = (
        "erased sda (serial S1), 4.0 GiB: write zeroes, discard, 12 s, 40.0 MiB read back as zeros"
    )
    assert said in run(served, "node", "history", "n1").stdout
    assert said in run(served, "node", "show", "n1").stdout
    run(served, "node", "quarantine", "n1", "--reason", "loud fan")
    newest = as_json(served, "node", "history", "n1", "--limit", "1")
    assert [(row["event"], row["erased"]) for row in newest] == [("quarantined", [])]


def test_what_an_administrator_says_of_nodes(served: Served) -> None:
    add_node(served, "n1", 1, reported_at=NOW)
    assert (
        run(served, "node", "quarantine", "n1", "--reason", "loud fan").stdout
        == "n1: out of service\n"
    )
    assert "loud fan" in run(served, "node", "list").stdout
    assert as_json(served, "node", "restore", "n1")[0]["state"] == "trampoline"
    assert run(served, "node", "retire", "n1").stdout == "n1: retired\n"
    assert (
        as_json(served, "node", "set", "n1", "--name", "rack-1", "--power-driver", "lab")["power"][
            "driver"
        ]
        == "lab"
    )
    assert run(served, "node", "power", "on", "rack-1").stdout == "rack-1: retired\n"
    assert run(served, "node", "set", "rack-1", code=2).stderr.startswith("Usage:")


# ---------------------------------------------------------------- exit codes


def test_a_refusal_is_one_line_and_code_1(served: Served) -> None:
    result = run(served, "node", "show", "none", code=1)
    assert result.stderr == "Error: there is no node 'none'\n"
    assert result.stdout == ""
    add_node(served, "n1", 1)
    assert len(run(served, "node", "approve", "n1", code=1).stderr.splitlines()) == 1


def test_wrong_usage_is_code_2(served: Served) -> None:
    run(served, "node", "power", "sideways", "n1", code=2)
    run(served, "vcluster", "create", "x", "--size", "0", "--template", "t", code=2)
    run(served, "nonsense", code=2)


def test_no_server_is_code_3(tmp_path: Path) -> None:
    result = CliRunner().invoke(cod, ["--server", str(tmp_path / "none"), "node", "list"])
    assert result.exit_code == 3
    assert "is `cod serve` running?" in result.stderr
    result = CliRunner().invoke(cod, ["--site", str(tmp_path / "none.toml"), "node", "list"])
    assert result.exit_code == 3


def test_whoever_may_not_open_the_socket_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_Unix, "connect", connect)  # the tests run as root, who may open everything
    result = CliRunner().invoke(cod, ["--server", "/run/api.sock", "node", "list"])
    assert result.exit_code == 3
    assert "be root, or use --server http" in result.stderr


def test_waiting_too_long_is_code_4(served: Served) -> None:
    web(served)
    result = run(
        served,
        "vcluster",
        "create",
        "v",
        "--size",
        "1",
        "--template",
        "web",
        "--wait",
        "--timeout",
        "0.1s",
        code=4,
    )
    assert "v is not as wished after 0.1 s" in result.stderr


def test_tokens_over_tcp(served: Served) -> None:
    server = f"http://127.0.0.1:{served.server.ports[0]}"
    add_node(served, "n1", 1)
    listed = CliRunner().invoke(
        cod, ["--server", server, "node", "list"], env={"COD_TOKEN": READER}
    )
    assert "n1" in listed.stdout
    refused = CliRunner().invoke(
        cod, ["--server", server, "--token", READER, "node", "retire", "n1"]
    )
    assert (refused.exit_code, refused.stderr) == (1, "Error: this token may only read\n")
    assert (
        CliRunner()
        .invoke(cod, ["--server", server, "node", "list"], env={"COD_TOKEN": ""})
        .exit_code
        == 1
    )


# ---------------------------------------------------------------- vclusters, requests


def test_a_vclusters_life(served: Served, tmp_path: Path) -> None:
    web(served)
    made = as_json(
        served, "vcluster", "create", "blue", "--size", "2", "--template", "web", "--lease", "8h"
    )
    assert (made["state"], made["lease_time"]) == ("pending", 28800.0)
    assert "blue" in run(served, "vcluster", "list").stdout
    assert "web@1" in run(served, "vcluster", "show", "blue").stdout
    (request,) = as_json(served, "request", "list", "--vcluster", "blue")
    for args in (["show", str(request["id"])], ["list", "--state", "waiting"]):
        shown = run(served, "request", *args).stdout
        assert "waiting" in shown
        assert "pending" not in shown
    assert run(served, "request", "withdraw", str(request["id"]), code=1).stderr.startswith(
        "Error: this request made"
    )
    changed = as_json(served, "request", "change", str(request["id"]), "--count", "1")
    assert (changed["tuples"][0]["count"], changed["may_spread"]) == (1, False)
    wider = as_json(served, "request", "change", str(changed["id"]), "--count", "1", "--spread")
    assert wider["may_spread"]
    assert "still waiting" in run(served, "vcluster", "resize", "blue", "3", code=1).stderr
    assert run(served, "vcluster", "delete", "blue", "--wait").stdout == "blue: ended\n"
    assert as_json(served, "vcluster", "list") == []
    assert [v["name"] for v in as_json(served, "vcluster", "list", "--ended")] == ["blue"]
    # its lease had run out
    served.tx(lambda tx: tx.execute(update(t.vclusters).values(drain_until=1.0)))
    listed = run(served, "vcluster", "list", "--ended").stdout
    assert "ended" in listed.split()
    assert "draining" not in listed
    shown = as_json(served, "vcluster", "show", "blue")
    assert (shown["state"], shown["nodes"]) == ("ended", [])
    assert as_json(served, "vcluster", "show", f"blue@{shown['id']}") == shown
    assert "no vcluster" in run(served, "vcluster", "show", "blue@99", code=1).stderr


def test_nodes_of_several_kinds(served: Served, tmp_path: Path) -> None:
    web(served)
    large = tmp_path / "large:1.xml"
    large.write_text('<requires><memory><mib min="64GiB"/></memory></requires>')
    made = as_json(
        served,
        "vcluster",
        "create",
        "mixed",
        "--size",
        "1",
        "--template",
        "web",
        "--also",
        "8",
        "--also",
        f"2:web@1:{large}",
    )
    assert (made["size"], made["creation_size"]) == (11, 11)
    (request,) = as_json(served, "request", "list", "--vcluster", "mixed")
    assert [(one["count"], one["template"], one["attributes"]) for one in request["tuples"]] == [
        (1, "web@1", ""),
        (8, "web@1", ""),
        (2, "web@1", large.read_text()),
    ]
    served.tx(core_requests.decide, request["id"], "granted", "", NOW)
    served.tx(lambda tx: tx.execute(update(t.vclusters).values(state="active")))
    asked = (
        "request",
        "submit",
        "mixed",
        "3",
        f"2::{large}",
        "--spread",
        "--no-wait",
        "--key",
        "k1",
    )
    more = as_json(served, *asked)
    assert [one["count"] for one in more["tuples"]] == [3, 2]
    assert (more["may_spread"], more["may_wait"], more["tuples"][1]["attributes"]) == (
        True,
        False,
        large.read_text(),
    )
    assert as_json(served, *asked) == more


@pytest.mark.parametrize(
    "words", ["0", "-1", "many", "", ":web", "1.5", "2::/none/such.xml", "0000000001"]
)
def test_what_is_no_number_of_nodes_of_a_kind(served: Served, words: str) -> None:
    refused = run(
        served,
        "vcluster",
        "create",
        "v",
        "--size",
        "1",
        "--template",
        "web",
        "--also",
        words,
        code=2,
    )
    assert "Invalid value for '--also'" in refused.stderr
    run(served, "request", "submit", "--", "v", words, code=2)


def test_waiting_ends_when_the_request_is_rejected(served: Served) -> None:
    web(served)
    made = as_json(served, "vcluster", "create", "big", "--size", "2", "--template", "web")
    number = as_json(served, "request", "list", "--vcluster", made["name"])[0]["id"]
    served.tx(core_requests.decide, number, "rejected", "no such hardware", NOW)
    with pytest.raises(ApiError, match="no such hardware"):
        wait.wait_until(served.local, "big", lambda v: False, 60.0)


def test_waiting_shows_each_change_once(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    node = {
        "name": "n1",
        "hostname": "a",
        "address": None,
        "state": "prime",
        "progress": None,
        "reason": "",
    }
    lines = wait.Lines()
    lines.show([node])
    lines.show([node])
    lines.show([node | {"state": "active", "address": "10.0.0.1"}])
    assert capsys.readouterr().out == "a (n1): installing\na (n1): in use 10.0.0.1\n"


def test_bars_move_forward_on_a_nodes_way() -> None:
    way = [
        {"state": "trampoline", "progress": None},
        {"state": "wipe", "progress": {"done": 1, "total": 2}},
        {"state": "prime", "progress": None},
        {"state": "prime", "progress": {"done": 1, "total": 4}},
        {"state": "prime", "progress": {"done": 4, "total": 4}},
        {"state": "active", "progress": None},
    ]
    marks = [wait.far(node) for node in way]
    assert marks == sorted(marks)
    assert marks[-1] == 1.0
    node = {
        "name": "n1",
        "hostname": "a",
        "address": None,
        "reason": "",
        "state": "prime",
        "progress": {"done": 1, "total": 4, "rate": 2.0**20},
    }
    with wait.Bars() as bars:
        bars.show([node])
    assert bars._progress.tasks[0].fields["state"] == "installing 1.0 MiB/s"


def test_groups_and_conflicts(served: Served) -> None:
    made = as_json(served, "group", "create", "physics", "--priority", "10", "--max-lease", "14d")
    assert (made["priority"], made["max_lease"], made["default_lease"]) == (10, 1209600.0, None)
    listed = run(served, "group", "list").stdout.splitlines()[1].split()
    assert listed == ["physics", "10", "-", "14", "d", "50001", *["-"] * 8]
    assert (
        run(served, "group", "create", "physics", code=1).stderr
        == "Error: there is a group 'physics' already\n"
    )
    bounded = "Longest lease      the site's\n"  # policy.max_lease, if it has one
    assert bounded in run(served, "group", "create", "bio").stdout
    served.tx(conflicts.add, "declined", "10.77.1.9 is in use", NOW, address=ipv4("10.77.1.9"))
    assert as_json(served, "conflict", "list")[0]["address"] == "10.77.1.9"
    assert "10.77.1.9 is in use" in run(served, "conflict", "list").stdout


# ---------------------------------------------------------------- images, templates


def test_an_oci_image_is_made_a_disk_and_sent(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def made(*words: str, **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        if "oci:none/such:1" in words:
            return subprocess.CompletedProcess(words, 1)
        out = Path(words[words.index("--out") + 1])
        for each in (".kernel", ".ramdisk") if "--diskless" in words else (out.suffix,):
            out.with_suffix(each).write_bytes(b"x" * 1000)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(recipes, "oci", made)
    layout, archive = tmp_path / "layout", tmp_path / "image.tar"
    layout.mkdir()
    (tmp_path / "file").touch()
    with tarfile.open(archive, "w") as tar:
        tar.add(tmp_path / "file", "oci-layout")
    assert (
        "not in the OCI image layout"
        in run(served, "image", "add", "web", str(layout), code=2).stderr
    )
    (layout / "oci-layout").touch()
    words = ("--tag", "9", "--insecure")
    for number, source in enumerate(("oci:127.0.0.1:5000/hpc/web:9", str(layout), str(archive))):
        added = as_json(served, "image", "add", f"web{number}", source, *words)
        assert (added["name"], added["state"]) == (f"web{number}", "ingesting")
        assert (asked[-1][0], asked[-1][-3:]) == (source, words)
        assert asked[-1][2].endswith(f"/web{number}.img"), "it names the file systems in it"
    diskless = ("image", "add", "live", str(layout), "--diskless", *words)
    for count, more in ((4, ()), (4, ("--if-missing",))):
        pair = as_json(served, *diskless, *more)
        assert [each["name"] for each in pair] == ["live-kernel", "live-ramdisk"]
        assert {each["state"] for each in pair} == {"ingesting"}
        assert len(asked) == count, "what is there already is not made again"
        assert asked[-1][-4:] == (*words, "--diskless")
    refused = run(served, "image", "add", "live", str(tmp_path / "file"), "--diskless", code=2)
    assert "--diskless is for an OCI image" in refused.stderr
    refused = run(served, "image", "add", "none", "oci:none/such:1", code=1)
    assert "no image could be made of it" in refused.stderr
    for wrong in (("--plain",), ("--sha256", "00")):
        assert (
            "OCI image"
            in run(served, "image", "add", "none", "oci:none/such:1", *wrong, code=2).stderr
        )


def test_images_and_templates(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "red.img"
    file.write_bytes(b"x" * 1000)
    assert as_json(served, "image", "add", "red", str(file))["state"] == "ingesting"
    assert "red" in run(served, "image", "list").stdout
    server = f"http://127.0.0.1:{served.server.ports[0]}"
    sent = CliRunner().invoke(
        cod, ["--server", server, "--token", ADMIN, "image", "add", "sent", str(file), "--json"]
    )
    assert json.loads(sent.stdout)["name"] == "sent"
    document = tmp_path / "web.xml"
    document.write_text(TEMPLATE.replace("<image", "\n<imagine"))
    faults = run(served, "template", "check", str(document), code=1).stderr
    assert faults.startswith(f"{document}:2: ")
    assert "line 2" in run(served, "template", "add", str(document), code=1).stderr
    web(served)
    assert run(served, "template", "show", "web").stdout == TEMPLATE + "\n"
    assert as_json(served, "template", "list")[0]["name"] == "web"
    assert run(served, "template", "retire", "web@1").stdout == "web@1: retired\n"
    assert run(served, "image", "delete", "red").stdout == "red: deleted\n"


# ---------------------------------------------------------------- local commands


def test_the_local_commands(tmp_path: Path) -> None:
    def local(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(cod, ["--site", str(tmp_path / "site.toml"), *words])
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    local("init", "--dir", str(tmp_path), "--interface", "br0", "--no-check")
    assert "good" in local("db", "check")
    token = local("token", "create", "ci", "--read-only", "--expires", "8h").strip()
    assert token.startswith("cod_")
    assert "there is a token 'ci' already" in local("token", "create", "ci", code=1)
    assert local("token", "create", "ci", "--if-missing") == ""
    assert json.loads(local("token", "create", "ci", "--if-missing", "--json"))["token"] is None
    away = ("--site", str(tmp_path / "gone.toml"), "--server", "http://127.0.0.1:1")
    for words in (("list",), ("create", "x"), ("revoke", "x")):
        said = CliRunner().invoke(cod, [*away, "token", *words]).stderr
        assert "run this on the server (with --site FILE), or add --mine" in said
    listed = json.loads(local("token", "list", "--json"))
    assert [(t["name"], t["scope"]) for t in listed] == [("ci", "read")]
    assert token not in local("token", "list")
    assert token.encode() not in (tmp_path / "cod.db").read_bytes()
    backup = tmp_path / "backup.gz"
    assert "rows" in local("db", "backup", str(backup))
    lost = backup / "b.gz"
    assert f"{lost} cannot be written: Not a directory" in local("db", "backup", str(lost), code=1)
    local("token", "revoke", "ci")
    assert json.loads(local("token", "list", "--json")) == []
    assert "Error" in local("db", "restore", str(tmp_path / "site.toml"), code=1)
    assert local("db", "upgrade").startswith("schema ")
    assert local("db", "hold") == "not held\n"
    assert local("db", "hold", "--start").startswith("held since ")
    assert json.loads(local("db", "hold", "--json"))["silent"] == []
    assert "there is no node 'n1'" in local("db", "reconcile", "--keep", "n1", code=1)
    assert local("db", "hold", "--end") == "not held\n"
    assert "digraph" in local("states", "--dot")
    assert json.loads(local("states", "--json"))["states"]["boot"]["kind"] == "motion"
    (tmp_path / "site.toml").write_text("nme = 'x'")
    assert "did you mean 'name'?" in local("db", "check", code=1)


def test_a_database_of_another_schema_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    init.write_site_file(site, tmp_path, {})
    result = CliRunner().invoke(cod, ["--site", str(site), "db", "check"])
    assert result.exit_code == 1
    assert "the database is empty" in result.stderr


def test_the_server_is_found_through_the_site_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[server]\ndata_dir = "/data"')
    monkeypatch.setenv("COD_SERVER", "http://head:8080")
    assert find_server() == "http://head:8080"
    assert find_server(str(site)) == "/data/run/api.sock"
    monkeypatch.delenv("COD_SERVER")
    monkeypatch.setenv("COD_SITE", str(site))
    assert find_server() == "/data/run/api.sock"
    site.write_text("data = [")
    with pytest.raises(Unreachable, match="no server is named"):
        find_server()


# ---------------------------------------------------------------- help, and what it costs


def commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


def test_every_command_explains_itself_with_an_example() -> None:
    for words, command in commands(cod):
        text = command.get_help(click.Context(command, info_name=" ".join(words)))
        assert f"cod {words[0]}" in text or f"{words[0]} " in text, words
        assert "Example" in text, words


def test_the_table_of_commands_says_what_each_module_says() -> None:
    for name, (_, about) in COMMANDS.items():
        assert about.endswith("."), name


def test_the_help_loads_little() -> None:
    """Start-up time is kept by not importing: what is slow to load is loaded by who needs it."""
    slow = ("twisted", "sqlalchemy", "pydantic", "alembic", "rich", "lxml", "prometheus_client")
    code = (
        "import sys; sys.argv = ['cod', '--help']\nfrom cod.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


# ---------------------------------------------------------------- small things


@pytest.mark.parametrize("text", ["", "h", "0", "9999999999999"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SPAN.convert(text, None, None)


def test_words_for_people() -> None:
    assert [ago(NOW - s, NOW) for s in (5, 600, 90_000, -600)] == [
        "5 s",
        "10 min",
        "1 d 1 h",
        "in 10 min",
    ]
    assert [size(n) for n in (None, 5, 1536, 3 * 2**30, 2.0**42)] == [
        "-",
        "5 B",
        "1.5 KiB",
        "3.0 GiB",
        "4.0 TiB",
    ]
    assert path("nodes", "a/b c") == "/nodes/a%2Fb%20c"
    event = {
        "at": NOW,
        "node": "n1",
        "from_state": None,
        "to_state": "new",
        "cause": "seen",
        "actor": "dhcp",
    }
    assert events.line("transition", event).endswith("n1: (new) -> new: seen [dhcp]")
    assert (
        events.line(
            "progress", {"node": "n1", "state": "prime", "done": 1, "total": 4, "rate": 1024.0}
        ).strip()
        == "n1: prime 25 %, 1.0 KiB/s"
    )


def test_disks_to_keep(served: Served) -> None:
    add_node(served, "n1", 1)
    assert as_json(served, "node", "keep", "n1") == {"name": "n1", "keep": [], "kept": []}
    assert as_json(served, "node", "keep", "n1", "serial:A1", "path:/dev/sdb")["keep"] == [
        "serial:A1",
        "path:/dev/sdb",
    ]
    assert "serial:A1, path:/dev/sdb" in run(served, "node", "show", "n1").stdout
    assert as_json(served, "node", "keep", "n1", "serial:A1", "--remove")["keep"] == [
        "path:/dev/sdb"
    ]
    assert (
        "has no mark serial:A1"
        in run(served, "node", "keep", "n1", "serial:A1", "--remove", code=1).stderr
    )
    assert "should be serial:SERIAL" in run(served, "node", "keep", "n1", "sdb", code=1).stderr
    audit = served.local.get("/audit")["items"][0]
    assert "serial:A1" in str(audit["before"]), audit


def test_a_mark_of_a_disk_to_keep_that_somebody_else_adds_meanwhile_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_node(served, "n1", 1)
    theirs = ["serial:T1", "serial:T2"]
    genuine = Client.seen

    def slowly(client: Client, path: str, **query: Any) -> tuple[Any, str]:
        found = genuine(client, path, **query)
        # somebody's change comes between the command's two requests
        if path == "/nodes/n1" and theirs:
            served.local.patch("/nodes/n1", {"keep": [*found[0]["keep"], theirs.pop(0)]})
        return found

    monkeypatch.setattr(Client, "seen", slowly)
    assert as_json(served, "node", "keep", "n1", "serial:A1")["keep"] == [
        "serial:T1",
        "serial:T2",
        "serial:A1",
    ]
    theirs[:] = [f"serial:U{each}" for each in range(9)]
    assert "not as it was" in run(served, "node", "keep", "n1", "serial:A2", code=1).stderr
