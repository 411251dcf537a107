"""What must survive: the server killed, the machine reset, the database gone, in every state of a
node's way.

One stand serves the whole table; each row leaves the node back in the reserve. A machine is stopped
(SIGSTOP) the moment it is seen in the state, so that the fault really happens there.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mariadb import UNSYNCED, MariaDB
from tests.system.site_images import ImageServer, offer, offer_slowly
from tests.system.stand import Stand, ip

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3),
    pytest.mark.slow,
    pytest.mark.xdist_group("faults"),
]

WAY = ["prime", "boot", "active", "trampoline", "wipe"]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A running site with one machine, idle, and two templates: red, and slow, whose image stops
    half-way."""
    with Stand(tmp_path_factory.mktemp("faults"), machines=1, policy="heartbeat = 1.0") as stand:
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        offer(stand, "red")
        stand.begin_here()
        yield stand


@pytest.fixture
def slow(stand: Stand) -> Iterator[ImageServer]:
    """The image server of template 'slow', new for each test, so that each gets its own
    revision."""
    server = offer_slowly(stand, "slow")
    yield server
    server.close()


def caught(stand: Stand, state: str, slow: ImageServer) -> None:
    """Bring m1 to `state` and stop it there. On a busy machine that may be over before it is seen:
    then once more."""
    while not stand.catches("m1", state, brought(stand, state, slow)):
        comes_home(stand, state)
    stand["m1"].signal(signal.SIGSTOP)
    slow.go.set()
    print(f"caught in {stand.state('m1')}, wanted {state}")


def brought(stand: Stand, state: str, slow: ImageServer) -> int:
    """Set m1 going towards `state`, released where that is on the way back; returns after how many
    transitions."""
    since = len(stand.history("m1"))
    stand.cod(
        "vcluster",
        "create",
        "web",
        "--size",
        "1",
        "--template",
        "slow" if state == "prime" else "red",
    )
    if state in ("trampoline", "wipe"):
        stand.reaches("m1", "active")
        stand.wait(lambda: "web" in stand["m1"].running())
        since = len(stand.history("m1"))
        stand.cod("vcluster", "delete", "web")
    if state == "prime":
        assert slow.asked.wait(120)
    return since


def comes_home(stand: Stand, state: str) -> None:
    """Whatever was done to it, m1 becomes what it was to become, and then comes back clean; nobody
    got it twice."""
    if state not in ("trampoline", "wipe"):
        stand.reaches("m1", "active")
        stand.wait(
            lambda: stand["m1"].running().split()[1:] == ["10.77.128.1", "n1", "web.cod.test"]
        )
        stand.cod("vcluster", "delete", "web")
    stand.reaches("m1", "inactive")
    stand.wait(lambda: not stand.vclusters(), what="the vcluster has ended")
    assert stand.node("m1").disk == "clean"
    assert stand.node("m1").vcluster_id is None
    assert not any((stand["m1"].folder / "disk").read_bytes())


@pytest.mark.parametrize("state", WAY)
def test_the_server_is_killed(stand: Stand, slow: ImageServer, state: str) -> None:
    caught(stand, state, slow)
    stand.kill()
    stand["m1"].signal(signal.SIGCONT)
    stand.serve()
    comes_home(stand, state)


@pytest.mark.parametrize("state", WAY)
def test_the_machine_is_power_cycled(stand: Stand, slow: ImageServer, state: str) -> None:
    caught(stand, state, slow)
    before = stand.connection("m1")
    stand["m1"].reset()
    if state in ("trampoline", "wipe"):  # what was done to it is noticed, before it is home
        stand.wait(lambda: (now := stand.connection("m1")) and now != before)
    comes_home(stand, state)


def test_a_machine_is_power_cycled_in_the_reserve(stand: Stand) -> None:
    before = len(stand.history("m1"))
    stand["m1"].reset()
    stand.wait(
        lambda: (
            [row["to_state"] for row in stand.history("m1")][before:] == ["trampoline", "inactive"]
        )
    )


def test_a_released_node_that_missed_its_boot_comes_back_at_once(stand: Stand) -> None:
    """Bring a node back at once that runs its old system, since its firmware met no network."""
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
    stand.reaches("m1", "active")
    stand.wait(lambda: "web" in stand["m1"].running())
    since = len(stand.history("m1"))
    ip("-n", stand.namespace, "link", "set", "v1", "down")
    stand.cod("vcluster", "delete", "web")
    stand.wait(lambda: stand["m1"].running() == "red", what="the node's old system starts")
    ip("-n", stand.namespace, "link", "set", "v1", "up")
    comes_home(stand, "trampoline")
    assert [row["event"] for row in stand.history("m1")[since:]][:2] == ["released", "timed_out"]


