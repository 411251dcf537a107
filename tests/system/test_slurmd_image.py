"""The Slurm node's image without its kernel: its own scripts in namespaces, with a real slurmctld
beside it."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from images.releases import TRIXIE
from tests.system.batch_image import copied, files_of, inside, with_user_data
from tests.system.installation import USER
from tests.system.slurmhead import SlurmHead, slurm_head
from tests.system.slurmroot import unpack
from tests.system.stand import ip
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=1, together=True),
    pytest.mark.xdist_group("images"),
    pytest.mark.timeout(900),
]

CONTROLLER, ADDRESS, OTHER_ADDRESS, PORT = "10.99.0.1", "10.99.0.2", "10.99.0.3", 8069
KEY = base64.b64encode(bytes(range(64))).decode()
RECHECK = 1
# Everything init would start, in namespaces; nobody in there may set this machine's clock.
MACHINE = """\
hostname {name}
mount -t tmpfs tmpfs {root}/run
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount --bind /sys {root}/sys
mkdir -p -m 700 {root}/run/seed
cp {seed}/* {root}/run/seed/
chroot {root} /etc/cod/settings
echo {address} > {root}/run/address
for daemon in clock munged slurmd; do
  (while :; do setpriv --bounding-set=-sys_time chroot {root} /etc/cod/$daemon; sleep 1; done) &
done
wait
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files_of("slurmd", tmp_path_factory.mktemp("slurmd"))


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return copied(built, tmp_path)


# ------------------------------------------------------------ settings


def said(root: Path) -> dict[str, str]:
    """What the settings have written for slurmd's script."""
    return dict(
        word.split("=", 1) for word in shlex.split((root / "etc/default/slurmd").read_text())
    )


def test_without_user_data_it_asks_the_vclusters_first_node_and_has_no_key(root: Path) -> None:
    with_user_data(root, "#cloud-config\n{}\n")
    assert said(root) == {"controller": "n1", "words": "Feature=cod", "recheck": "30"}
    assert (root / "etc/hosts").read_text() == "127.0.0.1 localhost\n"
    assert (root / "run/munge/munge.key").read_bytes() == b""


def test_user_data_name_controller_key_features_and_users(root: Path) -> None:
    with_user_data(
        root,
        f"SLURM_CONTROLLER=head:6999,spare\nSLURM_CONTROLLER_ADDRESS=10.1.2.3\nMUNGE_KEY={KEY}\n"
        "SLURM_FEATURES=cod,gpu\nSLURM_NODE=Gres=gpu:2 RealMemory=900\nUSERS=alice:2001\n",
    )
    assert said(root) == {
        "controller": "head:6999,spare",
        "words": "Feature=cod,gpu Gres=gpu:2 RealMemory=900",
        "recheck": "30",
    }
    assert (root / "etc/hosts").read_text() == "127.0.0.1 localhost\n10.1.2.3 head\n"
    key = root / "run/munge/munge.key"
    assert key.read_bytes() == bytes(range(64))
    assert (
        inside(root, "stat -c '%U %a' /run/munge/munge.key; id -u slurm alice")
        == "munge 600\n64030\n2001\n"
    )


@pytest.mark.parametrize(
    "value", ["$(touch /evil)", "`touch /evil`", "a;touch /evil", 'a"b', "../../etc"]
)
def test_values_that_could_be_commands_are_passed_over(root: Path, value: str) -> None:
    with_user_data(
        root,
        "".join(
            f"{name}={value}\n"
            for name in (
                "SLURM_CONTROLLER",
                "SLURM_FEATURES",
                "SLURM_NODE",
                "SLURM_RECHECK",
                "MUNGE_KEY",
            )
        ),
    )
    assert said(root) == {"controller": "n1", "words": "Feature=cod", "recheck": "30"}
    assert not (root / "evil").exists()


# ------------------------------------------------------------ the clock


@pytest.mark.parametrize(("off", "is_set"), [(3600, True), (-3600, True), (0, False)])
def test_a_wrong_clock_is_set_by_the_boot_server(
    root: Path, tmp_path: Path, off: int, is_set: bool
) -> None:
    """Credentials of munge expire after five minutes. `date` is watched: it would set this
    machine's clock."""
    with_user_data(root, "")
    server = subprocess.Popen(
        [sys.executable, "-c", _DATES, str(off)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    (root / "run/seed/meta-data").write_text(
        json.dumps({"cod-metadata": f"http://127.0.0.1:{port}/latest/"})
    )
    (root / "run/address").write_text("127.0.0.1\n")
    (root / "usr/bin/date").rename(root / "usr/bin/date.real")
    (root / "usr/bin/date").write_text(
        '#!/bin/sh\n[ "$2" = -s ] && exec /usr/bin/date.real -u -d "$3" +%s >>/set\n'
        'exec /usr/bin/date.real "$@"\n'
    )
    (root / "usr/bin/date").chmod(0o755)
    clock = subprocess.Popen(
        ["setpriv", "--bounding-set=-sys_time", "chroot", root, "/etc/cod/clock"],
        start_new_session=True,
    )
    try:
        until((root / "run/clock").exists, "the clock has been looked at", 60)
    finally:
        os.killpg(clock.pid, signal.SIGKILL)
        clock.wait()
        server.kill()
        server.wait()
    set_to = (root / "set").read_text().split() if (root / "set").exists() else []
    assert bool(set_to) == is_set
    if is_set:
        assert abs(int(set_to[0]) - (root / "set").stat().st_mtime - off) < 30


_DATES = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + int(sys.argv[1]))
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


# ------------------------------------------------------------ with a slurmctld


class Machine:
    """A node's system with its own scripts, in a network with a head and a stand-in for COD's
    metadata service."""

    def __init__(self, root: Path, folder: Path, namespace: str, head: SlurmHead) -> None:
        self.root, self.namespace, self.head = root, namespace, head
        self.seed, self.metadata = folder / "seed", folder / "metadata"
        self.seed.mkdir()
        (self.metadata / "latest").mkdir(parents=True)
        (self.seed / "user-data").write_text(
            f"SLURM_CONTROLLER=head\nSLURM_CONTROLLER_ADDRESS={CONTROLLER}\nMUNGE_KEY={head.key}\n"
            f"USERS=alice:{USER}\nSLURM_RECHECK={RECHECK}\n"
        )
        (self.seed / "meta-data").write_text(
            json.dumps(
                {"instance-id": "1.7", "cod-metadata": f"http://{CONTROLLER}:{PORT}/latest/"}
            )
            + "\n"
        )
        self.tells()
        self._server = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                head.namespace,
                sys.executable,
                "-m",
                "http.server",
                "--bind",
                CONTROLLER,
                "--directory",
                str(self.metadata),
                str(PORT),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._system: subprocess.Popen[bytes] | None = None

    def tells(self, leaving: bool = False, instance: str = "1.7") -> None:
        """Let COD tell this of the node; '': that it is no node of a cluster."""
        path = self.metadata / "latest/cod.json"
        if not instance:
            path.unlink()
            return
        path.write_text(json.dumps({"instance_id": instance, "leaving": leaving}, indent=1))

    def on(self, name: str = "n7", address: str = ADDRESS) -> None:
        """Boot the system under that name and address."""
        ip("-n", self.namespace, "addr", "flush", "dev", "eth0")
        ip("-n", self.namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        script = MACHINE.format(root=self.root, seed=self.seed, name=name, address=address)
        with open(self.seed.parent / "console", "ab") as console:
            self._system = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.namespace,
                    "unshare",
                    "--uts",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    script,
                ],
                stdout=console,
                stderr=console,
            )

    def off(self) -> None:
        """Pull the plug."""
        if self._system is not None:
            self._system.kill()
            self._system.wait()
            self._system = None

    def close(self) -> None:
        self.off()
        self._server.kill()
        self._server.wait()

    def joins(self, name: str = "n7", address: str = ADDRESS, seconds: float = 120.0) -> None:
        """Wait until the node is ready for jobs."""
        until(
            lambda: self.head.is_ready(name, address),
            lambda: f"{name} joins: {self.head.node(name)}, {self.log()}",
            seconds,
            0.2,
        )

    def deleted(self, name: str = "n7") -> None:
        """Delete the node's record, as the pool's manager does."""
        self.head.run("scontrol", "update", f"nodename={name}", "state=down", "reason=cod")
        self.head.run("scontrol", "delete", f"nodename={name}")
        assert self.head.node(name) == {}

    def log(self) -> str:
        """What slurmd says in its present life."""
        with suppress(FileNotFoundError):
            return (self.root / "var/log/slurm/slurmd.out").read_text()[-1000:]
        return ""


@contextmanager
def networked(release: Path | None = None) -> Iterator[SlurmHead]:
    """A head, not started, and the network of it and of one machine. `release`: the files that the
    head has."""
    number = os.getpid()
    names = [f"slurm-{number}-{kind}" for kind in ("head", "node")]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "-n",
            names[0],
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            names[1],
        )
        ip("-n", names[0], "addr", "add", f"{CONTROLLER}/24", "dev", "eth0")
        for name in names:
            ip("-n", name, "link", "set", "eth0", "up")
        with slurm_head(names[0], CONTROLLER, root=release) as made:
            yield made
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.fixture
def head() -> Iterator[SlurmHead]:
    with networked() as made:
        yield made


@contextmanager
def beside(head: SlurmHead, root: Path, folder: Path) -> Iterator[Machine]:
    """A machine in the head's network, switched off."""
    made = Machine(root, folder, head.namespace.replace("-head", "-node"), head)
    try:
        yield made
    finally:
        made.close()
        print((folder / "console").read_text()[-2000:])


@pytest.fixture
def machine(root: Path, tmp_path: Path, head: SlurmHead) -> Iterator[Machine]:
    with beside(head, root, tmp_path) as made:
        yield made


def test_a_node_joins_runs_a_job_and_keeps_the_key_from_it(machine: Machine) -> None:
    joins_and_runs_a_job(machine)


@pytest.mark.nightly
def test_a_node_of_debian_13_joins_a_head_of_its_release(tmp_path: Path) -> None:
    release, node = tmp_path / "release", tmp_path / "node"
    node.mkdir()
    try:
        unpack(TRIXIE, release)
        root = files_of("slurmd-debian13", node)
        with networked(release) as head, beside(head, root, tmp_path) as machine:
            joins_and_runs_a_job(machine)
            assert "24.11" in inside(root, "slurmd -V")
    finally:
        shutil.rmtree(release, ignore_errors=True)
        shutil.rmtree(node)


def joins_and_runs_a_job(machine: Machine) -> None:
    """Let a node look for a head that is not there yet, join, and run a job that looks for the
    key."""
    machine.on()
    until(
        lambda: "slurmd: error" in machine.log() or "fatal" in machine.log(),
        "slurmd finds nobody",
        60,
    )
    machine.head.start()  # later than the node: slurmd is tried again
    machine.joins()
    assert machine.head.node("n7")["AvailableFeatures"] == "cod"
    done = machine.head.run(
        "srun",
        "-n1",
        "sh",
        "-c",
        "id -un; hostname; cat /run/munge/munge.key /run/seed/user-data;"
        f"grep -rls {machine.head.key} /etc /var /tmp; true",
        check=False,
        user=USER,
    )
    assert done.stdout.split() == ["alice", "n7"], done
    assert done.stderr.count("Permission denied") == 2


def test_a_node_whose_record_is_deleted_comes_back_if_it_stays(machine: Machine) -> None:
    machine.head.start()
    machine.on()
    machine.joins()
    started = machine.head.node("n7")["SlurmdStartTime"]
    machine.deleted()
    machine.joins()
    assert machine.head.node("n7")["SlurmdStartTime"] != started


def test_a_node_on_its_way_back_does_not_join_again(machine: Machine) -> None:
    machine.head.start()
    machine.on()
    machine.joins()
    machine.tells(leaving=True)
    machine.deleted()
    gone = {"leaving": True, "instance": "1.7"}, {"instance": ""}, {"instance": "1.8"}
    # it leaves; it is no node of the cluster; another priming's node has its address
    for state in gone:
        machine.tells(**state)
        with pytest.raises(AssertionError):
            until(lambda: machine.head.node("n7"), seconds=6 * RECHECK, every=0.5)
    machine.tells()
    machine.joins()


def test_a_node_with_the_name_of_another_registers_when_the_others_record_is_struck_off(
    machine: Machine,
) -> None:
    machine.head.start()
    machine.on()
    machine.joins()
    started = machine.head.node("n7")["SlurmdStartTime"]
    machine.off()
    machine.on(address=OTHER_ADDRESS)
    until(
        lambda: "the record of n7 is that of another node" in machine.log(),
        "the node sees the record",
        60,
    )
    assert "slurmd started" not in machine.log()
    assert machine.head.node("n7")["SlurmdStartTime"] == started, (
        "under that record Slurm would keep its address"
    )
    machine.tells(leaving=True)  # it makes no difference: this record is not the node's
    machine.deleted()
    machine.joins(address=OTHER_ADDRESS)


def test_a_configuration_written_by_the_user_datas_program_is_used(machine: Machine) -> None:
    """Where slurmctld has not enabled configless."""
    (machine.head.folder / "slurm.conf").write_text(
        (machine.head.folder / "slurm.conf")
        .read_text()
        .replace("SlurmctldParameters=enable_configless\n", "")
    )
    machine.head.start()
    inside(
        machine.root,
        "cat >/etc/slurm/slurm.conf <<'END'\n"
        + (machine.head.folder / "slurm.conf").read_text()
        + "END\n",
    )
    machine.on()
    machine.joins()
