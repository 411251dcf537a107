"""Commands that are given a second time."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cod.cli.root import cod
from tests.net.apiserver import Served, as_json, run

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.usefixtures("quick_passwords")


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


def test_another_refusal_is_still_one(served: Served) -> None:
    assert run(served, "group", "create", "No Name", "--if-missing", code=1).stderr


def test_a_second_session_has_a_token_of_its_own(served: Served) -> None:
    made = as_json(served, "user", "add", "ann")
    secret = made["link"].partition("#")[2]
    accepted = {"secret": secret, "password": PASSWORD}
    served.remote(None).post("/invitations/accept", accepted)
    server = f"http://127.0.0.1:{served.server.ports[0]}"

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
