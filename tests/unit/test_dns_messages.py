"""Whole zones as DNS messages (`cod.wire.dns.transfer`)."""

from __future__ import annotations

import pytest
from dnslib import QTYPE, DNSRecord

from cod.model import DnsRecord
from cod.wire import dns as wire


def sent(records: list[DnsRecord]) -> list[tuple[str, str]]:
    """Return (name, data) of each record of the zone as a secondary reads it."""
    query = wire.decode(bytes(DNSRecord.question("pool.cod.test", "AXFR").pack()), stream=True)
    messages = wire.transfer(query, records, primary="ns.cod.test", domain="cod.test")
    return [
        (str(one.rname).rstrip("."), str(one.rdata).rstrip("."))
        for message in messages
        for one in DNSRecord.parse(message).rr
    ]


@pytest.mark.parametrize("length", [10, 60])
def test_long_names_arrive_as_they_are(length: int) -> None:
    """A message of more than 16 KiB has names that compression cannot point to."""
    soa = DnsRecord("pool.cod.test", "SOA", 7)
    aliases = [
        DnsRecord(
            f"{number:x}".rjust(length, "a") + ".pool.cod.test",
            "CNAME",
            ".".join([*(f"{number // 2:x}".rjust(length, each) for each in "tuv"), "example.com"]),
        )
        for number in range(300)
    ]
    found = sent([soa, *aliases])
    assert found[0] == found[-1]
    assert found[0][0] == "pool.cod.test"
    assert found[1:-1] == [(one.name, one.data) for one in aliases]


def test_messages_are_filled() -> None:
    query = wire.decode(bytes(DNSRecord.question("pool.cod.test", "AXFR").pack()), stream=True)
    records = [DnsRecord("pool.cod.test", "SOA", 7)] + [
        DnsRecord(f"n{number}.pool.cod.test", "A", number) for number in range(1000)
    ]
    messages = list(wire.transfer(query, records, primary="ns.cod.test", domain="cod.test"))
    assert len(messages) < 25
    assert all(len(message) < 2**14 for message in messages)
    assert (
        sum(one.rtype == QTYPE.A for message in messages for one in DNSRecord.parse(message).rr)
        == 1000
    )
