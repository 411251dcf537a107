"""What a template wants of a node's disks without saying so: seen by allocation, explanation and
priming alike."""

from __future__ import annotations

import pytest

from cod.images.formats import sector_of
from cod.model import Image, Refused
from cod.policy.hardware import needs
from cod.policy.hardware.equal import canonical
from cod.policy.nodes import prime, template
from cod.policy.scheduler import feasibility
from cod.wire import xmldoc
from trampoline import partitions

GB = 10**9
WHOLE = '<template name="web"><image target="disk" name="debian"/>{known}</template>'
KNOWN = '<known name="debian" size="{size}" sector="{sector}"/>'
NEEDS = WHOLE.format(known=KNOWN.format(size=4 * GB, sector=512))


def report(*disks: str) -> str:
    """A hardware report with those disks: the attributes that are not as usual."""
    usual = {
        "name": "sda",
        "size": str(8 * GB),
        "transport": "ata",
        "local": "yes",
        "rotational": "no",
        "removable": "no",
    }
    elements = ""
    for disk in disks:
        told = usual | dict(word.split("=") for word in disk.split())
        elements += "<disk " + " ".join(f'{name}="{value}"' for name, value in told.items()) + "/>"
    return (
        '<node version="1"><system/><firmware kind="bios"/><memory mib="2048"/><cpu count="1"'
        ' sockets="1" arch="x86_64"/><nic name="eth0" mac="52:54:00:00:00:01" link="up"'
        f' boot="yes"/>{elements}<kernel release="6"/></node>'
    )


def why(document: str, *disks: str) -> str:
    return "; ".join(map(str, feasibility.lacking("", document, canonical(report(*disks)))))


def image(size: int, sector: int) -> Image:
    return Image(
        1, "debian", None, "ready", "raw", size, 1, 1, "", "d" * 64, 0.0, "", "disk", "", sector
    )


@pytest.mark.parametrize(
    ("disks", "said"),
    [
        (("",), ""),
        (("local=no transport=usb", ""), ""),
        (
            (),
            (
                "disk: one with local yes, bootable yes, size at least 4 GB, sector 512 B wanted,"
                " none found"
            ),
        ),
        (("local=no transport=usb",), "disk/local: yes wanted, no found"),
        (("bootable=no",), "disk/bootable: yes wanted, no found"),
        (("sector=4096",), "disk/sector: 512 B wanted, 4096 B found"),
        ((f"size={GB}",), "disk/size: at least 4 GB wanted, 1 GB found"),
        (("sector=4096", "local=no", f"size={GB}"), "none like that among 3"),
    ],
)
def test_a_node_without_a_disk_for_the_image_does_not_match(
    disks: tuple[str, ...], said: str
) -> None:
    found = why(NEEDS, *disks)
    assert said in found
    assert bool(found) == bool(said)


def test_priming_refuses_what_allocation_does_not_match() -> None:
    configuration = template.parse(WHOLE.format(known=""))
    there = {"debian": image(4 * GB, 4096)}
    with pytest.raises(
        Refused, match="lacks what the template requires: disk/sector: 4096 B wanted, 512 B found"
    ):
        prime.resolve(configuration, report(""), there, "http://x")
    parts = prime.resolve(configuration, report("sector=4096"), there, "http://x")
    assert (parts.sector, parts.images[0].size) == (4096, 4 * GB)


def test_an_image_for_any_disk_asks_for_no_sector() -> None:
    document = WHOLE.format(known=KNOWN.format(size=GB, sector=0))
    assert why(document, "sector=4096") == why(document, "") == ""


def test_what_the_owner_says_of_sectors_counts() -> None:
    configuration = template.parse(
        WHOLE.replace("<image ", '<image sector="4096" ').format(known="")
    )
    assert needs.sector(needs.with_facts(configuration, {"debian": image(GB, 512)}).images) == 4096


def test_where_nothing_is_known_nothing_is_asked_for() -> None:
    assert why(WHOLE.format(known="")) == ""
    diskless = (
        '<template name="x"><boot mode="diskless"><kernel url="http://x/k"/></boot></template>'
    )
    assert why(diskless) == ""


def test_a_layout_needs_its_partitions_and_a_mebibyte_at_each_end() -> None:
    document = """<template name="x"><layout table="gpt"><partition number="1" size="1000kB" type="linux"/>
      <partition number="2" type="linux"/></layout><image target="2" name="debian"/>
      <known name="debian" size="2097152" sector="0"/></template>"""
    configuration = template.parse(document)
    assert needs.least_size(configuration, configuration.images) == 5 << 20
    assert why(document, f"size={5 << 20}") == ""
    assert "disk/size: at least 5.24288 MB wanted" in why(document, f"size={4 << 20}")


SEEDED = """<template name="web"><image target="disk" name="debian"/><personalise seed="nocloud"/>
  <known name="debian" size="{size}" sector="512" ends_at="{end}"/></template>"""


