"""One machine poses as another: m2 is an impostor, m1 the machine that it would like to be."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cod.model import BootSecret
from cod.store.nodes import conflicts, secrets, sessions
from cod.wire.confd import protocol
from cod.wire.confd.messages import Ack, Error, Report
from tests.system.intruder import CONFD, Intruder, inside
from tests.system.stand import Host, Stand
from trampoline import inventory

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("impostors")]

ETH_P_ALL = 3


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with Stand(tmp_path_factory.mktemp("impostors"), machines=2) as stand:
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        yield stand


@pytest.fixture
def intruder(stand: Stand) -> Iterator[Intruder]:
    """The impostor; afterwards m1 must be as it was, its connection too."""
    before = standing(stand)
    yield Intruder(stand["m2"])
    assert standing(stand) == before


def standing(stand: Stand) -> object:
    """What must not change when m1 is not disturbed: its state, its connection, its secrets, its
    hardware."""
    node = stand.node("m1")
    session = stand.read(sessions.get, node.id)
    return (
        node.state,
        node.generation,
        node.uuid,
        node.attributes,
        session.epoch,
        session.address,
        kept(stand, "m1"),
        len(stand.history("m1")),
    )


def kept(stand: Stand, name: str) -> list[BootSecret]:
    return list(stand.read(secrets.of_mac, stand[name].mac))


def report(host: Host) -> ET.Element:
    return inventory.report(
        host.folder / "root", host.mac, (inventory.file_disk(host.folder / "disk"),)
    )


def named(document: ET.Element, stand: Stand) -> ET.Element:
    """`document` with m1's UUID."""
    system = document.find("system")
    assert system is not None
    system.set("uuid", str(stand.node("m1").uuid))
    return document


def with_nic_of(other: ET.Element, document: ET.Element) -> ET.Element:
    """`document` with the `other`'s NIC as a second one."""
    nic = other.find("nic")
    assert nic is not None
    nic.set("boot", "no")
    nic.set("name", "eth1")
    document.insert(1 + max(at for at, each in enumerate(document) if each.tag == "nic"), nic)
    return document


def text(document: ET.Element) -> str:
    return ET.tostring(document, "unicode")


def test_anothers_script_and_secret_are_refused_and_nothing_is_minted(
    stand: Stand, intruder: Intruder
) -> None:
    intruder.boot()
    own, mac = kept(stand, "m2"), stand["m1"].mac
    for name in ("script.ipxe", "secret.cpio"):
        assert intruder.get(f"/boot/{mac}/{name}") == 403
        assert intruder.tftp(f"boot/{mac}/{name}")[:4] == b"\0\5\0\2"
    assert intruder.tftp(f"pxelinux.cfg/01-{mac.replace(':', '-')}")[:4] == b"\0\5\0\2"
    assert kept(stand, "m2") == own


def test_an_own_secret_under_anothers_mac_is_unknown(stand: Stand, intruder: Intruder) -> None:
    line = intruder.line(intruder.boot(), stand["m1"].mac)
    (answer,) = line.next()
    assert isinstance(answer, Error)
    assert answer.code == "unknown"
    assert line.is_closed()


def test_a_wrong_key_proves_nothing(stand: Stand, intruder: Intruder) -> None:
    line = intruder.line(protocol.Secret(intruder.boot().id, os.urandom(32)))
    assert line.is_closed()
    assert line.side.state is protocol.State.CLOSED or line.side.state is protocol.State.WELCOME
    stand.wait(lambda: "does not know the secret" in (stand.folder / "server.log").read_text())


def test_a_report_in_anothers_name_is_refused(stand: Stand, intruder: Intruder) -> None:
    own, other = report(stand["m2"]), report(stand["m1"])
    line = intruder.session(intruder.boot())
    answer = line.tell(Report(text(other)))
    assert [(type(each), getattr(each, "code", "")) for each in answer] == [(Error, "refused")]
    answer = line.tell(Report(text(with_nic_of(other, named(report(stand["m2"]), stand)))))
    assert "belong to other machines" in answer[0].reason
    assert [type(each) for each in line.tell(Report(text(own)))] == [Ack]
    assert "identity" in {
        each["kind"] for each in stand.read(partial(conflicts.every, macs=[stand["m2"].mac]))
    }
    line.socket.close()


