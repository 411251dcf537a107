"""Burn-ins: whole machines with good and failing disks, and stand-in machines for what can go wrong
on the way."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.orders import BurninPlan, Order, TestResult
from cod.wire.confd.messages import Done, Failed, Progress
from tests.imageserver import serving
from tests.system.stand import Stand
from tests.system.test_trampoline_boot import CACHE, OUT, Guest
from trampoline import build

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("burnin")]

MIB = 1 << 20
BAD_AT = 20 * MIB  # byte of the failing disk

# ---------------------------------------------------------------- whole machines


@pytest.fixture
def lab() -> Path:
    return build.build("lab", OUT, CACHE)


@pytest.fixture
def guest(lab: Path, tmp_path: Path) -> Iterator[Guest]:
    """A machine with four disks: a good one on AHCI (sda), an NVMe disk, one that cannot be read at
    a place (vda), and one that loses what is written to it (vdb)."""
    (tmp_path / "bad").write_bytes(bytes(32 * MIB))
    (tmp_path / "nvme").write_bytes(b"somebody's".ljust(32 * MIB))
    (tmp_path / "errors").write_text(
        f'[inject-error]\nevent = "read_aio"\nsector = "{BAD_AT // 512}"\niotype = "read"\nerrno ='
        ' "5"\n'
    )
    more = [
        "-drive",
        f"if=none,id=n,format=raw,file={tmp_path / 'nvme'}",
        "-device",
        "nvme,drive=n,serial=N1",
        "-blockdev",
        (
            f"driver=raw,node-name=bad,file.driver=blkdebug,file.config={tmp_path / 'errors'},"
            f"file.image.driver=file,file.image.filename={tmp_path / 'bad'}"
        ),
        "-device",
        "virtio-blk-pci,drive=bad,serial=BAD",
        "-blockdev",
        f"driver=null-co,node-name=lost,size={32 * MIB},read-zeroes=on",
        "-device",
        "virtio-blk-pci,drive=lost,serial=LOST",
    ]
    guest = Guest(tmp_path, lab, "e1000 ahci,id=a ide-hd,drive=d,bus=a.0,serial=S1", False, more)
    yield guest
    guest.process.kill()
    guest.process.wait()
    guest.listener.close()


@pytest.mark.in_turn(2, first=1)
@pytest.mark.timeout(600)
def test_a_machine_is_tested_and_its_failing_disks_are_found(guest: Guest, tmp_path: Path) -> None:
    guest.connect()
    (tmp_path / "served").mkdir()
    (tmp_path / "served/file").write_bytes(bytes(2 * MIB))
    with serving(tmp_path / "served") as server:
        plan = BurninPlan(
            True, True, True, 40, True, f"http://10.0.2.2:{server.server_port}/file", "ab" * 32
        )
        guest.say(Order("1.2", "burnin", wipe=False, keep=("serial:N1",), burnin=plan))
        phases = {guest.next(Progress).phase}
        result = guest.next(Done, Failed)
    assert isinstance(result, Done), result
    found = {each.part: each for each in result.results}
    print(*result.results, sep="\n")
    memory, good, nvme, bad, lost, link, throughput = (
        found[name]
        for name in (
            next(each.part for each in result.results if each.test == "memory"),
            "sda (serial S1)",
            "nvme0n1 (serial N1)",
            "vda (serial BAD)",
            "vdb (serial LOST)",
            "eth0",
            "from the server",
        )
    )
    assert memory.outcome == "passed"
    assert memory.figures["tested_mib"] >= 192, "most of what 512 MiB leave"
    assert phases == {"memory"}
    _is_good(good, written=True)
    _is_good(nvme, written=False)
    assert good.figures["smart_failing"] == 0.0
    assert good.figures["smart_power_on_hours"] >= 0
    assert nvme.figures["smart_media_errors"] == 0.0
    assert (tmp_path / "nvme").read_bytes()[:10] == b"somebody's"
    assert not any(guest.disk.read_bytes())
    assert bad.outcome == "failed"
    assert "the disk /dev/vda cannot be read at byte " in bad.about
    assert "I/O error, dev vda, sector" in bad.about, "the kernel's own words"
    assert lost.outcome == "failed"
    assert "the disk /dev/vdb does not hold what was written at byte " in lost.about
    assert (link.outcome, throughput.outcome) == ("passed", "passed")
    assert throughput.figures["throughput_mbit_s"] > 0


def _is_good(result: TestResult, *, written: bool) -> None:
    assert result.outcome == "passed", result
    assert result.figures["tested_percent"] == 100.0
    assert ("write_mb_s" in result.figures) == written


# ---------------------------------------------------------------- stand-in machines


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A running site with two machines, idle."""
    with Stand(tmp_path_factory.mktemp("burnin"), machines=2, policy="heartbeat = 1.0") as stand:
        # what a site's machines have booted
        served = stand.socket_folder / "data/boot/trampoline/ramdisk"
        served.parent.mkdir(parents=True, exist_ok=True)
        served.write_bytes(bytes(4 * MIB))
        stand.serve()
        for name in ("m1", "m2"):
            stand[name].on()
        for name in ("m1", "m2"):
            stand.reaches(name, "inactive")
        yield stand


