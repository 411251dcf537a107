"""The driver `redfish`: BMCs that speak Redfish (DMTF DSP0266), with its ComputerSystem and Chassis
schemas.

Address: ``https://HOST[:PORT][/redfish/v1/Systems/ID][?ca=FILE | ?fingerprint=SHA256 |
?insecure=yes]``. Without a path, the BMC must have exactly one system. The certificate is checked
against the system's authorities unless an option says otherwise (`cod.power.trust`). ``http://`` is
for BMCs behind a tunnel: it shows the password to the network.

A BMC tells which reset types it allows. The driver takes the first of its own list that is among
them.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from cod.choices import PowerDriverKind
from cod.model import BmcSystem, mac_of, uuids_of
from cod.power import address
from cod.power.bmcweb import BmcRefusal, Bmcs
from cod.power.driver import Plain, PowerError, Target, off_then_on
from cod.power.trust import Trust, trust_of

FORM = "https://HOST[:PORT][/redfish/v1/Systems/ID][?ca=FILE|?fingerprint=SHA256|?insecure=yes]"
ROOT = "/redfish/v1"
ON = ("On", "ForceOn")
OFF = ("ForceOff",)
SOFT = ("GracefulShutdown",)
CYCLE = ("PowerCycle",)
TO_GO_OFF = 20.0  # seconds
# a machine that is still changing its state is not yet in the new one
POWER = {"On": "on", "Off": "off", "PoweringOn": "off", "PoweringOff": "on"}
CHANGED = (412, 428)
MOST_SYSTEMS = 32  # of one BMC that are looked at
MOST_CARDS = 16  # of a system
LONGEST_TEXT = 64
UNABLE = (400, 405, 501)
TARGETS = "BootSourceOverrideTarget@Redfish.AllowableValues"


class RedfishDriver(Plain):
    """The driver for BMCs by Redfish."""

    kind = PowerDriverKind.REDFISH

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._bmcs = Bmcs(reactor)

    async def status(self, target: Target) -> str:
        """Return 'on', 'off', or 'unknown' where the BMC tells neither."""
        return POWER.get(str((await _system(self._talk(target))).get("PowerState")), "unknown")

    async def on(self, target: Target) -> None:
        """Send the reset type On."""
        await self._reset(target, ON)

    async def off(self, target: Target) -> None:
        """Send the reset type ForceOff."""
        await self._reset(target, OFF)

    async def _reset(self, target: Target, types: tuple[str, ...]) -> None:
        talk, system = await self._system(target)
        await _do_reset(talk, system, types, await _allowed(talk, system))

    async def soft(self, target: Target) -> bool:
        """Send the reset type GracefulShutdown; return False where the BMC does not allow it."""
        talk, system = await self._system(target)
        allowed = await _allowed(talk, system)
        if allowed is not None and not set(SOFT) & set(allowed):
            return False
        await _do_reset(talk, system, SOFT, allowed)
        return True

    async def cycle(self, target: Target) -> None:
        """Send the reset type PowerCycle; send ForceOff and On where the BMC does not allow that or
        the machine is off."""
        talk, system = await self._system(target)
        allowed = await _allowed(talk, system)
        if allowed is not None and set(CYCLE) & set(allowed) and system.get("PowerState") == "On":
            await _do_reset(talk, system, CYCLE, allowed)
        else:
            await off_then_on(self._reactor, self, target, TO_GO_OFF)

    async def boot_from_network(self, target: Target) -> bool:
        """Set the boot source override to PXE, once."""
        talk, system = await self._system(target)
        offered = _part(system, "Boot").get(TARGETS)
        if isinstance(offered, list) and "Pxe" not in offered:
            return False
        override = {
            "Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}
        }
        await talk.patch(_link(system, "@odata.id"), override)
        return True

    async def boot_from_uri(self, target: Target, uri: str) -> bool:
        """Set the boot source override to UEFI's HTTP boot from `HttpBootUri` (ComputerSystem 1.9),
        once.

        Return False where the BMC does not offer it, or did not keep the accepted value.
        """
        talk, system = await self._system(target)
        boot = _part(system, "Boot")
        offered = boot.get(TARGETS)
        if "HttpBootUri" not in boot or (isinstance(offered, list) and "UefiHttp" not in offered):
            return False
        override = {
            "BootSourceOverrideEnabled": "Once",
            "BootSourceOverrideTarget": "UefiHttp",
            "HttpBootUri": uri,
        }
        if "BootSourceOverrideMode" in boot:
            override["BootSourceOverrideMode"] = "UEFI"
        try:
            await talk.patch(_link(system, "@odata.id"), {"Boot": override})
        except BmcRefusal as refusal:
            if refusal.code not in UNABLE:
                raise
            why = f"the BMC takes no HttpBootUri: {refusal.sentence}"
            raise PowerError(why, lasting=True) from None
        return _part(await _system(talk), "Boot").get("HttpBootUri") == uri

    async def watts(self, target: Target) -> float | None:
        """Return the power draw of the chassis in watts; None if it is not measured, or if the
        chassis holds other systems, too."""
        talk, system = await self._system(target)
        chassis = _list(_part(system, "Links"), "Chassis")
        if len(chassis) != 1:
            return None
        found = await talk.get(_link(chassis[0], "@odata.id"))
        if len(_list(_part(found, "Links"), "ComputerSystems")) > 1:
            return None
        # From EnvironmentMetrics, where the chassis has it, else from Power, the older resource.
        if "EnvironmentMetrics" in found:
            metrics = await talk.get(_link(_part(found, "EnvironmentMetrics"), "@odata.id"))
            return _number(_part(metrics, "PowerWatts").get("Reading"))
        if "Power" in found:
            power = await talk.get(_link(_part(found, "Power"), "@odata.id"))
            first = next(iter(_list(power, "PowerControl")), None)
            return _number(first.get("PowerConsumedWatts")) if isinstance(first, dict) else None
        return None

    async def systems(self, target: Target) -> list[BmcSystem]:
        """Return the BMC's systems, at most `MOST_SYSTEMS`."""
        talk = self._talk(target)
        members = _list(await talk.get(f"{ROOT}/Systems"), "Members")
        links = [_link(each, "@odata.id") for each in members]
        return [
            await _described(talk, target.address, link if len(links) > 1 else "", link)
            for link in links[:MOST_SYSTEMS]
        ]

    async def _system(self, target: Target) -> tuple[_Talk, dict[str, Any]]:
        """Return the requests to the BMC, and the machine's system."""
        talk = self._talk(target)
        return talk, await _system(talk)

    def _talk(self, target: Target) -> _Talk:
        where = address.parse(
            target.address, FORM, {"https": 443, "http": 80}, ("ca", "fingerprint", "insecure")
        )
        if where.path and not f"/{where.path}".startswith(f"{ROOT}/Systems/"):
            raise address.malformed(target.address, FORM)
        if where.scheme == "http" and where.options:
            raise PowerError("ca, fingerprint and insecure are for https", lasting=True)
        host = f"[{where.host}]" if ":" in where.host else where.host
        base = f"{where.scheme}://{host}:{where.port}"
        return _Talk(
            self._bmcs, target, base, where.path and f"/{where.path}", trust_of(dict(where.options))
        )


