"""Volumes that Kerberos protects, on a real NFS-Ganesha with Debian's KDC: who reads them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.fileservers import script
from cod.model import ExportClient, WantedVolume
from tests.system.kdc import REALM, Kdc
from tests.system.nfs_stand import ADDRESS, NfsStand

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.in_turn(3, together=True),
    pytest.mark.xdist_group("ganesha"),
]

HOST = "nas.example.test"
CLIENT = Path(__file__).with_name("nfs_gss.py")
WRONGSEC, ACCESS = 10016, 13
FILES = f"""set -e
cat >>/etc/ganesha/ganesha.conf <<'END'
NFS_KRB5 {{ PrincipalName = "nfs"; KeytabPath = "/etc/krb5.keytab"; Active_krb5 = true; }}
END
printf '[General]\\nDomain = {REALM.lower()}\\n[Mapping]\\n' >/etc/idmapd.conf
printf '[Translation]\\nMethod = nsswitch\\n' >>/etc/idmapd.conf
echo 'ann:x:20001:20001::/:/bin/sh' >>/etc/passwd
echo 'bob:x:20002:20002::/:/bin/sh' >>/etc/passwd
cp $FROM/krb5.conf /etc/krb5.conf
install -m 600 $FROM/nas.keytab /etc/krb5.keytab
"""


class KeyedStand:
    """A file server that has a keytab, and ann and bob with tickets."""

    def __init__(self, stand: NfsStand, folder: Path) -> None:
        self.stand = stand
        self.kdc = Kdc(folder, ADDRESS, "ip", "netns", "exec", f"{stand.name}s")
        self.kdc.admin("addprinc", "-randkey", f"nfs/{HOST}")
        self.kdc.admin("ktadd", "-k", str(folder / "nas.keytab"), f"nfs/{HOST}")
        for name in ("ann", "bob"):
            self.kdc.admin("addprinc", "-pw", name, name)
        stand.runs("env", f"FROM={folder}", "sh", "-c", FILES, check=True)
        stand.stop("ganesha")
        stand.start_ganesha()
        self._numbers = iter(range(100, 200))

    def volume(self, sec: Any) -> str:
        """Export a volume that is protected so to host a; returns its directory, in which a file
        belongs to ann alone."""
        number = next(self._numbers)
        path = f"/srv/cod/physics.data-{number}"
        wanted = WantedVolume(
            number,
            "physics/data",
            1000 + number,
            path,
            50 << 20,
            1,
            may_make=True,
            clients=(ExportClient("10.77.128.0/26", False),),
            sec=sec,
        )
        text = script.apply(self.stand.settings(), wanted)
        done = subprocess.run(
            [*self.stand._inside, "sh", "-s"],
            input=text,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        file = f"{path}/diary"
        told = f"echo 'dear diary' >{file}; chmod 600 {file}; chown 20001:20001 {file}"
        self.stand.runs("sh", "-c", told, check=True)
        return path

    def reads(self, name: str, service: str, path: str, host: str = "a") -> tuple[str, str]:
        """Have a user with a ticket read the diary as a host; returns (content, error)."""
        self.kdc.run("sh", "-c", f"echo {name} | kinit {name}", check=True)
        done = subprocess.run(
            [
                *("ip", "netns", "exec", f"{self.stand.name}{host}"),
                *("/usr/bin/python3", str(CLIENT), ADDRESS, HOST, service, f"{path}/diary"),
            ],
            env=self.kdc.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.kdc.run("kdestroy")
        return done.stdout, done.stderr.strip()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedStand]:
    with NfsStand(tmp_path_factory.mktemp("nfs")) as stand:
        made = KeyedStand(stand, tmp_path_factory.mktemp("kdc") / "kdc")
        yield made
        made.kdc.stop()


def test_krb5p_shows_files_to_their_owners_encrypted(keyed: KeyedStand) -> None:
    path = keyed.volume("krb5p")
    assert keyed.reads("ann", "privacy", path) == ("dear diary\n", "")
    assert keyed.reads("bob", "privacy", path) == ("", f"NFS4 error {ACCESS}")


def test_less_than_the_export_s_protection_is_refused(keyed: KeyedStand) -> None:
    path = keyed.volume("krb5p")
    for service in ("none", "integrity"):
        assert keyed.reads("ann", service, path) == ("", f"NFS4 error {WRONGSEC}")
    assert not keyed.stand.sees("a", path), "by the node's word (sys), from the right address"


@pytest.mark.parametrize(("sec", "service"), [("krb5", "none"), ("krb5i", "integrity")])
def test_the_other_kinds(keyed: KeyedStand, sec: str, service: str) -> None:
    path = keyed.volume(sec)
    assert keyed.reads("ann", service, path) == ("dear diary\n", "")


def test_a_ticket_does_not_replace_the_address(keyed: KeyedStand) -> None:
    path = keyed.volume("krb5p")
    content, error = keyed.reads("ann", "privacy", path, host="b")
    assert (content, bool(error)) == ("", True)


def test_plain_volumes_stay_as_they_are(keyed: KeyedStand) -> None:
    path = keyed.volume("sys")
    assert keyed.stand.sees("a", path)
    assert keyed.reads("ann", "none", path) == ("", f"NFS4 error {WRONGSEC}")