def test_an_active_node_boots_without_any_server(stand: Stand, slow: ImageServer) -> None:
    caught(stand, "active", slow)
    stand.kill()
    stand["m1"].reset()
    stand.wait(lambda: stand["m1"].running() == "red", what="the node's own system runs")
    stand.serve()
    stand.wait(
        lambda: stand["m1"].running().split() == ["red", "10.77.128.1", "n1", "web.cod.test"]
    )
    assert stand.state("m1") == "active"
    comes_home(stand, "active")


def test_the_stand_mends_what_a_failed_test_leaves(stand: Stand, slow: ImageServer) -> None:
    """Leave a server that hangs, a machine that hangs and a vcluster."""
    caught(stand, "boot", slow)
    assert stand.server is not None
    os.killpg(stand.server.pid, signal.SIGSTOP)
    stand.tend()
    assert stand.state("m1") == "inactive"
    assert not stand.vclusters()


def test_a_machine_that_hangs_is_power_cycled_when_its_time_is_up(tmp_path: Path) -> None:
    # prime: 15 s, boot: 30 s
    with Stand(tmp_path, machines=1, patience=0.05, policy="heartbeat = 1.0") as stand:
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        offer(stand, "red")
        since = len(stand.history("m1"))
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
        assert stand.catches("m1", "boot", since)
        stand["m1"].signal(signal.SIGSTOP)
        stand.reaches("m1", "active")
        assert "timed_out" in [row["event"] for row in stand.history("m1")]


# ---------------------------------------------------------------- bad images


def corrupt(folder: Path) -> None:
    """Change some bytes in the middle."""
    with open(folder / "data.zst", "r+b") as file:
        file.seek((folder / "data.zst").stat().st_size // 2)
        file.write(b"not what was there")


def truncate(folder: Path) -> None:
    """Cut the file short."""
    with open(folder / "data.zst", "r+b") as file:
        file.truncate((folder / "data.zst").stat().st_size // 2)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [(corrupt, "checksum|digest|damaged"), (truncate, "short|truncated|ends|range|416")],
    ids=["corrupted", "truncated"],
)
def test_a_bad_image_stops_its_request_and_costs_no_node(
    stand: Stand, harm: Callable[[Path], None], reason: str
) -> None:
    harm(offer(stand, harm.__name__, 8 << 20))
    stand.cod("vcluster", "create", harm.__name__, "--size", "1", "--template", harm.__name__)
    (stopped,) = stand.wait(
        lambda: stand.cod("request", "list", "--vcluster", harm.__name__, "--state", "stopped"),
        what="the request is stopped",
    )
    assert re.search(reason, stopped["reason"]), stopped["reason"]
    stand.reaches("m1", "inactive")
    node = stand.node("m1")
    assert (node.disk, node.vcluster_id) == ("clean", None)


def test_an_image_larger_than_every_disk_is_refused_before_a_node_is_touched(stand: Stand) -> None:
    offer(stand, "large", 256 << 20)
    since = len(stand.history("m1"))
    with pytest.raises(AssertionError, match=r"has 0 matching.*disk"):
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "large")
    assert "prime" not in [row["to_state"] for row in stand.history("m1")[since:]]


# ---------------------------------------------------------------- the database


def test_the_database_is_killed_on_the_way(tmp_path: Path) -> None:
    database = MariaDB(Path("/tmp") / f"codt{os.getpid()}-{tmp_path.name}")
    database.install()
    database.start(*UNSYNCED)
    try:
        database.url("cod")
        url = f"mysql+pymysql://root@localhost/cod?unix_socket={database.folder}/s.sock"
        with Stand(tmp_path, machines=1, database=url) as stand:
            stand.serve()
            stand["m1"].on()
            stand.reaches("m1", "inactive")
            slow = offer_slowly(stand, "slow")
            for state in ("prime", "boot"):
                since = len(stand.history("m1"))
                stand.cod("vcluster", "create", "web", "--size", "1", "--template", "slow")
                if state == "prime":
                    assert slow.asked.wait(120)
                else:
                    stand.catches("m1", state, since)  # or else it has just become active
                database.kill()
                slow.go.set()
                database.start(*UNSYNCED)
                stand.reaches("m1", "active")
                stand.wait(
                    lambda: (
                        stand["m1"].running().split()[1:] == ["10.77.128.1", "n1", "web.cod.test"]
                    )
                )
                stand.cod("vcluster", "delete", "web")
                stand.reaches("m1", "inactive")
                stand.wait(lambda: not stand.vclusters())
            slow.close()
    finally:
        database.stop()
        import shutil

        shutil.rmtree(database.folder, ignore_errors=True)