class _Talk:
    """Requests to one BMC. `path` is the path of its system, '' until it is found."""

    def __init__(self, bmcs: Bmcs, target: Target, base: str, path: str, trust: Trust) -> None:
        self._bmcs, self._target, self._base, self._trust = bmcs, target, base, trust
        self.path = path

    async def get(self, path: str) -> dict[str, Any]:
        """Return the resource at `path`."""
        return (await self._got(path))[0]

    async def post(self, path: str, body: Any) -> None:
        """Send an action."""
        await self._ask("POST", path, body)

    async def patch(self, path: str, body: Any) -> None:
        """Change the resource. It is read before, since many BMCs insist on the current ETag
        (DSP0266 6.5)."""
        etag = (await self._got(path))[1]
        try:
            await self._ask("PATCH", path, body, etag)
        except BmcRefusal as refusal:
            if refusal.code not in CHANGED:
                raise
            await self._ask("PATCH", path, body, (await self._got(path))[1])

    async def _got(self, path: str) -> tuple[dict[str, Any], str]:
        value, etag = await self._ask("GET", path)
        if not isinstance(value, dict):
            raise PowerError(f"the BMC's {path} is no Redfish resource")
        return value, etag or str(value.get("@odata.etag", ""))

    async def _ask(
        self, method: str, path: str, body: Any = None, etag: str = ""
    ) -> tuple[Any, str]:
        return await self._bmcs.ask(
            method, self._base + path, self._target.sign_in, self._trust, body, etag
        )


