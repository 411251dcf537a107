"""Accounts of people on vclusters' nodes: the site's rules for them, and POSIX numbers."""

from __future__ import annotations

from dataclasses import dataclass

OVERFLOW = frozenset({65534, 65535})
"""Numbers that systems give to nobody: `nobody`, and the 16-bit form of -1."""
LOWEST, HIGHEST = 1000, 2**31 - 1
"""Numbers that people and groups may have: below are a system's own accounts, above are numbers
that old programs take for negative ones."""

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
"""Names of accounts that images bring along. A user who is called like one has no account on nodes:
the key of that user would open the image's own account."""

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
"""Names of groups that images bring along. A system's rules, such as sudo's for the group `sudo`,
hold for a vcluster's group of the same name, so users create no group that is called like one."""


@dataclass(frozen=True, slots=True)
class PosixRules:
    """How people appear on the nodes of vclusters, from the `[accounts]` table.

    first_uid, last_uid   the range that users get their numbers from: uid, and gid of their own
                          primary group
    first_gid, last_gid   the same for groups
    shell           of every account; home: its home directory, with {name}
    sudo            who may use sudo on the nodes of a group's vclusters: 'members' (with owners),
                    'owners' or 'none'
    administrators  have site administrators an account on the nodes of every vcluster?
    port, tls_port  of the LDAP server on each subnet's server address, 0: none; with and without
                    TLS from the first byte
    """

    first_uid: int = 20_000
    last_uid: int = 49_999
    first_gid: int = 50_000
    last_gid: int = 59_999
    shell: str = "/bin/bash"
    home: str = "/home/{name}"
    sudo: str = "members"
    administrators: bool = False
    port: int = 389
    tls_port: int = 636
