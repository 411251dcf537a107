"""The users of the server's parts, their groups and their capabilities, in one table. Standard
library only.

The Debian package makes these users and groups (`docs/systemd/cod.sysusers.conf`). `cod serve
--users` starts each part as its user; the parts' own systemd units name the same users. Where the
users do not exist, all parts run as the user that has started the server.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

GROUP = "cod"  # every part's: what the parts share
POWER = "cod-power"  # reads the accounts of BMCs, outlets and switches
PEOPLE = "cod-people"  # reads what people are signed in by, and the key of webhooks


@dataclass(frozen=True, slots=True)
class PartUser:
    """The user of one part.

    groups        further groups, on top of `GROUP`
    capabilities  those of the supervisor's capabilities that the part keeps, named as in setpriv(1)
    """

    name: str
    groups: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


USERS = {
    # for ports below 1024, for sockets bound to an interface, and for the interfaces of isolated
    # vclusters (where the systemd unit allows it)
    "edge": PartUser("cod-edge", (POWER,), ("net_bind_service", "net_raw", "net_admin")),
    "images": PartUser("cod-images", (), ("net_bind_service",)),
    "manager": PartUser("cod-manager", (POWER, PEOPLE)),
    "web": PartUser("cod-web", (PEOPLE,), ("net_bind_service",)),
}
MAY_SIGN = ("web",)
"""The parts that the signer signs certificates of VCMs for."""
_NUMBERS = {"net_bind_service": 10, "net_admin": 12, "net_raw": 13}  # capabilities(7)


def groups_of(part: str) -> set[str]:
    """Return the names of all groups of the part's user."""
    return {GROUP, *USERS[part].groups}


def group_of(readers: Collection[str]) -> str:
    """Return the smallest group to which the users of all these parts belong."""
    members = {
        group: {part for part in USERS if group in groups_of(part)}
        for group in (POWER, PEOPLE, GROUP)
    }
    return min(
        (group for group in members if members[group] >= set(readers)),
        key=lambda group: len(members[group]),
    )


def missing() -> list[str]:
    """Return the users and groups of the table that this host does not have."""
    users = [user.name for user in USERS.values() if _uid(user.name) is None]
    return users + [group for group in (GROUP, POWER, PEOPLE) if _gid(group) is None]


def part_of(uid: int) -> str | None:
    """Return the part whose user has that number; None where no part's user has."""
    return next((part for part, user in USERS.items() if _uid(user.name) == uid), None)


def signer_clients() -> set[int]:
    """Return the numbers of the users for which the signer signs."""
    return {
        os.geteuid(),
        *(uid for part in MAY_SIGN if (uid := _uid(USERS[part].name)) is not None),
    }


def signers() -> set[int]:
    """Return the numbers of the users that may run the signer: the part edge's, and this process's
    own."""
    return {os.geteuid(), *([edge] if (edge := _uid(USERS["edge"].name)) is not None else [])}


def group_ids() -> set[int]:
    """Return the numbers of the table's groups that exist on this host."""
    return {gid for group in (GROUP, POWER, PEOPLE) if (gid := _gid(group)) is not None}


def close(folder: Path) -> None:
    """Deny all other users access to a folder, unless the parts share it already. Raises
    OSError."""
    if folder.stat().st_gid not in group_ids():
        folder.chmod(0o700)


def uid(owner: str) -> int:
    """Return the number of the user of a part, or of 'root'. Raises KeyError."""
    return pwd.getpwnam(USERS[owner].name if owner in USERS else owner).pw_uid


def gid(group: str) -> int:
    """Return the number of a group. Raises KeyError."""
    return grp.getgrnam(group).gr_gid


def command(part: str, argv: Sequence[str], held: Collection[str]) -> list[str]:
    """Return the command line that runs `argv` as the part's user. The process keeps those of the
    part's capabilities that are in `held`."""
    user = USERS[part]
    kept = ",".join(["-all", *(f"+{each}" for each in user.capabilities if each in held)])
    return [
        "setpriv",
        f"--reuid={user.name}",
        f"--regid={GROUP}",
        "--init-groups",
        f"--inh-caps={kept}",
        f"--ambient-caps={kept}",
        "--no-new-privs",
        "--",
        *argv,
    ]


def environment(part: str) -> dict[str, str]:
    """Return the environment variables that name the part's user. Raises KeyError."""
    found = pwd.getpwnam(USERS[part].name)
    return {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name}


def held(status: str | None = None) -> set[str]:
    """Return the capabilities of the table that this process has, by its /proc/self/status."""
    text = status if status is not None else Path("/proc/self/status").read_text()
    found = re.search(r"^CapPrm:\s*([0-9a-f]+)$", text, re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    return {name for name, number in _NUMBERS.items() if mask >> number & 1}


def join() -> None:
    """Add the group that shares the parts' files to this process's groups. Without it, root could
    not open the files where it lacks the capability to override permissions."""
    os.setgroups([*os.getgroups(), gid(GROUP)])


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
