"""A private slapd on loopback with a few people, and TLS by a certificate made for it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.net.certificates import Authority
from tests.ports import free_port
from tests.waiting import until

BASE = "dc=example,dc=org"
ROOT = "everything"
CONFIGURATION = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
attributetype ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey'
  EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
objectclass ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY
  MAY ( sshPublicKey $ uid ) )
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCACertificateFile {folder}/ca.pem
TLSCertificateFile {pem}
TLSCertificateKeyFile {pem}
database mdb
suffix {base}
rootdn cn=root,{base}
rootpw {root}
directory {folder}/db
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="cn=reader,{base}" read by * none
"""
PEOPLE = """\
dn: {base}
objectClass: dcObject
objectClass: organization
dc: example
o: Example

dn: cn=reader,{base}
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: reader
userPassword: reading only

dn: ou=people,{base}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{base}
objectClass: organizationalUnit
ou: groups

dn: uid=bob,ou=people,{base}
objectClass: inetOrgPerson
uid: bob
cn: Bob Baker
sn: Baker
mail: bob@example.org
userPassword: three calm herons

dn: uid=twin,ou=people,{base}
objectClass: inetOrgPerson
uid: twin
cn: One
sn: One
userPassword: the same words

dn: cn=Other,ou=people,{base}
objectClass: inetOrgPerson
uid: twin
cn: Other
sn: Other
userPassword: the same words
"""


@dataclass
class Slapd:
    """A running directory: its URLs, the file of its authority, and of its reader's password."""

    plain: str
    tls: str
    ca: Path
    password: Path
    reader: str = f"cn=reader,{BASE}"
    people: str = f"ou=people,{BASE}"


@contextmanager
def running(folder: Path) -> Iterator[Slapd]:
    """A slapd with its data in `folder`."""
    pem = Authority(folder).certificate("127.0.0.1")
    (folder / "db").mkdir()
    (folder / "slapd.conf").write_text(
        CONFIGURATION.format(folder=folder, base=BASE, pem=pem, root=ROOT)
    )
    (folder / "people.ldif").write_text(PEOPLE.format(base=BASE))
    subprocess.run(
        [_program("slapadd"), "-f", folder / "slapd.conf", "-l", folder / "people.ldif"],
        check=True,
        capture_output=True,
    )
    password = folder / "reader"
    password.write_text("reading only\n")
    password.chmod(0o600)
    plain, tls = free_port(), free_port()
    own = Slapd(
        f"ldap://127.0.0.1:{plain}", f"ldaps://127.0.0.1:{tls}", folder / "ca.pem", password
    )
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            [
                _program("slapd"),
                "-d",
                "0",
                "-f",
                folder / "slapd.conf",
                "-h",
                f"{own.plain} {own.tls}",
            ],
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            until(lambda: _answers(plain) and _answers(tls), lambda: (folder / "log").read_text())
            yield own
        finally:
            server.terminate()


def bound(own: Slapd) -> Any:
    """A connection as the one who may change everything."""
    import ldap

    line = ldap.initialize(own.plain)
    line.simple_bind_s(f"cn=root,{BASE}", ROOT)
    return line


def _program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert found, f"{name} is not installed: .ci/system-packages"
    return found


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
