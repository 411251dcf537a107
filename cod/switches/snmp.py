"""The driver `snmp`: switches with Q-BRIDGE-MIB (RFC 4363), by SNMPv2c or v3. It needs the package
pysnmp.

A port's access VLAN is its `dot1qPvid`, if the port is an untagged member of that VLAN. A change
adds the port to the new VLAN's members, sets the PVID, and removes the port from the old VLAN: it
is never without a VLAN. Ports are found by `ifName`, or by `ifDescr` where LLDP sends that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from typing import Any

from cod.power.driver import SignIn
from cod.power.pdu import credentials, in_loop
from cod.switches.cli import host_and_port
from cod.switches.driver import SwitchError, SwitchTarget

TIMEOUT, RETRIES = 3.0, 2  # seconds for an answer; how often more it is asked for
SYS_DESCR = "1.3.6.1.2.1.1.1.0"
IF_DESCR, IF_NAME = "1.3.6.1.2.1.2.2.1.2", "1.3.6.1.2.1.31.1.1.1.1"
BASE_PORT_IF_INDEX = "1.3.6.1.2.1.17.1.4.1.2"
PVID = "1.3.6.1.2.1.17.7.1.4.5.1.1"
EGRESS, UNTAGGED = "1.3.6.1.2.1.17.7.1.4.3.1.2", "1.3.6.1.2.1.17.7.1.4.3.1.4"
FDB_PORT = "1.3.6.1.2.1.17.7.1.2.2.1.2"  # dot1qTpFdbPort
VLAN_FDB_ID = "1.3.6.1.2.1.17.7.1.4.2.1.3.0"  # dot1qVlanFdbId, whenever it was changed last
IF_TYPE = "1.3.6.1.2.1.2.2.1.3"
ETHERNET = (6, 117)  # ethernetCsmacd, gigabitEthernet: ports, and no aggregates of them


class SnmpDriver:
    """The driver for switches by SNMP (Q-BRIDGE-MIB)."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    async def open(self, target: SwitchTarget) -> SnmpSession:
        """Read the switch's description of itself and its ports' names, and return the session."""
        session = self._session(target)
        try:
            await session.begin()
        except BaseException:
            await session.close()
            raise
        return session

    async def locate(
        self, target: SwitchTarget, macs: Collection[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Look the MACs up in the switch's forwarding table of the provisioning VLAN."""
        session = self._session(target)
        try:
            return await session.locate(macs, target.switch.provisioning_vlan)
        finally:
            await session.close()

    def _session(self, target: SwitchTarget) -> SnmpSession:
        if target.sign_in is None:
            raise SwitchError(
                "the snmp driver needs an account: see [[account]] of the site file", lasting=True
            )
        return SnmpSession(
            self._reactor, *host_and_port(target.switch.address, 161), target.sign_in
        )


class SnmpSession:
    """A session; SNMP itself has no sessions. pysnmp needs an asyncio loop: each session has its
    own, in a thread."""

    about = ""

    def __init__(self, reactor: Any, host: str, port: int, sign_in: SignIn) -> None:
        self._reactor, self._host, self._port, self._sign_in = reactor, host, port, sign_in
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="snmp session", daemon=True).start()
        self._ports: dict[str, int] = {}  # bridge ports, by name
        self._engine: Any = None

    async def begin(self) -> None:
        """Read the switch's description and the names of its bridge ports."""
        await in_loop(self._reactor, self._loop, self._begin())

    async def read(self, ports: Collection[str]) -> Mapping[str, int | SwitchError]:
        return await in_loop(self._reactor, self._loop, self._read(ports))

    async def change(self, wanted: Mapping[str, int]) -> Mapping[str, SwitchError]:
        """Change the ports' PVIDs and memberships, one port after the other."""
        return await in_loop(self._reactor, self._loop, self._change(wanted))

    async def locate(self, macs: Collection[str], vlan: int) -> Mapping[str, tuple[str, ...]]:
        """Return the names of the access ports of `vlan` on which the MACs were heard last."""
        return await in_loop(self._reactor, self._loop, self._locate(macs, vlan))

    async def close(self) -> None:
        """End the engine and the thread."""
        self._loop.call_soon_threadsafe(self._end)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _end(self) -> None:
        if self._engine is not None:
            self._engine.close_dispatcher()
        self._loop.call_soon(self._loop.stop)

    def _start(self) -> None:
        try:
            from pysnmp.hlapi.v3arch import asyncio as snmp
        except ImportError:
            raise SwitchError(
                "the snmp driver needs the package pysnmp on this server: pip install cod[pdu]"
            ) from None
        self._snmp, self._engine = snmp, snmp.SnmpEngine()

    async def _begin(self) -> None:
        self._start()
        self.about = str((await self._get(SYS_DESCR)) or "")
        interfaces = {
            int(value): int(index)
            for index, value in (await self._walk(BASE_PORT_IF_INDEX)).items()
        }
        for names in (IF_DESCR, IF_NAME):  # the latter counts where both are there
            for index, name in (await self._walk(names)).items():
                if int(index) in interfaces:
                    self._ports[str(name)] = interfaces[int(index)]

    async def _read(self, ports: Collection[str]) -> dict[str, int | SwitchError]:
        egress, untagged = await self._members()
        found: dict[str, int | SwitchError] = {}
        for name in ports:
            bridge_port = self._ports.get(name)
            if bridge_port is None:
                found[name] = SwitchError(f"the switch has no port {name}", lasting=True)
                continue
            if is_trunk(egress, untagged, bridge_port):
                found[name] = SwitchError(
                    f"port {name} is a trunk: only access ports are changed", lasting=True
                )
                continue
            pvid = await self._get(f"{PVID}.{bridge_port}")
            vlan = -1 if pvid is None else int(pvid)
            found[name] = vlan if has(untagged.get(vlan, b""), bridge_port) else 0
        return found

    async def _change(self, wanted: Mapping[str, int]) -> dict[str, SwitchError]:
        refused: dict[str, SwitchError] = {}
        for name, vlan in wanted.items():
            egress, untagged = await self._members()
            bridge_port = self._ports[name]
            if vlan not in egress:
                refused[name] = SwitchError(
                    f"the switch has no VLAN {vlan}: make it there", lasting=True
                )
                continue
            octets = self._snmp.OctetString
            try:
                # both in one request: some switches refuse an untagged member that is no member yet
                await self._set(
                    (f"{EGRESS}.{vlan}", octets(changed(egress[vlan], bridge_port, True))),
                    (
                        f"{UNTAGGED}.{vlan}",
                        octets(changed(untagged.get(vlan, b""), bridge_port, True)),
                    ),
                )
                await self._set((f"{PVID}.{bridge_port}", self._snmp.Gauge32(vlan)))
                for old in sorted(egress):
                    if old != vlan and has(egress[old], bridge_port):
                        members = changed(untagged.get(old, b""), bridge_port, False)
                        await self._set(
                            (f"{UNTAGGED}.{old}", octets(members)),
                            (f"{EGRESS}.{old}", octets(changed(egress[old], bridge_port, False))),
                        )
            except _Refusal as refusal:
                refused[name] = SwitchError(f"the switch refuses: {refusal}")
        return refused

    async def _locate(self, macs: Collection[str], vlan: int) -> dict[str, tuple[str, ...]]:
        self._start()
        value = await self._get(f"{VLAN_FDB_ID}.{vlan}")
        table = f"{FDB_PORT}.{vlan if value is None else int(value)}"  # a table for each VLAN
        egress, untagged = await self._members()
        found: dict[str, tuple[str, ...]] = {}
        for mac in macs:
            octets = bytes.fromhex(mac.replace(":", ""))
            seen = await self._get(f"{table}.{'.'.join(map(str, octets))}")
            bridge_port = 0 if seen is None else int(seen)  # 0: it is not known which
            if (
                bridge_port
                and has(untagged.get(vlan, b""), bridge_port)
                and not is_trunk(egress, untagged, bridge_port)
                and (names := await self._names(bridge_port))
            ):
                found[mac] = names
        return found

    async def _names(self, bridge_port: int) -> tuple[str, ...]:
        """Return the names of the port, the best first; none if it is no Ethernet port."""
        interface = await self._get(f"{BASE_PORT_IF_INDEX}.{bridge_port}")
        if interface is None:
            return ()
        columns = (IF_TYPE, IF_NAME, IF_DESCR)
        kind, *names = await self._gets(*(f"{column}.{interface}" for column in columns))
        if kind is None or int(kind) not in ETHERNET:
            return ()
        return tuple(str(name) for name in names if name)

    async def _members(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        egress, untagged = [
            {int(vlan): bytes(members) for vlan, members in (await self._walk(table)).items()}
            for table in (EGRESS, UNTAGGED)
        ]
        return egress, untagged

    async def _get(self, oid: str) -> Any:
        return (await self._gets(oid))[0]

    async def _gets(self, *oids: str) -> list[Any]:
        found = await self._ask(self._snmp.get_cmd, *map(self._object, oids))
        missing = ("NoSuchObject", "NoSuchInstance")
        return [None if type(value).__name__ in missing else value for _, value in found]

    async def _set(self, *values: tuple[str, Any]) -> None:
        await self._ask(self._snmp.set_cmd, *(self._object(oid, value) for oid, value in values))

    async def _walk(self, table: str) -> dict[str, Any]:
        """Return the values of the table's column, by the end of their object identifiers."""
        found: dict[str, Any] = {}
        last, prefix = table, f"{table}."
        while True:
            for row in await self._ask(self._snmp.next_cmd, self._object(last)):
                oid = str(row[0])
                if not oid.startswith(prefix) or type(row[1]).__name__ == "EndOfMibView":
                    return found
                # else the walk never ends at a switch that answers in a circle
                if oid.removeprefix(prefix) in found:
                    raise SwitchError(f"the switch's table {table} leads in a circle")
                found[oid.removeprefix(prefix)] = row[1]
                last = oid

    def _object(self, oid: str, *value: Any) -> Any:
        return self._snmp.ObjectType(self._snmp.ObjectIdentity(oid), *value)

    async def _ask(self, command: Any, *objects: Any) -> Any:
        snmp = self._snmp
        try:
            where = await snmp.UdpTransportTarget.create(
                (self._host, self._port), timeout=TIMEOUT, retries=RETRIES
            )
            silence, error, _index, found = await command(
                self._engine,
                credentials(snmp, self._sign_in),
                where,
                snmp.ContextData(),
                *objects,
                lookupMib=False,
            )
        except Exception as problem:
            # host names that are not found, passwords that are too short for a key
            raise SwitchError(
                f"the switch cannot be asked: {' '.join(str(problem).split())[:200]}"
            ) from None
        if silence:
            who = "user" if self._sign_in.user else "community"
            raise SwitchError(f"the switch does not answer (or not to this {who}): {silence}")
        if error:
            raise _Refusal(error.prettyPrint())
        return found


class _Refusal(SwitchError):
    """The switch answered with an error."""


def has(members: bytes, bridge_port: int) -> bool:
    """Return whether the port is in a PortList (RFC 4363): the first port is the highest bit of the
    first octet."""
    octet, bit = divmod(bridge_port - 1, 8)
    return octet < len(members) and bool(members[octet] & 0x80 >> bit)


def is_trunk(egress: Mapping[int, bytes], untagged: Mapping[int, bytes], bridge_port: int) -> bool:
    """Return whether the port is a tagged member of any VLAN."""
    return any(
        has(members, bridge_port) and not has(untagged.get(vlan, b""), bridge_port)
        for vlan, members in egress.items()
    )


def changed(members: bytes, bridge_port: int, is_member: bool) -> bytes:
    """Return the PortList with the port in it, or without it."""
    octet, bit = divmod(bridge_port - 1, 8)
    octets = bytearray(members.ljust(octet + 1, b"\0"))
    octets[octet] = (
        octets[octet] | 0x80 >> bit if is_member else octets[octet] & ~(0x80 >> bit) & 0xFF
    )
    return bytes(octets)
