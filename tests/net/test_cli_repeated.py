"""Commands that are given a second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cod.cli.root import cod
from tests.net.apiserver import NOW, Served, as_json, run
from tests.net.rights_world import KEY
from tests.rows import add_template

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.usefixtures("quick_passwords")


def arrived(served: Served) -> str:
    """Make the account of ann; returns the server's address."""
    secret = as_json(served, "user", "add", "ann")["link"].partition("#")[2]
    accepted = {"secret": secret, "password": PASSWORD}
    served.remote(None).post("/invitations/accept", accepted)
    return f"http://127.0.0.1:{served.server.ports[0]}"


def as_ann(served: Served) -> list[str]:
    """Return how commands begin that ann gives."""
    server = ["--server", arrived(served)]
    start = [*server, "session", "start", "ann", "--password", PASSWORD]
    return [*server, "--token", CliRunner().invoke(cod, start).stdout.strip()]


def test_what_is_there_already_is_shown_and_left_as_it_is(served: Served) -> None:
    run(served, "group", "create", "physics", "--priority", 5)
    again = ("group", "create", "physics", "--priority", 9)
    assert "there is a group 'physics' already" in run(served, *again, code=1).stderr
    assert as_json(served, *again, "--if-missing")["priority"] == 5
    assert as_json(served, "group", "create", "other", "--if-missing")["name"] == "other"
    made = as_json(served, "block", "create", "rack1", "--if-missing")
    assert as_json(served, "block", "create", "rack1", "--if-missing") == made
    assert run(served, "user", "add", "ann", "--if-missing").stdout
    assert as_json(served, "user", "add", "ann", "--if-missing")["name"] == "ann"


@pytest.mark.slow
def test_an_image_that_is_there_is_neither_read_nor_sent_again(
    served: Served, tmp_path: Path
) -> None:
    file, other = tmp_path / "red.img", tmp_path / "other.img"
    file.write_bytes(b"x" * 1000)
    other.write_bytes(b"y" * 2000)
    add = ("image", "add", "red")
    made = as_json(served, *add, file, "--if-missing")
    assert run(served, *add, other, code=1).stderr
    for way in ("--upload", "--no-upload"):
        assert as_json(served, *add, other, way, "--if-missing") == made
    run(served, "group", "create", "physics")
    own = as_json(served, *add, file, "--group", "physics", "--if-missing")
    assert own["name"] == "physics/red"
    assert as_json(served, *add, other, "--group", "physics", "--if-missing") == own


def test_a_template_that_is_there_gets_no_new_revision(served: Served, tmp_path: Path) -> None:
    served.tx(add_template, "web", now=NOW)
    document = tmp_path / "web.xml"
    document.write_text('<template name="web"><image target="disk" name="red"/></template>')
    add = ("template", "add", document)
    there = as_json(served, *add, "--if-missing")
    assert (there["name"], there["revision"]) == ("web", 1)
    document.write_text("<template")
    assert "line 1" in run(served, *add, "--if-missing", code=1).stderr


def test_ones_own_token_that_is_there_is_not_made_again(served: Served) -> None:
    command = [*as_ann(served), "token", "create", "ci", "--mine"]
    for words, code in ((["--if-missing"], 0), ([], 1), (["--if-missing", "--json"], 0)):
        done = CliRunner().invoke(cod, [*command, *words])
        assert done.exit_code == code, done.output
    assert json.loads(done.stdout) == {"name": "ci", "token": None}


def test_ones_own_key_that_is_there_is_not_added_again(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "id.pub"
    file.write_text(KEY.format("laptop") + "\n")
    command = [*as_ann(served), "key", "add", str(file), "--json"]
    made, again = (CliRunner().invoke(cod, [*command, "--if-missing"]) for _ in range(2))
    assert (made.exit_code, json.loads(made.stdout)["name"]) == (0, "laptop")
    assert again.stdout == made.stdout
    assert CliRunner().invoke(cod, command).exit_code == 1


def test_another_refusal_is_still_one(served: Served) -> None:
    assert run(served, "group", "create", "No Name", "--if-missing", code=1).stderr


def test_a_second_session_has_a_token_of_its_own(served: Served) -> None:
    server = arrived(served)

    def start(*words: str, code: int = 0) -> str:
        command = ["--server", server, "session", "start", "ann", "--password", PASSWORD, *words]
        done = CliRunner().invoke(cod, command)
        assert done.exit_code == code, done.output
        return done.stdout.strip()

    tokens = {start(), start()}
    assert len(tokens) == 2
    for token in tokens:
        assert served.remote(token).get("/me")["user"]["name"] == "ann"
    start("--token", "cli", code=1)  # who names it means that one
