"""Packets are lost, doubled and overtaken on the wire of a stand: machines arrive all the same, no
address twice."""

from __future__ import annotations

import random
import re
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from cod.store import tables as t
from cod.store.engine import Tx
from tests.system.intruder import SERVER, inside
from tests.system.site_images import offer
from tests.system.stand import Host, Stand

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3),
    pytest.mark.slow,
    pytest.mark.xdist_group("loss"),
]

ETH_P_ALL = 3  # also what goes out
SIZE = 64 << 10


@contextmanager
def losing(stand: Stand, percent: int) -> Iterator[None]:
    """Every frame to and from the server is lost with that probability; the bridge sees what raw
    sockets send too."""
    rule = f"numgen random mod 100 < {percent} counter drop"
    rules = (
        "table bridge loss {"
        + "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}\n"
            for hook in ("input", "output")
        )
        + "}"
    )
    nft = ["ip", "netns", "exec", stand.namespace, "nft"]
    subprocess.run([*nft, "-f", "-"], input=rules, text=True, check=True)
    try:
        yield
    finally:
        shown = subprocess.run(
            [*nft, "list", "table", "bridge", "loss"], check=True, capture_output=True, text=True
        )
        subprocess.run([*nft, "delete", "table", "bridge", "loss"], check=True)
    lost = [int(number) for number in re.findall(r"packets (\d+)", shown.stdout)]
    print("frames lost:", lost)
    assert sum(lost) > 0


class Echo:
    """Says every DHCP message of a machine three times: at once, once more, and again when others
    have followed."""

    def __init__(self, host: Host) -> None:
        self.copies, self._own = 0, Counter[bytes]()
        self._wire = inside(
            host.namespace,
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)),
        )
        self._wire.bind(("eth0", ETH_P_ALL))
        self._wire.settimeout(0.1)
        self._rng, self._done = random.Random(host.mac), threading.Event()
        self._late: list[threading.Timer] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                frame, (_, _, kind, *_) = self._wire.recvfrom(2048)
            except TimeoutError:
                continue
            is_request = frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[36:38] == b"\0\x43"
            if kind != socket.PACKET_OUTGOING or not is_request:
                continue
            if self._own[frame]:
                self._own[frame] -= 1
                continue
            self._say(frame)
            timer = threading.Timer(self._rng.uniform(0.05, 1.5), self._say, [frame])
            timer.start()
            self._late.append(timer)

    def _say(self, frame: bytes) -> None:
        self._own[frame] += 1
        self._wire.send(frame)
        self.copies += 1

    def finish(self) -> None:
        """Wait until every copy has been sent."""
        for timer in list(self._late):
            timer.join()

    def close(self) -> None:
        self.finish()
        self._done.set()
        self._thread.join()
        self._wire.close()


def bound(tx: Tx) -> list[tuple[str, str, str, str]]:
    """(address, MAC, kind, subnet) of every binding."""
    b = t.bindings.c
    return [
        (row[0], row[1], row[2], row[3])
        for row in tx.execute(select(b.address, b.mac, b.kind, b.subnet))
    ]


def addresses(stand: Stand) -> dict[str, str]:
    """MAC -> the address that the machine's own interface has."""
    found = {}
    for host in stand.hosts.values():
        shown = subprocess.run(
            ["ip", "-n", host.namespace, "-4", "-o", "addr", "show", "eth0"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        found[host.mac] = re.findall(r"inet ([\d.]+)/", shown)
    assert all(len(each) == 1 for each in found.values()), found
    return {mac: each[0] for mac, each in found.items()}


def _has_all(host: Host) -> bool:
    return host.running().count(" ") == 3  # image, address, hostname and domain


def gather(stand: Stand) -> None:
    """Both machines come to the reserve, and a vcluster wants them."""
    for host in stand.hosts.values():
        host.on()
    for name in stand.hosts:
        stand.reaches(name, "inactive", seconds=300)
    stand.cod("vcluster", "create", "web", "--size", "2", "--template", "red")


def arrive(stand: Stand) -> None:
    """Both machines come to their vcluster's system, each at an address that is its alone."""
    for name in stand.hosts:
        stand.reaches(name, "active", seconds=300)
        stand.wait(partial(_has_all, stand[name]), 300, f"{name} runs its system")
    rows = stand.read(bound)
    for key in ((0,), (1, 2, 3)):
        seen = Counter(tuple(row[part] for part in key) for row in rows)
        assert max(seen.values()) == 1, rows
    theirs = addresses(stand)
    assert len(set(theirs.values())) == len(stand.hosts)
    assert {stand[name].running().split()[1] for name in stand.hosts} == set(theirs.values())


def test_a_fifth_of_all_packets_is_lost(tmp_path: Path) -> None:
    with Stand(tmp_path, machines=2, patience=3.0) as stand:
        stand.serve()
        offer(stand, "red", 1 << 20)
        with losing(stand, 20):
            gather(stand)
            arrive(stand)


def test_dhcp_messages_come_twice_and_late(tmp_path: Path) -> None:
    with Stand(tmp_path, machines=2) as stand:
        stand.serve()
        offer(stand, "red", 1 << 20)
        echoes = [Echo(host) for host in stand.hosts.values()]
        try:
            gather(stand)
            while stand.state("m1") != "active" and stand.node("m1").boot_served_at is None:
                pass
            # the copies of its way through the loaders come while its system starts
            stand["m1"].signal(signal.SIGSTOP)
            print(f"stopped in state {stand.state('m1')}")
            echoes[0].finish()
            stand["m1"].signal(signal.SIGCONT)
            arrive(stand)
        finally:
            for echo in echoes:
                echo.close()
        assert all(echo.copies > 8 for echo in echoes)
        for name in stand.hosts:
            assert [row["event"] for row in stand.history(name)].count("boot_failed") == 0
            assert stand.state(name) == "active"


def test_tftp_copes_with_loss(tmp_path: Path) -> None:
    content = random.Random(3).randbytes(SIZE)
    with Stand(tmp_path, machines=1) as stand:
        stand.write_site()
        (stand.socket_folder / "data/boot/small").write_bytes(content)
        stand.serve()
        ip = ["ip", "-n", stand["m1"].namespace, "addr", "add", "10.77.9.9/16", "dev", "eth0"]
        subprocess.run(ip, check=True)
        with losing(stand, 10):
            subprocess.run(
                [
                    "ip",
                    "netns",
                    "exec",
                    stand["m1"].namespace,
                    "busybox",
                    "tftp",
                    "-g",
                    "-b",
                    "1428",
                    "-r",
                    "small",
                    "-l",
                    str(tmp_path / "got"),
                    SERVER,
                ],
                check=True,
                timeout=300,
            )
    assert (tmp_path / "got").read_bytes() == content
