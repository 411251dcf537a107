"""The hardware report, from trees of files that stand for machines."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from lxml import etree

from tests.hardware import UUID, disk, machine, memory_device, nic, pci, put
from trampoline import inventory
from trampoline.inventory import Disk, Partition

SCHEMA = etree.RelaxNG(etree.parse(Path(__file__).parents[2] / "schema/report.rng"))
MAC = "b4:96:91:0a:0b:0c"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return machine(tmp_path / "root")


def report(root: Path, mac: str = MAC) -> ET.Element:
    """The report, checked against its schema."""
    node = inventory.report(root, mac, inventory.disks(root))
    SCHEMA.assertValid(etree.fromstring(ET.tostring(node)))
    return node


def one(node: ET.Element, path: str) -> dict[str, str]:
    (found,) = node.findall(path)
    return dict(found.attrib)


def test_a_server_is_reported_whole(root: Path) -> None:
    (root / "sys/firmware/efi").mkdir(parents=True)
    nic(root, "eth0", MAC, driver="ixgbe", speed="10000")
    nic(root, "eth1", "b4:96:91:0a:0b:0d", driver="ixgbe", carrier="0", speed="-1")
    disk(
        root,
        "nvme0n1",
        "pci0000:00/0000:00:1d.0/nvme/nvme0",
        2048 * 1024,
        {
            "queue/rotational": "0",
            "wwid": "eui.335939594b500123",
            "device/serial": "S39Y  ",
            "device/model": "PM1725a",
        },
        ((2, 4096, 8192, ""), (1, 2048, 2048, "EFI System")),
    )
    assert (
        ET.tostring(report(root), "unicode")
        == f'<node version="1"><system uuid="{UUID}" vendor="Dell Inc." product="PowerEdge R640"'
        ' serial="B5TN222" board="CN7016346K00A1" />'
        '<firmware kind="uefi" /><memory mib="2048" /><cpu count="2"'
        ' sockets="2" model="Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz" mhz="2100"'
        ' arch="x86_64"><flag>aes</flag><flag>avx2</flag><flag>lm</flag><flag>nx</flag><flag>vmx</flag></cpu><nic'
        f' name="eth0" mac="{MAC}" driver="ixgbe" link="up" speed="10000" boot="yes" /><nic'
        ' name="eth1" mac="b4:96:91:0a:0b:0d" driver="ixgbe" link="down" boot="no" /><disk'
        ' name="nvme0n1" size="1073741824" transport="nvme" local="yes" rotational="no"'
        ' removable="no" model="PM1725a" serial="S39Y" wwid="eui.335939594b500123"><partition'
        ' number="1" start="1048576" size="1048576" name="EFI System" /><partition number="2"'
        ' start="2097152" size="4194304" /></disk><kernel release="6.1.0-56-amd64" /></node>'
    )


def test_an_empty_machine_still_makes_a_valid_report(tmp_path: Path) -> None:
    node = report(tmp_path)
    assert one(node, "nic") == {"name": "boot", "mac": MAC, "link": "unknown", "boot": "yes"}
    assert one(node, "firmware") == {"kind": "bios"}
    assert one(node, "system") == {}
    assert node.find("disk") is None


@pytest.mark.parametrize("uuid", ["", "Not Settable", "4c4c4544-0042-3510-8054"])
def test_what_is_no_uuid_is_left_out(tmp_path: Path, uuid: str) -> None:
    assert "uuid" not in one(report(machine(tmp_path / "m", uuid=uuid)), "system")


def test_firmwares_rubbish_makes_no_invalid_document(root: Path) -> None:
    put(root / "sys/class/dmi/id/sys_vendor", b"Acme\x01\x1b[31m \xff\xfe & <Sons>  \n")
    put(root / "sys/class/dmi/id/product_serial", b" \x00\x00 ")
    put(root / "sys/class/dmi/id/product_name", "x" * 500)
    system = one(report(root), "system")
    assert system["vendor"] == "Acme [31m & <Sons>"
    assert "serial" not in system
    assert len(system["product"]) == 200


# ---------------------------------------------------------------- memory, CPU


def test_memory_is_what_is_in_the_sockets(root: Path) -> None:
    bios = bytes([0, 0x18, 0, 0]) + bytes(0x14) + b"Vendor\0 1.0\0\0"
    empty = memory_device(0)
    table = bios + memory_device(8192) + empty + memory_device(65536) + bytes([127, 4, 0, 0, 0, 0])
    put(root / "sys/firmware/dmi/tables/DMI", table)
    assert inventory.memory(root) == 8192 + 65536


@pytest.mark.parametrize(("size", "mib"), [(0x8000 | 2048, 2), (0xFFFF, 0), (0, 0), (512, 512)])
def test_odd_sizes_of_memory_devices(root: Path, size: int, mib: int) -> None:
    device = bytes([17, 0x15, 0, 0]) + bytes(8) + size.to_bytes(2, "little") + bytes(7) + b"\0\0"
    put(root / "sys/firmware/dmi/tables/DMI", memory_device(64) + device)
    assert inventory.memory(root) == 64 + mib


@pytest.mark.parametrize(
    "table",
    [b"", b"\x11", b"\x11\x28\0\0", b"\x11\x00\0\0" * 9, memory_device(1024)[:-2], b"\xff" * 99],
)
def test_a_broken_smbios_table_ends_nothing(root: Path, table: bytes) -> None:
    put(root / "sys/firmware/dmi/tables/DMI", table)
    assert inventory.memory(root) in (1024, 2048)


def test_equal_cpus_are_reported_equal(tmp_path: Path) -> None:
    """What the kernel measures at a boot is a little off, each time by something else."""
    measured = [
        machine(tmp_path / str(mhz), model="AMD EPYC", mhz=mhz)
        for mhz in (2594.9, 2595.124, 2600.3)
    ]
    assert {one(report(root), "cpu")["mhz"] for root in measured} == {"2600"}


def test_the_clock_limit_is_better_than_what_is_measured(tmp_path: Path) -> None:
    root = machine(tmp_path / "m", model="AMD EPYC", mhz=1499.0)
    put(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3350000")
    assert one(report(root), "cpu")["mhz"] == "3350"


def test_so_is_the_clock_that_the_board_was_told(tmp_path: Path) -> None:
    root = machine(tmp_path / "m", model="AMD EPYC 7302", mhz=1499.0)
    cpu = (
        bytes([4, 0x30, 0, 0])
        + bytes(16)
        + (3400).to_bytes(2, "little")
        + (3000).to_bytes(2, "little")
        + bytes(24)
    )
    put(root / "sys/firmware/dmi/tables/DMI", cpu + b"CPU 1\0\0")
    assert one(report(root), "cpu")["mhz"] == "3000"


# ---------------------------------------------------------------- NICs


def test_only_wired_hardware_counts(root: Path) -> None:
    nic(root, "lo", "00:00:00:00:00:00")
    nic(root, "br0", "02:00:00:00:00:01")
    nic(root, "wlan0", "02:00:00:00:00:02", driver="iwlwifi", wireless=True)
    nic(
        root,
        "ib0",
        "80:00:02:08:fe:80:00:00:00:00:00:00:e4:1d:2d:03:00:4c:52:11",
        driver="mlx5_core",
    )
    nic(root, "eth0", MAC.upper(), driver="e1000")
    assert [found.name for found in inventory.nics(root, MAC)] == ["eth0"]


def test_the_boot_nic_counts_whatever_it_is(root: Path) -> None:
    nic(root, "veth0", MAC)
    assert [found.name for found in inventory.nics(root, MAC)] == ["veth0"]


def test_an_interface_that_is_down_tells_neither_link_nor_speed(root: Path) -> None:
    nic(root, "eth0", MAC, driver="e1000", carrier=None, speed="4294967295")
    assert one(report(root), "nic") == {
        "name": "eth0",
        "mac": MAC,
        "driver": "e1000",
        "link": "unknown",
        "boot": "yes",
    }


# ---------------------------------------------------------------- PCI devices


def test_pci_devices_are_reported_with_their_ids_and_drivers(root: Path) -> None:
    pci(root, "0000:3b:00.0", "030200", "10de:20b0", board="10de:144e")
    pci(root, "0000:5e:00.0", "020000", "8086:1572", driver="i40e")
    assert [dict(found.attrib) for found in report(root).findall("pci")] == [
        {
            "slot": "0000:3b:00.0",
            "class": "0302",
            "vendor": "10de",
            "device": "20b0",
            "subvendor": "10de",
            "subdevice": "144e",
        },
        {
            "slot": "0000:5e:00.0",
            "class": "0200",
            "vendor": "8086",
            "device": "1572",
            "driver": "i40e",
        },
    ]
    assert one(report(root), "gpu") == {"count": "1"}


def test_bridges_chipset_parts_and_virtual_functions_are_left_out(root: Path) -> None:
    for number, class_ in enumerate(
        ("060400", "050000", "058000", "078000", "080700", "0c0500", "110100", "118000")
    ):
        pci(root, f"0000:00:{number:02x}.0", class_, "8086:2000")
    pci(root, "0000:5e:02.0", "020000", "8086:154c", driver="iavf", virtual=True)
    put(root / "sys/bus/pci/devices/0000:00:1f.0/class", "rubbish")
    assert report(root).findall("pci") == []


@pytest.mark.parametrize(
    ("slot", "class_", "ids", "counts"),
    [
        ("0000:3b:00.0", "030200", "10de:20b0", True),  # NVIDIA A100
        ("0000:3b:00.0", "038000", "1002:740f", True),  # AMD Instinct MI210
        ("0000:3b:00.0", "120000", "1002:74a1", True),  # AMD Instinct MI300X
        ("0000:3b:00.0", "038000", "8086:0bd5", True),  # Intel Data Center GPU Max
        ("0000:00:02.0", "030000", "8086:3e98", False),  # inside an Intel processor
        ("0000:03:00.0", "030000", "1a03:2000", False),  # ASPEED, of a BMC
        ("0000:03:00.0", "030000", "102b:0536", False),  # Matrox, of a BMC
        ("0000:00:02.0", "030000", "1234:1111", False),  # QEMU
        ("0000:3b:00.1", "040300", "10de:228b", False),  # the sound of a graphics card
        ("0000:3b:00.0", "120000", "10ee:5000", False),  # an FPGA
    ],
)
def test_gpus_are_what_computes(root: Path, slot: str, class_: str, ids: str, counts: bool) -> None:
    pci(root, slot, class_, ids)
    assert (report(root).find("gpu") is not None) == counts


# ---------------------------------------------------------------- disks

PLACES = {
    "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0": ("ata", True),
    "pci0000:00/0000:00:05.0/virtio2": ("virtio", True),
    "pci0000:00/0000:00:05.0/virtio2/host3/target3:0:0/3:0:0:0": ("virtio", True),
    "pci0000:00/0000:00:1d.0/nvme/nvme0": ("nvme", True),
    "pci0000:00/0000:03:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0": ("sas", True),
    "pci0000:00/0000:02:00.0/host0/target0:2:0/0:2:0:0": ("scsi", True),
    "pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.0/host6/target6:0:0/6:0:0:0": ("usb", False),
    "pci0000:00/0000:04:00.0/host7/rport-7:0-1/target7:0:0/7:0:0:1": ("fc", False),
    "platform/host8/session1/target8:0:0/8:0:0:1": ("iscsi", False),
    "platform/sdhci/mmc_host/mmc0/mmc0:0001": ("mmc", True),
    "platform/odd": ("unknown", False),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_disks_place_says_whether_it_may_be_written(root: Path, place: str) -> None:
    disk(root, "sda", place, 2048)
    (found,) = inventory.disks(root)
    assert (found.transport, found.local) == PLACES[place]


def test_nvme_over_a_network_is_not_local(root: Path) -> None:
    disk(root, "nvme0n1", "virtual/nvme-fabrics/ctl/nvme0", 2048, {"device/transport": "tcp"})
    (found,) = inventory.disks(root)
    assert (found.transport, found.local) == ("nvmeof", False)


def test_what_is_no_disk_is_not_listed(root: Path) -> None:
    ata = "pci0000:00/0000:00:1f.2/ata{}/host{}/target0:0:0/0:0:0:0"
    disk(root, "sda", ata.format(1, 0), 2048)
    disk(root, "sdb", ata.format(2, 1), 0)  # a card reader without a card
    disk(root, "sr0", ata.format(3, 2), 2048)
    disk(root, "nvme0c0n1", "pci0000:00/nvme/nvme0", 2048, {"hidden": "1"})
    put(root / "sys/block/loop0/size", "2048")
    put(root / "sys/block/md0/size", "2048")
    assert [found.name for found in inventory.disks(root)] == ["sda"]


def test_disks_come_in_the_order_of_their_letters(root: Path) -> None:
    for number, name in enumerate(["sdaa", "sdb", "sda"]):
        disk(root, name, f"pci0000:00/ata{number}/host{number}/target", 2048)
    assert [found.name for found in inventory.disks(root)] == ["sda", "sdb", "sdaa"]


@pytest.mark.parametrize(
    ("same_wwn", "local"), [("refuse", "a"), ("?", "a"), ("paths", "ab"), ("disks", "abc")]
)
def test_a_volume_with_two_paths_is_local_where_the_site_says_so(
    root: Path, same_wwn: str, local: str
) -> None:
    sas = "pci0000:00/0000:03:00.0/host0/port-0:{0}/end_device-0:{0}/target0:0:{0}/0:0:{0}:0"
    for number, (name, wwid) in enumerate([("sda", "naa.1"), ("sdb", "naa.2"), ("sdc", "naa.2")]):
        disk(root, name, sas.format(number), 2048, {"device/wwid": wwid})
    disk(root, "sdd", "pci0000:00/usb1/host9/target", 2048, {"device/wwid": "naa.2"})
    found = inventory.disks(root, same_wwn)
    assert {one.name[2:] for one in found if one.local} == set(local), "a stick is never local"
    assert [one.paths for one in found] == [1, 3, 3, 3]
    report = inventory.report(root, "52:54:00:00:00:01", found)
    assert [one.get("paths") for one in report.iter("disk")] == [None, "3", "3", "3"]


@pytest.mark.parametrize("file", ["removable", "ro"])
def test_removable_and_read_only_disks_are_not_local(root: Path, file: str) -> None:
    disk(root, "sda", "pci0000:00/ata1/host0/target", 2048, {file: "1"})
    assert [found.local for found in inventory.disks(root)] == [False]


def test_a_scsi_disks_serial_comes_from_its_page(root: Path) -> None:
    disk(
        root,
        "sda",
        "pci0000:00/ata1/host0/target",
        2048,
        {"device/vpd_pg80": b"\x00\x80\x00\x08 QM00001"},
    )
    assert [found.serial for found in inventory.disks(root)] == ["QM00001"]


def test_a_path_with_a_slash_in_it(root: Path) -> None:
    disk(root, "cciss!c0d0", "pci0000:00/cciss0/host0", 2048, partitions=((1, 63, 100, ""),))
    (found,) = inventory.disks(root)
    assert found.path == "/dev/cciss/c0d0"
    assert found.partitions == (Partition(1, 63 * 512, 100 * 512),)


def test_a_file_stands_for_a_disk(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(bytes(4096))
    assert inventory.file_disk(tmp_path / "d") == Disk(
        "d", str(tmp_path / "d"), 4096, "file", serial="d"
    )
