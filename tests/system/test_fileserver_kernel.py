"""Volumes by the driver `kernel`: the real exportfs over a real sshd, on XFS. This kernel has no
NFS server, so what is seen here ends with exportfs's own table of exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.process import reapAllProcesses
from twisted.internet.task import LoopingCall

from cod.fileservers.driver import FileServerError, ScriptDriver
from cod.model import ExportClient, FileServer, WantedVolume
from tests.system.nfs_stand import ADDRESS, NfsStand

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("exportfs")]

MIB = 2**20


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NfsStand]:
    with NfsStand(tmp_path_factory.mktemp("nfs"), "xfs", whole=False) as stand:
        stand.stop("ganesha")
        yield stand


@pytest.fixture
def ask(
    stand: NfsStand, reactor: Any, in_reactor: Callable[..., Any]
) -> Iterator[Callable[..., Any]]:
    """Call a method of the driver, and wait for its value."""
    reaping = LoopingCall(reapAllProcesses)
    reactor.callFromThread(reaping.start, 0.02)
    driver = ScriptDriver(reactor, str(stand.folder / "ssh"))
    yield lambda method, *args: in_reactor(
        lambda: Deferred.fromCoroutine(getattr(driver, method)(*args))
    )
    in_reactor(reaping.stop)


@pytest.fixture
def server(stand: NfsStand) -> FileServer:
    return stand.settings(driver="kernel")


def volume(number: int, **rest: Any) -> WantedVolume:
    return WantedVolume(
        number,
        "physics/data",
        1000 + number,
        f"/srv/cod/physics.data-{number}",
        50 * MIB,
        1,
        **{"may_make": True} | rest,
    )


def table(stand: NfsStand, path: str) -> list[str]:
    """Return what exportfs shows of a directory: options by client."""
    said = stand.runs("exportfs", "-s").stdout
    return sorted(line.split(None, 1)[1] for line in said.splitlines() if line.split()[0] == path)


def test_exports_name_networks_and_squash_root(
    stand: NfsStand, ask: Callable[..., Any], server: FileServer
) -> None:
    own, other = ExportClient("10.77.128.0/26", False), ExportClient("10.77.200.64/26", True)
    wanted = volume(1, clients=(own, other))
    ask("carry_out", server, wanted)
    [first, second] = table(stand, wanted.path)
    assert first.startswith("10.77.128.0/26(")
    assert second.startswith("10.77.200.64/26(")
    for line, mode in ((first, "rw"), (second, "ro")):
        options = line.partition("(")[2].rstrip(")").split(",")
        assert {"sync", "root_squash", "sec=sys", mode} <= set(options)
        assert "no_subtree_check" not in options, "the volume is no file system of its own"
    assert ask("exports", server) == {1001: 1}
    ask("carry_out", server, replace(wanted, sequence=2, clients=(own,)))
    assert len(table(stand, wanted.path)) == 1
    ask("carry_out", server, replace(wanted, sequence=3, clients=()))
    assert (table(stand, wanted.path), ask("exports", server)) == ([], {1001: 3})
    ask("carry_out", server, replace(wanted, sequence=4, clients=(own,)))
    stand.runs("exportfs", "-u", f"10.77.128.0/26:{wanted.path}", check=True)
    assert ask("exports", server) == {1001: 0}, "what is not as it was carried out is found"
    ask("withdraw", server, 1001)
    assert ask("exports", server) == {}
    ask("carry_out", server, replace(wanted, sequence=5, erase=True))
    assert stand.runs("test", "-e", wanted.path).returncode != 0


def test_xfs_without_quotas_says_so_and_takes_no_snapshots(
    stand: NfsStand, ask: Callable[..., Any], server: FileServer
) -> None:
    """Refuse quotas on a kernel that has none for XFS, like the one here: project quotas cannot be
    tried."""
    wanted = volume(2)
    assert ask("carry_out", server, wanted).enforced == "none"
    with pytest.raises(FileServerError, match="need Btrfs or ZFS"):
        ask("carry_out", server, replace(wanted, sequence=2, snapshots=("monday",)))


def test_another_file_of_exports_stays_as_it_is(
    stand: NfsStand, ask: Callable[..., Any], server: FileServer
) -> None:
    stand.runs(
        "sh",
        "-c",
        f"mkdir -p /srv/own /etc/exports.d; echo '/srv/own {ADDRESS}(ro,fsid=77)' > "
        "/etc/exports.d/own.exports",
        check=True,
    )
    ask("carry_out", server, volume(3, clients=(ExportClient("10.77.128.0/26", False),)))
    assert len(table(stand, "/srv/own")) == 1
    assert 77 not in ask("exports", server)
