"""`cod doctor` on a host that is in order, and with each trouble really there: in namespaces with a
foreign network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cod import init
from cod.client import Client
from cod.doctor.checks import clock
from cod.doctor.finding import Context
from cod.model import Site
from cod.security import webcert
from cod.site import load
from cod.store.database import connect
from tests.waiting import answers, until
from trampoline import build

pytestmark = [pytest.mark.system, pytest.mark.in_turn(3)]

ROOT = Path(__file__).resolve().parents[2]
HOLDER = (
    "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 69));"
    " time.sleep(300)"
)
SITE = """\
[server]
data_dir = "{data}"

[api]
listen = ["127.0.0.1:8443"]

[[subnet]]
name = "rack"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "site0"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.254"]

[[subnet]]
name = "far"
network = "10.78.0.0/16"
server = "10.77.0.1"
relay = "10.78.0.1"
boot_pool = ["10.78.1.0", "10.78.4.255"]
block_pool = ["10.78.128.0", "10.78.255.254"]
{more}"""
REDFISH = '[[power]]\ndriver = "redfish"\naddress = "https://bmc-{name}"\n'


class Host:
    """A namespace with the server's interface `site0`, whose cable ends as `far0` in another
    namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server, self.other = (f"coddoc{os.getpid()}{end}" for end in "so")
        self.file, self.data = folder / "site.toml", folder / "data"

    def write(self, more: str = "") -> None:
        """The site file with further tables."""
        self.file.unlink(missing_ok=True)
        self.file.write_text(SITE.format(data=self.data, more=more))
        self.file.chmod(0o600)

    def inside(self, namespace: str, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", namespace, *argv]

    def doctor(
        self, *words: str, wrap: tuple[str, ...] = ()
    ) -> tuple[int, dict[str, list[dict[str, str]]]]:
        """Exit code and findings by check."""
        done = subprocess.run(
            self.inside(
                self.server,
                *wrap,
                sys.executable,
                "-m",
                "cod",
                "--site",
                str(self.file),
                "doctor",
                "--json",
                *words,
            ),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=120,
        )
        assert done.stdout, done.stderr
        found: dict[str, list[dict[str, str]]] = {}
        for each in json.loads(done.stdout)["findings"]:
            found.setdefault(each["check"], []).append(each)
        return done.returncode, found

    def one(
        self, check: str, state: str, *words: str, wrap: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """The one finding of that check and state; every one that is not good has a remedy."""
        code, found = self.doctor("--only", check, *words, wrap=wrap)
        matching = [each for each in found.get(check, []) if each["state"] == state]
        assert len(matching) == 1, found
        assert matching[0]["remedy"]
        assert (code == 1) == (state == "bad")
        return matching[0]


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder as `cod init` makes it, to be copied: making the tables takes most of a test's
    time."""
    made = Host(tmp_path_factory.mktemp("founded"))
    made.write()
    init.found(made.data, made.file, {}, 1.0)
    return made.data


@pytest.fixture
def host(short_folder: Path, founded: Path) -> Iterator[Host]:
    """A host in order, on which the server does not run."""
    made = Host(short_folder)
    for namespace in (made.server, made.other):
        ip("netns", "add", namespace)
    # `ip netns exec` puts its files in place of those in /etc
    own_etc = Path("/etc/netns") / made.server
    own_etc.mkdir(parents=True)
    (own_etc / "resolv.conf").write_text("nameserver 10.77.0.1\n")
    try:
        ip(
            "-n",
            made.server,
            "link",
            "add",
            "site0",
            "type",
            "veth",
            "peer",
            "name",
            "far0",
            "netns",
            made.other,
        )
        for namespace, name, address in (
            (made.server, "site0", "10.77.0.1/16"),
            (made.other, "far0", "10.77.0.9/16"),
        ):
            ip("-n", namespace, "addr", "add", address, "brd", "+", "dev", name)
            ip("-n", namespace, "link", "set", name, "up")
            ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", made.server, "route", "add", "10.78.0.0/16", "via", "10.77.0.9")
        made.write()
        shutil.copytree(founded, made.data)
        trampoline = made.data / "boot/trampoline"
        kernel = bytearray(3000)
        kernel[0x1FE:0x200], kernel[0x202:0x206] = b"\x55\xaa", b"HdrS"
        (trampoline / "vmlinuz").write_bytes(kernel)
        (trampoline / "ramdisk").write_bytes(b"x" * 100)
        facts = {"flavour": "generic", "release": "6.1", "packed": 100, "sources": build.sources()}
        (trampoline / "facts.json").write_text(json.dumps(facts))
        yield made
    finally:
        shutil.rmtree(own_etc)
        for namespace in (made.server, made.other):
            ip("netns", "delete", namespace)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def running(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def states(found: dict[str, list[dict[str, str]]]) -> dict[str, set[str]]:
    return {check: {each["state"] for each in findings} for check, findings in found.items()}


# ---------------------------------------------------------------- in order


def test_a_host_in_order_with_the_server_down_and_up(host: Host) -> None:
    assert "quarantined" in host.one("power", "bad")["found"]  # no rule
    host.write(REDFISH)
    code, found = host.doctor()
    assert code == 0, found
    seen = states(found)
    assert seen.pop("power") == {"not seen"}  # no machine yet
    assert seen.pop("outside") == {"warning"}  # links have the host's own name
    assert "warning" in seen.pop("tenants")  # they share one network
    # this machine's own
    seen.pop("clock"), seen.pop("room"), seen.pop("users")
    assert seen.pop("delegation") == {"not seen"}  # the resolver is COD
    assert seen.pop("faults") == seen.pop("settings") == {"not seen"}  # no server runs
    assert set(map(str, seen.values())) == {str({"good"})}, found
    assert any("7 of" in each["found"] or "free" in each["found"] for each in found["ports"])
    log = host.folder / "log"
    command = f"exec {sys.executable} -m cod --site {host.file} serve 2>{log}"
    with running(host.inside(host.server, "sh", "-c", command)):
        until(lambda: answers(host.data / "run/api.sock"), log.read_text, 240)
        until(lambda: len(listening(host)) == 7, lambda: listening(host), 240)
        code, found = host.doctor()
        assert code == 0, found
        seen = states(found)
        asked = "ports", "delegation", "faults", "settings"
        assert {state for check in asked for state in seen[check]} == {"good"}, found
        assert "held by cod serve" in found["ports"][0]["found"]
        assert "good until" in found["certificates"][0]["found"]
        api = Client(str(host.data / "run/api.sock"))
        assert list(api.every("/nodes")) == []  # the probe has made no node
        api.close()


def listening(host: Host) -> set[str]:
    """The local ends of what is listened to in the server's namespace."""
    said = subprocess.run(
        host.inside(host.server, "ss", "-Hlntu"), check=True, capture_output=True, text=True
    ).stdout
    wanted = {":67", ":69", ":53", ":8069", ":8070", ":8071", ":8443"}
    return {
        end for end in wanted if any(line.split()[4].endswith(end) for line in said.splitlines())
    }


# ---------------------------------------------------------------- each trouble


def test_a_port_that_somebody_else_has(host: Host) -> None:
    with running(host.inside(host.server, sys.executable, "-c", HOLDER)) as process:
        until(lambda: ":69" in listening(host))
        found = host.one("ports", "bad")
        assert f"process {process.pid}" in found["found"]
        assert "TFTP" in found["found"]
        assert "tftpd-hpa" in found["remedy"]


@pytest.mark.parametrize(
    ("options", "state", "words"),
    [
        ((), "warning", "10.77.0.9 answers systems on site0 and offers 10.77.100."),
        (
            ("--dhcp-boot=pxe.0",),
            "bad",
            "10.77.0.9 answers network-booting machines on site0 and offers 10.77.100.",
        ),
        (("--dhcp-range=10.77.200.1,10.77.200.9",), "bad", "in the subnet's own pools"),
    ],
)
def test_another_dhcp_server_on_the_wire(
    host: Host, options: tuple[str, ...], state: str, words: str
) -> None:
    leases = host.folder / "leases"
    ranges = (
        ()
        if any("range" in each for each in options)
        else ("--dhcp-range=10.77.100.1,10.77.100.99",)
    )
    command = [
        "dnsmasq",
        "--keep-in-foreground",
        "--port=0",
        "--interface=far0",
        "--bind-interfaces",
        "--conf-file=",
        f"--dhcp-leasefile={leases}",
        f"--pid-file={host.folder}/pid",
        "--user=root",
        *ranges,
        *options,
    ]
    with running(host.inside(host.other, *command)):
        until(
            lambda: (
                "udp"
                in subprocess.run(
                    host.inside(host.other, "ss", "-Hlnup"),
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout.lower()
                or leases.exists()
            )
        )
        until(
            lambda: (
                ":67"
                in subprocess.run(
                    host.inside(host.other, "ss", "-Hlnu"),
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
        )
        _, found = host.doctor("--only", "dhcp")
        matching = [
            each for each in found["dhcp"] if each["state"] == state and words in each["found"]
        ]
        assert matching, found
        assert matching[0]["remedy"]
        assert not leases.exists() or not leases.read_text().strip()  # nothing was taken


def test_a_firewall_that_drops(host: Host) -> None:
    assert host.doctor("--only", "firewall")[1]["firewall"][0]["state"] == "good"
    chain = "type filter hook input priority 0; policy drop; udp dport 67 accept"
    rules = f"table ip f {{\n chain i {{ {chain}; }}\n}}"
    subprocess.run(host.inside(host.server, "nft", rules), check=True)
    found = host.one("firewall", "warning")["found"]
    assert "TFTP, UDP port 69" in found
    assert "DHCP" not in found


def test_interfaces_addresses_and_relays(host: Host) -> None:
    ip("-n", host.server, "link", "set", "site0", "down")
    _, found = host.doctor("--only", "network")
    assert (found["network"][0]["state"], found["network"][0]["remedy"]) == (
        "bad",
        "ip link set site0 up",
    )
    assert "no route to the relay 10.78.0.1" in found["network"][1]["found"]
    ip("-n", host.server, "link", "set", "site0", "up")
    ip("-n", host.server, "addr", "flush", "dev", "site0")
    _, found = host.doctor("--only", "network")
    assert "does not have the server's address 10.77.0.1" in found["network"][0]["found"]
    assert found["network"][0]["remedy"].startswith("ip addr add 10.77.0.1/16 dev site0")
    ip("-n", host.server, "link", "delete", "site0")
    _, found = host.doctor("--only", "network")
    assert (
        "this host has no interface site0; it has none but loopback" in found["network"][0]["found"]
    )


def test_the_metadata_services_own_address(host: Host) -> None:
    host.write("\n[boot]\nmetadata_link_local = true\n")
    _, found = host.doctor("--only", "network")
    assert found["network"][-1]["state"] == "bad"
    assert found["network"][-1]["remedy"].startswith("ip addr add 169.254.169.254/32 dev site0")
    ip("-n", host.server, "addr", "add", "169.254.169.254/32", "dev", "site0")
    _, found = host.doctor("--only", "network")
    assert found["network"][-1]["state"] == "good"
    assert found["network"][-1]["found"].startswith("metadata: 169.254.169.254 is on site0")


def test_loaders_and_trampolines(host: Host) -> None:
    (host.data / "boot/snponly.efi").unlink()
    assert "snponly.efi is missing" in host.one("loaders", "bad")["found"]
    (host.data / "boot/undionly.kpxe").write_bytes(b"<html>" + bytes(20_000))
    loaders = host.doctor("--only", "loaders")[1]["loaders"]
    assert any("undionly.kpxe is no loader" in each["found"] for each in loaders)
    folder = host.data / "boot/trampoline"
    facts = json.loads((folder / "facts.json").read_text())
    told = {"note": "no firmware for the drivers bnx2", "remedy": "add the component"}
    (folder / "facts.json").write_text(json.dumps(facts | {"firmware": told}))
    assert "no firmware for the drivers bnx2" in host.one("trampoline", "warning")["found"]
    (folder / "facts.json").write_text(json.dumps(facts | {"flavour": "lab"}))
    assert host.one("trampoline", "bad")["remedy"] == "`cod trampoline build generic`"
    lacking = {"firmware": {"note": "bnx2 lacks its firmware", "remedy": "add non-free-firmware"}}
    (folder / "facts.json").write_text(json.dumps(facts | lacking))
    found = host.one("trampoline", "warning")
    assert (found["found"], found["remedy"]) == (
        "generic, Linux 6.1: bnx2 lacks its firmware",
        "add non-free-firmware",
    )
    _, found_too = host.doctor("--only", "trampoline")
    assert ("good", "generic, Linux 6.1, of this version") in [
        (each["state"], each["found"]) for each in found_too["trampoline"]
    ], "machines without such a card boot"
    (folder / "facts.json").write_text(json.dumps(facts | {"sources": "0" * 64}))
    assert "of another version" in host.one("trampoline", "warning")["found"]
    (folder / "ramdisk").write_bytes(b"x" * 50)
    assert "not the one that was built" in host.one("trampoline", "bad")["found"]
    kernel = (folder / "vmlinuz").read_bytes()
    (folder / "vmlinuz").write_bytes(bytes(3000))
    assert "its head is broken" in host.one("trampoline", "bad")["found"]
    (folder / "vmlinuz").write_bytes(kernel)
    (folder / "facts.json").unlink()
    assert "no facts.json" in host.one("trampoline", "warning")["found"]
    (folder / "vmlinuz").unlink()
    assert "vmlinuz is missing" in host.one("trampoline", "bad")["found"]


def test_databases(host: Host) -> None:
    engine = connect(f"sqlite:///{host.data}/cod.db")
    with engine.begin() as tx:
        tx.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        tx.exec_driver_sql("UPDATE marks SET at = 9999 WHERE name = 'oldest schema'")
    engine.dispose()
    assert "newer version of COD" in host.one("database", "bad")["found"]
    for path in host.data.glob("cod.db*"):
        path.unlink()
    assert "cod.db is not there" in host.one("database", "bad")["found"]
    assert not (host.data / "cod.db").exists()
    host.file.write_text(
        host.file.read_text().replace(
            "[server]", '[server]\ndatabase = "mysql+pymysql://cod:secret@127.0.0.1:9/cod"'
        )
    )
    found = host.one("database", "bad")
    assert "Can't connect" in found["found"]
    assert "secret" not in found["found"]


def test_a_disk_that_is_full(host: Host) -> None:
    """A file system of its own, in a mount namespace: 32 MiB, of which nothing is left."""
    full = (
        f"mount -t tmpfs -o size=32m cod {host.data}/images && "
        f'{{ dd if=/dev/zero of={host.data}/images/fill bs=1M 2>/dev/null; exec "$@"; }}'
    )
    found = host.one("room", "bad", wrap=("unshare", "--mount", "sh", "-c", full, "sh"))
    assert f"{host.data}/images: 0.0 of 0.0 GiB free" in found["found"]


def test_a_disk_that_is_mounted_read_only(host: Host) -> None:
    mounted = f"mount --bind {host.data} {host.data}; mount -o remount,bind,ro {host.data}; "
    code, found = host.doctor(
        *("--only", "room,database,permissions"),
        wrap=("unshare", "-m", "sh", "-c", mounted + 'exec "$@"', "sh"),
    )
    assert code == 1
    assert found["room"][0]["state"] == "bad"
    assert "mounted read-only" in found["room"][0]["found"]
    assert "as root" not in str(found["permissions"] + found["database"])


def test_certificates(host: Host) -> None:
    web = host.data / "web"
    webcert.self_signed(web, ["head"], datetime(2020, 1, 1, tzinfo=UTC))
    assert "ended on 2021-02-01" in host.one("certificates", "bad")["found"]
    shutil.rmtree(web)
    webcert.self_signed(web, ["head"], datetime(2090, 1, 1, tzinfo=UTC))
    ahead = host.one("certificates", "bad")
    assert "begins on 2089-12-31 only" in ahead["found"]
    assert "remove both files and restart the server" in ahead["remedy"]
    shutil.rmtree(web)
    webcert.self_signed(web, ["head"])
    good = (web / "web.key").read_bytes()
    webcert.self_signed(host.folder / "other", ["head"])
    shutil.copy(host.folder / "other/web.key", web / "web.key")
    assert "is not the key of" in host.one("certificates", "bad")["found"]
    (web / "web.key").write_bytes(good)
    (host.data / "ca").mkdir(exist_ok=True)
    (host.data / "ca/ca.crt").unlink(missing_ok=True)
    shutil.copy(web / "web.key", host.data / "ca/ca.key")
    assert "ca.crt cannot be read" in host.one("certificates", "bad")["found"]


def test_secrets_that_others_can_read(host: Host) -> None:
    password = host.folder / "rack.password"
    host.write(f'[[account]]\nname = "rack"\npassword_file = "{password}"\n')
    assert "cannot be read" in host.one("permissions", "bad")["found"]
    password.write_text("x\n")
    password.chmod(0o644)
    assert "may be read by others (mode 0644)" in host.one("permissions", "bad")["found"]
    password.chmod(0o600)
    host.file.chmod(0o644)
    assert host.one("permissions", "bad")["remedy"] == f"chmod go= {host.file}"


def test_machines_that_cannot_be_switched(host: Host) -> None:
    host.write(
        '[[power]]\nmatch = "n1"\ndriver = "redfish"\naddress = "http://10.77.0.9:9"\n'
        'account = "rack"\n[[account]]\nname = "rack"\nuser = "cod"\n'
        f'password_file = "{host.folder}/p"\n'
    )
    (host.folder / "p").write_text("x\n")
    (host.folder / "p").chmod(0o600)
    found = host.one("power", "bad")
    assert found["found"].startswith("rule n1: redfish at http://10.77.0.9:9: ")
    assert "Redfish enabled" in found["remedy"]
    (host.folder / "p").unlink()
    assert host.one("power", "bad")["remedy"].startswith("put the password into its first line")
    host.write('[[power]]\ndriver = "ipmi"\naddress = "bmc-{name}"\n')
    assert "no machine is known yet" in host.one("power", "not seen")["found"]


def test_as_nobody_it_says_what_it_could_not_look_at(host: Host) -> None:
    """Not root: neither raw sockets, nor others' processes, nor the database."""
    host.folder.chmod(0o755)
    host.file.chmod(0o644)
    host.data.chmod(0o755)
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    with running(host.inside(host.server, sys.executable, "-c", HOLDER)):
        until(lambda: ":69" in listening(host))
        _, found = host.doctor("--only", "ports,dhcp,database", wrap=nobody)
    assert states(found)["dhcp"] == {"not seen"}
    assert states(found)["database"] == {"not seen"}
    assert (
        "only root can see"
        in next(each for each in found["ports"] if each["state"] == "not seen")["found"]
    )
    assert all(
        each["remedy"]
        for findings in found.values()
        for each in findings
        if each["state"] != "good"
    )


def test_a_site_file_with_an_error(host: Host) -> None:
    host.file.write_text("nme = 'x'\n")
    code, found = host.doctor()
    assert (code, list(found)) == (1, ["site file"])
    assert any("did you mean 'name'?" in each["found"] for each in found["site file"])


@pytest.mark.parametrize(
    ("answer", "state"), [((0, 4000), "good"), ((5, 16_000_000), "warning"), ((-1, 0), "warning")]
)
def test_a_clock_that_nobody_sets(
    tmp_path: Path, answer: tuple[int, int], state: str, site: Site
) -> None:
    """The kernel's answer alone is made up: this host's clock is not touched."""
    init.write_site_file(tmp_path / "site.toml", tmp_path, {})
    settings: Any = replace(load.load(tmp_path / "site.toml")[1])
    found = list(clock.findings(Context(site, settings, {}, 0.0, True), lambda: answer))
    assert [each.state for each in found] == [state]
    assert bool(found[0].remedy) == (state != "good")


def test_a_clock_that_chrony_cannot_set_is_no_reason_to_install_chrony(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = None
    remedies = set[str]()
    for path in ("/usr/sbin/chronyd", None):
        monkeypatch.setattr("shutil.which", {"chronyd": path}.get)
        found = clock.findings(Context(site, settings, {}, 0.0, True), lambda: (5, 0))
        remedies |= {each.remedy for each in found}
    assert {remedy.split()[0] for remedy in remedies} == {"`chronyc", "apt-get"}