@pytest.mark.parametrize("mib", [0, 1])
def test_a_seed_has_room_behind_the_image_or_the_node_does_not_match(mib: int) -> None:
    """cprime places the seed in whole mebibytes, and leaves the last one of the disk free."""
    size, end = 100 << 20, (97 << 20) + 512
    document = SEEDED.format(size=size, end=end)
    disk = partitions.tail((99 + mib) << 20, 1 << 20)
    assert (disk >= end) == bool(mib)
    assert bool(why(document, f"size={(99 + mib) << 20}")) == (not mib)
    assert why(document.replace(' ends_at="', ' x="'), f"size={size}") == ""


def test_a_large_seed_needs_a_larger_disk() -> None:
    document = SEEDED.format(size=4 << 20, end=4 << 20)
    large = f"<user-data>{'x' * (2 << 20)}</user-data></personalise>"
    document = document.replace('seed="nocloud"/>', f'seed="nocloud">{large}')
    assert why(document, f"size={7 << 20}")
    assert why(document, f"size={8 << 20}") == ""


def test_a_layout_leaves_room_for_the_seed() -> None:
    layout = '<layout table="gpt"><partition number="1" size="8MiB" type="linux"/></layout>'
    document = SEEDED.replace("<image", f"{layout}<image").format(size=1 << 20, end=0)
    document = document.replace('target="disk"', 'target="1"')
    assert why(document, f"size={10 << 20}")
    assert why(document, f"size={11 << 20}") == ""


LARGE = """<template name="x"><layout table="mbr"><partition number="1" size="3TiB" type="linux"/>
  </layout><image target="1" name="debian"/>{known}</template>"""


def test_a_layout_that_an_mbr_does_not_address_wants_larger_sectors_or_is_refused() -> None:
    document = LARGE.format(known="")
    assert "sector: 4096 B wanted" in why(document, f"size={4 << 40}")
    assert why(document, f"size={4 << 40} sector=4096") == ""
    configuration = template.parse(document)
    prime.check_images(configuration, {"debian": image(GB, 0)})
    with pytest.raises(Refused, match="an MBR addresses 2199023255040 bytes"):
        prime.check_images(configuration, {"debian": image(GB, 512)})


def test_the_image_that_fits_the_hardware_counts() -> None:
    document = """<template name="x"><image target="disk" name="large"><when><firmware><kind equal="uefi"/></firmware>
      </when></image><image target="disk" name="small"/><known name="large" size="99999999999" sector="4096"/>
      <known name="small" size="1000000" sector="512"/></template>"""
    assert why(document, "") == ""


def test_a_site_that_leaves_sizes_out_of_its_types_is_not_asked_for_them() -> None:
    without = canonical(report("")).replace(f' size="{8 * GB}"', "")
    assert feasibility.lacking("", NEEDS, without) == ()


@pytest.mark.parametrize(
    ("head", "sector"),
    [
        (bytes(512) + b"EFI PART", 512),
        (bytes(4096) + b"EFI PART", 4096),
        (bytes(446) + b"\x80\0\0\0\x83" + bytes(59) + b"\x55\xaa", 512),
        (b"\xeb\x58\x90mkfs.fat\0\x02" + bytes(497) + b"\x55\xaa", 512),
        (b"\xeb\x58\x90mkfs.fat\0\x10" + bytes(497) + b"\x55\xaa", 0),
        (bytes(8192), 0),
    ],
)
def test_an_images_sectors_are_told_by_its_table_or_file_system(head: bytes, sector: int) -> None:
    assert sector_of(head.ljust(8192, b"\0")) == sector


@pytest.mark.parametrize(
    ("layout", "booting", "fault"),
    [
        (
            '<partition number="1" size="1MiB" type="bios"/><partition number="2" type="linux"/>',
            [1],
            "",
        ),
        (
            (
                '<partition number="1" size="1MiB" type="linux" boot="yes"/><partition number="2"'
                ' type="linux"/>'
            ),
            [1],
            "",
        ),
        (
            '<partition number="1" size="1MiB" type="linux"/><partition number="2" type="linux"/>',
            [],
            "",
        ),
        (
            (
                '<partition number="1" size="1MiB" type="linux" boot="yes"/><partition number="2"'
                ' type="linux" boot="yes"/>'
            ),
            [],
            "from one partition only",
        ),
        (
            (
                '<partition number="1" size="1MiB" type="linux"/><partition number="2" type="linux"'
                ' boot="yes"/>'
            ),
            [],
            "start from partition 2, which gets no image",
        ),
    ],
)
def test_which_partition_of_a_layout_starts(layout: str, booting: list[int], fault: str) -> None:
    document = (
        f'<template name="x"><layout table="gpt">{layout}</layout><image target="1"'
        ' name="a"/></template>'
    )
    xmldoc.parse(document.encode(), "template")
    if fault:
        with pytest.raises(Refused, match=fault):
            template.parse(document)
    else:
        assert [one.number for one in template.parse(document).partitions if one.boot] == booting
