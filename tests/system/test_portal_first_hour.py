"""A new owner's first hour, in a real browser, on real machines: from an invitation to nodes that
run, and back.

The administrator says two words: a group, and an invitation. Everything after that is the owner's,
in the browser: an account, a key, a member, an image, a template, a virtual cluster whose nodes are
watched while they are written, and logged in to, extended, made smaller, ended. The lab's machines
boot unmodified firmware under QEMU.
"""

from __future__ import annotations

import mmap
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from cod.lab import network, record
from cod.lab.spec import LabDisk, LabNode
from tests.system.browser import Complaints, chromium, context, faults, picture
from tests.system.login import Key, fingerprints, ssh
from tests.system.qemu import CHECKOUT, Rack, build_all, rack

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]

MACHINES = tuple(
    LabNode(name, "bios", disks=(LabDisk(1 << 30, "virtio"),)) for name in ("one", "two")
)
ADDRESS = "10.77.0.1:8443"
TABLES = f"""
[api]
listen = ["{ADDRESS}"]

[signin]
url = "https://{ADDRESS}"
"""
URL = f"https://{ADDRESS}"
# A small image is written before a bar would show: while it is looked for, the images come over a
# wire of 16 Mb/s.
SLOW = """table bridge slow {
    chain out {
        type filter hook output priority 0
        tcp sport 8069 limit rate over 2 mbytes/second burst 512 kbytes drop
    }
}
"""
BOOTS = 600_000.0  # milliseconds that machines may take: emulated processors are slow


@pytest.fixture(scope="module")
def stand(request: pytest.FixtureRequest) -> Iterator[Rack]:
    """Machines, known to the site and awake, and its server."""
    build_all("hello-a")
    machines = MACHINES[: request.param]
    with rack(machines, policy=TABLES, restored=True) as rack_:
        for machine in machines:
            rack_.power(machine.name, "on")
        for machine in machines:
            rack_.reaches(machine.name, "inactive")
        yield rack_


@pytest.fixture
def owner(stand: Rack, tmp_path: Path) -> Iterator[Page]:
    """The owner's browser, within the lab's network."""
    program = tmp_path / "chromium"
    program.write_text(f'#!/bin/sh\nexec {" ".join(inside(stand))} /usr/bin/chromium "$@"\n')
    program.chmod(0o755)
    with chromium(str(program)) as browser:
        yield context(browser).new_page()


def inside(stand: Rack) -> list[str]:
    """The words that run a command in the lab's network."""
    return network.inside(record.namespace(stand.lab), [])


def field(page: Page, label: str) -> Any:
    return page.get_by_label(label, exact=True).first


def press(page: Page, text: str) -> None:
    page.locator("main").get_by_role("button", name=text, exact=True).first.click()


def opened(page: Page, summary: str) -> None:
    page.locator("summary", has_text=summary).first.click()


def looked_at(page: Page, name: str) -> None:
    """Keep a picture; nothing on the page is hard to use."""
    picture(page, f"hour-{name}")
    assert faults(page) == [], name


