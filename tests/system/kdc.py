"""MIT's KDC and its admin server, from Debian's packages, with a database of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.waiting import until

REALM = "EXAMPLE.TEST"
_CLIENT = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
[realms]
    {realm} = {{
        kdc = {address}
        admin_server = {address}
    }}
[logging]
    kdc = FILE:{folder}/kdc.log
    admin_server = FILE:{folder}/kadmind.log
"""
_SERVER = """\
[kdcdefaults]
    kdc_ports = 88
    kdc_tcp_ports = 88
[realms]
    {realm} = {{
        database_name = {folder}/principal
        key_stash_file = {folder}/stash
        acl_file = {folder}/kadm5.acl
        supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
    }}
"""
# what COD's principal may do: add, change, delete and inquire hosts, and nothing else
_ACL = "".join(f"cod/admin@{REALM} acdi {service}/*@{REALM}\n" for service in ("host", "nfs"))


class Kdc:
    """A KDC at `address`, in the network namespace to which the words `inside` lead."""

    def __init__(self, folder: Path, address: str, *inside: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self._inside = folder, inside
        words: dict[str, Any] = {"realm": REALM, "address": address, "folder": folder}
        self.config = folder / "krb5.conf"
        self.config.write_text(_CLIENT.format(**words))
        (folder / "kdc.conf").write_text(_SERVER.format(**words))
        (folder / "kadm5.acl").write_text(_ACL)
        self.environment = {
            **os.environ,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder}/tickets",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master", check=True)
        self.admin("addprinc", "-randkey", "cod/admin")
        self.admin("ktadd", "-k", str(folder / "cod.keytab"), "cod/admin")
        self._children: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start the KDC and the admin server."""
        for program in (["krb5kdc", "-n"], ["kadmind", "-nofork"]):
            with open(self.folder / f"{program[0]}.out", "ab") as log:
                self._children.append(
                    subprocess.Popen(
                        [*self._inside, *program],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=self.environment,
                    )
                )
        until(
            lambda: self.run("kadmin", "-k", "-t", str(self.folder / "cod.keytab"), "-p",
                             "cod/admin", "getprinc", "host/none").stderr.count("not exist"),
            self.told,
            every=0.2,
        )  # fmt: skip

    def stop(self) -> None:
        """Kill both."""
        for child in self._children:
            child.kill()
            child.wait()
        self._children.clear()

    def told(self) -> str:
        """Return what the servers have logged."""
        return "".join(each.read_text()[-2000:] for each in sorted(self.folder.glob("*.log")))

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command beside the KDC, with its configuration."""
        return subprocess.run(
            [*self._inside, *command],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=60,
            **{"check": False} | options,
        )

    def admin(self, *query: str) -> str:
        """Return what kadmin.local answers."""
        return self.run("kadmin.local", "-r", REALM, *query, check=True).stdout

    def principals(self) -> set[str]:
        """Return the names of all principals, without the realm."""
        return {line.partition("@")[0] for line in self.admin("listprincs").splitlines()}
