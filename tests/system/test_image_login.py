"""Who gets in over SSH on the images' systems, and by which host key: all of a boot but the kernel,
in a chroot."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cod.model import HostKey
from cod.policy.nodes.host_keys import FILE
from cod.security import hostkeys
from images import build
from tests.ports import free_port
from tests.system.login import Key, fingerprints, root_of, ssh
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=2, together=True),
    pytest.mark.xdist_group("images"),
]

# size of the root; what makes the keys
IMAGES = {"hello-b": (256, "/etc/sshkeys"), "execd": (384, "/etc/cod/sshkeys")}


class System:
    """A node's system: its disk, and what is started from it."""

    def __init__(self, name: str, folder: Path) -> None:
        build.build(name, build.CHECKOUT / "build/images", build.CHECKOUT / "build/cache/images")
        size, self.script = IMAGES[name]
        self.root = root_of(build.CHECKOUT / f"build/images/{name}.img", size, folder)
        self.folder, self.port = folder, free_port()
        self._inside("[ -x /bin/ls ] || /bin/busybox --install -s")
        inittab = (self.root / "etc/inittab").read_text().splitlines()
        self.command = next(line.partition("respawn:")[2] for line in inittab if "dropbear" in line)
        self.server: subprocess.Popen[bytes] | None = None

    def fresh(self) -> None:
        """Leave the image as it is shipped: nothing of a boot before."""
        (self.folder / "known").unlink(missing_ok=True)
        self._inside("rm -rf /run/* /data/* /root/.ssh /etc/dropbear")

    def boots(self, instance: str, *keys: Key, host_key: str = "") -> str:
        """Power off, and on with the seed of that priming; returns its host key's fingerprint."""
        self.off()
        seed = self.root / "run/seed"
        seed.mkdir(parents=True, exist_ok=True)
        (seed / "meta-data").write_text(
            json.dumps({"instance-id": instance, "local-hostname": "n1"}) + "\n"
        )
        (seed / "authorized_keys").unlink(missing_ok=True)
        (seed / FILE).unlink(missing_ok=True)
        if host_key:
            (seed / FILE).write_text(host_key)
        if keys:
            (seed / "authorized_keys").write_text("".join(key.line for key in keys))
        return self.on()

    def on(self) -> str:
        """With whatever seed there is."""
        folder = shlex.split(self.command)[-1].rpartition("/")[0]
        self._inside(f"{self.script} {folder}")
        with open(self.folder / "console", "ab") as console:
            self.server = subprocess.Popen(
                self._chroot(f"exec {self.command} -p 127.0.0.1:{self.port}"),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        until(
            lambda: "Not backgrounding" in (self.folder / "console").read_text(),
            "the SSH server runs",
        )
        return (self.root / "run/host_key").read_text().strip()

    def off(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            (self.folder / "console").unlink()
            self.server = None

    def login(self, key: Key, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        return ssh(
            key,
            *options,
            "-p",
            str(self.port),
            "root@127.0.0.1",
            command,
            known=self.folder / "known",
        )

    def lets_in(self, key: Key) -> bool:
        """Return whether root may log in with the key; a refusal has to be one of the key."""
        done = self.login(key, "id -u")
        assert (done.returncode, done.stdout) == (
            0,
            "0\n",
        ) or "Permission denied (publickey)" in done.stderr, done
        return done.returncode == 0

    def _inside(self, script: str) -> None:
        subprocess.run(self._chroot(script), check=True, capture_output=True)

    def _chroot(self, script: str) -> list[str]:
        """The words that run a shell's script inside, where devices are, and nobody else sees that
        they are there."""
        return [
            "unshare",
            "-m",
            "sh",
            "-c",
            (
                'mount --rbind /dev "$0/dev" && exec chroot "$0" /bin/busybox env '
                'PATH=/sbin:/usr/sbin:/bin:/usr/bin /bin/busybox sh -c "$1"'
            ),
            str(self.root),
            script,
        ]


@pytest.fixture(scope="module", params=sorted(IMAGES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> System:
    return System(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def system(made: System) -> Iterator[System]:
    """A node whose disk was just written with the image; switched off."""
    made.fresh()
    yield made
    made.off()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: Key(folder, name) for name in ("ann", "bob", "eve")}


def test_whose_key_the_seed_has_gets_in_and_nobody_else(
    system: System, keys: dict[str, Key]
) -> None:
    shown = system.boots("1.1", keys["ann"], keys["bob"])
    assert system.lets_in(keys["ann"])
    assert system.lets_in(keys["bob"])
    assert not system.lets_in(keys["eve"])
    assert fingerprints(system.folder / "known") == {shown}
    other = system.login(
        keys["ann"], "true", "-oPreferredAuthentications=password,keyboard-interactive"
    )
    assert "Permission denied (publickey)" in other.stderr, "no other way is offered"


def test_the_seed_s_host_key_is_the_host_s(system: System, keys: dict[str, Key]) -> None:
    public, private = hostkeys.ed25519(b"s" * 32)
    expected = HostKey(hostkeys.ALGORITHM, public).fingerprint
    system.boots("1.1", keys["ann"])  # what an earlier priming left
    assert system.boots("1.2", keys["ann"], host_key=private) == expected
    assert system.lets_in(keys["ann"])
    assert fingerprints(system.folder / "known") == {expected}
    system.off()
    assert system.on() == expected, "at each boot"


def test_a_priming_is_the_end_of_those_before(system: System, keys: dict[str, Key]) -> None:
    """Also where the disk was not made anew, which capture and prime see to: an image of a node
    that ran."""
    first = system.boots("1.1", keys["ann"], keys["bob"])
    assert system.lets_in(keys["bob"])
    second = system.boots("1.2", keys["ann"])
    assert first != second, "two nodes of an image have two host keys"
    assert (
        "HOST IDENTIFICATION HAS CHANGED"
        in system.login(keys["ann"], "id", "-oLogLevel=INFO").stderr
    )
    (system.folder / "known").unlink()
    assert system.lets_in(keys["ann"])
    assert not system.lets_in(keys["bob"]), "he was taken out of the group"
    system.boots("1.3")
    (system.folder / "known").unlink()
    assert not system.lets_in(keys["ann"])


def test_what_is_changed_by_hand_outlives_a_boot(system: System, keys: dict[str, Key]) -> None:
    shown = system.boots("1.1", keys["ann"])
    line = keys["bob"].line.strip()
    assert system.login(keys["ann"], f"echo '{line}' >>~/.ssh/authorized_keys").returncode == 0
    assert system.lets_in(keys["bob"])
    assert system.boots("1.1", keys["ann"]) == shown
    assert system.lets_in(keys["bob"])


def test_without_a_seed_nobody_gets_in(system: System, keys: dict[str, Key]) -> None:
    system.on()
    assert not system.lets_in(keys["ann"])
