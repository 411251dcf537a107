"""The burn-in's tests as the agent carries them out, on files that stand for disks and in a little
memory."""

from __future__ import annotations

import ctypes
import fcntl
import io
import mmap
import os
import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cod.orders import BurninPlan, Order, TestResult
from tests.hardware import machine, nic, put
from tests.imageserver import serving
from trampoline import inventory, nvme
from trampoline.burnin import health, kernel, memory, network, pace, run, surface
from trampoline.errors import PrimeError
from trampoline.fetch import Download
from trampoline.inventory import Disk, file_disk
from trampoline.target import Target

pytestmark = pytest.mark.slow

MIB = 1 << 20
SECRET = "ab" * 32


def quiet(_phase: str, _done: int, _total: int, _rate: float) -> None:
    return


@pytest.fixture
def log(tmp_path: Path) -> kernel.KernelLog:
    return kernel.KernelLog(tmp_path / "no log")


def made(folder: Path, size: int = 40 * MIB) -> Disk:
    """A file with content that stands for a disk."""
    path = folder / "sda"
    path.write_bytes(random.Random(1).randbytes(size))
    return file_disk(path)


def result_of(disk: Disk, write: bool, log: kernel.KernelLog) -> TestResult:
    [result] = surface.run([(disk, write)], 60.0, quiet, log)
    return result


# ---------------------------------------------------------------- disks


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1000])
def test_stretches_come_once_each_and_evenly(count: int) -> None:
    order = list(surface.spread(count))
    assert sorted(order) == list(range(count))
    if count == 64:
        assert sorted(order[:4]) == [0, 16, 32, 48]


def test_a_good_disk_is_written_read_back_and_left_as_zeros(
    tmp_path: Path, log: kernel.KernelLog
) -> None:
    disk = made(tmp_path)
    result = result_of(disk, True, log)
    assert (result.outcome, result.about, result.part) == ("passed", "", "sda (serial sda)")
    assert result.figures["tested_percent"] == 100.0
    assert result.figures["write_mb_s"] > 0 < result.figures["read_end_mb_s"]
    assert not any(Path(disk.path).read_bytes())


def test_a_disk_with_data_is_only_read(tmp_path: Path, log: kernel.KernelLog) -> None:
    disk = made(tmp_path)
    before = Path(disk.path).read_bytes()
    result = result_of(disk, False, log)
    assert (result.outcome, result.figures["tested_percent"]) == ("passed", 100.0)
    assert result.about.startswith("read only")
    assert "write_mb_s" not in result.figures
    assert Path(disk.path).read_bytes() == before


