"""DNS messages (RFC 1035, EDNS per RFC 6891): bytes <-> questions and answers. No I/O.

dnslib knows the format. This module adds the rules of a server: a message has one question of class
IN; its name is compared case-insensitively and repeated as the client wrote it; an answer fits the
client's datagram.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dnslib import (
    CLASS,
    CNAME,
    EDNS0,
    NS,
    OPCODE,
    PTR,
    QTYPE,
    RCODE,
    RR,
    SOA,
    SSHFP,
    TXT,
    A,
    DNSHeader,
    DNSLabel,
    DNSQuestion,
    DNSRecord,
)

from cod.model import DnsAnswer, DnsQuestion, DnsRecord, dotted
from cod.wire.errors import PeerError

TTL = 30  # seconds; a node's name can move to another machine within minutes
PLAIN = 512  # bytes of a datagram without EDNS
LARGEST = 1232  # bytes of one with it: what passes everywhere unfragmented (DNS flag day 2020)
LABEL, NAME = 63, 255  # bytes of a label, of a whole name (RFC 1035, section 2.3.4)
STREAM = 65535  # bytes of a message over TCP
# bytes of a message of a whole zone: dnslib compresses names by pointers, which reach 16,384 bytes
PART = 15_000
# seconds after which secondaries ask by themselves, and after which they give up
REFRESH, RETRY, EXPIRE = 3600, 600, 1_209_600


class DecodeError(PeerError, ValueError):
    """The bytes are not a question that a server could answer. The text is for the debug log."""


class Unanswerable(Exception):
    """The question must be refused; `reply` is the message to send."""

    def __init__(self, reply: bytes) -> None:
        super().__init__("refused")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Query:
    """A received question.

    room       bytes that its answer may have
    recursive  the client allows forwarding
    transfer   the whole zone is requested; `known`: the zone's serial that the client has, None if
               it has none
    """

    record: DNSRecord
    question: DnsQuestion
    room: int
    recursive: bool
    transfer: bool = False
    known: int | None = None


def decode(data: bytes, *, stream: bool = False) -> Query:
    """Return the question in a message. Raises `DecodeError` for bytes that get no answer, and
    `Unanswerable` for questions that get a refusal."""
    try:
        record = DNSRecord.parse(data)
    except Exception as error:  # the parser is others' and its input anybody's
        raise DecodeError(f"{len(data)} bytes that are no DNS message: {error}") from None
    if record.header.qr:
        raise DecodeError("an answer, not a question")
    for each in record.questions:
        labels = each.qname.label
        if (
            any(len(label) > LABEL for label in labels)
            or sum(len(label) + 1 for label in labels) + 1 > NAME
        ):
            # dnslib can read such a name, but not write it
            raise DecodeError("a name that is longer than names can be")
    edns = next((extra for extra in record.ar if extra.rtype == QTYPE.OPT), None)
    room = STREAM if stream else min(LARGEST, max(PLAIN, edns.edns_len)) if edns else PLAIN
    if record.header.opcode != 0:
        raise Unanswerable(_empty(record, "NOTIMP"))
    if len(record.questions) != 1:
        raise Unanswerable(_empty(record, "FORMERR"))
    asked = record.q
    if asked.qclass != CLASS.IN or (asked.qtype == QTYPE.AXFR and not stream):
        raise Unanswerable(_empty(record, "REFUSED"))
    name = str(asked.qname).rstrip(".").lower()
    if asked.qtype not in (QTYPE.AXFR, QTYPE.IXFR):
        return Query(
            record, DnsQuestion(name, str(QTYPE[asked.qtype])), room, bool(record.header.rd)
        )
    if not stream:  # the answer's SOA says whether it is worth a connection (RFC 1995 section 2)
        return Query(record, DnsQuestion(name, "SOA"), room, False)
    soas = (
        [one.rdata for one in record.auth if one.rtype == QTYPE.SOA]
        if asked.qtype == QTYPE.IXFR
        else []
    )
    known = soas[0].times[0] if soas and isinstance(soas[0], SOA) else None
    return Query(record, DnsQuestion(name, "AXFR"), room, False, True, known)


def refused(query: Query) -> bytes:
    """Return the refusal of a name outside COD's zones that is not forwarded."""
    return _empty(query.record, "REFUSED")


def failed(query: Query) -> bytes:
    """Return the answer that the server cannot look up the name now (SERVFAIL)."""
    return _empty(query.record, "SERVFAIL")


def encode(query: Query, answer: DnsAnswer, *, primary: str, domain: str, server: str) -> bytes:
    """Return the reply. `primary` is the first of the zone's name servers; `server` is this
    server's address as the client uses it."""
    reply = _reply(
        query.record, "NXDOMAIN" if answer.code == "nxdomain" else "NOERROR", authority=True
    )
    asked = query.record.q.qname
    for each in answer.records:
        reply.add_answer(
            record(each, primary, domain, asked if each.name == query.question.name else None)
        )
    if answer.server:
        reply.add_answer(RR(asked, QTYPE.A, rdata=A(server), ttl=TTL))
    if not reply.rr or answer.code == "nxdomain":  # for how long that may be believed (RFC 2308)
        zone = answer.zone or asked  # as asked: not each name can be made of text
        reply.add_auth(RR(zone, QTYPE.SOA, rdata=_soa(primary, domain, answer.serial), ttl=TTL))
    data = bytes(reply.pack())
    return data if len(data) <= query.room else shortened(query, authority=True)