def over(stand: Stand, name: str, seconds: float = 120) -> dict[str, Any]:
    """The node's newest burn-in once it is over."""

    def shown() -> dict[str, Any]:
        value: dict[str, Any] = stand.get(f"/nodes/{name}/burnin")
        return value if value["state"] in ("passed", "failed", "cancelled") else {}

    return dict(stand.wait(shown, seconds, f"the burn-in of {name} is over"))


def test_two_nodes_are_tested_and_one_measures_to_the_other(stand: Stand) -> None:
    stand.cod("node", "burnin", "m1", "--seconds", "30")
    stand.reaches("m1", "burnin")
    stand.cod("node", "burnin", "m2", "--seconds", "10")
    both = [over(stand, name) for name in ("m1", "m2")]
    assert [each["state"] for each in both] == ["passed", "passed"], both
    parts = [{each["part"]: each for each in one["results"]} for one in both]
    assert "from the server" in parts[0]
    assert any(part.startswith("to the neighbour 10.77.") for part in parts[1])
    assert all(each["outcome"] == "passed" for each in both[1]["results"]), both[1]
    for name in ("m1", "m2"):
        stand.reaches(name, "inactive")
    assert stand.cod("node", "burnin", "m1", "--history")[0]["state"] == "passed"


@pytest.mark.nightly  # three memory tests of ten seconds; test_capture.py kills and resets so too
def test_the_server_is_killed_and_the_machine_is_reset_while_it_is_tested(stand: Stand) -> None:
    stand.cod("node", "burnin", "m1", "--tests", "memory", "--seconds", "10")
    stand.reaches("m1", "burnin")
    stand.kill()
    time.sleep(1.0)
    stand.serve()
    assert over(stand, "m1")["state"] == "passed", "the agent went on, and told another server"
    stand.reaches("m1", "inactive")
    stand.cod("node", "burnin", "m1", "--tests", "memory", "--seconds", "10")
    stand.reaches("m1", "burnin")
    stand["m1"].reset()
    done = over(stand, "m1", 240)
    assert done["state"] == "passed", done
    assert [row["event"] for row in stand.history("m1")].count("burnin_ordered") >= 3
    stand.reaches("m1", "inactive")


def test_cancelled_it_is_free_again(stand: Stand) -> None:
    stand.cod("node", "burnin", "m2", "--seconds", "600")
    stand.reaches("m2", "burnin")
    stand.cod("node", "burnin", "m2", "--cancel")
    assert over(stand, "m2")["state"] == "cancelled"
    stand.reaches("m2", "inactive")


def test_an_agent_that_hangs_is_noticed(stand: Stand) -> None:
    stand.cod("node", "burnin", "m2", "--tests", "memory", "--seconds", "600")
    stand.reaches("m2", "burnin")
    stand["m2"].signal(signal.SIGSTOP)
    stand.wait(lambda: stand.state("m2") != "burnin", 60, "its agent is lost")
    stand["m2"].signal(signal.SIGCONT)
    stand.cod("node", "burnin", "m2", "--cancel")
    stand.reaches("m2", "inactive")
