"""The DHCP codec: golden messages, round trips, hostile bytes, destinations."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import DhcpAnswer, DhcpQuery, Subnet
from cod.wire import dhcp
from cod.wire.dhcp import DecodeError, Packet
from tests.unit.dhcp_captures import IPXE_ROM_DISCOVER, IPXE_ROM_REQUEST, OVMF_DISCOVER

MAC = bytes.fromhex("525400123456")
SUBNET = Subnet(
    "lab",
    "10.77.0.0/16",
    "10.77.0.1",
    ("10.77.1.0", "10.77.4.255"),
    ("10.77.128.0", "10.77.255.255"),
    router="10.77.0.254",
    dns=("10.77.0.2", "10.77.0.3"),
)


def message(kind: int = 1, options: Mapping[int, bytes] | None = None, **head: object) -> Packet:
    packet = Packet(
        1,
        1,
        6,
        0,
        7,
        0,
        0,
        bytes(4),
        bytes(4),
        bytes(4),
        bytes(4),
        MAC + bytes(10),
        bytes(64),
        bytes(128),
        {53: bytes([kind])} | dict(options or {}),
    )
    return packet._replace(**head)


# ---------------------------------------------------------------- reading


def test_captured_messages_are_understood() -> None:
    assert dhcp.query(dhcp.decode(IPXE_ROM_DISCOVER), "lab") == DhcpQuery(
        "DISCOVER",
        "52:54:00:12:34:56",
        0xB841E653,
        "lab",
        "ipxe",
        arch=0,
        uuid="00000000-0000-0000-0000-000000000000",
        client_id=bytes.fromhex("01525400123456"),
    )
    request = dhcp.query(dhcp.decode(IPXE_ROM_REQUEST), "lab")
    assert (request.kind, request.xid, request.requested, request.server_id) == (
        "REQUEST",
        0xB841E653,
        "10.0.2.15",
        "10.0.2.2",
    )
    assert dhcp.query(dhcp.decode(OVMF_DISCOVER), "lab") == DhcpQuery(
        "DISCOVER",
        "52:54:00:12:34:57",
        0xAB00F037,
        "lab",
        "firmware",
        arch=7,
        uuid="00000000-0000-0000-0000-000000000000",
    )


def test_a_uuid_is_told_as_linux_tells_it() -> None:
    value = b"\0" + bytes.fromhex("00112233445566778899aabbccddeeff")
    assert (
        dhcp.query(message(options={97: value}), None).uuid
        == "33221100-5544-7766-8899-aabbccddeeff"
    )
    assert dhcp.query(message(options={97: value[:-1]}), None).uuid is None


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({}, "os"),
        ({60: b"udhcp 1.35.0"}, "os"),
        ({60: b"PXEClient:Arch:00000:UNDI:002001"}, "firmware"),
        ({60: b"PXEClient:Arch:00007:UNDI:003000", 55: b"\x01\x03\x43"}, "firmware"),
        ({60: b"PXEClient:Arch:00000:UNDI:002001", 77: b"iPXE"}, "ipxe"),
        ({60: b"PXEClient:Arch:00000:UNDI:002001", 77: b"\x04iPXE"}, "ipxe"),
        ({60: b"PXEClient:Arch:00000:UNDI:002001", 175: b"\xb1\x00"}, "ipxe"),
        ({60: b"HTTPClient:Arch:00016:UNDI:003000"}, "httpclient"),
        ({60: b"HTTPClient:Arch:00016:UNDI:003000", 77: b"iPXE"}, "ipxe"),
        ({60: b"PXEClient:Arch:00000:UNDI:002001", 55: bytes([1, 3, 208, 209])}, "pxelinux"),
        ({60: b"cod-trampoline"}, "trampoline"),
        ({60: b"cod-trampoline 1", 77: b"iPXE"}, "trampoline"),
    ],
)
def test_who_is_speaking(options: Mapping[int, bytes], stage: str) -> None:
    assert dhcp.query(message(options=options), None).stage == stage


@pytest.mark.parametrize(
    "packet",
    [
        message(op=2),
        message(htype=6),
        message(hlen=16),
        message(kind=2),
        message(kind=99),
        message(options={53: b""}),
        message(options={53: b"\0\0\1\1"}),
        message(chaddr=bytes(16)),
        message(chaddr=b"\xff" * 16),
    ],
)
def test_what_is_no_client_of_ours_is_refused(packet: Packet) -> None:
    with pytest.raises(DecodeError):
        dhcp.query(packet, None)


def test_long_options_are_joined_and_overload_is_followed() -> None:
    head = dhcp.encode(message())[:236]
    file = b"\x0c\x03abc\xff".ljust(128, b"\0")
    sname = b"\x0c\x03def\xff".ljust(64, b"\0")
    data = head[:44] + sname + file + dhcp.MAGIC + b"\x35\x01\x01\x34\x01\x03\x0c\x02--\x00\x00\xff"
    # RFC 3396: options, file, sname
    assert dhcp.decode(data).options == {53: b"\1", 12: b"--abcdef"}


@pytest.mark.parametrize("tail", [b"\x35", b"\x35\x05\x01", b"\x34\x01\x04\xff", b"\x34\x00\xff"])
def test_broken_options_are_refused(tail: bytes) -> None:
    with pytest.raises(DecodeError):
        dhcp.decode(dhcp.encode(message())[:240] + tail)


def test_a_missing_end_is_forgiven() -> None:
    assert dhcp.decode(dhcp.encode(message())[:240] + b"\x35\x01\x01\0\0").options == {53: b"\1"}


OPTION = st.integers(1, 254).filter(lambda code: code != dhcp.OVERLOAD)


@given(
    st.dictionaries(OPTION, st.binary(min_size=1, max_size=600), max_size=20),
    st.binary(min_size=128, max_size=128),
)
def test_what_is_written_is_read_again(options: dict[int, bytes], file: bytes) -> None:
    packet = message(options=options, file=file)
    data = dhcp.encode(packet)
    assert dhcp.decode(data) == packet
    assert len(data) >= 300


def test_ten_thousand_random_and_mutated_messages_do_no_harm() -> None:
    rng = random.Random(7)
    understood = 0
    for turn in range(10_000):
        if turn % 2:
            data = bytearray(IPXE_ROM_DISCOVER)
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            data = bytearray(IPXE_ROM_DISCOVER[:240] + rng.randbytes(rng.randrange(300)))
        try:
            packet = dhcp.decode(bytes(data))
            query = dhcp.query(packet, "lab")
        except DecodeError:
            continue
        understood += 1
        answer = DhcpAnswer("OFFER", "10.77.1.5", "lab", 900.0, "n1", "cod.test", "undionly.kpxe")
        dhcp.encode(dhcp.reply(packet, query, answer, SUBNET))
    assert 1000 < understood < 5000


# ---------------------------------------------------------------- writing


def reply_to(packet: Packet, answer: DhcpAnswer) -> Packet:
    return dhcp.reply(packet, dhcp.query(packet, "lab"), answer, SUBNET)


OFFER = DhcpAnswer("OFFER", "10.77.1.5", "lab", 900.0, "n1", "web.cod.test", "undionly.kpxe")


def test_an_offer_to_firmware_word_for_word() -> None:
    wanted = bytes([1, 3, 66, 67])
    asked = message(
        options={
            60: b"PXEClient:Arch:00000",
            55: wanted,
            61: b"\1abc",
            82: b"\1\2xy",
            97: bytes(17),
        }
    )
    reply = reply_to(asked, OFFER)
    assert (reply.op, reply.xid, reply.yiaddr, reply.siaddr) == (
        2,
        7,
        socket.inet_aton("10.77.1.5"),
        socket.inet_aton("10.77.0.1"),
    )
    assert reply.file.rstrip(b"\0") == b"undionly.kpxe"
    assert reply.options == {
        53: b"\2",
        54: socket.inet_aton("10.77.0.1"),
        51: (900).to_bytes(4, "big"),
        1: b"\xff\xff\0\0",
        28: socket.inet_aton("10.77.255.255"),
        3: socket.inet_aton("10.77.0.254"),
        6: b"\x0a\x4d\0\2\x0a\x4d\0\3",
        12: b"n1",
        15: b"web.cod.test",
        119: b"\3web\3cod\4test\0",
        60: b"PXEClient",
        43: b"\x06\x01\x08\xff",
        66: b"10.77.0.1",
        67: b"undionly.kpxe",
        61: b"\1abc",
        97: bytes(17),
        82: b"\1\2xy",
    }
    assert dhcp.encode(reply).rstrip(b"\0").endswith(b"\x52\4\1\2xy\xff")  # RFC 3046: last


def test_each_stage_is_spared_its_wait() -> None:
    def options(**asked: bytes) -> Mapping[int, bytes]:
        return reply_to(message(options={int(k[1:]): v for k, v in asked.items()}), OFFER).options

    assert options(o60=b"PXEClient", o77=b"iPXE")[175] == b"\xb0\1\1"
    assert options(o60=b"HTTPClient:Arch:00016")[60] == b"HTTPClient"
    assert options(o60=b"HTTPClient:Arch:00016")[67] == b"undionly.kpxe"
    assert not {43, 60, 66, 67, 175} & set(options())


def test_a_long_url_goes_into_the_option_alone() -> None:
    answer = DhcpAnswer("ACK", "10.77.1.5", "lab", 900.0, bootfile="http://10.77.0.1/" + "x" * 150)
    reply = reply_to(message(3, {60: b"PXEClient"}), answer)
    assert reply.file == bytes(128)
    assert len(reply.options[67]) == 167


def test_a_reply_is_no_larger_than_its_client_takes() -> None:
    domain = ".".join(["x" * 60] * 3)
    answer = DhcpAnswer("ACK", "10.77.1.5", "lab", 900.0, "n1", domain, "http://10.77.0.1/script")
    asked = {60: b"PXEClient", 77: b"iPXE", 82: bytes(200)}
    small = reply_to(message(3, asked), answer)
    assert len(dhcp.encode(small)) <= 576 - 28
    assert {54, 51, 67, 82, 175} <= set(small.options)
    assert 119 not in small.options
    large = reply_to(message(3, asked | {57: (1500).to_bytes(2, "big")}), answer)
    assert 119 in large.options


def test_a_nak_says_why_and_is_broadcast_through_a_relay() -> None:
    asked = message(3, {82: b"\1\1z"}, giaddr=b"\x0a\x4d\0\xfe", ciaddr=b"\x0a\x4d\1\1")
    reply = reply_to(asked, DhcpAnswer("NAK", "0.0.0.0", "lab", reason="no"))
    assert reply.flags == 0x8000
    assert reply.yiaddr == reply.ciaddr == reply.siaddr == bytes(4)
    assert reply.options == {53: b"\6", 54: socket.inet_aton("10.77.0.1"), 56: b"no", 82: b"\1\1z"}


ADDRESS, RELAY = b"\x0a\x4d\1\1", b"\x0a\x4d\0\xfe"


@pytest.mark.parametrize(
    ("kind", "giaddr", "ciaddr", "broadcast", "where"),
    [
        ("ACK", RELAY, ADDRESS, False, ("10.77.0.254", 67)),
        ("OFFER", RELAY, bytes(4), True, ("10.77.0.254", 67)),
        ("NAK", RELAY, bytes(4), False, ("10.77.0.254", 67)),
        ("ACK", bytes(4), ADDRESS, True, ("10.77.1.1", 68)),
        ("NAK", bytes(4), ADDRESS, False, ("255.255.255.255", 68)),
        ("OFFER", bytes(4), bytes(4), True, ("255.255.255.255", 68)),
        # the deviation named in wire/dhcp
        ("OFFER", bytes(4), bytes(4), False, ("255.255.255.255", 68)),
    ],
)
def test_where_replies_go(
    kind: str, giaddr: bytes, ciaddr: bytes, broadcast: bool, where: tuple[str, int]
) -> None:
    asked = message(3, giaddr=giaddr, ciaddr=ciaddr, flags=0x8000 if broadcast else 0)
    assert dhcp.destination(reply_to(asked, DhcpAnswer(kind, "10.77.1.5", "lab", 900.0))) == where
