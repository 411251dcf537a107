"""`cod lab up --servers 2 --galera`: two servers on a cluster, of which any host dies; machines
boot from the server that is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cod.client import ApiError, Client, Unreachable
from cod.lab import network, record
from cod.lab.servers.hosts import LabHosts
from tests.galera import GaleraNode, needs_galera
from tests.waiting import until

COD = Path(sys.executable).with_name("cod")
NAME = f"sv{os.getpid()}"
BOOTS = 900.0  # seconds in which a machine on a busy emulated processor boots
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.nightly,
    needs_galera,
    pytest.mark.timeout(3000),
    pytest.mark.xdist_group("lab-servers"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def cod(*words: str) -> Any:
    done = subprocess.run([str(COD), *words, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def lab() -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory(prefix="cod-sv-") as folder,
        pytest.MonkeyPatch.context() as to,
    ):
        to.setenv("COD_LAB_ROOT", folder)
        try:
            yield cod(
                *("lab", "up", "--name", NAME, "--bios", "1", "--uefi", "0"),
                *("--servers", "2", "--galera"),
            )
        finally:
            cod("lab", "down", NAME)
            assert network.all_of(record.namespace(NAME)) == []


def asked(host: dict[str, Any], path: str) -> dict[str, Any]:
    """Return what a server's API answers; {} while it does not."""
    socket = Path(host["site_file"]).with_name("data") / "run/api.sock"
    with suppress(ApiError, Unreachable), Client(str(socket), timeout=60) as client:
        return dict(client.get(path))
    return {}


def names(host: dict[str, Any]) -> set[str]:
    """Return the servers that a server knows of."""
    return {each["name"] for each in asked(host, "/servers").get("items", ())}


def test_a_machine_boots_from_the_server_that_is_left(lab: dict[str, Any]) -> None:
    first, second, *_databases = lab["hosts"]
    assert [each["name"] for each in lab["hosts"]] == ["s1", "s2", "d1", "d2", "d3"]
    assert {each["power"] for each in lab["hosts"]} == {"on"}
    for server in (first, second):
        until(lambda server=server: names(server) == {"s1", "s2"}, every=1.0)
    console = Path(lab["nodes"][0]["console"])

    def is_free() -> bool:
        nodes = asked(second, "/nodes").get("items", ())
        return [each["state"] for each in nodes] == ["inactive"]

    cod("lab", "power", NAME, "n1", "on")
    until(is_free, console.read_text, BOOTS, every=1.0)

    assert cod("lab", "power", NAME, "s1", "off")["power"] == "off"
    before = len(console.read_bytes())
    cod("lab", "power", NAME, "n1", "reset")

    def said() -> str:
        return console.read_bytes()[before:].decode(errors="replace")

    until(lambda: "10.77.0.12:8069/boot" in said() and is_free(), said, BOOTS, every=1.0)
    assert "http://10.77.0.11" not in said()
    assert cod("lab", "power", NAME, "s1", "on")["power"] == "on"


def test_who_is_on_the_labs_network_needs_the_databases_password(lab: dict[str, Any]) -> None:
    address = lab["hosts"][-1]["address"]
    code = f"import pymysql; pymysql.connect(host={address!r}, user='cod')"
    asked_there = network.inside(record.namespace(NAME), [sys.executable, "-c", code])
    done = subprocess.run(asked_there, capture_output=True, text=True, check=False)
    assert "Access denied for user 'cod'@'10.77.0.1'" in done.stderr


def test_the_servers_go_on_without_the_writer_of_the_database(lab: dict[str, Any]) -> None:
    first = lab["hosts"][0]
    writer = until(lambda: asked(first, "/servers").get("database_writer"), every=1.0)
    host = next(each for each in lab["hosts"] if writer.startswith(each["address"]))["name"]
    assert cod("lab", "power", NAME, host, "off")["power"] == "off"
    until(
        lambda: asked(first, "/servers").get("database_writer", writer) != writer,
        every=1.0,
    )
    off, left = sorted({"d1", "d2", "d3"} - {host})
    cod("lab", "power", NAME, off, "off")
    last = LabHosts(NAME).databases[left]
    assert isinstance(last, GaleraNode)
    until(lambda: last.status("wsrep_cluster_status") == "non-Primary")
    assert cod("lab", "power", NAME, off, "on")["power"] == "on"  # and so are all
    assert {each["power"] for each in cod("lab", "status", NAME)["hosts"]} == {"on"}
    until(lambda: names(first) == {"s1", "s2"}, every=1.0)
