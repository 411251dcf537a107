"""A stand-in for a bare-metal machine, run inside a network namespace of its own: ``python -m
cod.lab.standin``.

Everything that it sends to the server comes from real programs: BusyBox's DHCP client (as PXE
firmware, as iPXE, as the trampoline, as an operating system), real HTTP fetches of script and
secret, and the real agent, which works on a file as its disk. Firmware and kernels are left out. To
kill the process group is to pull the plug; to stop it (SIGSTOP) is to have the machine hang.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from cod import data

MARK = b"COD-TEST-OS "  # an image for stand-ins begins with this and its name
SIGNATURE = 510, b"\x55\xaa"  # where a disk that firmware would boot has what

LEASE = """#!/bin/sh
case $1 in bound|renew)
  ip addr flush dev $interface
  ip addr add $ip/${mask:-16} dev $interface
  [ -z "$router" ] || ip route replace default via ${router%% *}
  env > LEASE.new && mv LEASE.new LEASE ;;
esac
"""


class BootFailed(Exception):
    """A stage of the boot failed; the firmware starts again."""


class StandIn:
    """The machine's life from power-on until the plug is pulled. `agent`: the module that runs as
    its agent."""

    agent = "trampoline.ctramp"

    def __init__(self, folder: Path, mac: str, arch: int) -> None:
        self.folder, self.mac = folder, mac
        self.lease_file = folder / "lease"
        self.lease_script = folder / "udhcpc.sh"
        self.lease_script.write_text(LEASE.replace("LEASE", str(self.lease_file)))
        self.lease_script.chmod(0o755)
        # DHCP options by which the firmware and its loader describe the machine
        self.options = ["-V", f"PXEClient:Arch:{arch:05d}:UNDI:002001", "-x", f"0x5d:{arch:04x}"]

    def say(self, line: str) -> None:
        print(f"{time.time():.3f} {line}", flush=True)

    def run(self) -> None:
        """Boot, and boot again whenever the booted system ends, until an orderly power-off."""
        while not (self.folder / "off").exists():
            try:
                self.boot()
            except (BootFailed, OSError, http.client.HTTPException) as error:
                self.say(f"boot failed: {error}")
                time.sleep(0.5)  # the firmware starts over

    def boot(self) -> None:
        """Boot once: from the firmware's first DHCP request to the end of the booted system."""
        try:
            first = self.dhcp(self.options)
        except BootFailed as error:
            self.say(f"firmware: {error}; next boot option: the disk")
            self.boot_disk()
            return
        script = self.script(first)
        if "sanboot" in script or "/boot/disk/" in script:
            self.boot_disk()
        elif kernel := re.search(r"^kernel (\S+) (.*)$", script, re.M):
            self.trampoline(script, kernel[2])
        else:
            raise BootFailed("nothing to boot")

    def script(self, first: Mapping[str, str]) -> str:
        """Return the server's boot script for the machine. `first`: the answer to the firmware's
        DHCP request. Raises BootFailed."""
        self.say(f"firmware: {first.get('ip')} loads {first.get('boot_file')}")
        if not first.get("boot_file"):
            raise BootFailed("no boot file")
        second = self.dhcp([*self.options, "-x", "0x4d:69505845"])  # user class "iPXE"
        script = self.fetch(second["boot_file"]).decode()
        self.say("ipxe: " + script.splitlines()[1])
        return script

    def dhcp(self, options: list[str], tries: int = 5) -> dict[str, str]:
        """Make one DHCP exchange; return the values that the client's script got. Raises
        BootFailed."""
        self.lease_file.unlink(missing_ok=True)
        client = ["busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-t", str(tries), "-T", "1"]
        subprocess.run(
            [*client, "-s", str(self.lease_script), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if not self.lease_file.exists():
            raise BootFailed("nobody answers DHCP")
        return dict(line.partition("=")[::2] for line in self.lease_file.read_text().splitlines())

    def fetch(self, url: str) -> bytes:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=10)
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise BootFailed(f"{url}: HTTP {answer.status}")
        return body

    def secret(self, script: str) -> bytes:
        """Fetch the secret that the boot script names, and return its text. Raises BootFailed."""
        urls = re.findall(r"^initrd .*?(http://\S+secret\.cpio)", script, re.M)
        found = re.search(rb"([0-9a-f]{8,} [0-9a-f]{16,}\n?)", self.fetch(urls[0]))
        if found is None:
            raise BootFailed("no secret in the secret's archive")
        return found[1]

    def trampoline(self, script: str, cmdline: str) -> None:
        """Fetch the secret, ask for the trampoline's own address, and run the real agent."""
        secret = self.folder / "secret"
        secret.write_bytes(self.secret(script))
        secret.with_name("secret.session").unlink(missing_ok=True)  # RAM does not outlive a reset
        self.dhcp(["-V", "cod-trampoline"], tries=90)
        confd = re.search(r"cod\.confd=(\S+)", cmdline)
        assert confd is not None
        options = [
            ("--confd", confd[1]),
            ("--mac", self.mac),
            ("--secret", str(secret)),
            ("--root", str(self.folder / "root")),
            *(("--disk", str(path)) for path in sorted(self.folder.glob("disk*"))),
            ("--reboot-command", "true"),
            ("--poweroff-command", f"touch {self.folder}/off"),
        ]
        subprocess.run(
            [sys.executable, "-m", self.agent, *chain.from_iterable(options)],
            check=False,
            env=os.environ | {"PYTHONPATH": str(data.path("trampoline").parent)},
        )

    def boot_disk(self) -> None:
        """Run the system on the disk: it asks for its address by DHCP, as every system does. Raises
        BootFailed where the disk has no system."""
        with open(self.folder / "disk", "rb") as disk:
            head = disk.read(512)
        at, signature = SIGNATURE
        if head.startswith(MARK):
            name = head[len(MARK) :].split(b"\0")[0].decode().strip()
        elif head[at:] == signature:
            name = "system"
        else:
            raise BootFailed("no bootable device")
        (self.folder / "os").write_text(name)
        self.say(f"running {name}")
        while not (lease := self.asked_as_system(name)):
            self.say("the network does not answer")
        (self.folder / "os").write_text(
            f"{name} {lease['ip']} {lease.get('hostname', '')} {lease.get('domain', '')}"
        )
        self.say(f"{name} is {lease.get('hostname')} at {lease['ip']}")
        # a test's own program for the system, where a test needs more than an address
        if (self.folder / "system").exists():
            words = [lease.get("hostname", ""), lease.get("domain", "")]
            subprocess.run([str(self.folder / "system"), *words], check=False)
        while True:
            time.sleep(3600)

    def asked_as_system(self, name: str) -> dict[str, str]:
        try:
            return self.dhcp(["-V", f"udhcp {name}"])
        except BootFailed:
            return {}


def main(machine: type[StandIn] = StandIn) -> None:
    """Run a machine with the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mac", required=True)
    parser.add_argument("--arch", type=int, default=0)
    options = parser.parse_args()
    machine(options.folder, options.mac, options.arch).run()


if __name__ == "__main__":
    main()
