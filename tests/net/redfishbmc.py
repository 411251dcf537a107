"""A BMC that speaks Redfish with every whim, in the test's own reactor: user admin, password
secret."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

SYSTEMS = "/redfish/v1/Systems"
SYSTEM = f"{SYSTEMS}/1"
CHASSIS = "/redfish/v1/Chassis/1"
ALL = ["On", "ForceOff", "GracefulShutdown", "PowerCycle", "ForceRestart"]


class Bmc(Resource):
    """A BMC: `pages` by path, what was `asked` of it, and answers that come before the pages
    (`first`)."""

    isLeaf = True
    address = ""  # where it listens

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, Any]] = []
        self.tags: list[str | None] = []
        self.first: list[tuple[int, dict[str, str], bytes]] = []
        self.silent = False
        self.keeps = True  # what a PATCH says of its boot
        self.pages: dict[str, Any] = {
            "/redfish/v1/Systems": {"Members": [{"@odata.id": SYSTEM}]},
            SYSTEM: {
                "@odata.id": SYSTEM,
                "PowerState": "Off",
                "Links": {"Chassis": [{"@odata.id": CHASSIS}]},
                "Boot": {"BootSourceOverrideTarget@Redfish.AllowableValues": ["Pxe", "Hdd"]},
            },
            CHASSIS: {"Links": {"ComputerSystems": [{"@odata.id": SYSTEM}]}},
        }
        self.allow(ALL)

    def allow(self, types: list[str] | None) -> None:
        action: dict[str, Any] = {"target": f"{SYSTEM}/Actions/ComputerSystem.Reset"}
        if types is not None:
            action["ResetType@Redfish.AllowableValues"] = types
        self.pages[SYSTEM]["Actions"] = {"#ComputerSystem.Reset": action}

    def render(self, request: Any) -> Any:
        if self.silent:
            return NOT_DONE_YET
        if self.first:
            code, headers, body = self.first.pop(0)
            return self._send(request, code, body, headers)
        kind, _, word = (request.getHeader("Authorization") or "").partition(" ")
        if kind != "Basic" or b64decode(word) != b"admin:secret":
            return self._send(request, 401, b"{}")
        path, method = request.path.decode(), request.method.decode()
        content = request.content.read()
        if method != "GET":
            self.asked.append((method, path, json.loads(content)))
            self.tags.append(request.getHeader("If-Match"))
            return self._changed(request, path, json.loads(content))
        if path not in self.pages:
            return self._send(request, 404, b"{}")
        return self._send(request, 200, json.dumps(self.pages[path]).encode(), {"ETag": 'W/"7"'})

    def _changed(self, request: Any, path: str, body: Any) -> bytes:
        kind = body.get("ResetType")
        self.pages[SYSTEM]["Boot"] |= body.get("Boot", {}) if self.keeps else {}
        if kind:
            self.pages[SYSTEM]["PowerState"] = (
                "Off" if kind in ("ForceOff", "GracefulShutdown") else "On"
            )
        return self._send(request, 204, b"")

    def _send(
        self, request: Any, code: int, body: bytes, headers: dict[str, str] | None = None
    ) -> bytes:
        request.setResponseCode(code)
        for key, value in (headers or {}).items():
            request.setHeader(key, value)
        return body

    def resets(self) -> list[str]:
        return [body["ResetType"] for _method, path, body in self.asked if path.endswith("Reset")]
