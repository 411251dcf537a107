"""`cod ssh`: a real SSH client logs in to a real SSH server as a node, and only where its host key
is the node's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from cod.flows.scheduler import vclusters
from cod.model import AskedVcluster, HostKey, Role, Site
from cod.pool import Pool
from cod.security import hostkeys
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import host_keys, nodes
from tests.contexts import flow_context
from tests.net.apiserver import NOW, Served, serving
from tests.net.credentials import as_user
from tests.net.sshserver import listening
from tests.store import manager_world as world

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="an SSH server that lets root in"),
]

GOOD, OTHER = hostkeys.ed25519(b"g" * 32), hostkeys.ed25519(b"o" * 32)


_OF_SYSTEMS = t.bindings.c.kind == "vcluster"


def keyed(tx: Tx, public: str) -> None:
    """Nodes have that host key, run their clusters' systems, and are at 127.0.0.1, 127.0.0.2 …"""
    for one in nodes.every(tx):
        key = HostKey(hostkeys.ALGORITHM, public)
        host_keys.put(tx, one.id, key, order_id="1.1", salt="", now=NOW)
    held_by = tx.scalars(select(t.bindings.c.node_id).where(_OF_SYSTEMS)).all()
    for last, node in enumerate(held_by, 1):
        at = update(t.bindings).where(_OF_SYSTEMS, t.bindings.c.node_id == node)
        tx.execute(at.values(address=0x7F000000 + last))
    held = t.nodes.c.vcluster_id.is_not(None)
    tx.execute(update(t.nodes).where(held).values(state="active"))


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    """A site with the vclusters farm (n1, n2) and pool (n1), whose nodes have the host key GOOD."""
    with serving(pool, reactor, in_reactor, site) as served:
        served.tx(world.furnish, 4)
        for name, size in (("farm", 2), ("pool", 1)):
            asked = AskedVcluster(name=name, size=size, template="debian", group="site")
            served.tx(vclusters.create, flow_context(site, NOW), asked)
        served.tx(world.run_pass, site, NOW)
        served.tx(keyed, GOOD[0])
        yield served


