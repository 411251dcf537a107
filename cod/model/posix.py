"""Accounts of people on vclusters' nodes: the site's rules for them, and POSIX numbers."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Literal

from cod.model.keys import Limits, Read, SiteTable, site_key

OVERFLOW = frozenset({65534, 65535})
"""Numbers with a special meaning in systems: the user `nobody`, and the 16-bit form of -1."""
LOWEST, HIGHEST = 1000, 2**31 - 1
"""Range of numbers for people and groups. Smaller numbers are for a system's own accounts, and old
programs take larger numbers for negative ones."""

Number = Annotated[int, Limits({"ge": LOWEST, "le": HIGHEST, "strict": True})]

SYSTEM_ACCOUNTS = frozenset(
    {
        "_apt",
        "adm",
        "admin",
        "almalinux",
        "alpine",
        "arch",
        "avahi",
        "backup",
        "bin",
        "bind",
        "centos",
        "cloud-user",
        "core",
        "daemon",
        "dbus",
        "debian",
        "ec2-user",
        "fedora",
        "ftp",
        "games",
        "gnats",
        "irc",
        "list",
        "lp",
        "mail",
        "man",
        "messagebus",
        "mysql",
        "news",
        "nobody",
        "nslcd",
        "ntp",
        "opensuse",
        "openvswitch",
        "operator",
        "polkitd",
        "postfix",
        "postgres",
        "proxy",
        "rocky",
        "root",
        "rpc",
        "rpcuser",
        "shutdown",
        "sshd",
        "sssd",
        "statd",
        "suse",
        "sync",
        "sys",
        "systemd-coredump",
        "systemd-network",
        "systemd-oom",
        "systemd-resolve",
        "systemd-timesync",
        "tcpdump",
        "tss",
        "ubuntu",
        "unbound",
        "uucp",
        "vagrant",
        "www-data",
    }
)
"""Names of accounts that images have. A user with one of these names gets no account on nodes,
because the user's key would open the image's own account."""

SYSTEM_GROUPS = SYSTEM_ACCOUNTS | {
    "audio",
    "cdrom",
    "crontab",
    "dialout",
    "dip",
    "disk",
    "docker",
    "fax",
    "floppy",
    "incus",
    "incus-admin",
    "input",
    "kmem",
    "kvm",
    "libvirt",
    "lock",
    "lpadmin",
    "lxd",
    "mem",
    "munge",
    "netdev",
    "nogroup",
    "plugdev",
    "rdma",
    "render",
    "sasl",
    "sgx",
    "shadow",
    "slurm",
    "src",
    "ssh",
    "ssl-cert",
    "staff",
    "sudo",
    "systemd-journal",
    "tape",
    "tty",
    "users",
    "utmp",
    "uuidd",
    "video",
    "voice",
    "wheel",
}
"""Names of groups that images have. Users cannot create a group with one of these names, because
rules of a system, such as sudo's for the group `sudo`, would apply to it."""


def _home(home: str) -> str:
    fields = [
        (name, spec, turn) for _, name, spec, turn in Formatter().parse(home) if name is not None
    ]
    if (
        not home.startswith("/")
        or fields != [("name", "", None)]
        or any(each in home for each in ":\n")
    ):
        raise ValueError("should be an absolute path with {name} in it, such as /home/{name}")
    return home


@dataclass(frozen=True, slots=True)
class PosixRules(SiteTable):
    """People's accounts on vclusters' nodes. Ranges and rules are re-read on SIGHUP; numbers that
    were given stay."""

    first_uid: Number = site_key(
        20_000, "first number that users get; their primary groups get the same"
    )
    last_uid: Number = site_key(49_999, "last of them")
    first_gid: Number = site_key(50_000, "first number that groups get")
    last_gid: Number = site_key(59_999, "last of them")
    shell: str = site_key(
        "/bin/bash", "login shell", pattern=r"^(/[A-Za-z0-9._+-]+)+$", max_length=100
    )
    home: Annotated[str, Read(_home)] = site_key(
        "/home/{name}", "home directory; {name} is the sign-in name", max_length=100
    )
    sudo: Literal["members", "owners", "none"] = site_key(
        "members",
        "who may use sudo on nodes of a group's vclusters: members (and owners), owners or none",
    )
    administrators: bool = site_key(
        False, "site administrators have accounts on the nodes of every vcluster"
    )
    port: int = site_key(
        389, "LDAP with StartTLS, on each subnet's server address; 0: none", ge=0, le=65535
    )
    tls_port: int = site_key(636, "LDAP over TLS; 0: none", ge=0, le=65535)


POSIX = PosixRules()
"""The rules of a site file without the table."""
