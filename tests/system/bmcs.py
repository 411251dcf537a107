"""Foreign endpoints for the power drivers, on free ports of loopback: ipmi_sim, sushy-tools'
emulator, snmpsim.

What they switch listens on a UNIX socket and speaks the lab daemon's protocol: a lab of QEMU
machines, or a `Switchboard`, which only remembers.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.waiting import until

BIN = Path(sys.executable).parent


def ask(path: Path, node: str, op: str) -> str:
    """Turn a switch behind a socket; 'on' or 'off'."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        line.sendall(json.dumps({"op": op, "node": node}).encode() + b"\n")
        return str(json.loads(line.makefile().readline())["power"])


@contextmanager
def running(argv: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs as long as the block."""
    with open(log, "ab") as said:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            **options,
        )
    try:
        yield process
    except BaseException:
        print(f"--- {argv[0]}\n{log.read_text(errors='replace')[-4000:]}")
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Switchboard(socketserver.ThreadingUnixStreamServer):
    """Switches without machines: `power` by name, `said` in order. `deaf` names ops that come to
    nothing."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.power: dict[str, str] = {}
        self.said: list[str] = []
        self.deaf: set[str] = set()
        super().__init__(str(path), _Switch)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def turn(self, node: str, op: str) -> str:
        """Do it; what the power is then."""
        if op != "status":
            self.said.append(op)
            if op not in self.deaf:
                self.power[node] = {"on": "on", "reset": "on"}.get(op, "off")
        return self.power.get(node, "off")


class _Switch(socketserver.StreamRequestHandler):
    server: Switchboard

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            power = self.server.turn(asked["node"], asked["op"])
            self.wfile.write(json.dumps({"ok": True, "power": power}).encode() + b"\n")


# ---------------------------------------------------------------- IPMI

LAN = """
name "{node}"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
{sol}  chassis_control "{python} -S {program} {socket} {node} {folder} 0x20"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "admin" "secret" admin 10 none md2 md5 straight
"""
EMULATED = """
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
"""


class IpmiSim:
    """A BMC that speaks IPMI 2.0 (cipher suite 3): user admin, password secret. `serial`: the
    terminal that is its machine's serial port, for Serial-over-LAN; '': it has none."""

    def __init__(self, folder: Path, switches: Path, node: str, serial: str = "") -> None:
        self.folder, self.port = folder, free_port(socket.SOCK_DGRAM)
        (folder / "state").mkdir(parents=True)
        program = Path(__file__).with_name("chassis.py")
        (folder / "lan.conf").write_text(
            LAN.format(
                sol=f'  sol "{serial}" 115200\n' if serial else "",
                node=node,
                port=self.port,
                python=sys.executable,
                program=program,
                socket=switches,
                folder=folder,
            )
        )
        (folder / "emulated").write_text(EMULATED)

    @property
    def address(self) -> str:
        """Return the address for the driver `ipmi`."""
        return f"127.0.0.1:{self.port}?suite=3"

    @contextmanager
    def run(self, namespace: str = "") -> Iterator[IpmiSim]:
        """The BMC's own power is on as long as the block runs, in that network namespace."""
        # it locks the terminal there, or says nothing of it ever
        Path("/var/lock").resolve().mkdir(exist_ok=True)
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        argv = [
            *inside,
            "ipmi_sim",
            "-n",
            "-c",
            f"{self.folder}/lan.conf",
            "-f",
            f"{self.folder}/emulated",
            "-s",
            f"{self.folder}/state",
        ]
        with running(argv, self.folder / "said") as process:
            heard = Path(f"/proc/{process.pid}/net/udp")
            until(lambda: f":{self.port:04X} " in heard.read_text(), "ipmi_sim listens")
            yield self

    def log(self) -> list[str]:
        """What the BMC has asked of its machine."""
        return (
            (self.folder / "log").read_text().splitlines() if (self.folder / "log").exists() else []
        )

    def boot(self) -> str:
        """The boot device that was set."""
        return (self.folder / "boot").read_text()


# ---------------------------------------------------------------- Redfish

UUID = "27946b59-9e44-4fa7-8e91-f3527a1ef094"


class SushyEmulator:
    """A BMC that speaks Redfish over TLS: user admin, password secret; each switch takes 1 to 11
    seconds to show.

    What it has switched is passed on to `switches` when somebody looks, as the emulator itself
    notices it then.
    """

    def __init__(self, folder: Path, switches: Path, node: str) -> None:
        self.folder, self.port, self.node, self.switches = folder, free_port(), node, switches
        self.boot = ""
        (folder / "state").mkdir(parents=True)
        self.certificate = certificate(folder)
        import bcrypt

        (folder / "users").write_text(
            f"admin:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n"
        )

    @property
    def address(self) -> str:
        """Return the address for the driver `redfish`."""
        return f"https://127.0.0.1:{self.port}?ca={self.certificate}"

    @contextmanager
    def run(self) -> Iterator[SushyEmulator]:
        """The BMC runs as long as the block."""
        listener = _Notified(self)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        nics = [{"mac": "52:54:00:00:00:01", "ip": "10.0.0.1"}]
        system = {
            "uuid": UUID,
            "name": self.node,
            "power_state": "Off",
            "external_notifier": True,
            "nics": nics,
        }
        (self.folder / "emulator.conf").write_text(
            "SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_STATE_DIR ="
            f" '{self.folder}/state'\nSUSHY_EMULATOR_AUTH_FILE ="
            f" '{self.folder}/users'\nSUSHY_EMULATOR_FAKE_SYSTEMS ="
            f" [{system!r}]\nEXTERNAL_NOTIFICATION_URL ="
            f" 'http://127.0.0.1:{listener.server_address[1]}'\n"
        )
        argv = [
            str(BIN / "sushy-emulator"),
            "--config",
            f"{self.folder}/emulator.conf",
            "-i",
            "127.0.0.1",
            "-p",
            str(self.port),
            "--ssl-certificate",
            str(self.certificate),
            "--ssl-key",
            f"{self.folder}/key.pem",
        ]
        environment = os.environ | {"TMPDIR": str(self.folder)}  # it keeps its systems' state there
        try:
            with running(argv, self.folder / "said", env=environment):
                until(self._listens, "the emulator listens")
                yield self
        finally:
            listener.shutdown()
            listener.server_close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class _Notified(http.server.HTTPServer):
    """Where the emulator tells what it has switched."""

    def __init__(self, emulator: SushyEmulator) -> None:
        self.emulator = emulator
        super().__init__(("127.0.0.1", 0), _Notice)


class _Notice(http.server.BaseHTTPRequestHandler):
    server: _Notified

    def do_PUT(self) -> None:
        system = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        emulator = self.server.emulator
        emulator.boot = system.get("boot_device", "")
        if not system.get("pending_power"):
            ask(emulator.switches, emulator.node, "on" if system["power_state"] == "On" else "off")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Silence."""


def certificate(folder: Path, name: str = "127.0.0.1") -> Path:
    """A certificate for an address, signed by itself, in cert.pem; its key in key.pem."""
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            f"subjectAltName=IP:{name}",
            "-keyout",
            f"{folder}/key.pem",
            "-out",
            f"{folder}/cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem"


# ---------------------------------------------------------------- SNMP

OUTLET = "1.3.6.1.4.1.318.1.1.12.3.3.1.1.4"


class SnmpOutlets:
    """A rack's outlets as APC's speak: community `private`; SNMPv3 user `cod`, password
    `outlet-password`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port(socket.SOCK_DGRAM)
        for part in ("data", "cache"):
            (folder / part).mkdir(parents=True)
        records = [
            "1.3.6.1.2.1.1.1.0|4|Outlets",
            f"{OUTLET}.1|2:writecache|value=2",
            f"{OUTLET}.2|2:writecache|value=1",
            # the third cannot be set
            f"{OUTLET}.3|2:error|op=set,status=notWritable,value=2",
        ]
        for name in ("private", "self"):
            (folder / "data" / f"{name}.snmprec").write_text("\n".join(records) + "\n")

    @contextmanager
    def run(self) -> Iterator[SnmpOutlets]:
        """The outlets can be asked as long as the block runs."""
        argv = [
            str(BIN / "snmpsim-command-responder"),
            f"--data-dir={self.folder}/data",
            f"--cache-dir={self.folder}/cache",
            f"--agent-udpv4-endpoint=127.0.0.1:{self.port}",
            "--process-user=root",
            "--process-group=root",
            "--v3-user=cod",
            "--v3-auth-key=outlet-password",
            "--v3-auth-proto=SHA",
            "--v3-priv-key=outlet-password",
            "--v3-priv-proto=AES",
        ]
        with running(argv, self.folder / "said"):
            until(
                lambda: f":{self.port:04X} " in Path("/proc/net/udp").read_text(),
                "the outlets listen",
            )
            time.sleep(0.2)
            yield self
