"""Volumes on a real NFS-Ganesha, over a real sshd: who reaches an export and who does not, and what
goes wrong."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.process import reapAllProcesses
from twisted.internet.task import LoopingCall

from cod.core.networks import address_blocks as core_blocks
from cod.fileservers import edge as edges
from cod.fileservers import script
from cod.fileservers.driver import FileServerError, ScriptDriver
from cod.fileservers.edge import FileServerEdge
from cod.flows.scheduler import vclusters as vcluster_flows
from cod.flows.volumes import volumes as flows
from cod.model import (
    AskedVcluster,
    AskedVolume,
    ExportClient,
    FileServer,
    HomeDirectory,
    Site,
    SiteRef,
    VolumeRules,
    VolumeView,
    WantedVolume,
)
from cod.pool import Pool, in_transaction
from cod.store.people import groups
from cod.store.scheduler import address_blocks, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import furnish, run_pass
from tests.system.nfs_stand import NfsStand, url
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(2, together=True),
    pytest.mark.xdist_group("ganesha"),
]

MIB = 2**20
OURS, THEIRS = ExportClient("10.77.128.0/26", False), ExportClient("10.77.200.0/26", True)


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nfs")


@pytest.fixture(scope="module")
def stand(module_folder: Path) -> Iterator[NfsStand]:
    with NfsStand(module_folder) as stand:
        yield stand


@pytest.fixture
def driver(stand: NfsStand, reactor: Any, in_reactor: Callable[..., Any]) -> Iterator[ScriptDriver]:
    """The driver in a reactor that has no signals: its children are looked for."""
    reaping = LoopingCall(reapAllProcesses)
    reactor.callFromThread(reaping.start, 0.02)
    yield ScriptDriver(reactor, str(stand.folder / "ssh"))
    in_reactor(reaping.stop)


@pytest.fixture
def carry_out(driver: ScriptDriver, in_reactor: Callable[..., Any]) -> Callable[..., Any]:
    """Carry out a change, and wait for it."""
    from twisted.internet.defer import Deferred

    return lambda server, wanted: in_reactor(
        lambda: Deferred.fromCoroutine(driver.carry_out(server, wanted))
    )


_numbers = iter(range(100, 1000))


def volume(sequence: int = 1, **rest: Any) -> WantedVolume:
    """A volume of 50 MiB with a number of its own, or that of `rest`."""
    number = rest.pop("number", None) or next(_numbers)
    return WantedVolume(
        number,
        "physics/data",
        1000 + number,
        f"/srv/cod/physics.data-{number}",
        50 * MIB,
        sequence,
        **{"may_make": True} | rest,
    )


def later(wanted: WantedVolume, **rest: Any) -> WantedVolume:
    """The next change of the volume: to be exported to nobody, but for what `rest` says."""
    return replace(wanted, sequence=wanted.sequence + 1, may_make=False, **{"clients": ()} | rest)


def test_only_the_named_addresses_reach_an_export(
    stand: NfsStand, carry_out: Callable[..., Any]
) -> None:
    server, wanted = stand.settings(), volume(clients=(OURS,))
    assert carry_out(server, wanted).enforced == "btrfs"
    assert (stand.sees("a", wanted.path), stand.sees("b", wanted.path)) == (True, False)
    wanted = later(wanted, clients=(THEIRS,))
    carry_out(server, wanted)
    assert (stand.sees("a", wanted.path), stand.sees("b", wanted.path)) == (False, True)
    file = stand.folder / "some"
    file.write_bytes(b"x")
    written = stand.nfs("b", "nfs-cp", str(file), url(f"{wanted.path}/some"))
    assert written.returncode != 0, "it is exported for reading only"
    carry_out(server, later(wanted))
    assert not stand.sees("b", wanted.path)


def test_a_volume_takes_no_more_than_its_size(
    stand: NfsStand, carry_out: Callable[..., Any]
) -> None:
    wanted = volume()
    carry_out(stand.settings(), wanted)
    for name, count, fits in (("small", 10, True), ("large", 80, False)):
        done = stand.runs(
            "dd",
            "if=/dev/urandom",
            f"of={wanted.path}/{name}",
            "bs=1M",
            f"count={count}",
            "conv=fsync",
        )
        assert (done.returncode == 0) == fits, done.stderr
    assert "quota exceeded" in done.stderr.lower()
    carry_out(stand.settings(), later(wanted, size=150 * MIB))
    stand.runs(
        "dd",
        "if=/dev/urandom",
        f"of={wanted.path}/large",
        "bs=1M",
        "count=80",
        "conv=fsync",
        check=True,
    )


def test_exports_outlive_a_restart_of_the_server(
    stand: NfsStand, carry_out: Callable[..., Any]
) -> None:
    kept, gone = volume(clients=(OURS,)), volume(clients=(OURS,))
    erased = volume(clients=(OURS,))
    for wanted in (kept, gone, later(gone), erased, later(erased, erase=True)):
        carry_out(stand.settings(), wanted)
    index = stand.runs("cat", "/etc/ganesha/cod.d/cod.conf", check=True).stdout
    # an include of a file that is missing keeps NFS-Ganesha from starting
    for line in index.splitlines():
        stand.runs("test", "-f", line.split('"')[1], check=True)
    stand.stop("ganesha")
    stand.start_ganesha()
    assert (stand.sees("a", kept.path), stand.sees("b", kept.path), stand.sees("a", gone.path)) == (
        True,
        False,
        False,
    )


def test_snapshots_and_copies(stand: NfsStand, carry_out: Callable[..., Any]) -> None:
    server, wanted = stand.settings(), volume()
    carry_out(server, wanted)
    stand.runs("sh", "-c", f"echo before > {wanted.path}/file", check=True)
    wanted = later(wanted, snapshots=("monday",))
    carry_out(server, wanted)
    stand.runs("sh", "-c", f"echo after > {wanted.path}/file", check=True)
    carry_out(server, wanted)  # repeated: the snapshot stays as it was taken
    copy = volume(source=f"{wanted.id}/monday", clients=(OURS,))
    carry_out(server, copy)
    assert stand.runs("cat", f"{copy.path}/file").stdout == "before\n"
    assert stand.nfs("a", "nfs-cat", url(f"{copy.path}/file")).stdout == "before\n"
    carry_out(server, later(wanted, snapshots=(), dropped=("monday",)))
    with pytest.raises(FileServerError, match=r"snapshot .* is missing"):
        carry_out(server, volume(source=f"{wanted.id}/monday"))
    for one in (wanted, copy):
        carry_out(server, replace(one, sequence=99, erase=True))
        assert stand.runs("test", "-e", one.path).returncode != 0
    assert stand.runs("test", "-e", f"/srv/cod/.snapshots/{wanted.id}").returncode != 0


def test_homes_are_their_owners_and_not_given_to_another_of_the_same_name(
    stand: NfsStand, carry_out: Callable[..., Any]
) -> None:
    server = stand.settings()
    wanted = volume(
        kind="home", homes=(HomeDirectory("ann", 20001, 20001), HomeDirectory("bob", 20002, 20002))
    )
    carry_out(server, wanted)
    said = stand.runs(
        "stat", "-c", "%u %g %a", wanted.path, f"{wanted.path}/ann", f"{wanted.path}/bob"
    ).stdout
    assert said.splitlines() == ["0 0 755", "20001 20001 700", "20002 20002 700"]
    stand.runs("sh", "-c", f"echo secret > {wanted.path}/ann/file", check=True)
    carry_out(server, later(wanted))
    assert stand.runs("cat", f"{wanted.path}/ann/file").stdout == "secret\n"
    carry_out(server, later(later(wanted), homes=(HomeDirectory("ann", 20007, 20007),)))
    assert stand.runs("test", "-e", f"{wanted.path}/ann/file").returncode != 0
    assert stand.runs("sh", "-c", f"cat {wanted.path}/.ann.20001.*/file").stdout == "secret\n"


def test_a_change_that_comes_late_is_refused(
    stand: NfsStand, carry_out: Callable[..., Any]
) -> None:
    wanted = volume(5)
    carry_out(stand.settings(), wanted)
    with pytest.raises(FileServerError, match="newer change"):
        carry_out(stand.settings(), replace(wanted, sequence=4, clients=(THEIRS,)))
    assert not stand.sees("b", wanted.path)


def test_an_attempt_that_is_killed_anywhere_is_done_again_by_the_next(
    stand: NfsStand, carry_out: Callable[..., Any]
) -> None:
    server, wanted = stand.settings(ssh=""), volume(clients=(OURS,))
    for n in range(24):
        wanted = replace(
            wanted, sequence=wanted.sequence + 1, clients=(OURS,) if n % 2 else (THEIRS,)
        )
        child = subprocess.Popen(
            [*stand._inside, "setsid", "sh", "-s"],
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert child.stdin
        child.stdin.write(script.apply(server, wanted))
        child.stdin.close()
        time.sleep(0.01 * n)
        subprocess.run(["pkill", "-KILL", "-s", str(child.pid)], check=False)
        child.kill()
        child.wait()
    wanted = replace(wanted, sequence=wanted.sequence + 1, clients=(OURS,))
    carry_out(stand.settings(), wanted)
    assert (stand.sees("a", wanted.path), stand.sees("b", wanted.path)) == (True, False)
    stand.stop("ganesha")
    stand.start_ganesha()
    assert (stand.sees("a", wanted.path), stand.sees("b", wanted.path)) == (True, False)


def test_a_script_that_arrives_cut_short_does_nothing(stand: NfsStand) -> None:
    wanted = volume()
    whole = script.apply(stand.settings(), wanted)
    for end in ("", "\napply\n"):
        cut = whole[: whole.rindex("\napply end")] + end
        subprocess.run(
            [*stand._inside, "sh", "-s"], input=cut, text=True, check=False, capture_output=True
        )
        assert stand.runs("test", "-e", wanted.path).returncode != 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ssh_key": "other.key"}, "refuses COD's key"),
        ({"known_hosts": "none"}, "another host key than known_hosts says"),
        ({"ssh": "root@127.0.0.1:2222"}, "does not answer: .*refused"),
        ({"root": "/srv/none"}, "not in /srv/none"),
        ({"exports": "/proc/none"}, "the change failed"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    stand: NfsStand, carry_out: Callable[..., Any], changes: dict[str, str], words: str
) -> None:
    own = {
        key: str(stand.folder / value) if key in ("ssh_key", "known_hosts") else value
        for key, value in changes.items()
    }
    with pytest.raises(FileServerError, match=words) as caught:
        carry_out(stand.settings(**own), volume())
    assert "nas" in caught.value.sentence
    assert "\n" not in caught.value.sentence


# ---------------------------------------------------------------- the whole way, by the edge


class Whole:
    """A database, an edge, and the stand."""

    def __init__(self, engine: Engine, site: Site) -> None:
        self.engine, self.site = engine, site
        self.run(furnish, 0)
        self.gid = self.run(groups.named, "site").gid

    def run(self, flow: Callable[..., Any], *args: Any, **words: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **words)

    def show(self) -> VolumeView:
        return self.run(flows.show, name="site/data", now=time.time())

    def wait(self, state: str, reason: str = "") -> VolumeView:
        """Wait until the volume is in `state` for `reason`: trouble on the way is tried again."""

        def reached() -> VolumeView | None:
            seen = self.show()
            return seen if seen.state == state and reason in seen.volume.reason else None

        return until(reached, self.show)

    def attach(self) -> int:
        """A volume, and a vcluster in the first block that mounts it; the vcluster's id."""
        now = time.time()
        self.run(
            flows.create, flow_context(self.site, now), name="data", size=20 * MIB, group="site"
        )
        made = self.run(
            vcluster_flows.create,
            flow_context(self.site, now),
            AskedVcluster(name="web", size=1, template="debian", group="site", homes=False),
        )
        vcluster = made.value[0].vcluster
        self.run(core_blocks.extend, vcluster, 1, self.site, now=now)  # as a grant does
        self.run(
            flows.attach,
            flow_context(self.site, now),
            vcluster="web",
            asked=AskedVolume("site/data"),
        )
        return int(vcluster.id)