@pytest.fixture
def login(tmp_path: Path) -> list[str]:
    """A key of root's; the options of the SSH server that lets it in."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True
    )
    return [
        "ListenAddress=127.0.0.2",
        f"AuthorizedKeysFile={tmp_path}/id.pub",
        "StrictModes=no",
        "PermitRootLogin=yes",
    ]


def ssh_words(served: Served, folder: Path, port: int, *words: str) -> list[str]:
    reach = ("-o", f"Port={port}", "-o", f"IdentityFile={folder}/id")
    return [sys.executable, "-m", "cod", "--server", str(served.socket), "ssh", *reach, *words]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


def ssh(served: Served, folder: Path, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `cod ssh` in a process of its own, which becomes the SSH client."""
    return subprocess.run(
        ssh_words(served, folder, port, *words),
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_command_runs_on_a_node_and_its_exit_code_is_ssh_s(
    served: Served, tmp_path: Path, login: list[str]
) -> None:
    serial = served.local.get("/vclusters/farm")["nodes"][0]["name"]
    with listening(tmp_path, GOOD[1], *login) as port:
        for words in (("farm", "n1"), (serial,), ("farm", serial)):
            ran = ssh(served, tmp_path, port, *words, "--", "echo", "here;", "exit", "3")
            assert (ran.stdout, ran.returncode) == ("here\n", 3), ran.stderr
    (known,) = (tmp_path / "cod").glob("known_hosts-*")
    assert known.stat().st_mode & 0o777 == 0o600
    assert len(known.read_text().splitlines()) == 2


def test_a_silent_host_is_left_after_a_time_that_the_user_may_change(
    served: Served, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and says nothing
        wait = ("-o", "ConnectTimeout=1")
        ran = ssh(served, tmp_path, silent.getsockname()[1], "farm", "n1", *wait, "--", "true")
    assert (ran.stdout, ran.returncode) == ("", 255)
    assert "timed out" in ran.stderr


def test_twenty_seconds_are_waited_unless_ssh_config_says_otherwise(
    served: Served, tmp_path: Path
) -> None:
    """A stand-in shows how ssh is called; what a configuration means is asked of the real one."""
    real, config = shutil.which("ssh"), tmp_path / "config"
    stand_in = tmp_path / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\ncase " $* " in *" -G "*) exec {real} -F {config} "$@";; esac\necho "$@"\n'
    )
    stand_in.chmod(0o755)
    for said, waits in (
        ("", True),
        ("Host n1.farm\n  ConnectTimeout 45\n", False),
        ("Host n2.farm\n  ConnectTimeout 45\n", True),
    ):
        config.write_text(said)
        for words in (("farm", "n1"), ("--all", "pool", "--", "true")):
            shown = subprocess.run(
                ssh_words(served, tmp_path, 1, *words),
                env=environment(tmp_path) | {"PATH": f"{stand_in.parent}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            limit = "-o ConnectTimeout=20" in shown.stdout
            assert limit == (waits or "--all" in words), (said, shown.stdout)


def test_a_machine_with_another_host_key_is_refused(
    served: Served, tmp_path: Path, login: list[str]
) -> None:
    with listening(tmp_path, OTHER[1], *login) as port:
        options = ("-o", "StrictHostKeyChecking=no")
        ran = ssh(served, tmp_path, port, "farm", "n1", *options, "--", "echo", "here")
        assert (ran.stdout, ran.returncode) == ("", 255)
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in ran.stderr
        every = ssh(served, tmp_path, port, "--all", "farm", "--", "echo", "here")
        assert (every.stdout, every.returncode) == ("", 255)
        assert "n1: Host key verification failed." in every.stderr.splitlines()


def test_all_nodes_run_a_command_and_the_largest_code_is_told(
    served: Served, tmp_path: Path, login: list[str]
) -> None:
    with listening(tmp_path, GOOD[1], *login) as port:
        script = "echo out; echo err >&2; exit 4"
        ran = ssh(served, tmp_path, port, "--all", "farm", "--", script)
        assert sorted(ran.stdout.splitlines()) == ["n1: out", "n2: out"]
        assert {"n1: err", "n2: err"} <= set(ran.stderr.splitlines())
        assert ran.returncode == 4


def test_keys_of_members_are_added_to_running_nodes(
    served: Served, tmp_path: Path, login: list[str]
) -> None:
    """Both nodes are the one machine here, whose root has a home below the test's folder."""
    key = (tmp_path / "id.pub").read_text().strip()
    ann = as_user(served, "ann", "site", Role.MEMBER)
    ann.post("/me/keys", {"key": key})
    (tmp_path / ".ssh").mkdir()
    known = tmp_path / ".ssh" / "authorized_keys"
    known.write_text("ssh-ed25519 AAAA of the image")  # without an end of the line
    with listening(tmp_path, GOOD[1], *login, f"SetEnv=HOME={tmp_path}") as port:
        home = ssh(served, tmp_path, port, "farm", "n1", "--", "echo", "$HOME")
        assert home.stdout == f"{tmp_path}\n", home.stderr  # else root's own keys would be changed
        words = ("--all", "farm", "--add-keys", "--parallel", "1")
        ran = ssh(served, tmp_path, port, *words)
        assert sorted(ran.stdout.splitlines()) == ["n1: 1 added", "n2: 0 added"], ran.stderr
        assert ran.returncode == 0
    first, added = known.read_text().splitlines()
    assert first == "ssh-ed25519 AAAA of the image"
    assert added.startswith(" ".join(key.split()[:2]))
    wrong = ssh(served, tmp_path, 1, "farm", "n1", "--add-keys")
    assert "--add-keys wants --all and no command" in wrong.stderr


def test_a_terminal_gets_no_control_characters_of_nodes(
    served: Served, tmp_path: Path, login: list[str]
) -> None:
    screen, terminal = os.openpty()
    script = r"printf 'a\033]0;mine\007b\n'; head -c 200000 /dev/zero | tr '\0' x"
    with listening(tmp_path, GOOD[1], *login) as port, os.fdopen(screen, "rb", 0) as shown:
        begun = subprocess.Popen(
            ssh_words(served, tmp_path, port, "--all", "farm", "--", script),
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=terminal,
        )
        os.close(terminal)
        told = b""
        with suppress(OSError):  # EIO: the terminal was closed
            while piece := shown.read(65536):
                told += piece
        assert begun.wait(60) == 0
    lines = [line for line in told.decode().splitlines() if line.startswith("n1")]
    assert lines[0] == "n1: a ]0;mine b"
    assert [len(line) for line in lines[1:]] == [65540, 65540, 65540, 3396]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("n1", "--", "true"), 1, "n1"),
        (("nope", "n1"), 1, "no vcluster 'nope'"),
        (("farm", "n9"), 1, "no node 'n9' in farm, which has n1, n2"),
        (
            ("n9",),
            1,
            "there is no node 'n9': a host name stands behind its cluster, as in `cod ssh",
        ),
        (("farm",), 1, "name one of its nodes too (n1, n2), as in `cod ssh farm n1`"),
        (("node[0-3]",), 1, "'node[0-3]' names 4 nodes: name one of node0, node1"),
        (("farm", "n1", "uptime"), 2, "a command stands behind --"),
        (("--all", "farm"), 2, "--all wants a cluster and a command"),
    ],
)
def test_what_cannot_be_reached_is_told(
    served: Served, tmp_path: Path, words: tuple[str, ...], code: int, why: str
) -> None:
    ran = ssh(served, tmp_path, 1, *words)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert why in ran.stderr


def test_a_node_without_an_owner_is_not_reached(served: Served, tmp_path: Path) -> None:
    free = served.local.get("/nodes", state="inactive")["items"][0]["name"]
    ran = ssh(served, tmp_path, 1, free)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"{free} cannot be reached: free, in no virtual cluster" in ran.stderr
