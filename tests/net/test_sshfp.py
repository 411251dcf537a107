"""A real SSH client looks a node's host key up in the site's DNS, and compares it with what a real
SSH server shows."""

from __future__ import annotations

import os
import pty
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.model import HostKey, Site, SiteRef
from cod.net.dns.server import DnsServer
from cod.pool import Pool, in_transaction
from cod.security import hostkeys
from cod.store.engine import Tx
from cod.store.nodes import host_keys
from tests.net.sshserver import listening
from tests.net.test_dns_server import dig, member

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="port 53 of a loopback address, and a mount namespace"
    ),
]

SERVER = f"127.0.77.{os.getpid() % 250 + 1}"
GOOD, OTHER = hostkeys.ed25519(b"g" * 32), hostkeys.ed25519(b"o" * 32)
MATCH = "Matching host key fingerprint found in DNS."


def keyed(tx: Tx, site: Site, public: str) -> None:
    """n4.pool has that host key."""
    node, _ = member(tx, site)
    host_keys.put(
        tx, node.id, HostKey(hostkeys.ALGORITHM, public), order_id="1.1", salt="", now=0.0
    )


@pytest.fixture
def dns(reactor: Any, in_reactor: Any, pool: Pool, site: Site) -> Iterator[DnsServer]:
    server = DnsServer(reactor, pool, SiteRef(site), SERVER, port=53, clock=lambda: 1000.0)
    in_reactor(server.startService)
    yield server
    in_reactor(server.stopService)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[int]:
    """An SSH server that shows the key GOOD; its port."""
    with listening(tmp_path, GOOD[1]) as port:
        yield port


def said(port: int, folder: Path, *options: str, resolver: str = SERVER) -> str:
    """Return what somebody at a terminal reads who connects to n4.pool and answers nothing."""
    (folder / "resolv.conf").write_text(f"nameserver {resolver}\noptions edns0 trust-ad\n")
    relay = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3 & exec cat >&3'"
    words = [
        "ssh",
        "-F",
        "none",
        "-o",
        f"ProxyCommand={relay}",
        "-o",
        f"UserKnownHostsFile={folder}/known",
        "-o",
        "GlobalKnownHostsFile=none",
        "-o",
        "VerifyHostKeyDNS=yes",
        "-o",
        "PreferredAuthentications=none",
        "-o",
        "HostKeyAlgorithms=ssh-ed25519",
        *options,
        "root@n4.pool.cod.test",
        "true",
    ]
    script = f'mount --bind {folder}/resolv.conf /etc/resolv.conf && exec "$@"'
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("unshare", ["unshare", "-m", "sh", "-c", script, "sh", *words])
    text, end = b"", time.monotonic() + 60
    try:
        while time.monotonic() < end and b"[fingerprint])?" not in text:
            if select.select([terminal], [], [], 1.0)[0]:
                text += os.read(terminal, 4096)
    except OSError:  # the program is over
        pass
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return text.decode(errors="replace")


def test_the_record_is_what_ssh_keygen_says(dns: DnsServer, engine: Engine, site: Site) -> None:
    in_transaction(engine, keyed, site, GOOD[0])
    digest = HostKey(hostkeys.ALGORITHM, GOOD[0]).digest.hex().upper()
    found = dig(dns, "+short", "n4.pool.cod.test", "SSHFP", address=SERVER)[1].split()
    assert (found[:2], "".join(found[2:])) == (["4", "2"], digest)
    assert dig(dns, "n5.pool.cod.test", "SSHFP", address=SERVER)[0] == "NXDOMAIN"


def test_without_dnssec_ssh_says_that_it_matches_and_asks(
    dns: DnsServer, engine: Engine, site: Site, sshd: int, tmp_path: Path
) -> None:
    in_transaction(engine, keyed, site, GOOD[0])
    text = said(sshd, tmp_path)
    assert MATCH in text
    assert "Are you sure you want to continue connecting" in text


@pytest.fixture
def validating() -> Iterator[str]:
    """The address of a resolver that says that it has validated what it passes on: the AD bit (RFC
    4035)."""
    address, over = SERVER.replace("127.0.77.", "127.0.78."), Event()

    def run() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                question, peer = here.recvfrom(4096)
                onwards.sendto(question, (SERVER, 53))
                answer = onwards.recv(4096)
                here.sendto(answer[:3] + bytes([answer[3] | 0x20]) + answer[4:], peer)

    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as onwards,
    ):
        here.bind((address, 53))
        here.settimeout(0.2)
        onwards.settimeout(60)
        thread = Thread(target=run)
        thread.start()
        yield address
        over.set()
        thread.join()


def test_with_a_validating_resolver_ssh_asks_nothing(
    dns: DnsServer, engine: Engine, site: Site, sshd: int, tmp_path: Path, validating: str
) -> None:
    in_transaction(engine, keyed, site, GOOD[0])
    text = said(sshd, tmp_path, "-o", "StrictHostKeyChecking=yes", resolver=validating)
    assert "Permission denied" in text, "past the host key, up to the login"
    assert "Are you sure" not in text
    assert not (tmp_path / "known").exists()


def test_ssh_warns_of_another_key_than_the_one_in_dns(
    dns: DnsServer, engine: Engine, site: Site, sshd: int, tmp_path: Path
) -> None:
    in_transaction(engine, keyed, site, OTHER[0])
    text = said(sshd, tmp_path)
    assert MATCH not in text
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in text
    assert "Update the SSHFP RR in DNS" in text


def test_the_known_hosts_file_lets_in_without_a_question(
    dns: DnsServer, engine: Engine, site: Site, sshd: int, tmp_path: Path
) -> None:
    in_transaction(engine, keyed, site, GOOD[0])
    (tmp_path / "known").write_text(f"n4.pool.cod.test {hostkeys.ALGORITHM} {GOOD[0]}\n")
    text = said(sshd, tmp_path, "-o", "StrictHostKeyChecking=yes")
    assert "Permission denied" in text, "past the host key, up to the login"
    assert "Are you sure" not in text
