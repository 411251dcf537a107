"""The driver `netmiko`: switches that are configured by their command line, over SSH. The command
lines are data, in `cod.switches.platforms`.

netmiko blocks, so each step runs in a thread, one at a time for each session. When the edge gives
up a session, its connection is closed, so that nothing more is sent on it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.platforms import PLATFORMS, Platform

LONGEST = 200  # characters of what a switch or the library says
FORM = "HOST[:PORT]"
CONNECT, READ = 15.0, 20.0  # seconds
# names of ports that neither a shell nor a switch can take for anything else
_PORT = re.compile(r"[A-Za-z0-9][A-Za-z0-9/._:-]{0,63}")

T = TypeVar("T")


class NetmikoDriver:
    """The driver for the command lines of switches, over SSH."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    async def open(self, target: SwitchTarget) -> CliSession:
        platform = PLATFORMS.get(target.switch.platform)
        if platform is None:
            raise SwitchError(f"there is no platform {target.switch.platform!r}", lasting=True)
        session = CliSession(self._reactor, platform, target)
        await session.begin()
        return session


class CliSession:
    """An SSH session with a switch."""

    about = ""

    def __init__(self, reactor: Any, platform: Platform, target: SwitchTarget) -> None:
        self._reactor, self._platform, self._target = reactor, platform, target
        self._connection: Any = None

    async def begin(self) -> None:
        """Connect, sign in, and enter the mode in which the switch can be configured."""
        await self._in_thread(self._connect)
        self.about = (
            f"{self._target.switch.platform}, prompt {str(self._connection.base_prompt)[:100]}"
        )

    async def read(self, ports: Collection[str]) -> Mapping[str, int | SwitchError]:
        return await self._in_thread(lambda: {port: self._read(port) for port in ports})

    async def change(self, wanted: Mapping[str, int]) -> Mapping[str, SwitchError]:
        """Enter the command lines for each port; commit and save, where the platform needs that."""
        return await self._in_thread(lambda: self._change(wanted))

    async def close(self) -> None:
        with suppress(Exception):
            await self._in_thread(self._disconnect)

    def _in_thread(self, step: Callable[[], T]) -> Deferred[T]:
        def guarded() -> T:
            try:
                return step()
            except SwitchError:
                raise
            except Exception as error:  # of netmiko, paramiko, sockets
                raise SwitchError(_why(error, self._target)) from None

        done: Deferred[T] = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), guarded)
        asked: Deferred[T] = Deferred(lambda _done: self._disconnect())
        done.addCallbacks(
            lambda value: None if asked.called else asked.callback(value),
            lambda failure: None if asked.called else asked.errback(failure),
        )
        return asked

    def _connect(self) -> None:
        from netmiko import ConnectHandler

        switch, sign_in = self._target.switch, self._target.sign_in
        host, port = host_and_port(switch.address)
        options: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="cod-") as folder:
            if switch.host_key:
                known = Path(folder) / "known_hosts"
                known.write_text(
                    f"{host if port == 22 else f'[{host}]:{port}'} {switch.host_key}\n"
                )
                options = {"ssh_strict": True, "alt_host_keys": True, "alt_key_file": str(known)}
            self._connection = ConnectHandler(
                device_type=self._platform.device,
                host=host,
                port=port,
                username=sign_in.user if sign_in else "",
                password=sign_in.password if sign_in else "",
                secret=sign_in.password if sign_in else "",
                conn_timeout=CONNECT,
                auth_timeout=CONNECT,
                banner_timeout=CONNECT,
                read_timeout_override=READ,
                allow_agent=False,
                use_keys=False,
                **options,
            )
        if not self._platform.shell and not self._connection.check_enable_mode():
            self._connection.enable()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()

    def _read(self, port: str) -> int | SwitchError:
        if not _PORT.fullmatch(port):
            return SwitchError(f"{port!r} is no name of a port on a command line", lasting=True)
        shown = str(self._connection.send_command(self._platform.read.format(port=port)))
        return access_vlan(self._platform, port, shown)

    def _change(self, wanted: Mapping[str, int]) -> Mapping[str, SwitchError]:
        refused = {}
        for port, vlan in wanted.items():
            lines = [line.format(port=port, vlan=vlan) for line in self._platform.change]
            if self._platform.shell:
                output = "\n".join(str(self._connection.send_command(line)) for line in lines)
            else:
                output = str(
                    self._connection.send_config_set(
                        lines, exit_config_mode=not self._platform.commit
                    )
                )
            if match := re.search(self._platform.refused, output):
                refused[port] = SwitchError(f"the switch refuses: {in_words(match[0])}")
        if self._platform.commit:
            self._connection.commit(and_quit=True)
        if self._target.switch.save and len(refused) < len(wanted):
            if self._platform.save:
                self._connection.send_command(self._platform.save)
            elif not self._platform.commit:
                self._connection.save_config()
        return refused


def access_vlan(platform: Platform, port: str, shown: str) -> int | SwitchError:
    """Return the access VLAN of a port, from the output `shown` of the switch; an error where the
    port has none."""
    if re.search(platform.missing, shown):
        return SwitchError(f"the switch has no port {port}", lasting=True)
    if re.search(platform.trunk, shown):
        return SwitchError(f"port {port} is a trunk: only access ports are changed", lasting=True)
    if match := re.search(platform.vlan, shown):
        return int(match[1])
    if platform.absent is None:
        return SwitchError(f"the switch does not tell the VLAN of port {port}")
    return platform.absent


def host_and_port(address: str, default: int = 22) -> tuple[str, int]:
    """Return the host and the port of HOST[:PORT]. An IPv6 address with a port has to be in
    brackets. Raises `SwitchError`."""
    host, colon, port = address.rpartition(":")
    if not colon or (host.count(":") and not host.endswith("]")):
        host, port = address, str(default)
    if not host.strip("[]") or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise SwitchError(f"{address!r} is not of the form {FORM}", lasting=True)
    return host.strip("[]"), int(port)


def in_words(output: str) -> str:
    """Return the beginning of a text, at most `LONGEST` characters, on one line."""
    words = " ".join(output.split())
    if len(words) <= LONGEST:
        return words
    cut = words[: LONGEST - 1]
    return (cut.rpartition(" ")[0].rstrip(",;:-") or cut[:-1]) + " …"


def _why(error: Exception, target: SwitchTarget) -> str:
    kind = type(error).__name__
    if "Authentication" in kind:
        return f"the switch refuses the account {target.switch.account}"
    if (
        "BadHostKey" in kind
        or "host key" in str(error).lower()
        or "not found in known_hosts" in str(error)
    ):
        return "the switch shows another SSH key than host_key says"
    reason = " ".join(str(error).split())
    if target.sign_in is not None and target.sign_in.password:
        reason = reason.replace(target.sign_in.password, "…")
    return f"the switch does not answer: {in_words(reason) or kind}"
