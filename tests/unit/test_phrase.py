"""What a machine is, in a phrase, and the names that new machines are proposed."""

from __future__ import annotations

import pytest

from cod.filters.ranges import expanded
from cod.policy.hardware.phrase import phrase
from cod.policy.people import names

REPORT = """<node version="1"><system/><firmware kind="uefi"/><memory mib="{mib}"/>
<cpu count="96" sockets="2" arch="x86_64"/>
<nic name="eth0" mac="52:54:00:00:00:01" link="up" boot="yes" speed="{speed}"/>
<nic name="eth1" mac="52:54:00:00:00:02" link="up" boot="no" speed="10"/>{more}</node>"""
GPU = '<pci slot="0000:3b:00.0" class="0302" vendor="10de" device="20b0"/>'
BOARD = '<pci slot="0000:02:00.0" class="0300" vendor="102b" device="0538"/>'
KNOWN = {("10de", "20b0"): "GA100 [A100 SXM4 40GB]"}


@pytest.mark.parametrize(
    ("mib", "speed", "more", "words"),
    [
        (
            2063000,
            25000,
            GPU * 4 + BOARD + '<gpu count="4"/>',
            "2 TiB, 4 x A100 SXM4 40GB, 25 Gb/s",
        ),
        (191000, 2500, '<gpu count="1"/>', "192 GiB, 1 x GPU, 2.5 Gb/s"),
        (4000, 100, BOARD, "4 GiB, 100 Mb/s"),
    ],
)
def test_a_report_is_said_in_a_phrase(mib: int, speed: int, more: str, words: str) -> None:
    said = phrase(REPORT.format(mib=mib, speed=speed, more=more), lambda *ids: KNOWN.get(ids, ""))
    assert said == f"96 CPUs, {words}"


def test_a_report_that_tells_little_makes_a_short_phrase() -> None:
    assert phrase('<node version="1"><cpu count="1"/></node>', lambda *ids: "") == "1 CPU"


@pytest.mark.parametrize(
    ("inside", "elsewhere", "count", "pattern"),
    [
        ((), (), 12, "r12-[01-12]"),
        ((), (), 1, "r12-01"),
        (("r12-01", "r12-02", "login"), (), 3, "r12-[03-05]"),
        (("gpu9", "gpu10"), ("gpu40",), 2, "gpu[41-42]"),
        (("node-525400000001", "node-525400000002"), (), 2, "r12-[01-02]"),
        ((), ("r12-07",), 100, "r12-[008-107]"),
        (("r12-98",), (), 4, "r12-[99-102]"),
    ],
)
def test_names_go_on_behind_those_of_the_rack(
    inside: tuple[str, ...], elsewhere: tuple[str, ...], count: int, pattern: str
) -> None:
    assert names.name_pattern("r12", inside, (*inside, *elsewhere), count) == pattern
    given = expanded(pattern, 500)
    assert len(given) == count
    assert not {*given} & {*inside, *elsewhere}