async def _system(talk: _Talk) -> dict[str, Any]:
    if not talk.path:
        members = _list(await talk.get(f"{ROOT}/Systems"), "Members")
        if len(members) != 1:
            raise PowerError(
                f"the BMC has {len(members)} systems: the address has to name one", lasting=True
            )
        talk.path = _link(members[0], "@odata.id")
    return await talk.get(talk.path)


async def _described(talk: _Talk, address_: str, path: str, link: str) -> BmcSystem:
    """Return the system at `link`. `path` becomes a part of its power address; '' where the BMC has
    no other system."""
    system = await talk.get(link)
    macs: list[str | None] = []
    if "EthernetInterfaces" in system:
        found = await talk.get(_link(_part(system, "EthernetInterfaces"), "@odata.id"))
        for each in _list(found, "Members")[:MOST_CARDS]:
            card = await talk.get(_link(each, "@odata.id"))
            macs += [mac_of(_text(card, key)) for key in ("PermanentMACAddress", "MACAddress")]
    # a query in the path would become the power address's query, which says which certificates are
    # trusted
    if path and not re.fullmatch(rf"{ROOT}/Systems/[^?# ]+", path):
        raise PowerError(f"the BMC's system {path[:80]} is no path below {ROOT}/Systems")
    base, mark, options = address_.partition("?")
    maker = _text(system, "Manufacturer")
    # a Dell's SerialNumber is the board's; the system's serial number, which its DMI tells, is the
    # service tag in SKU
    serials = [_text(system, "SerialNumber"), _text(system, "SKU") if "Dell" in maker else ""]
    return BmcSystem(
        host=str(urlsplit(address_).hostname),
        driver=RedfishDriver.kind,
        address=f"{base}{path}{mark}{options}",
        model=f"{maker} {_text(system, 'Model')}".strip(),
        serials=tuple(filter(None, serials)),
        uuids=uuids_of(_text(system, "UUID")),
        macs=tuple(dict.fromkeys(filter(None, macs))),
        power=POWER.get(str(system.get("PowerState")), "unknown"),
    )


async def _allowed(talk: _Talk, system: dict[str, Any]) -> list[str] | None:
    """Return the reset types that the BMC allows; None when the BMC does not tell."""
    action = _part(_part(system, "Actions"), "#ComputerSystem.Reset")
    found = action.get("ResetType@Redfish.AllowableValues")
    if found is None and "@Redfish.ActionInfo" in action:
        info = await talk.get(_link(action, "@Redfish.ActionInfo"))
        for each in _list(info, "Parameters"):
            if isinstance(each, dict) and each.get("Name") == "ResetType":
                found = each.get("AllowableValues")
    return [str(each) for each in found] if isinstance(found, list) else None


async def _do_reset(
    talk: _Talk, system: dict[str, Any], types: tuple[str, ...], allowed: list[str] | None
) -> None:
    chosen = next((each for each in types if allowed is None or each in allowed), None)
    if chosen is None:
        raise PowerError(
            f"the BMC allows no reset of type {' or '.join(types)}: it has"
            f" {', '.join(allowed or ())}",
            lasting=True,
        )
    action = _part(_part(system, "Actions"), "#ComputerSystem.Reset")
    await talk.post(_link(action, "target"), {"ResetType": chosen})


def _part(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _list(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []


def _link(value: Any, key: str) -> str:
    """Return the path that the link names, which must be on the same BMC: a link to another host
    would send the password there."""
    found = value.get(key) if isinstance(value, dict) else None
    if (
        not isinstance(found, str)
        or not found.startswith("/")
        or found.startswith("//")
        or not found.isprintable()
    ):
        raise PowerError(f"the BMC's answer has no usable {key}")
    return found


def _text(value: dict[str, Any], key: str) -> str:
    """Return a text field of a resource, without control characters; '' where it is no text."""
    found = value.get(key)
    text = found if isinstance(found, str) else ""
    return "".join(filter(str.isprintable, text)).strip()[:LONGEST_TEXT]


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        else None
    )
