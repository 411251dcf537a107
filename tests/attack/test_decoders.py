"""Mutated messages of each protocol, through all of its code that needs no socket: refused in its
own words, each.

`COD_ATTACK` says how many (`make attack`: a million of each). Prints what came of them, and growth
of memory.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

import pytest
from dnslib import DNSRecord

from cod.model import DhcpAnswer, DnsAnswer, DnsRecord, LdapCode, LdapSearch, Site
from cod.policy.people import ldap_filter
from cod.wire import dhcp, dns, http, ldap, tftp, xmldoc
from cod.wire.confd import protocol as confd
from cod.wire.errors import PeerError
from cod.wire.nmp import frames
from tests.attack import ldap_requests
from tests.attack.mutants import COUNT, memory, mutants
from tests.unit.dhcp_captures import IPXE_ROM_DISCOVER, IPXE_ROM_REQUEST, OVMF_DISCOVER

pytestmark = pytest.mark.slow

GROWTH = 16 << 10  # KiB
Attack = Callable[[bytes, Site], str]


def read_request(name: str, *options: str) -> bytes:
    return (
        struct.pack("!H", 1)
        + b"\0".join(word.encode() for word in (name, "octet", *options))
        + b"\0"
    )


def _refused(why: str | bytes) -> str:
    assert 0 < len(why) < 1000, "a refusal says why, and is no longer than what came"
    return "refused"


def dhcp_attack(data: bytes, site: Site) -> str:
    try:
        packet = dhcp.decode(data)
        query = dhcp.query(packet, "lab")
    except dhcp.DecodeError:
        return "refused"
    said = DhcpAnswer("OFFER", "10.77.1.1", "lab", 60.0, "n1", "cod.test", "undionly.kpxe")
    reply = dhcp.reply(packet, query, said, site.subnets[0])
    dhcp.destination(reply)
    assert dhcp.decode(dhcp.encode(reply)).xid == packet.xid
    return "answered"


def tftp_attack(data: bytes, site: Site) -> str:
    session = tftp.TftpSession(
        tftp.TftpRequest("read", "x", "octet", {"windowsize": "4"}), bytes(10_000)
    )
    session.start(0.0)
    session.receive(data, 0.1)
    try:
        request = tftp.decode_request(data)
    except tftp.Malformed as error:
        tftp.encode_error(tftp.ILLEGAL, str(error))
        return "refused"
    for burst in tftp.TftpSession(request, bytes(100_000)).start(0.0):
        burst.datagrams()
    return "answered"


def dns_attack(data: bytes, site: Site) -> str:
    try:
        query = dns.decode(data)
    except dns.DecodeError:
        return "dropped"
    except dns.Unanswerable as refusal:
        return _refused(refusal.reply)
    records = (
        DnsRecord("cod.test", "SOA", 1),
        DnsRecord(query.question.name, "SSHFP", (4, 2, "ab" * 32)),
    )
    for answer in (DnsAnswer("nxdomain"), DnsAnswer("ok", records, "cod.test", 1)):
        reply = dns.encode(
            query, answer, primary="ns.cod.test", domain="cod.test", server="10.77.0.1"
        )
        assert len(reply) <= query.room
    dns.refused(query), dns.failed(query), dns.shortened(query)
    return "answered"


def confd_attack(data: bytes, site: Site) -> str:
    side = confd.ServerSide(
        bytes(confd.NONCE), b"k" * confd.KEY, lambda body: xmldoc.parse(body, "confd")
    )
    try:
        side.receive(data)
    except confd.ProtocolError as error:
        return _refused(str(error))
    return "taken"


def nmp_attack(data: bytes, site: Site) -> str:
    try:
        messages = list(frames.Decoder(frames.LONGEST_HELLO).feed(data))
    except frames.Fault as fault:
        return _refused(str(fault))
    return "answered" if messages else "waited for"


def http_attack(data: bytes, site: Site) -> str:
    target, _, rest = data.partition(b"\n")
    headers = dict(line.partition(b":")[::2] for line in rest.split(b"\n"))
    answer = http.answer(
        {name.lower(): value.strip() for name, value in headers.items()}, 1000, '"x"'
    )
    assert 0 <= answer.start <= answer.start + answer.length <= 1000
    try:
        parts = http.path_parts(target)
    except http.BadTarget:
        return "refused"
    assert not {"..", "."} & set(parts)
    assert not any("/" in part or "\0" in part for part in parts)
    return "answered"


def ldap_attack(data: bytes, site: Site) -> str:
    try:
        length = ldap.length(data)
        if length is None or length > len(data):
            return "waited for"
        message = ldap.decode(data[:length])
    except PeerError as error:
        return _refused(str(error))
    if isinstance(message.request, LdapSearch):
        values = {
            "uid": ("ann",),
            "cn": ("a b c",),
            "uidnumber": ("20000",),
            "objectclass": ("posixAccount",),
        }
        ldap_filter.matches(message.request.filter, values)
        ldap_filter.narrowed(message.request.filter)
        ldap_filter.possible(message.request.filter, {"posixaccount"}, values)
    ldap.answer(message.id, message.request, LdapCode.BUSY, "later")
    return "answered"


ATTACKS: dict[str, tuple[Attack, list[bytes]]] = {
    "dhcp": (dhcp_attack, [IPXE_ROM_DISCOVER, IPXE_ROM_REQUEST, OVMF_DISCOVER]),
    "tftp": (
        tftp_attack,
        [
            read_request("file"),
            read_request("file", "blksize", "1428", "windowsize", "16"),
            read_request("pxelinux.cfg/01-52-54-00-12-34-56"),
            b"\0\4\0\1",
            b"\0\5\0\1no\0",
        ],
    ),
    "dns": (
        dns_attack,
        [
            bytes(DNSRecord.question(name, kind).pack())
            for name, kind in (
                ("n1.pool.cod.test", "A"),
                ("1.0.77.10.in-addr.arpa", "PTR"),
                ("cod.test", "SOA"),
                ("a" * 60 + ".b", "ANY"),
            )
        ],
    ),
    "confd": (
        confd_attack,
        [
            confd.frame(
                b'<hello version="1" id="%s" mac="52:54:00:12:34:56" nonce="%s"/>'
                % (b"a" * 32, b"0" * 64)
            ),
            confd.frame(b'<proof mac="%s"/>' % (b"0" * 64)),
        ],
    ),
    "nmp": (
        nmp_attack,
        [
            frames.encode(frames.Message("hello", "1", b'<hello version="1.0" vcluster="web"/>')),
            frames.encode(frames.Message("status", "2", answers="1")) * 2,
        ],
    ),
    "ldap": (ldap_attack, ldap_requests.requests()),
    "http": (
        http_attack,
        [
            b'/boot/52:54:00:12:34:56/script.ipxe\nRange: bytes=5-90\nIf-None-Match: "x"',
            b'http://h/files/%2e%2e/a%2fb?x\nIf-Range: "x"\nRange: bytes=-5',
        ],
    ),
}


@pytest.mark.parametrize("protocol", ATTACKS)
def test_mutated_messages(protocol: str, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    attack, good = ATTACKS[protocol]
    assert {attack(one, site) for one in good} - {"dropped"}, "what is right gets further"
    outcomes: Counter[str] = Counter()
    before = 0
    for number, packet in enumerate(mutants(good, len(protocol))):
        if number == COUNT // 10:
            before = memory()
        try:
            outcomes[attack(packet, site)] += 1
        except Exception as error:
            raise AssertionError(f"message {number}, {packet.hex()}") from error
    grown = memory() - before
    with capsys.disabled():
        print(f"\n{protocol}: {outcomes.total():,} messages, {dict(outcomes)}, {grown} KiB grown")
    assert grown < GROWTH