def record(each: DnsRecord, primary: str, domain: str, name: DNSLabel | None = None) -> RR:
    """Return a record in dnslib's form. `name`: the record's name, as the client wrote it."""
    data: Any
    match each.type, each.data:
        case "A", int(address):
            data = A(dotted(address))
        case "SOA", int(serial):
            data = _soa(primary, domain, serial)
        case "SSHFP", (int(algorithm), int(kind), str(fingerprint)):
            data = SSHFP(algorithm, kind, bytes.fromhex(fingerprint))
        case "NS" | "PTR" | "CNAME" | "TXT", str(text):
            data = _TEXTUAL[each.type](text)
        case _:
            raise ValueError(f"no record: {each}")
    return RR(name or each.name, getattr(QTYPE, each.type), rdata=data, ttl=TTL)


_TEXTUAL: dict[str, Any] = {"NS": NS, "PTR": PTR, "CNAME": CNAME, "TXT": TXT}


def _soa(primary: str, domain: str, serial: int) -> SOA:
    return SOA(primary, f"hostmaster.{domain}", (serial & 0xFFFFFFFF, REFRESH, RETRY, EXPIRE, TTL))


def transfer(
    query: Query, records: Sequence[DnsRecord], *, primary: str, domain: str
) -> Iterator[bytes]:
    """Yield the messages of a whole zone (RFC 5936), whose SOA is the first of `records`; if the
    client has this serial already, only the SOA (RFC 1995)."""
    if query.known is not None and query.known == records[0].data:
        rest: Sequence[DnsRecord] = records[:1]
    else:
        rest = [*records, records[0]]
    message, left = _reply(query.record, "NOERROR", authority=True), PART
    for each in rest:
        # at most
        size = 14 + len(each.name) + (len(each.data) if isinstance(each.data, str) else NAME)
        if left < size:
            yield bytes(message.pack())
            message, left = _reply(query.record, "NOERROR", authority=True), PART
        message.add_answer(record(each, primary, domain))
        left -= size
    yield bytes(message.pack())


def notify(zone: str, number: int) -> bytes:
    """Return the message that tells a secondary that a zone has changed (RFC 1996)."""
    header = DNSHeader(id=number, qr=0, aa=1, rd=0)
    header.opcode = OPCODE.NOTIFY
    return bytes(DNSRecord(header, q=DNSQuestion(zone, QTYPE.SOA)).pack())


def notified(data: bytes) -> tuple[int, bool] | None:
    """Return (number of the NOTIFY that the message answers, whether the secondary accepted it);
    None if the message is no such answer."""
    if len(data) < 12 or not data[2] & 0x80 or data[2] >> 3 & 0xF != OPCODE.NOTIFY:
        return None
    return int.from_bytes(data[:2], "big"), data[3] & 0xF == RCODE.NOERROR


def serial_question(zone: str, number: int) -> bytes:
    """Return the message that asks a secondary for its serial of a zone."""
    return bytes(DNSRecord(DNSHeader(id=number, rd=0), q=DNSQuestion(zone, QTYPE.SOA)).pack())


def serial(data: bytes, zone: str) -> int | None:
    """Return the serial of the zone in an answer to `serial_question`; None if the server does not
    have the zone."""
    try:
        answers = DNSRecord.parse(data).rr
    except Exception:  # the parser is others' and its input anybody's
        return None
    for each in answers:
        named = str(each.rname).rstrip(".").lower() == zone.lower()
        if named and isinstance(each.rdata, SOA):
            return int(each.rdata.times[0])
    return None


def _reply(record: DNSRecord, code: str, *, authority: bool = False) -> DNSRecord:
    header = DNSHeader(
        id=record.header.id,
        qr=1,
        aa=int(authority),
        rd=record.header.rd,
        ra=0,
        rcode=getattr(RCODE, code),
    )
    reply = DNSRecord(header, q=record.questions[0] if record.questions else None)
    if any(extra.rtype == QTYPE.OPT for extra in record.ar):
        reply.add_ar(EDNS0(udp_len=LARGEST))
    return reply


def _empty(record: DNSRecord, code: str) -> bytes:
    return bytes(_reply(record, code).pack())


def answers(data: bytes, query: Query) -> bool:
    """Return whether the message is another server's reply to the question. Names are compared
    case-insensitively."""
    question = bytes(DNSRecord(query.record.header, q=query.record.q).pack())[12:]
    return (
        len(data) > 12
        and bool(data[2] & 0x80)
        and data[12 : 12 + len(question)].lower() == question.lower()
    )


def shortened(query: Query, *, authority: bool = False) -> bytes:
    """Return an empty reply, marked as truncated: the client asks again over TCP."""
    reply = _reply(query.record, "NOERROR", authority=authority)
    reply.header.tc = 1
    return bytes(reply.pack())