def test_a_write_that_is_lost_is_noticed(
    tmp_path: Path, log: kernel.KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = made(tmp_path), Target.write

    def lose(self: Target, data: memoryview, offset: int) -> None:
        write(self, data, offset)
        if offset == surface.STRETCH:
            at = offset + 5 * MIB + 17
            os.pwrite(self._fd, bytes(255 - byte for byte in os.pread(self._fd, 21, at)), at)

    monkeypatch.setattr(Target, "write", lose)
    result = result_of(disk, True, log)
    assert result.outcome == "failed"
    assert (
        result.about
        == f"the disk {disk.path} does not hold what was written at byte {21 * MIB + 17}"
    )


def test_a_write_that_went_elsewhere_is_noticed(
    tmp_path: Path,
    log: kernel.KernelLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tell pages apart that hold the same random bytes by what says where a page belongs."""
    disk, write = made(tmp_path), Target.write
    monkeypatch.setattr(
        Target,
        "write",
        lambda self, data, offset: write(self, data, surface.STRETCH if offset == 0 else offset),
    )
    assert f"at byte {0}" in result_of(disk, True, log).about


def test_errors_of_reading_name_the_byte_and_other_disks_are_tested_all_the_same(
    tmp_path: Path,
    log: kernel.KernelLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "other").mkdir()
    bad, good = made(tmp_path), made(tmp_path / "other", 17 * MIB + 512)
    original = Target.read_into

    def fails(self: Target, buffer: Any, length: int, offset: int) -> memoryview:
        if self.path == bad.path and offset >= 2 * surface.STRETCH:
            raise self._broken("read", offset, OSError(5, "Input/output error"))
        return original(self, buffer, length, offset)

    monkeypatch.setattr(Target, "read_into", fails)
    first, second = surface.run([(bad, True), (good, True)], 60.0, quiet, log)
    assert (first.outcome, second.outcome) == ("failed", "passed")
    assert (
        first.about == f"the disk {bad.path} cannot be read at byte {32 * MIB}: Input/output error"
    )


def test_a_disk_that_cannot_be_opened_fails(tmp_path: Path, log: kernel.KernelLog) -> None:
    result = result_of(Disk("sdb", str(tmp_path / "gone"), 1 << 30, "ata"), True, log)
    assert (result.outcome, result.about) == (
        "failed",
        f"the disk {tmp_path / 'gone'} cannot be opened at byte 0: No such file or directory",
    )


def test_short_time_tests_a_share_and_says_so(
    tmp_path: Path, log: kernel.KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = made(tmp_path, 0)
    os.truncate(disk.path, 64 * surface.STRETCH)
    calls = iter(range(1000))
    monkeypatch.setattr(pace.Pace, "over", lambda self: next(calls) >= 16)
    result = result_of(file_disk(Path(disk.path)), False, log)
    assert (result.outcome, result.figures["tested_percent"]) == ("passed", 25.0)


def test_a_disk_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    worker = pace.Worker("hangs", lambda step: released.wait(60) and None)
    pace.watch([worker], pace.Pace("disk", 100, 60), quiet, stuck=0.2)
    assert worker.stuck
    released.set()


def test_an_order_that_is_replaced_ends_the_test(tmp_path: Path, log: kernel.KernelLog) -> None:
    class Replaced(Exception):
        pass

    def tell(_phase: str, _done: int, _total: int, _rate: float) -> None:
        raise Replaced

    with pytest.raises(Replaced):
        surface.run([(made(tmp_path), False)], 60.0, tell, log)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("disk ")]


def test_progress_reaches_its_total_by_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: list[tuple[int, int]] = []
    test = pace.Pace("disk", 1000 * MIB, 100.0)
    for now in (10.0, 50.0, 100.0):
        clock[0] = now
        test.add(10 * MIB)
        test.tell(lambda _phase, done, total, _rate: said.append((done // MIB, total // MIB)))
    assert said == [(10, 100), (20, 40), (30, 30)]


# ---------------------------------------------------------------- what disks and the kernel say


def test_defects_that_came_during_the_test_fail_a_disk() -> None:
    before = {"failing": 0.0, "reallocated_sectors": 3.0, "power_on_hours": 100.0}
    assert health.complaints(before, before | {"power_on_hours": 101.0}) == []
    assert health.complaints(before, before | {"reallocated_sectors": 5.0}) == [
        "2 more reallocated sectors than before the test (SMART)"
    ]
    assert health.complaints({}, {"failing": 1.0}) == ["the disk says that it is failing (SMART)"]
    assert health.complaints({}, {"pending_sectors": 4.0}) == []  # before, it did not answer


def test_a_disk_fails_by_its_own_words_alone(
    tmp_path: Path, log: kernel.KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter([{"pending_sectors": 1.0}, {"pending_sectors": 3.0}])
    monkeypatch.setattr(health, "read", lambda path, transport: next(said))
    result = result_of(made(tmp_path), False, log)
    assert (result.outcome, result.about) == (
        "failed",
        "2 more pending sectors than before the test (SMART)",
    )
    assert result.figures["smart_pending_sectors"] == 3.0


def test_a_file_says_nothing_of_its_health(tmp_path: Path) -> None:
    for transport in ("nvme", "ata", "sas", "virtio"):
        assert health.read(made(tmp_path, 512).path, transport) == {}


def test_an_nvme_disk_tells_its_health_unless_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = 0

    def ioctl(descriptor: int, request: int, argument: bytearray) -> int:
        address, length = struct.unpack_from("=Q4xI", argument, 24)
        assert (request, argument[0], length) == (nvme.NVME_ADMIN, 0x02, 512)
        if not status:
            page = bytes([1]) + (300).to_bytes(2, "little") + bytes([90, 10, 7])
            ctypes.memmove(address, page, len(page))
        return status

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    disk = made(tmp_path, 512).path
    said = health.read(disk, "nvme")
    assert (said["failing"], said["temperature_c"], said["used_percent"]) == (1.0, 27.0, 7.0)
    assert said["spare_percent"] == 90.0
    status = 0x2009  # the log page is not there
    assert health.read(disk, "nvme") == {}


def test_the_kernels_warnings_are_told_by_device() -> None:
    lines = [
        "blk_update_request: I/O error, dev sda, sector 8",
        "sdab: fine",
        "mce: [Hardware Error]: CPU 0",
    ]
    assert kernel.about(lines, "sda") == lines[:1]
    assert kernel.hardware_errors(lines) == lines[2:]


def test_memory_errors_are_counted_where_the_kernel_does(tmp_path: Path) -> None:
    assert kernel.memory_errors(tmp_path) == {}
    for controller, count in ((0, "3"), (1, "4")):
        put(tmp_path / f"sys/devices/system/edac/mc/mc{controller}/ce_count", count)
        put(tmp_path / f"sys/devices/system/edac/mc/mc{controller}/ue_count", "0")
    put(
        tmp_path / "proc/interrupts",
        " MCE:          1          2   Machine check exceptions\n MCP: 5 5 polls",
    )
    assert kernel.memory_errors(tmp_path) == {"corrected": 7, "uncorrected": 0, "machine_checks": 3}


# ---------------------------------------------------------------- memory


def roomy(tmp_path: Path) -> Path:
    root = machine(tmp_path / "root")
    put(root / "proc/meminfo", f"MemAvailable: {256 * 1024} kB")
    return root


def test_good_memory_passes(tmp_path: Path, log: kernel.KernelLog) -> None:
    said: list[str] = []
    result = memory.run(0.5, roomy(tmp_path), lambda phase, *_: said.append(phase), log, 64 * MIB)
    assert (result.outcome, result.about, result.part) == ("passed", "", "64 MiB")
    assert result.figures["tested_mib"] == 64.0
    assert result.figures["rounds"] >= 1
    assert set(said) == {"memory"}


def test_a_bit_that_does_not_hold_is_found(
    tmp_path: Path, log: kernel.KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = memory._Chunk.fill

    def stuck(self: Any, pattern: Any, number: int) -> None:
        fill(self, pattern, number)
        at = ctypes.c_ubyte.from_address(self._address + 7 * MIB + 123)
        at.value ^= 0x10

    monkeypatch.setattr(memory._Chunk, "fill", stuck)
    result = memory.run(0.5, roomy(tmp_path), quiet, log, 32 * MIB)
    assert result.outcome == "failed"
    assert "differed, the first at " in result.about
    assert result.figures["faults"] >= 1


def test_memory_that_shows_at_two_places_is_found(
    tmp_path: Path,
    log: kernel.KernelLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dead address line: what is written to the upper half lands in the lower one."""
    fill = memory._Chunk.fill

    def aliased(self: Any, pattern: Any, number: int) -> None:
        fill(self, pattern, number)
        ctypes.memmove(self._address, self._address + 16 * MIB, 16 * MIB)

    monkeypatch.setattr(memory._Chunk, "fill", aliased)
    assert memory.run(0.5, roomy(tmp_path), quiet, log, 32 * MIB).outcome == "failed"


def test_errors_that_ecc_corrected_fail_the_memory(
    tmp_path: Path,
    log: kernel.KernelLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = roomy(tmp_path)
    counts = iter(({"corrected": 2}, {"corrected": 5}))
    monkeypatch.setattr(kernel, "memory_errors", lambda root: next(counts))
    result = memory.run(0.3, root, quiet, log, 32 * MIB)
    assert (result.outcome, result.about) == ("failed", "3 corrected memory errors during the test")


def test_some_memory_is_left_for_the_agent(tmp_path: Path) -> None:
    root = roomy(tmp_path)
    assert memory._available(root) == (256 - 96) * MIB
    put(root / "proc/meminfo", f"MemAvailable: {100 << 20} kB")
    assert memory._available(root) == int((100 << 30) * 0.96)


def test_a_faulty_address_is_told_as_the_machine_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux's Documentation/admin-guide/mm/pagemap.rst: 64 bits a page; bit 63: it is in memory."""
    pages = [0, 1 << 63 | 0x1234, 1 << 63, 0x1234]
    entries = struct.pack(f"<{len(pages)}Q", *pages)
    size = mmap.PAGESIZE
    monkeypatch.setattr(memory, "open", lambda *_: io.BytesIO(entries), raising=False)
    found = [memory._physical(page * size + 5) for page in range(len(pages))]
    assert found == [None, 0x1234 * size + 5, None, None]


# ---------------------------------------------------------------- network


def plan(**more: Any) -> BurninPlan:
    return BurninPlan(
        **({"memory": False, "disk": False, "network": True, "seconds": 1, "write": False} | more)
    )


def links(root: Path) -> Callable[[], list[inventory.Nic]]:
    return lambda: inventory.nics(root, "02:00:00:00:00:01")


def test_throughput_to_a_neighbour_is_what_it_got(tmp_path: Path) -> None:
    root = machine(tmp_path / "root")
    nic(root, "eth0", "02:00:00:00:00:01", driver="e1000")
    listener = network.ThroughputListener(SECRET, "127.0.0.1", 0)
    link, throughput = network.run(
        plan(peer="127.0.0.1", peer_secret=SECRET), links(root), 0.3, root, quiet, listener.port
    )
    listener.close()
    assert (link.part, link.outcome, link.figures["link_mbit_s"]) == ("eth0", "passed", 1000.0)
    assert (throughput.part, throughput.outcome) == ("to the neighbour 127.0.0.1", "passed")
    assert throughput.figures["throughput_mbit_s"] > 1


def test_a_stranger_is_not_listened_to_and_the_server_is_asked_instead(tmp_path: Path) -> None:
    root = machine(tmp_path / "root")
    (tmp_path / "served").mkdir()
    (tmp_path / "served/file").write_bytes(bytes(3 * MIB))
    listener = network.ThroughputListener(SECRET, "127.0.0.1", 0)
    with serving(tmp_path / "served") as server:
        url = f"http://127.0.0.1:{server.server_port}/file"
        [*_, throughput] = network.run(
            plan(peer="127.0.0.1", peer_secret="cd" * 32, url=url),
            links(root),
            0.3,
            root,
            quiet,
            listener.port,
        )
    listener.close()
    assert (throughput.part, throughput.outcome) == ("from the server", "passed")
    assert "neighbour 127.0.0.1 could not be measured" in throughput.about
    assert throughput.figures["bytes"] >= 3 * MIB


def test_a_server_that_serves_nothing_is_not_held_against_the_node(tmp_path: Path) -> None:
    root = machine(tmp_path / "root")
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as server:
        url = f"http://127.0.0.1:{server.server_port}/none"
        [*_, throughput] = network.run(plan(url=url), links(root), 0.3, root, quiet)
    assert throughput.outcome == "skipped"
    assert "404" in throughput.about


def test_a_server_that_breaks_off_is_not_held_against_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BreaksOff(Download):
        """What came counts for nothing where the rest does not."""

        def fill(self, view: memoryview) -> int:
            if self.at:
                raise PrimeError("the server has gone")
            return super().fill(view)

    monkeypatch.setattr(network, "Download", BreaksOff)
    root = machine(tmp_path / "root")
    (tmp_path / "served").mkdir()
    (tmp_path / "served/file").write_bytes(bytes(3 * MIB))
    with serving(tmp_path / "served") as server:
        url = f"http://127.0.0.1:{server.server_port}/file"
        [*_, throughput] = network.run(plan(url=url), links(root), 0.3, root, quiet)
    assert (throughput.outcome, throughput.about) == ("skipped", "OSError: the server has gone")


def test_errors_and_half_duplex_fail_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path / "root")
    nic(root, "eth0", "02:00:00:00:00:01", driver="e1000", speed="100")
    statistics = root / "sys/class/net/eth0/statistics"
    put(root / "sys/class/net/eth0/duplex", "half")
    put(statistics / "rx_crc_errors", "7")
    put(statistics / "rx_dropped", "1")

    def worse(*_: Any) -> TestResult:
        put(statistics / "rx_crc_errors", "9")
        put(statistics / "rx_dropped", "4")
        return TestResult("network", "throughput", "", "skipped")

    monkeypatch.setattr(network, "_throughput", worse)
    link, _ = network.run(plan(), links(root), 0.1, root, quiet)
    assert link.outcome == "failed"
    assert link.about.startswith("2 rx crc errors during the test; the link is half duplex")
    assert link.figures == {"errors": 2.0, "drops": 3.0, "link_mbit_s": 100.0}


# ---------------------------------------------------------------- the whole of it


def test_a_burn_in_tests_all_and_spares_what_is_kept(tmp_path: Path) -> None:
    root = roomy(tmp_path)
    disk, kept = made(tmp_path, 8 * MIB), made(tmp_path / "root", 8 * MIB)
    usb = Disk("sdz", str(tmp_path / "usb"), 512, "usb", local=False)
    content = Path(kept.path).read_bytes()
    order = Order(
        "1.1",
        "burnin",
        keep=(f"path:{kept.path}",),
        burnin=plan(memory=True, disk=True, write=True),
    )
    results = run.burnin(order, [disk, kept, usb], links(root), root, quiet, 32 * MIB)
    assert [(each.test, each.outcome) for each in results] == [
        ("memory", "passed"),
        ("disk", "passed"),
        ("disk", "passed"),
        ("network", "skipped"),
    ]
    assert not any(Path(disk.path).read_bytes())
    assert Path(kept.path).read_bytes() == content


@pytest.mark.parametrize(
    ("tests", "spans"),
    [
        (("memory", "disk", "network"), {"memory": 40.0, "disk": 50.0, "network": 10.0}),
        (("disk",), {"disk": 100.0}),
        (("network",), {"network": 100.0}),
    ],
)
def test_tests_share_the_time(tests: tuple[str, ...], spans: dict[str, float]) -> None:
    wanted = BurninPlan("memory" in tests, "disk" in tests, "network" in tests, 100, False)
    assert run.seconds(wanted) == spans


def test_the_network_needs_no_share_of_hours() -> None:
    spans = run.seconds(BurninPlan(True, True, True, 36_020, False))
    assert spans == {"memory": 16_000.0, "disk": 20_000.0, "network": 20.0}
