"""The driver `ipmi`: BMCs that speak IPMI 2.0 over the network (RMCP+), by the program ipmitool.

Address: ``HOST[:PORT][?suite=N]``; `suite` is the cipher suite (3, 17), for BMCs that do not answer
the question which suites they have: without it, each command would wait some seconds for that
answer. An account is needed; operator's rights suffice.

The password is passed in the child's environment, which nobody but COD's user and root can read.
ipmitool runs verbosely, because only then it says why a session was refused: after a wrong password
COD does not try again (BMCs lock accounts), but it does where a BMC did not answer.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from typing import Any

from cod.childprocess import ChildProcess
from cod.choices import PowerDriverKind
from cod.model import BmcSystem, uuids_of
from cod.power import address
from cod.power.driver import Plain, PowerError, Target, off_then_on

FORM = "HOST[:PORT][?suite=N]"
LONGEST_PASSWORD = 20  # bytes, IPMI 2.0
# the suites with authentication, integrity and encryption that BMCs have; suite 0 needs no password
SUITES = ("3", "17")
OUTPUT = 1 << 16  # bytes kept of what ipmitool says
TO_GO_OFF = 12.0  # seconds

LASTING = {  # what ipmitool says of a session that did not come about, and what it means
    "RAKP 2 HMAC is invalid": "the BMC refuses the password",
    "unauthorized name": "the BMC does not know the user",
    "invalid authentication algorithm": "the BMC refuses the cipher suite",
    "invalid integrity algorithm": "the BMC refuses the cipher suite",
    "no matching cipher suite": "the BMC refuses the cipher suite",
    "invalid role": "the account has not the rights of an operator",
}
SILENT = "Unable to establish"


class IpmiRefusal(PowerError):
    """The BMC has answered with a refusal."""


class IpmiDriver(Plain):
    """The driver for BMCs by IPMI, with one child process for each command. `program` is ipmitool's
    name or path."""

    kind = PowerDriverKind.IPMI

    def __init__(self, reactor: Any, program: str = "ipmitool") -> None:
        self._reactor = reactor
        self._program = program

    async def status(self, target: Target) -> str:
        """Return 'on' or 'off'."""
        found = re.search(
            r"Chassis Power is (on|off)", await self._run(target, "chassis", "power", "status")
        )
        return found[1] if found else "unknown"

    async def on(self, target: Target) -> None:
        """Send the chassis control 'power up'."""
        await self._run(target, "chassis", "power", "on")

    async def off(self, target: Target) -> None:
        """Send the chassis control 'power down'."""
        await self._run(target, "chassis", "power", "off")

    async def cycle(self, target: Target) -> None:
        """Send the chassis control 'power cycle'; switch off and on where the BMC does not offer
        that or the machine is off."""
        if await self.status(target) == "on":
            with suppress(IpmiRefusal):
                await self._run(target, "chassis", "power", "cycle")
                return
        await off_then_on(self._reactor, self, target, TO_GO_OFF)

    async def soft(self, target: Target) -> bool:
        """Ask for an ACPI shutdown."""
        await self._run(target, "chassis", "power", "soft")
        return True

    async def boot_from_network(self, target: Target) -> bool:
        """Have the next boot use PXE. UEFI machines are told to use UEFI, since some BMCs would
        otherwise switch them to BIOS for that boot."""
        efi = ["options=efiboot"] if target.firmware == "uefi" else []
        await self._run(target, "chassis", "bootdev", "pxe", *efi)
        return True

    async def watts(self, target: Target) -> float | None:
        """Return the DCMI power reading in watts; None where the BMC has none."""
        try:
            return reading(await self._run(target, "dcmi", "power", "reading"))
        except IpmiRefusal:
            return None

    async def systems(self, target: Target) -> list[BmcSystem]:
        """Return the BMC's one system, with the identifiers of its FRU and its GUID. IPMI tells no
        MACs."""
        power = await self.status(target)
        output = ""
        for command in (("fru", "print", "0"), ("mc", "guid")):
            with suppress(IpmiRefusal):  # many BMCs have neither
                output += await self._run(target, *command)
        fields = dict(
            re.findall(r"^\s*([A-Z][A-Za-z ]*?)\s*: *([ -~]{1,64}?)\s*$", output, re.MULTILINE)
        )
        names = (fields.get("Product Manufacturer"), fields.get("Product Name"))
        return [
            BmcSystem(
                host=address.parse(target.address, FORM, {"": 623}, ("suite",)).host,
                driver=self.kind,
                address=target.address,
                model=" ".join(filter(None, names)),
                serials=tuple(filter(None, [fields.get("Product Serial")])),
                uuids=uuids_of(fields.get("System GUID", "")),
                power=power,
            )
        ]

    async def _run(self, target: Target, *command: str) -> str:
        """Run ipmitool and return its output. Raises `PowerError`."""
        options, environment = call(target)
        program = installed(self._program)
        child = ChildProcess(most=OUTPUT)
        self._reactor.spawnProcess(child, program, [program, *options, *command], environment)
        status, output, errors = await child.ended
        text = (output + errors).decode(errors="replace")
        if status != 0:
            raise trouble(text)
        return text


def installed(name: str) -> str:
    """Return the path of the program. Raises `PowerError` where it is not installed."""
    program = shutil.which(name)
    if program is None:
        raise PowerError(f"the program {name} is not installed on this server")
    return program


def call(target: Target) -> tuple[list[str], dict[str, str]]:
    """Return ipmitool's options and environment. Raises `PowerError`."""
    where = address.parse(target.address, FORM, {"": 623}, ("suite",))
    suite = where.options.get("suite", "")
    if where.path or ("suite" in where.options and suite not in SUITES):
        raise address.malformed(target.address, FORM)
    if target.sign_in is None:
        raise PowerError(
            "the ipmi driver needs an account: see [[account]] of the site file", lasting=True
        )
    if len(target.sign_in.password.encode()) > LONGEST_PASSWORD:
        raise PowerError(
            f"IPMI passwords have at most {LONGEST_PASSWORD} bytes, this one has more", lasting=True
        )
    options = [
        "-I",
        "lanplus",
        "-H",
        where.host,
        "-p",
        str(where.port),
        "-U",
        target.sign_in.user,
        "-E",
        "-L",
        "OPERATOR",
        "-N",
        "2",
        "-R",
        "2",
        "-v",
        *(["-C", suite] if suite else []),
    ]
    return options, {
        "IPMI_PASSWORD": target.sign_in.password,
        "LC_ALL": "C",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }


def trouble(output: str) -> PowerError:
    """Return the error that ipmitool's output tells."""
    for words, meaning in LASTING.items():
        if words in output:
            return PowerError(meaning, lasting=True)
    if SILENT in output:
        return PowerError("the BMC does not answer", silent=True)
    failures = [line.strip() for line in output.splitlines() if "failed" in line]
    output = failures[-1] if failures else "no"
    if "Insufficient privilege" in output:
        return IpmiRefusal("the account has not the rights of an operator", lasting=True)
    return IpmiRefusal(f"the BMC says: {output}"[:300])


def reading(output: str) -> float | None:
    """Return the watts in ipmitool's answer to `dcmi power reading`; None when the BMC says that
    measuring is off."""
    found = re.search(r"Instantaneous power reading:\s+(\d+) Watts", output)
    off = re.search(r"Power reading state is:\s+deactivated", output)
    return float(found[1]) if found and not off else None