def on_disk(disk: Path, text: str) -> bool:
    """Return whether a machine's disk holds that text anywhere."""
    with open(disk, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        return content.find(text.encode()) >= 0


@contextmanager
def slow_wire(stand: Rack) -> Iterator[None]:
    """Images come slowly."""
    nft = [*inside(stand), "nft"]
    subprocess.run([*nft, "-f", "-"], input=SLOW, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run([*nft, "delete", "table", "bridge", "slow"], check=True)


# ---------------------------------------------------------------- the hour


def signs_up(page: Page, link: str) -> None:
    page.goto(link)
    expect(page.get_by_role("heading", name="Join the group physics")).to_be_visible()
    field(page, "Sign-in name").fill("olga")
    field(page, "Your name").fill("An Owner")
    field(page, "Password").fill("tea in the machine room")
    looked_at(page, "invitation")
    press(page, "Create account")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    looked_at(page, "overview-empty")


def adds_a_key(page: Page, key: str) -> None:
    page.goto(f"{URL}/account")
    field(page, "Public key").fill(key)
    press(page, "Add the key")
    expect(page.get_by_text("SHA256:").first).to_be_visible()


def invites_a_member(page: Page) -> None:
    page.goto(f"{URL}/groups/physics")
    opened(page, "Invite a person")
    press(page, "Create link")
    expect(page.get_by_text("/invitation#").first).to_be_visible()


def uploads_an_image(page: Page) -> None:
    page.goto(f"{URL}/images/new")
    field(page, "Name of the image").fill("hello")
    page.locator("input[type=file]").set_input_files(CHECKOUT / "build/images/hello-a.img")
    press(page, "Upload")
    expect(page.get_by_role("heading", name="hello")).to_be_visible()
    expect(page.locator("main").get_by_text("ready", exact=True).first).to_be_visible(timeout=BOOTS)
    looked_at(page, "image")


def writes_a_template(page: Page) -> None:
    page.goto(f"{URL}/templates/new")
    field(page, "Name").fill("pages")
    field(page, "What it is for").fill("A page on port 80")
    field(page, "Image of the whole disk").select_option("physics/hello")
    page.get_by_label("Pass host name and keys").check()
    field(page, "TCP port that answers").fill("80")
    field(page, "… and this page of it").fill("/identity.json")
    press(page, "Save the template")
    expect(page.get_by_role("heading", name="pages")).to_be_visible()
    looked_at(page, "template")


def asks_for_a_cluster(page: Page, nodes: int) -> None:
    page.goto(f"{URL}/vclusters/new")
    field(page, "Name").fill("farm")
    page.locator("input[name=template][value='physics/pages']").check()
    field(page, "Nodes").fill(str(nodes))
    field(page, "Lease").fill("2h")
    expect(page.locator("[data-part=match]")).to_contain_text(f"{nodes} free")
    looked_at(page, "wizard")
    press(page, "Request cluster")
    expect(page.get_by_role("heading", name="farm")).to_be_visible()


def watches_a_disk_being_written(page: Page) -> None:
    """Without a reload."""
    begun = page.locator("[data-progress] .percent", has_text=re.compile(r"^[1-9]\d? %$"))
    expect(begun.first).to_be_visible(timeout=BOOTS)
    looked_at(page, "priming")


def watches_it_grow(page: Page, nodes: int) -> None:
    """Without a reload."""
    expect(page.get_by_text(f"{nodes} in use", exact=True).first).to_be_visible(timeout=BOOTS)
    page.reload()
    looked_at(page, "running")


def logs_in(page: Page, stand: Rack, key: Key, nodes: int) -> None:
    """By the words on the page, with the names that COD's name server knows; and nobody else
    does."""
    folder = key.path.parent
    (folder / "resolv.conf").write_text("nameserver 10.77.0.1\n")
    before = [
        *inside(stand),
        "sh",
        "-c",
        'mount --bind "$0" /etc/resolv.conf && exec "$@"',
        str(folder / "resolv.conf"),
    ]
    stranger, told = Key(folder, "stranger"), set[str]()
    shown = page.locator("tbody [data-copy]").all_inner_texts()
    assert sorted(shown) == [f"ssh root@n{n}.farm.cod.demo" for n in range(1, nodes + 1)]
    for words in shown:

        def tried(
            who: Key, to: str = words.removeprefix("ssh ")
        ) -> subprocess.CompletedProcess[str]:
            return ssh(
                who, to, "hostname; cat /run/address; id -u", known=folder / "known", before=before
            )

        done = stand.wait(
            lambda: (said := tried(key)) and "refused" not in said.stderr and said,
            "its SSH server runs",
        )
        assert done.returncode == 0, done.stderr
        name, address, user = done.stdout.split()
        assert (words, user) == (f"ssh root@{name}.farm.cod.demo", "0")
        assert [
            node["hostname"] for node in stand.nodes().values() if node["address"] == address
        ] == [name]
        assert "Permission denied (publickey)" in tried(stranger).stderr
        told |= set(re.findall(r"SHA256:[\w+/]+", stand.page(address)))
    assert len(told) == nodes, "each node made itself a host key"
    assert fingerprints(folder / "known") == told


def extends(page: Page) -> None:
    opened(page, "Extend the lease")
    field(page, "Length from now").fill("5h")
    press(page, "Extend")
    expect(page.get_by_text(re.compile("4 h 59 min|5 h")).first).to_be_visible()


def shrinks(page: Page) -> None:
    opened(page, "Resize")
    field(page, "Nodes").fill("1")
    press(page, "Resize")
    expect(page.get_by_text("of 1 in use")).to_be_visible()


def ends_it(page: Page) -> None:
    opened(page, "End farm")
    press(page, "End farm")
    expect(page.get_by_text("farm ends; its nodes go back")).to_be_visible()


@pytest.mark.parametrize(
    ("stand", "nodes"),
    [
        pytest.param(1, 1, marks=pytest.mark.in_turn(3, first=1)),
        pytest.param(2, 2, marks=pytest.mark.nightly),
    ],
    ids=["one", "two"],
    indirect=["stand"],
)
def test_from_an_invitation_to_a_running_cluster_and_back(
    stand: Rack, owner: Page, tmp_path: Path, nodes: int
) -> None:
    complaints = Complaints(owner)
    stand.cod("group", "create", "physics", "--priority", "10")
    key = Key(tmp_path, "laptop")
    signs_up(owner, stand.cod("invite", "group", "physics", "--role", "owner")["link"])
    adds_a_key(owner, key.line)
    invites_a_member(owner)
    uploads_an_image(owner)
    writes_a_template(owner)
    with slow_wire(stand):
        asks_for_a_cluster(owner, nodes)
        watches_a_disk_being_written(owner)
    watches_it_grow(owner, nodes)

    addresses = set(re.findall(r"10\.77\.\d+\.\d+", owner.locator("tbody").first.inner_text()))
    assert addresses == {
        node["address"] for node in stand.nodes().values() if node["vcluster"] == "farm"
    }
    served = [re.search("<title>(.*?)</title>", stand.page(address)) for address in addresses]
    assert sorted(found[1] for found in served if found) == [
        f"n{number}" for number in range(1, nodes + 1)
    ]
    machines = MACHINES[:nodes]
    assert all(on_disk(stand.disk(machine.name), key.line.split()[1]) for machine in machines), (
        "the seed has the key"
    )
    logs_in(owner, stand, key, nodes)

    extends(owner)
    if nodes > 1:
        shrinks(owner)
    ends_it(owner)
    for machine in machines:
        stand.reaches(machine.name, "inactive")
        assert "wipe" in stand.states(machine.name)
        assert not on_disk(stand.disk(machine.name), key.line.split()[1])
    owner.goto(f"{URL}/vclusters")
    expect(owner.locator("main").get_by_text("farm")).to_have_count(0)
    assert complaints.found == []