@pytest.fixture
def whole(
    stand: NfsStand,
    driver: ScriptDriver,
    engine: Engine,
    site: Site,
    reactor: Any,
    in_reactor: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Whole]:
    monkeypatch.setattr(edges, "COMPARE", 3.0)
    stand.runs(
        "sh", "-c", "rm -f /etc/ganesha/cod.d/*; touch /etc/ganesha/cod.d/cod.conf", check=True
    )
    stand.stop("ganesha")
    stand.start_ganesha()
    server: FileServer = stand.settings()
    site = replace(site, fileservers=(server,), volumes=VolumeRules(homes=False, grace=0.0))
    pool = Pool(engine, reactor)
    edge = FileServerEdge(
        reactor, pool, {"ganesha": driver}, "s1", time.time, SiteRef(site), lambda _: None
    )
    reactor.callFromThread(edge.startService)
    yield Whole(engine, site)
    in_reactor(edge.stopService)
    pool.close()


def test_a_volume_from_its_creation_to_its_end(whole: Whole, stand: NfsStand) -> None:
    whole.attach()
    path = whole.wait("ready").volume.path
    assert (stand.sees("a", path, whole.gid), stand.sees("b", path, whole.gid)) == (True, False)
    whole.run(flows.detach, flow_context(whole.site, time.time()), name="site/data", vcluster="web")
    until(lambda: not whole.show().attachments)
    assert not stand.sees("a", path, whole.gid)
    whole.run(flows.delete, flow_context(whole.site, time.time(), "user:ann"), name="site/data")
    until(lambda: not whole.run(flows.every, now=time.time()))
    assert stand.runs("test", "-e", path).returncode != 0


