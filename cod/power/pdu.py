"""The driver `pdu`: switched outlets, by SNMP. It needs the package pysnmp (`pip install
cod[pdu]`).

Address: ``HOST[:PORT]/MODEL/OUTLET`` for a MODEL in `MODELS`, or ``HOST[:PORT]/OID?on=N&off=N`` for
any outlet with one object, an integer, that can be read and set. With an account that has a user,
SNMPv3 is used (authPriv; SHA and AES-128, both keys made of the password); with an account without
a user, v2c with the password as community.

The machine behind the outlet must be set to switch on when power returns. Off is sudden: the
operating system is not asked.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail

from cod.choices import PowerDriverKind
from cod.power import address
from cod.power.driver import Plain, PowerError, SignIn, Target, off_then_on

T = TypeVar("T")
FORM = "HOST[:PORT]/MODEL/OUTLET or HOST[:PORT]/OID?on=N&off=N"
TIMEOUT, RETRIES = 2.0, 2  # seconds for an answer; further attempts after the first
TO_GO_OFF = 10.0  # seconds
DARK = 5.0  # seconds without power until what power supplies have stored is used up

MODELS = {  # object without the outlet's number, value that is on, value that is off
    # rPDUOutletControlOutletCommand of PowerNet-MIB
    "apc": ("1.3.6.1.4.1.318.1.1.12.3.3.1.1.4", 1, 2),
}
_OID = re.compile(r"[0-2](\.[0-9]{1,10}){2,}")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Outlet:
    """An outlet: its SNMP object, and the values that switch it on and off."""

    host: str
    port: int
    oid: str
    on: int
    off: int


class PduDriver(Plain):
    """The driver for switched outlets."""

    kind = PowerDriverKind.PDU

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._snmp = Snmp(reactor)

    async def status(self, target: Target) -> str:
        """Return 'on', 'off', or 'unknown' for any other value."""
        outlet = parse(target.address)
        value = await self._snmp.exchange(outlet, target.sign_in, None)
        return {outlet.on: "on", outlet.off: "off"}.get(value, "unknown")

    async def on(self, target: Target) -> None:
        """Switch the outlet on."""
        outlet = parse(target.address)
        await self._snmp.exchange(outlet, target.sign_in, outlet.on)

    async def off(self, target: Target) -> None:
        """Switch the outlet off."""
        outlet = parse(target.address)
        await self._snmp.exchange(outlet, target.sign_in, outlet.off)

    async def cycle(self, target: Target) -> None:
        """Switch off, wait a while, and switch on."""
        await off_then_on(self._reactor, self, target, TO_GO_OFF, DARK)


def parse(text: str) -> Outlet:
    """Return the outlet that the address names. Raises a lasting `PowerError`."""
    where = address.parse(text, FORM, {"": 161}, ("on", "off"))
    model, _, number = where.path.partition("/")
    if model in MODELS and _NUMBER.fullmatch(number) and not where.options:
        oid, on, off = MODELS[model]
        return Outlet(where.host, where.port, f"{oid}.{number}", on, off)
    values = [where.options.get(key, "") for key in ("on", "off")]
    if (
        _OID.fullmatch(where.path)
        and all(map(_NUMBER.fullmatch, values))
        and values[0] != values[1]
    ):
        return Outlet(where.host, where.port, where.path, int(values[0]), int(values[1]))
    raise address.malformed(text, FORM)


class Snmp:
    """SNMP by pysnmp, which needs an asyncio loop: the loop runs in a thread of its own, started
    with the first exchange.

    An engine is expensive to make, and remembers the keys of users by their names. Therefore each
    account has its own engine.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engines: dict[SignIn, Any] = {}

    def exchange(self, outlet: Outlet, sign_in: SignIn | None, value: int | None) -> Deferred[int]:
        """Set the outlet's object to `value`, or only read the object if `value` is None. Fires
        with the object's value. Fails with `PowerError`."""
        if sign_in is None:
            return fail(
                PowerError(
                    "the pdu driver needs an account: see [[account]] of the site file",
                    lasting=True,
                )
            )
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="snmp", daemon=True).start()
        return in_loop(self._reactor, self._loop, self._exchange(outlet, sign_in, value))

    async def _exchange(self, outlet: Outlet, sign_in: SignIn, value: int | None) -> int:
        try:
            from pysnmp.hlapi.v3arch import asyncio as snmp
        except ImportError:
            raise PowerError(
                "the pdu driver needs the package pysnmp on this server: pip install cod[pdu]"
            ) from None
        try:
            if sign_in not in self._engines:
                self._engines[sign_in] = snmp.SnmpEngine()
            engine = self._engines[sign_in]
            transport = await snmp.UdpTransportTarget.create(
                (outlet.host, outlet.port), timeout=TIMEOUT, retries=RETRIES
            )
            identity = snmp.ObjectIdentity(outlet.oid)
            if value is None:
                command, variable = snmp.get_cmd, snmp.ObjectType(identity)
            else:
                command, variable = snmp.set_cmd, snmp.ObjectType(identity, snmp.Integer32(value))
            no_answer, error, _index, variables = await command(
                engine,
                credentials(snmp, sign_in),
                transport,
                snmp.ContextData(),
                variable,
                lookupMib=False,
            )
        except Exception as problem:
            # host names that are not found, passwords that are too short for a key
            raise PowerError(
                f"the outlet cannot be asked: {' '.join(str(problem).split())[:200]}"
            ) from None
        if no_answer:
            reason = str(no_answer)
            # as in 'Wrong SNMP PDU digest' and 'Unknown USM user'
            refused = bool(re.search("[Ww]rong|[Uu]nknown", type(no_answer).__name__ + reason))
            hint = f" (or not to this {'user' if sign_in.user else 'community'})"
            raise PowerError(
                f"outlet strip {outlet.host} does not answer{'' if refused else hint}: {reason}",
                lasting=refused,
                silent=not refused,
            )
        if error:
            raise PowerError(f"outlet strip {outlet.host} says: {error.prettyPrint()}")
        try:
            return int(variables[0][1])
        except (TypeError, ValueError):
            raise PowerError(f"{outlet.host} has no outlet {outlet.oid}", lasting=True) from None


def in_loop(
    reactor: Any, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]
) -> Deferred[T]:
    """Run the coroutine in a loop that runs in another thread; cancelling the Deferred cancels
    it."""
    task = asyncio.run_coroutine_threadsafe(work, loop)

    def cancel(_done: object) -> None:
        task.cancel()

    done: Deferred[T] = Deferred(cancel)
    task.add_done_callback(lambda ended: reactor.callFromThread(_pass_on, ended, done))
    return done


def _pass_on(ended: Future[T], done: Deferred[T]) -> None:
    if done.called or ended.cancelled():
        return
    error = ended.exception()
    if error is None:
        done.callback(ended.result())
    else:
        done.errback(error)


def credentials(snmp: Any, sign_in: SignIn) -> Any:
    """Return the account in pysnmp's form: of SNMPv3, or of v2c for an account without a user."""
    if not sign_in.user:
        return snmp.CommunityData(sign_in.password, mpModel=1)
    return snmp.UsmUserData(
        sign_in.user,
        authKey=sign_in.password,
        privKey=sign_in.password,
        authProtocol=snmp.USM_AUTH_HMAC96_SHA,
        privProtocol=snmp.USM_PRIV_CFB128_AES,
    )
