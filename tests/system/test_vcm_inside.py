"""A VCM that runs on its vcluster's head: real server, real agents that write the seed, real
addresses by DHCP.

The head's image does nothing but run; what it would do at its boot (copy three files off the
partition CIDATA, start the VCM) the test does in the machine's namespace.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.net.test_vcm_invited import RUN
from tests.system.site_images import make_image
from tests.system.stand import ROOT, Stand

pytestmark = pytest.mark.system
RULES = "inertia = 0\n[nmp]\nport = 8071\nkeepalive = 1\n"


class Head:
    """The VCM on one machine."""

    def __init__(self, stand: Stand, machine: str) -> None:
        self.stand, self.machine = stand, machine
        self.folder = stand.folder / f"vcm-{machine}"
        self.process: subprocess.Popen[bytes] | None = None

    def copies_its_seed(self) -> None:
        """Copy the seed as an image without cloud-init does."""
        disk = self.stand[self.machine].folder / "disk"
        with open(disk, "rb") as file:
            sector0 = file.read(512)
        start = struct.unpack_from("<I", sector0, 446 + 16 + 8)[0] * 512  # of the second partition
        self.folder.mkdir(exist_ok=True)
        for name in ("vcm.toml", "ca.crt", "invitation"):
            subprocess.run(
                ["mcopy", "-n", "-i", f"{disk}@@{start}", f"::{name}", self.folder],
                check=True,
                capture_output=True,
            )
        (self.folder / "run.py").write_text(RUN)

    def start(self, folder: Path | None = None) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.stand[self.machine].namespace,
                    sys.executable,
                    "run.py",
                    "vcm.toml",
                ],
                cwd=folder or self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def end(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            self.process = None

    def says(self, words: str) -> None:
        def there() -> bool:
            return words in (self.folder / "log").read_text()

        self.stand.wait(there, 180, f"the VCM on {self.machine} says {words!r}")


def offer(stand: Stand) -> None:
    """A template whose nodes get a seed: its image has a partition table with room behind its one
    partition."""
    path = make_image(stand.folder, "head")
    with open(path, "r+b") as image:
        image.seek(446)
        image.write(
            struct.pack("<B3sB3sII", 0, b"", 0x83, b"", 2048, 4096) + bytes(48) + b"\x55\xaa"
        )
    stand.cod("image", "add", "head", str(path), "--wait")
    template = stand.folder / "head.xml"
    template.write_text(
        '<template name="head"><image target="disk" name="head"/><personalise'
        ' seed="nocloud"/></template>'
    )
    stand.cod("template", "add", str(template))


def shown(stand: Stand) -> dict[str, Any]:
    found: dict[str, Any] = stand.cod("vcm", "show", "batch")
    return found


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with Stand(tmp_path, machines=2, policy=RULES) as stand:
        stand.serve()
        for host in stand.hosts.values():
            host.on()
        for name in stand.hosts:
            stand.reaches(name, "inactive")
        offer(stand)
        yield stand


def member(stand: Stand) -> str:
    """The machine that is the vcluster's n1 and runs."""

    def there() -> str:
        return next(
            (
                name
                for name in stand.hosts
                if stand.node(name).hostname == "n1" and stand.state(name) == "active"
            ),
            "",
        )

    return str(stand.wait(there, 180, "the head is active"))


def test_its_head_lets_itself_in_and_so_does_the_next_one(stand: Stand) -> None:
    stand.cod("vcluster", "create", "batch", "--size", "1", "--template", "head", "--vcm-inside")
    heads = [Head(stand, member(stand))]
    try:
        heads[0].copies_its_seed()
        secret = (heads[0].folder / "invitation").read_text().strip()
        assert shown(stand)["serial"] == ""
        heads[0].start()
        heads[0].says("connected with")
        stand.wait(lambda: shown(stand)["server"], 180, "the server says so, too")
        first = shown(stand)["serial"]

        # Stolen, and brought to another machine of the site, its certificate is of no use.
        heads.append(Head(stand, next(name for name in stand.hosts if name != heads[0].machine)))
        shutil.copytree(heads[0].folder, stand.folder / "stolen")
        heads[1].folder.mkdir()
        heads[1].start(stand.folder / "stolen")
        heads[1].says("comes from")
        heads[1].end()
        shutil.rmtree(heads[1].folder)

        # The head breaks; the other machine takes its name, is primed, and is invited; the old
        # certificate is void.
        stand.cod("node", "quarantine", heads[0].machine, "--reason", "smoke")
        assert member(stand) == heads[1].machine
        heads[0].end()
        heads[1].copies_its_seed()
        assert (heads[1].folder / "invitation").read_text().strip() != secret
        heads[1].start()
        heads[1].says("connected with")
        stand.wait(
            lambda: shown(stand)["serial"] not in ("", first),
            180,
            "it has a certificate of its own",
        )
    finally:
        for head in heads:
            head.end()
    logs = (stand.folder / "server.log").read_text() + "".join(
        host.console() for host in stand.hosts.values()
    )
    assert secret not in logs
    assert "has traded its invitation" in logs