def test_a_block_is_not_given_on_while_the_file_server_is_away(
    whole: Whole, stand: NfsStand
) -> None:
    web = whole.attach()
    path = whole.wait("ready").volume.path
    stand.stop("sshd")
    whole.run(vcluster_flows.delete, flow_context(whole.site, time.time(), "user:ann"), name="web")
    whole.wait("trouble", "does not answer")
    whole.run(run_pass, whole.site, time.time())
    assert whole.run(address_blocks.of, web) != []
    assert stand.sees("a", path, whole.gid), (
        "the export is still there, and so its addresses have to be"
    )
    stand.start_sshd()
    until(lambda: not whole.show().attachments, seconds=120)
    assert not stand.sees("a", path, whole.gid)
    whole.run(run_pass, whole.site, time.time())
    assert (whole.run(vclusters.get, web).state, whole.run(address_blocks.of, web)) == ("ended", [])


def test_a_server_that_was_rebuilt_gets_its_exports_again_and_lost_data_is_said(
    whole: Whole, stand: NfsStand
) -> None:
    whole.attach()
    path = whole.wait("ready").volume.path
    stand.stop("ganesha")
    stand.runs(
        "sh", "-c", "rm -f /etc/ganesha/cod.d/*; touch /etc/ganesha/cod.d/cod.conf", check=True
    )
    stand.start_ganesha()  # without the export, until the edge compares
    until(lambda: stand.sees("a", path, whole.gid), "the export is not made anew", 120)
    stand.stop("ganesha")
    stand.runs(
        "sh",
        "-c",
        f"rm -f /etc/ganesha/cod.d/*; touch /etc/ganesha/cod.d/cod.conf; umount {path};"
        f"btrfs subvolume delete {path}",
        check=True,
    )
    stand.start_ganesha()
    # a change that ran meanwhile may have missed the files that were removed under it
    whole.wait("trouble", "is missing on the file server")
    assert stand.runs("test", "-e", path).returncode != 0, (
        "no empty directory takes the place of the data"
    )
    whole.run(flows.remake, flow_context(whole.site, time.time()), name="site/data")
    whole.wait("ready")
    assert stand.sees("a", path, whole.gid)


def test_strays_are_withdrawn(whole: Whole, stand: NfsStand, carry_out: Callable[..., Any]) -> None:
    stray = volume(clients=(OURS,))
    carry_out(stand.settings(), stray)
    until(lambda: not stand.sees("a", stray.path), "the stray export stays", 120)
    assert stand.runs("test", "-d", stray.path).returncode == 0, "its data stays"
