"""The base of file servers' drivers: a driver brings volumes into the wanted state, and lists the
exports.

Both drivers run a script on the file server by `sh`, through the program ssh or, where the file
server is this host, directly. The program ssh is used rather than a library, because it knows every
key, algorithm and configuration that the site's administrators use, and they know its errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from cod.childprocess import ChildProcess
from cod.fileservers import script
from cod.model import FileServer, WantedVolume

CONNECT = 10  # seconds in which a file server has to answer
OUTPUT = 1 << 20  # bytes kept of what it says
REFUSED = 10  # exit status of the script: it says why
SSH_FAILED = 255
ENVIRONMENT = {
    "LC_ALL": "C",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}
AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec sh -s; else exec sudo -n sh -s; fi'
SSH_SAYS = {  # what ssh says of a connection that did not come about, and what it means
    "Permission denied": "refuses COD's key: add its public key to the account's authorized_keys",
    "Host key verification failed": (
        "has another host key than known_hosts says, or one that is not in it"
    ),
    "No such file or directory": (
        "cannot be asked: the file of the key or of the host keys is missing"
    ),
    "UNPROTECTED PRIVATE KEY": "cannot be asked: others can read the file of the key",
}


class FileServerError(Exception):
    """The change was not carried out, or not certainly; the sentence is for people."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a change at a file server.

    enforced  mechanism that limits the volume to its size: 'project', 'btrfs', 'zfs' or 'none'
    goes_on   the deletion has not finished: the change has to be carried out again
    """

    enforced: str
    goes_on: bool = False


class FileServerDriver(Protocol):
    """Each method is awaited, raises `FileServerError`, may be cancelled and may be repeated."""

    async def carry_out(self, server: FileServer, wanted: WantedVolume) -> Outcome:
        """Bring the volume into the wanted state."""
        ...

    async def exports(self, server: FileServer) -> dict[int, int]:
        """Return the sequence numbers of exports, by the exports' numbers. An export that differs
        from what was carried out has the number 0."""
        ...

    async def withdraw(self, server: FileServer, number: int) -> None:
        """Withdraw an export that belongs to no volume."""
        ...


class ScriptDriver:
    """A driver that runs scripts on file servers, each in a child process. `ssh` is the name of the
    program ssh."""

    def __init__(self, reactor: Any, ssh: str = "ssh") -> None:
        self._reactor = reactor
        self._ssh = ssh

    async def carry_out(self, server: FileServer, wanted: WantedVolume) -> Outcome:
        output = await self._run(server, script.apply(server, wanted))
        return Outcome(
            script.value(output, "enforced") or "none", script.value(output, "goes_on") == "yes"
        )

    async def exports(self, server: FileServer) -> dict[int, int]:
        return script.exported(await self._run(server, script.listing(server)))

    async def withdraw(self, server: FileServer, number: int) -> None:
        await self._run(server, script.withdrawal(server, number))

    async def _run(self, server: FileServer, text: str) -> str:
        """Run the script on the file server and return its output. Raises `FileServerError`."""
        command = ["sh", "-s"] if not server.ssh else [self._ssh, *options(server), AS_ROOT]
        child = ChildProcess(text.encode(), OUTPUT)
        self._reactor.spawnProcess(child, command[0], command, ENVIRONMENT)
        status, *words = await child.ended
        output, complaint = (each.decode(errors="replace") for each in words)
        if status != 0:
            raise trouble(server, status, output, complaint)
        return output


def options(server: FileServer) -> list[str]:
    """Return ssh's options and the host. With these options ssh asks nobody for anything, and
    refuses hosts whose keys are not known."""
    account, _, port = server.ssh.partition(":")
    user, _, host = account.partition("@")
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT),
        "ConnectionAttempts": "1",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": server.known_hosts or "/dev/null",
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "ForwardAgent": "no",
        "LogLevel": "ERROR",
    }
    return [
        *("-F", "none", "-T", "-p", port or "22", "-l", user),
        *(["-i", server.ssh_key] if server.ssh_key else []),
        *(word for name, text in settings.items() for word in ("-o", f"{name}={text}")),
        "--",
        host,
    ]


def trouble(server: FileServer, status: int | None, output: str, complaint: str) -> FileServerError:
    """Return the error, with a sentence for people, for a script that failed."""
    error = script.value(output, "error")
    if error:
        return FileServerError(f"file server {server.name}: {error}"[:500])
    if status is None:
        return FileServerError(f"file server {server.name} did not answer in time")
    last = (complaint.strip().splitlines() or ["no reason given"])[-1]
    if status == SSH_FAILED and server.ssh:
        meaning = next(
            (text for words, text in SSH_SAYS.items() if words in complaint),
            f"does not answer: {last}",
        )
        return FileServerError(f"file server {server.name} {meaning}"[:500])
    return FileServerError(f"file server {server.name}: the change failed: {last}"[:500])
