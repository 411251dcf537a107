"""Fifty BMCs of a rack, by Redfish: some are slow, some refuse, some lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.web.server import NOT_DONE_YET

from tests.net.redfishbmc import SYSTEM, Bmc

COUNT = 50
SLOW, REFUSES, LIES = range(41, 46), range(46, 49), range(49, 51)
CARDS = f"{SYSTEM}/EthernetInterfaces"


def mac(number: int) -> str:
    return f"52:54:00:77:00:{number:02x}"


def uuid(number: int) -> str:
    return f"4c4c4544-0077-3510-8054-{number:012x}"


class Rack:
    """What the BMCs of a rack share: the slow ones answer after all others."""

    def __init__(self) -> None:
        self.quick = COUNT - len(SLOW)
        self.held: list[Callable[[], None]] = []

    def answered(self) -> None:
        self.quick -= 1
        if self.quick == 0:
            for finish in self.held:
                finish()

    def hold(self, finish: Callable[[], None]) -> None:
        """Have a slow BMC's answer wait."""
        self.held.append(finish)


class RackBmc(Bmc):
    """The BMC of machine `number`, which tells of its system by Redfish."""

    def __init__(self, rack: Rack, number: int) -> None:
        super().__init__()
        self.rack, self.number, self.passwords = rack, number, 0
        told = number if number != LIES[0] else 1
        self.pages |= {
            CARDS: {"Members": [{"@odata.id": f"{CARDS}/1"}]},
            f"{CARDS}/1": {"MACAddress": mac(number if number != LIES[1] else 2).upper()},
        }
        self.pages[SYSTEM] |= {
            "SerialNumber": f"SER{told:03}",
            "UUID": uuid(number).upper(),
            "Manufacturer": "Contoso",
            "Model": "3500\x1b[31m",
            "EthernetInterfaces": {"@odata.id": CARDS},
        }

    def render(self, request: Any) -> Any:
        path = request.path.decode()
        if path == "/redfish/v1/":
            body = {"RedfishVersion": "1.9.0", "Systems": {"@odata.id": "/redfish/v1/Systems"}}
            assert request.getHeader("Authorization") is None, "a password before it is a BMC"
            return self._send(request, 200, json.dumps(body).encode())
        self.passwords += 1
        if self.number in REFUSES:
            self.rack.answered()
            return self._send(request, 401, b"{}")
        body = super().render(request)
        if path != f"{CARDS}/1":
            return body
        if self.number not in SLOW:
            self.rack.answered()
            return body
        self.rack.hold(lambda: (request.write(body), request.finish()))
        return NOT_DONE_YET
