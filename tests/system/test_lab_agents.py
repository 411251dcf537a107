"""`cod lab agents`: simulated nodes that a real server takes for machines; nothing is left of
them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.client import Client
from cod.lab import network, record
from tests.system.stand import SUBNET
from tests.waiting import answers, until

COD = Path(sys.executable).with_name("cod")
NAME = f"ag{os.getpid()}"
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SITE = """
name = "agents"
domain = "cod.test"
[server]
data_dir = "{folder}/data"
[policy]
auto_approve = true
{subnet}[[power]]
match = "*"
driver = "lab"
address = "{switches}#{{mac}}"
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder, which holds labs, too: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cod-ag-") as made:
        monkeypatch.setenv("COD_LAB_ROOT", f"{made}/labs")
        yield Path(made)


class Running:
    """`cod lab agents` as a process: what it has said so far, line by line."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.file = folder / "said"
        with open(self.file, "wb") as out:
            self.process = subprocess.Popen(
                [str(COD), "lab", "agents", *words, "--json"], stdout=out, stderr=out
            )

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text().rpartition("\n")[0].splitlines()]

    def said(self, what: str) -> set[str]:
        """The agents that have said so."""
        return {line["agent"] for line in self.lines() if what in line.get("said", "")}

    def text(self) -> str:
        return self.file.read_text()


def left() -> list[str]:
    return network.all_of(record.namespace(NAME))


def test_a_server_takes_them_for_machines_and_nothing_is_left(folder: Path) -> None:
    agents = Running(folder, "3", NAME)
    server = None
    try:
        until(lambda: agents.file.read_text().endswith("\n") and agents.lines(), agents.text, 60)
        there = agents.lines()[0]
        assert len({each["mac"] for each in there["agents"]}) == 3
        site = folder / "site.toml"
        site.write_text(SITE.format(folder=folder, subnet=SUBNET, switches=there["switches"]))
        subprocess.run(
            [str(COD), "--site", str(site), "init", "--no-check"], check=True, capture_output=True
        )
        with open(folder / "server.log", "wb") as log:
            server = subprocess.Popen(
                [*network.inside(there["namespace"], [str(COD), "--site", str(site), "serve"])],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        socket = folder / "data/run/api.sock"
        until(lambda: answers(socket), (folder / "server.log").read_text, 120)
        with Client(str(socket)) as cod:

            def idle() -> list[str]:
                return [node["name"] for node in cod.items("/nodes") if node["state"] == "inactive"]

            until(lambda: len(idle()) == 3, agents.text, 180)
            assert {node["boot_mac"] for node in cod.items("/nodes")} == {
                each["mac"] for each in there["agents"]
            }
            before = agents.text().count("firmware:")
            cod.post(f"/nodes/{idle()[0]}/power", {"desired": "cycle"})
            until(lambda: agents.text().count("firmware:") > before, agents.text, 120)
    finally:
        if server is not None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)
        agents.process.terminate()
        assert agents.process.wait(60) == 0, agents.text()
    assert (left(), record.names()) == ([], [])


def test_what_a_kill_leaves_behind_goes_with_the_lab(folder: Path) -> None:
    agents = Running(folder, "2", NAME)
    until(lambda: len(agents.said("boot failed") | agents.said("firmware")) == 2, agents.text, 60)
    agents.process.kill()
    agents.process.wait()
    assert len(left()) == 3
    subprocess.run([str(COD), "lab", "down", NAME, "--json"], check=True, capture_output=True)
    assert (left(), record.names()) == ([], [])


def test_there_is_one_crowd_of_agents_in_a_lab(folder: Path) -> None:
    first = Running(folder, "1", NAME, "--off")
    until(lambda: first.file.read_text().endswith("\n"), first.text, 60)
    second = subprocess.run(
        [str(COD), "lab", "agents", "1", NAME, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert "has agents already" in json.loads(second.stderr)["error"]["detail"]
    first.process.terminate()
    assert first.process.wait(60) == 0
    assert left() == []