def test_a_uuid_alone_claims_nothing(stand: Stand, intruder: Intruder) -> None:
    line = intruder.session(intruder.boot())
    assert [type(each) for each in line.tell(Report(text(named(report(stand["m2"]), stand))))] == [
        Ack
    ]
    assert stand.node("m2").uuid != stand.node("m1").uuid
    assert stand.node("m2").id != stand.node("m1").id
    line.socket.close()


# ---------------------------------------------------------------- what was overheard


@contextmanager
def overheard(host: Host) -> Iterator[dict[int, bytes]]:
    """What the machine sends to confd meanwhile: TCP payloads by sequence number."""
    wire = inside(
        host.namespace,
        lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)),
    )
    wire.bind(("eth0", ETH_P_ALL))
    wire.settimeout(0.2)
    heard: dict[int, bytes] = {}
    done = threading.Event()

    def listen() -> None:
        while not done.is_set():
            try:
                packet = wire.recv(65536)[14:]
            except TimeoutError:
                continue
            if packet[:1] == b"E" and packet[9] == socket.IPPROTO_TCP:
                _, port, sequence = struct.unpack_from("!HHI", packet, 20)
                payload = packet[
                    20 + 4 * (packet[32] >> 4) : struct.unpack_from("!H", packet, 2)[0]
                ]
                if port == CONFD and payload:
                    heard[sequence] = payload

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield heard
    finally:
        done.set()
        thread.join()
        wire.close()


def test_what_was_overheard_is_worth_nothing_even_from_the_same_address(stand: Stand) -> None:
    """The agent comes back under its session's secret, which stays good: so only the nonces stand
    in the way."""
    node_id = stand.node("m1").id
    epoch = stand.read(sessions.get, node_id).epoch
    with overheard(stand["m1"]) as heard:
        stand.kill()
        stand.serve()
        stand.wait(
            lambda: (
                (now := stand.read(sessions.get, node_id)) and now.epoch > epoch and now.reported
            )
        )
    said = b"".join(heard[at] for at in sorted(heard))
    assert len(said.partition(b"<proof")[2]) > 300, "the report comes after the proof"
    assert b"<report" not in said, "a host that listens reads what the agent says"
    before = standing(stand)
    log = stand.folder / "server.log"
    for host, word in (("m1", "does not know the secret"), ("m2", "no secret")):
        Intruder(stand["m2"]).boot()
        start = log.stat().st_size
        with inside(
            stand[host].namespace, lambda: socket.create_connection(("10.77.0.1", CONFD), 60)
        ) as line:
            line.sendall(said)
            while _answered(line):
                pass
        stand.wait(partial(_says, log, start, word), what=word)
    assert standing(stand) == before


def _says(log: Path, start: int, word: str) -> bool:
    return word in log.read_bytes()[start:].decode()


def _answered(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionError:
        return b""


def test_the_impostor_may_still_come_in_as_itself(stand: Stand) -> None:
    before = standing(stand)
    stand["m2"].on()
    stand.reaches("m2", "inactive")
    assert standing(stand) == before


def test_an_impostor_of_a_node_that_is_off_gets_nothing(stand: Stand) -> None:
    """With the MAC of m1, in whose place it boots."""
    for name in ("m1", "m2"):
        stand[name].off()
    stand.wait(lambda: stand.read(sessions.get, stand.node("m1").id) is None)
    stand.wait(lambda: stand.node("m1").state in ("trampoline", "inactive"))
    thief = Intruder(stand["m2"], stand["m1"].mac)
    line = thief.line(thief.boot())
    (answer,) = line.next()
    assert isinstance(answer, Error)
    assert (answer.code, answer.reason) == (
        "refused",
        "the power driver of m1 says that the node is off",
    )
    assert stand.read(sessions.get, stand.node("m1").id) is None
