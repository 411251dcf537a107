"""A stock Debian 12 from packages, on a whole machine: primed, booted, logged in to by the owner's
key.

The machine has UEFI; those of test_members.py, which boot a variant of the image, have a BIOS.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.lab import network, record
from cod.lab.spec import LabDisk, LabNic, LabNode
from images import build as images
from images import debian
from tests.system.login import Key, ssh
from tests.system.owner import API, Owner
from tests.system.qemu import CHECKOUT, Rack, build_all, rack
from trampoline.recipe import packages

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(2400)]

TABLES = f"""
[api]
listen = ["{API}"]
plain = true
"""
MACHINES = (
    LabNode(
        "u1",
        "uefi",
        memory=768,
        nics=(LabNic("virtio-net-pci"),),
        disks=(LabDisk(3 << 30, "nvme"),),
    ),
)
USER_DATA = """
    #cloud-config
    users:
      - default
      - name: carla
        sudo: ["ALL=(ALL) NOPASSWD:ALL"]
    write_files:
      - path: /etc/motd
        content: |
          ours
"""
SEEN = """
hostname; hostname -f; . /etc/os-release; echo $ID-$VERSION_ID
df -B1M --output=size / | tail -1; lsblk -no LABEL | xargs -n1 | sort | xargs
cloud-init status --wait | tail -1; id -un carla; cat /etc/motd
test -d /sys/firmware/efi && echo uefi || echo bios; ip -4 -o addr show scope global | wc -l
systemctl is-system-running --wait
"""


@pytest.fixture(scope="module")
def stand() -> Iterator[Rack]:
    build_all("debian")
    with rack(MACHINES, patience=3.0, policy=TABLES, restored=True) as stand:
        for machine in MACHINES:
            stand.power(machine.name, "on")
        yield stand


def vendors_copy(folder: Path) -> Path:
    """The image as vendors publish theirs: a compressed qcow2."""
    path = folder / "debian-12-generic-amd64.qcow2"
    subprocess.run(
        [
            "qemu-img",
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            "-c",
            "-o",
            "compression_type=zstd",
            CHECKOUT / "build/images/debian.img",
            path,
        ],
        check=True,
    )
    return path


@pytest.mark.nightly
def test_a_stock_debian_is_primed_and_its_owner_logs_in(stand: Rack, tmp_path: Path) -> None:
    stand.cod("group", "create", "physics", "--priority", "10")
    keys, stranger = [Key(tmp_path, "laptop"), Key(tmp_path, "desk")], Key(tmp_path, "stranger")
    ann = Owner(stand, "ann", keys)
    stand.cod("image", "add", "debian", str(vendors_copy(tmp_path)), "--wait")
    document = (CHECKOUT / "images/debian.xml").read_text()
    (tmp_path / "debian.xml").write_text(
        document.replace(
            '<personalise seed="nocloud"/>',
            f'<personalise seed="nocloud"><user-data>{USER_DATA}</user-data></personalise>',
        )
    )
    stand.cod("template", "add", str(tmp_path / "debian.xml"))
    for machine in MACHINES:
        stand.reaches(machine.name, "inactive")
    ann.cod(
        "vcluster",
        "create",
        "farm",
        "--group",
        "physics",
        "--size",
        str(len(MACHINES)),
        "--template",
        "debian",
        "--spread",
    )
    for machine in MACHINES:
        stand.reaches(machine.name, "active", seconds=1500)

    hosts = set()
    for machine in MACHINES:
        node = stand.node(machine.name)
        said = logs_in(stand, keys[0], node["address"], SEEN, tmp_path)
        name, fqdn, system, size, labels, status, user, motd, firmware, addresses, state = (
            said.splitlines()
        )
        assert (name, fqdn) == (node["hostname"], f"{node['hostname']}.farm.cod.demo")
        assert system == "debian-12"
        assert int(size) > 2500, "the root partition has grown to the seed's, at the disk's end"
        assert labels == "CIDATA DEBIAN-ESP debian-root"
        assert (status, user, motd) == (
            "status: done",
            "carla",
            "ours",
        ), "user data was carried out"
        assert (firmware, state, addresses) == (machine.firmware, "running", "1")
        assert logs_in(stand, keys[1], node["address"], "id -u", tmp_path) == "0\n", (
            "each key of a user lets them in"
        )
        assert (
            logs_in(stand, keys[1], node["address"], "sudo id -u", tmp_path, user="debian") == "0\n"
        )
        refused = tries(stand, stranger, f"root@{node['address']}", "true", tmp_path)
        assert "Permission denied (publickey" in refused.stderr
        hosts.add(name)
        assert stand.states(machine.name).count("boot") == 1, "its first boot was its last"
    assert len(hosts) == len(MACHINES)
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "known"], capture_output=True, text=True, check=True
    )
    assert len(set(re.findall(r"SHA256:\S+", listed.stdout))) == len(MACHINES), (
        "each node made itself a host key"
    )


def tries(stand: Rack, key: Key, to: str, command: str, folder: Path) -> Any:
    before = network.inside(record.namespace(stand.lab), [])
    return ssh(key, to, command, known=folder / "known", before=before)


def logs_in(
    stand: Rack, key: Key, address: str, command: str, folder: Path, user: str = "root"
) -> str:
    done = tries(stand, key, f"{user}@{address}", command, folder)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


# ---------------------------------------------------------------- the image alone


@pytest.fixture(scope="module")
def image() -> Path:
    images.build("debian", CHECKOUT / "build/images", CHECKOUT / "build/cache/images")
    return CHECKOUT / "build/images/debian.img"


def inside(image: Path, request: str) -> str:
    """What debugfs answers about the root file system, which is the third partition."""
    table = json.loads(
        subprocess.run(["sfdisk", "--json", image], check=True, capture_output=True).stdout
    )
    start = table["partitiontable"]["partitions"][2]["start"] * 512
    return subprocess.run(
        ["debugfs", "-R", request, f"{image}?offset={start}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.nightly
def test_nothing_of_the_build_machine_stays_in_it(image: Path) -> None:
    assert inside(image, "cat /etc/machine-id") == inside(image, "cat /etc/resolv.conf") == ""
    assert inside(image, "cat /etc/hostname") == "debian\n"
    assert inside(image, "cat /etc/apt/sources.list") == debian.sources()
    assert "ssh_host" not in inside(image, "ls /etc/ssh")
    for folder in (
        "/etc/apt/apt.conf.d",
        "/etc/dpkg/dpkg.cfg.d",
        "/etc/apt/sources.list.d",
        "/var/cache/apt/archives",
    ):
        assert "mmdebstrap" not in inside(image, f"ls {folder}")
        assert ".deb" not in inside(image, f"ls {folder}")
    assert "*" in inside(image, "cat /etc/shadow").splitlines()[0], "root has no password"
    assert inside(image, "cat /etc/initramfs-tools/update-initramfs.conf").startswith(
        "update_initramfs=yes"
    )


@pytest.mark.nightly  # a build of minutes; test_members.py boots what it makes
def test_the_members_variant_asks_sssd_for_accounts_and_mounts() -> None:
    """Look for what the packages have set up; the seed brings SSSD's own configuration."""
    images.build("debian-members", CHECKOUT / "build/images", CHECKOUT / "build/cache/images")
    image = CHECKOUT / "build/images/debian-members.img"
    switch = dict(
        re.findall(r"^(\w+):\s*(.*?)\s*$", inside(image, "cat /etc/nsswitch.conf"), re.MULTILINE)
    )
    assert [
        switch[name].split()[-1] for name in ("passwd", "group", "netgroup", "sudoers", "automount")
    ] == ["sss"] * 5
    for kind in ("auth", "account", "session"):
        assert "pam_sss.so" in inside(image, f"cat /etc/pam.d/common-{kind}")
    started = inside(image, "ls /etc/systemd/system/multi-user.target.wants")
    assert all(
        name in started
        for name in ("sssd.service", "autofs.service", "nfs-client.target", "ssh.service")
    )
    assert "lookup_sss.so" in inside(image, "ls /lib/x86_64-linux-gnu/autofs")
    assert "sss_ssh_authorizedkeys" in inside(image, "ls /usr/bin")
    assert "sssd.conf" not in inside(image, "ls /etc/sssd")
    assert "ssh_host" not in inside(image, "ls /etc/ssh")


def test_the_variants_packages_are_those_of_debian_and_some_more() -> None:
    plain, members = set(debian.wanted()), set(debian.wanted("debian-members"))
    assert plain < members
    more = {package.file.partition("_")[0] for package in members - plain}
    assert set(debian.VARIANTS["debian-members"]) <= more
    assert len(more) < 50, "no desktop, no Samba: what SSSD only recommends is left out"


def test_its_packages_are_a_whole_systems_whatever_is_installed_here() -> None:
    names = {package.file.partition("_")[0] for package in debian.wanted()}
    assert set(debian.PACKAGES) <= names
    assert {"bash", "libc6", "systemd-sysv", "apt", "initramfs-tools", "ifupdown"} <= names
    assert all(re.fullmatch("[0-9a-f]{64}", package.sha256) for package in debian.wanted())


def test_a_release_that_apt_has_no_sources_of_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debian, "SUITE", "potato")
    with pytest.raises(
        packages.PackagesMissing, match="apt has no sources of Debian potato: add them in /etc/apt"
    ):
        debian.sources()
