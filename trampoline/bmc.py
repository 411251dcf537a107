"""The address of this machine's BMC, as the machine itself can find it: by IPMI over the system
interface, and from SMBIOS.

The address is only a proposal: COD controls no machine's power by an address that only the machine
has told. Formats: IPMI 2.0, 23.2 (LAN configuration parameters); DSP0134 7.43 (management
controller host interface) with DSP0270, 8 (Redfish over IP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Ask = Callable[[int, int, bytes], bytes]
"""ask(network function, command, data): the answer with its completion code in front. Raises
OSError."""

DEVICE = Path("/dev/ipmi0")
MOST = 4  # that are reported
TRIES = 3  # with a BMC that says nothing
_TRANSPORT, _GET_LAN = 0x0C, 0x02
_ADDRESS, _MAC = 3, 5  # LAN parameters
_CHANNELS = range(1, 12)
_HOST_INTERFACE, _REDFISH, _IPV4 = 0x40, 0x04, 0x01


@dataclass(frozen=True, slots=True)
class Bmc:
    """An address of a BMC: `by` is the protocol there, 'ipmi' or 'redfish'; `mac` is '' if not
    known."""

    by: str
    address: str
    mac: str = ""


def none() -> list[Bmc]:
    """Return no address, without asking the machine's BMC."""
    return []


def in_band() -> list[Bmc]:
    """Ask the machine's BMC for the addresses of its LAN channels; best effort."""
    if not DEVICE.exists():
        return []
    from trampoline import ipmi  # late: few machines have the device

    with suppress(OSError), ipmi.opened(DEVICE) as ask:
        return list(lan(ask))
    return []


class Remembered:
    """Asks the machine's BMC by `ask`, and caches the answer. The report is made at each heartbeat.
    A slow or silent BMC must neither delay the agent each time nor make a machine's reports
    differ."""

    def __init__(self, ask: Callable[[], list[Bmc]] = in_band) -> None:
        self._ask, self._left, self._found = ask, TRIES, list[Bmc]()

    def __call__(self) -> list[Bmc]:
        if not self._found and self._left and DEVICE.exists():
            self._left -= 1
            self._found = self._ask()
        return self._found


def lan(ask: Ask) -> Iterator[Bmc]:
    """Yield the addresses of a BMC's LAN channels, up to the first channel without an answer."""
    with suppress(OSError):
        for channel in _CHANNELS:
            if address := _ipv4(_parameter(ask, channel, _ADDRESS)):
                mac = _parameter(ask, channel, _MAC)
                yield Bmc("ipmi", address, mac[:6].hex(":") if len(mac) >= 6 and any(mac) else "")


def _parameter(ask: Ask, channel: int, number: int) -> bytes:
    answer = ask(_TRANSPORT, _GET_LAN, bytes((channel, number, 0, 0)))
    return answer[2:] if answer[:1] == b"\0" else b""


def _ipv4(raw: bytes) -> str:
    """Return the address as text; '' if it is not a possible address of a host."""
    return ".".join(map(str, raw[:4])) if len(raw) >= 4 and 0 < raw[0] < 224 else ""


def host_interfaces(structures: Iterable[bytes]) -> Iterator[Bmc]:
    """Yield the addresses of Redfish services in SMBIOS's structures of type 42."""
    for structure in structures:
        if len(structure) < 6 or structure[4] != _HOST_INTERFACE:
            continue
        at = 6 + structure[5]  # a count of protocol records, then the records
        for _ in range(structure[at] if at < len(structure) else 0):
            kind, length = (*structure[at + 1 : at + 3], 0, 0)[:2]
            record = structure[at + 3 : at + 3 + length]
            is_ipv4 = kind == _REDFISH and record[51:52] == bytes((_IPV4,))
            if is_ipv4 and (address := _ipv4(record[52:56])):
                yield Bmc("redfish", address)
            at += 2 + length
