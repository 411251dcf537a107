"""The boot code that COD writes, run by a BIOS: a layout's in the first sector, and the program
that finds the disk.

The partition that is started holds the opaque image's boot code, which reads a text of another
sector and prints both.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cod.model import BootPlan
from cod.orders import Partition
from cod.wire import bootscript, diskloader
from images import opaque
from tests.ports import free_port
from tests.waiting import until
from trampoline import bootcode, partitions
from trampoline.partitions import Gpt
from trampoline.target import Target

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.xdist_group("bootcode")]

MIB = 1 << 20
TEXT_AT = 5 * MIB


def disk(folder: Path, table: str, name: str = "disk") -> Path:
    """A disk with a layout whose second partition is started."""
    path = folder / name
    with path.open("wb") as file:
        file.truncate(16 * MIB)
    layout = [
        Partition(1, MIB, "linux"),
        Partition(2, 2 * MIB, "linux", boot=True),
        Partition(3, 0, "linux"),
    ]
    with Target(str(path)) as target:
        spans = partitions.place(layout, target.size)
        if table == "gpt":
            made = Gpt(partitions.new_guid())
            for span in spans:
                made = made.add(span, target)
            made.write(target)
        else:
            partitions.new_mbr(target)
            for span in spans:
                partitions.add_to_mbr(target, span)
        sector = opaque.boot_code(TEXT_AT // 512).ljust(510, b"\0") + b"\x55\xaa"
        target.write(memoryview(sector), spans[1].start)
        target.write(memoryview(b"all bits arrived\r\n\0".ljust(512, b"\0")), TEXT_AT)
        bootcode.install(target, spans[1], table)
    return path


@contextmanager
def machine(folder: Path, *more: str) -> Iterator[None]:
    """Switch a BIOS machine on, and off."""
    argv = [
        "qemu-system-x86_64",
        "-machine",
        "pc,graphics=off",
        "-accel",
        "tcg",
        "-m",
        "64",
        "-nodefaults",
        "-display",
        "none",
        "-vga",
        "none",
        "-serial",
        f"file:{folder}/console",
        *more,
    ]
    running = subprocess.Popen(argv)
    try:
        yield
    finally:
        running.kill()
        running.wait()


def says(folder: Path, words: str, disks: Sequence[Path], *more: str) -> None:
    """Switch a BIOS machine with those disks on, and wait until it says the words on its serial
    port."""
    drives: list[str] = []
    for number, path in enumerate(disks):
        drives += [
            "-drive",
            f"if=none,id=d{number},format=raw,file={path}",
            "-device",
            f"virtio-blk-pci,drive=d{number},bootindex={number + 2}",
        ]
    console = folder / "console"
    console.unlink(missing_ok=True)
    with machine(folder, *drives, *more):
        # SeaBIOS writes to the same port behind the boot code's back, so words may be parted by its
        # progress dots.
        until(lambda: console.exists() and words in console.read_text(errors="replace"), words, 300)


@pytest.mark.parametrize("table", ["mbr", "gpt"])
def test_a_layouts_partition_is_started(tmp_path: Path, table: str) -> None:
    says(tmp_path, "all bits arrived", [disk(tmp_path, table)])


def test_the_active_partition_may_be_the_first_of_an_mbr(tmp_path: Path) -> None:
    path = disk(tmp_path, "mbr")
    with path.open("r+b") as file:
        file.seek(446)
        first, active = file.read(16), file.read(16)
        assert (first[0], active[0]) == (0, 0x80)
        file.seek(446)
        file.write(active + first)
    says(tmp_path, "all bits arrived", [path])


def test_an_mbr_without_an_active_partition_says_so(tmp_path: Path) -> None:
    path = disk(tmp_path, "mbr")
    with path.open("r+b") as file:
        file.seek(446 + 16)
        file.write(b"\0")
    says(tmp_path, "COD: no active partition", [path])


def netboot(folder: Path, script: str) -> list[str]:
    """Arguments of a machine that boots from the network first, by iPXE."""
    (folder / "boot.ipxe").write_text(script)
    return [
        "-netdev",
        f"user,id=n,tftp={folder},bootfile=boot.ipxe",
        "-device",
        "virtio-net-pci,netdev=n,bootindex=1",
    ]


def loaded(folder: Path, program: bytes) -> list[str]:
    """Arguments of a machine that boots the program from the network first."""
    (folder / "program").write_bytes(program)
    return netboot(folder, "#!ipxe\nkernel program\nboot\n")


def test_the_disk_is_found_by_its_signature_wherever_it_is(tmp_path: Path) -> None:
    wanted, other = disk(tmp_path, "mbr", "wanted"), tmp_path / "other"
    other.write_bytes(
        (b"\xeb\xfe".ljust(440, b"\0") + b"COD!".ljust(70, b"\0") + b"\x55\xaa").ljust(MIB, b"\0")
    )
    blank = tmp_path / "blank"
    blank.write_bytes(bytes(MIB))
    signature = partitions.signature(wanted.read_bytes()[:512])
    more = loaded(tmp_path, diskloader.loader(signature))
    says(tmp_path, "all bits arrived", [blank, other, wanted], *more)
    says(tmp_path, "all bits arrived", [wanted, other], *more)


def test_ipxe_goes_on_with_the_script_of_the_other_server(tmp_path: Path) -> None:
    asked: list[str] = []

    class Alive(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Alive) as alive:
        threading.Thread(target=alive.serve_forever, daemon=True).start()
        dead = f"http://10.0.2.2:{free_port()}/files"
        script = f"http://10.0.2.2:{alive.server_port}/boot/aa/script.ipxe"
        plan = BootPlan("trampoline", "new", f"{dead}/k", (f"{dead}/r",), scripts=(script,))
        with machine(tmp_path, *netboot(tmp_path, bootscript.ipxe(plan))):
            until(lambda: asked, "a question to the other server", 300)
        alive.shutdown()
    assert asked[0] == "/boot/aa/script.ipxe"


def test_a_disk_that_the_bios_does_not_have_is_not_replaced_by_another(tmp_path: Path) -> None:
    wanted = disk(tmp_path, "mbr")
    says(
        tmp_path,
        "COD: the BIOS has no disk with signature 00c0ffee; rebooting",
        [wanted],
        *loaded(tmp_path, diskloader.loader(0xC0FFEE)),
    )
    says(
        tmp_path,
        "all bits arrived",
        [wanted],
        *loaded(tmp_path, diskloader.loader(0xC0FFEE, lenient=True)),
    )
