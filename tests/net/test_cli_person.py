"""What a person types first: `cod login`, `status`, `top`, `open`, and names that a shell
offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cod.cli.logins import Login, keep_login, kept_login, login_file
from cod.cli.root import cod
from tests.net.apiserver import ADMIN, READER, Served, add_node, as_json, run
from tests.net.credentials import as_user

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the person's own, and no server in the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("COD_SERVER", "COD_SITE", "COD_TOKEN", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.server.ports[0]}"


def typed(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cod, list(words))
    assert result.exit_code == code, result.output
    return result


def test_a_login_is_for_all_commands_and_for_its_server_alone(served: Served) -> None:
    add_node(served, "n1", 1)
    told = typed("--token", ADMIN, "login", url(served))
    assert "is logged in at" in told.stdout
    assert ADMIN not in told.output
    assert login_file().stat().st_mode & 0o777 == 0o600
    assert "n1" in typed("node", "list").stdout
    elsewhere = url(served).replace("127.0.0.1", "localhost")
    typed("--server", elsewhere, "node", "list", code=1)
    typed("logout")
    assert not login_file().exists()


def test_a_person_is_called_by_their_name_and_not_by_their_token(served: Served) -> None:
    as_user(served, "ann", "physics")
    told = typed("--token", "cod_ann", "login", url(served))
    assert told.stdout.startswith("ann is logged in at")
    assert "ann: physics (owner)" in typed("status").stdout
    assert "token" not in typed("status").stdout


def test_a_token_that_is_given_again_is_kept_on(served: Served) -> None:
    keep_login(Login(url(served), READER, "cli-of-before"))
    typed("--token", READER, "login", url(served))
    kept = kept_login()
    assert kept is not None
    assert (kept.token, kept.name) == (READER, "cli-of-before"), "logging out revokes it"


def test_a_login_that_others_may_read_is_not_used(served: Served) -> None:
    keep_login(Login(url(served), READER))
    login_file().chmod(0o644)
    assert "others may read" in typed("node", "list", code=1).stderr


@pytest.mark.parametrize("where", ["http://cod.example.org", "ftp://x", "https://h/path"])
def test_a_server_that_others_could_listen_to_is_refused(where: str) -> None:
    assert "should be" in typed("login", where, code=2).stderr


def test_a_page_is_opened_or_its_address_printed(served: Served) -> None:
    add_node(served, "n1", 1)
    keep_login(Login(url(served), READER))
    for words, page in (
        ((), "/"),
        (("nodes",), "/nodes"),
        (("n1",), "/nodes/n1"),
        (("node", "52-54-00-00-00-01"), "/nodes/n1"),
    ):
        assert typed("open", *words).stdout == f"{url(served)}{page}\n"
    typed("open", "none", code=1)


def test_status_has_eight_lines(served: Served) -> None:
    add_node(served, "n1", 1)
    add_node(served, "n2", 2, state="inactive")
    lines = run(served, "status").stdout.splitlines()
    names = [line.split()[0] for line in lines if line.strip("- ")]
    asked = "Server You Nodes Clusters Requests Energy Operation Faults"
    assert names == asked.split()
    assert "2: 1 free, 1 new" in " ".join("\n".join(lines).split())
    assert as_json(served, "status")["nodes"] == {"inactive": 1, "new": 1}


def test_top_is_plain_in_a_pipe(served: Served) -> None:
    add_node(served, "n1", 1, power_driver="lab", power_address="/s#n1")
    found = as_json(served, "top")
    assert (found["nodes"], found["watts"], found["requests"]) == ({"new": 1}, 0, [])
    assert "1 node, 0.0 kW" in run(served, "top").stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [("node show n", {"n1", "n22"}), ("node show n2", {"n22"}), ("node list --type x", set())],
)
def test_a_shell_is_offered_the_names_of_the_server(
    served: Served, home: Path, words: str, offered: set[str]
) -> None:
    add_node(served, "n1", 1)
    add_node(served, "n22", 2)
    line = f"cod --server {served.socket} {words}"
    result = subprocess.run(
        [sys.executable, "-m", "cod"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={
            "PATH": "/usr/bin:/bin",
            "XDG_CACHE_HOME": str(home),
            "_COD_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        },
    )
    assert {one.partition(",")[2] for one in result.stdout.split()} == offered
