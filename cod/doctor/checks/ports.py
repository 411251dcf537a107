"""Check of the ports that the server opens: each is free, held by the server itself, or held by
another process.

Listening sockets are read from /proc/net, so the check binds nothing. Only root can see which
process has a socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.model import METADATA_ADDRESS

LISTENING = "0A"  # of TCP, as /proc/net writes it
REMEDIES = {
    "DHCP": "stop the other DHCP server (systemctl disable --now …), or run COD on another host",
    "TFTP": (
        "stop the other TFTP server (systemctl disable --now tftpd-hpa, or `enable-tftp` of"
        " dnsmasq)"
    ),
    "DNS": (
        "stop the other name server (systemctl disable --now …, or have it listen on other"
        " addresses alone), or set [dns] port = 0"
    ),
}


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the server opens. The `address` '0.0.0.0' is any."""

    name: str
    kind: str
    address: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}, {self.kind} port {self.number}" + (
            "" if self.address == "0.0.0.0" else f" of {self.address}"
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens. `pid` is 0 if only root can see the process. `ours`: it is a part of
    `cod serve`."""

    pid: int
    command: str
    ours: bool


def wanted(context: Context) -> list[Port]:
    """Return the ports that the server opens by the site file."""
    site, settings = context.site, context.settings
    ports = [Port("DHCP", "UDP", "0.0.0.0", 67)]
    for address in dict.fromkeys(subnet.server for subnet in site.subnets):
        ports += [Port("TFTP", "UDP", address, 69)]
        ports += [
            Port("DNS", kind, address, site.dns.port) for kind in ("UDP", "TCP") if site.dns.port
        ]
        ports += [
            Port("boot and image server", "TCP", address, site.boot.http_port),
            Port("confd", "TCP", address, site.boot.confd_port),
        ]
        ports += [
            Port("NMP", "TCP", address, port)
            for port in (site.nmp.port, site.nmp.plain_port)
            if port
        ]
    if site.boot.metadata_link_local:
        ports += [Port("metadata service", "TCP", METADATA_ADDRESS, 80)]
    return ports + [
        Port("portal and API", "TCP", address, number) for address, number in settings.listen
    ]


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each port with a fault, and one for all others."""
    held = {port: _holders(port) for port in wanted(context)}
    runs = any(holder.ours for holders in held.values() for holder in holders)
    good = 0
    for port, holders in held.items():
        others = [holder for holder in holders if not holder.ours]
        if any(holder.pid for holder in others):
            who = ", ".join(
                f"{holder.command} (process {holder.pid})" for holder in others if holder.pid
            )
            yield Finding(
                BAD,
                f"{port}: held by {who}",
                REMEDIES.get(port.name, "stop that program, or change the port in the site file"),
            )
        elif others:
            yield Finding(
                UNSEEN,
                f"{port}: held by a process that only root can see",
                "run `cod doctor` as root to see whose it is",
            )
        elif runs and not holders:
            yield Finding(
                WARNING,
                f"{port}: `cod serve` runs on this host and does not listen there",
                "look into its log: journalctl -u cod",
            )
        else:
            good += 1
    if good:
        yield Finding(
            GOOD, f"{good} of {len(held)} ports: {'held by cod serve' if runs else 'free'}"
        )


def _holders(port: Port) -> list[Holder]:
    """Return the processes that listen on the port's address, or on all addresses."""
    inodes = set()
    for name in (port.kind.lower(), f"{port.kind.lower()}6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                local, _, number = fields[1].rpartition(":")
                address = _address(local)
                overlaps = port.address == "0.0.0.0" or address in ("0.0.0.0", "::", port.address)
                if (
                    int(number, 16) == port.number
                    and overlaps
                    and (port.kind == "UDP" or fields[3] == LISTENING)
                ):
                    inodes.add(fields[9])
    return _owners(inodes) if inodes else []


def _address(written: str) -> str:
    """Return an address of /proc/net, where words of 32 bits are in the host's byte order."""
    raw = b"".join(bytes.fromhex(written[at : at + 8])[::-1] for at in range(0, len(written), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw).removeprefix(
        "::ffff:"
    )


def _owners(inodes: set[str]) -> list[Holder]:
    names = {f"socket:[{inode}]" for inode in inodes}
    found: dict[int, Holder] = {}
    seen = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    if (target := os.readlink(link)) in names:
                        seen.add(target)
                        line = (process / "cmdline").read_bytes()
                        found[int(process.name)] = Holder(
                            int(process.name),
                            line.replace(b"\0", b" ").decode(errors="replace").strip()[:120],
                            is_server(line),
                        )
    return [*found.values(), *([Holder(0, "", False)] if names - seen else [])]


def is_server(line: bytes) -> bool:
    """Return whether a command line, in the form of /proc/PID/cmdline, is that of a part of `cod
    serve`."""
    words = line.split(b"\0")
    return b"serve" in words and any(word == b"cod" or word.endswith(b"/cod") for word in words)
