"""What nodes are told of Kerberos, which volumes can use it, and how keytabs are sealed."""

from __future__ import annotations

import shutil
import subprocess
from base64 import b64decode
from configparser import ConfigParser
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from cod.model import Attachment, FileServer, KerberosRules, PosixRules, Refused, Volume
from cod.policy import volumes
from cod.policy.nodes import sssd, template
from cod.policy.nodes.template import Configuration
from cod.policy.people import kerberos
from cod.security.sealed import Sealer
from cod.site.file import keys
from cod.site.load import ConfigError, load

RULES = KerberosRules("EXAMPLE.ORG", ("kdc1.example.org", "kdc2.example.org:750"))
NAS = FileServer("nas", "ganesha", "nas.example.org", "/srv/cod")
DOCUMENT = '<template name="x"><image target="disk" name="x"/>{}</template>'
SITE = """\
[server]
data_dir = "{folder}"
[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "br0"
boot_pool = ["10.77.1.0", "10.77.1.255"]
block_pool = ["10.77.128.0", "10.77.191.255"]
"""


def configuration(
    personalise: str = '<personalise seed="nocloud" kerberos="yes"/>',
) -> Configuration:
    return template.parse(DOCUMENT.format(personalise))


def test_krb5_conf_names_the_realm_its_kdcs_and_its_hosts() -> None:
    told = kerberos.krb5_conf(RULES, ["cod.example.org", "nas.example.org"])
    for line in (
        "default_realm = EXAMPLE.ORG",
        "kdc = kdc1.example.org\n",
        "kdc = kdc2.example.org:750\n",
        "admin_server = kdc1.example.org\n",
        "dns_lookup_kdc = false",
        ".cod.example.org = EXAMPLE.ORG",
        "    example.org = EXAMPLE.ORG",
    ):
        assert line in told, line
    alone = kerberos.krb5_conf(KerberosRules("EXAMPLE.ORG"), [])
    assert "dns_lookup_kdc = true" in alone
    assert "[realms]" not in alone


def test_only_templates_that_ask_for_it_make_clients() -> None:
    plain = configuration('<personalise seed="nocloud"/>')
    made = kerberos.seed_part(RULES, configuration(), "cod.example.org", [NAS])
    assert "nas.example.org = EXAMPLE.ORG" in made.files["krb5.conf"]
    assert "Domain = example.org" in made.scripts[0]
    assert not made.secret, "the metadata service may tell it"
    for rules, asked in ((KerberosRules(), configuration()), (RULES, plain)):
        assert kerberos.seed_part(rules, asked, "cod.example.org", []).scripts == ()
    assert not kerberos.has_keytab(RULES, configuration()), "the site makes none"


@pytest.mark.parametrize(
    "personalise",
    [
        '<personalise seed="none" kerberos="yes"/>',
        '<personalise seed="nocloud" seedfrom="metadata" kerberos="yes"/>',
    ],
)
def test_a_keytab_needs_a_seed_on_the_disk(personalise: str) -> None:
    with pytest.raises(Refused, match="a keytab is told by no metadata service"):
        configuration(personalise)


def test_a_keytab_comes_whole_and_for_root_alone(tmp_path: Path) -> None:
    keytab = b"\x05\x02" + bytes(range(256)) * 8
    part = kerberos.keytab_part(keytab)
    assert part.secret, "the metadata service must not tell it"
    assert b64decode(part.files["krb5.keytab.base64"]) == keytab
    script = part.scripts[0].replace("/etc/", f"{tmp_path}/")
    subprocess.run(["sh"], input=script, text=True, check=True)
    assert (tmp_path / "krb5.keytab").read_bytes() == keytab
    assert (tmp_path / "krb5.keytab").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (b"", "wrote nothing"),
        (b"kadmin: no such thing", "no keytab, which begins with 05 02"),
        (b"\x05\x02" + bytes(40_000), "more than 32768 bytes"),
        (b"\x05\x02rest", ""),
    ],
)
def test_what_is_no_keytab_is_not_sent(output: bytes, words: str) -> None:
    assert words in kerberos.keytab_trouble(output)
    assert bool(words) == bool(kerberos.keytab_trouble(output))


def test_the_script_names_the_domain_of_nfs_once(tmp_path: Path) -> None:
    part = kerberos.seed_part(RULES, configuration(), "cod.example.org", [])
    (tmp_path / "idmapd.conf").write_text("[General]\n# Domain = localdomain\n[Mapping]\n")
    for _ in range(2):
        script = part.scripts[0].replace("/etc/", f"{tmp_path}/").replace("systemctl", "true")
        subprocess.run(["sh"], input=script, text=True, check=True)
    assert (tmp_path / "idmapd.conf").read_text() == "[General]\nDomain = example.org\n[Mapping]\n"


def test_sssd_checks_passwords_by_kerberos_where_the_node_has_a_keytab() -> None:
    def told(rules: KerberosRules | None) -> ConfigParser:
        (script,) = sssd.seed_part(
            "web", "cod.test", ["10.77.0.1"], "PEM", PosixRules(), rules
        ).scripts
        found = ConfigParser(interpolation=None)
        found.read_string(script.split("/sssd.conf <<'END'\n")[1].split("END\n")[0])
        return found

    plain, keyed = told(None)["domain/cod"], told(RULES)["domain/cod"]
    assert (plain["auth_provider"], keyed["auth_provider"]) == ("none", "krb5")
    assert keyed["id_provider"] == "ldap"
    assert keyed["krb5_server"] == "kdc1.example.org, kdc2.example.org:750"
    assert keyed.getboolean("krb5_validate"), "a KDC that anybody plays is not believed"
    assert not keyed.getboolean("cache_credentials")
    assert "krb5_server" not in told(KerberosRules("EXAMPLE.ORG"))["domain/cod"]


def test_a_mount_asks_for_the_volume_s_protection() -> None:
    def options(sec: str) -> str:
        volume = Volume(**dict.fromkeys(Volume.__slots__) | {"sec": sec, "name": "g/v"})
        attachment = Attachment(1, 1, 1, "/data", False, None, 1, False, 0.0, "web")
        return volumes.mount(volume, attachment, "nas.example.org").options

    assert options("krb5p") == "fstype=nfs4,rw,hard,nosuid,nodev,sec=krb5p"
    assert "sec=" not in options("sys")


def test_what_lacks_is_said() -> None:
    kerberos.check_volume("sys", KerberosRules(), NAS)
    kerberos.check_volume("krb5p", RULES, NAS)
    with pytest.raises(Refused, match=r"sets realm in \[kerberos\]"):
        kerberos.check_volume("krb5p", KerberosRules(), NAS)
    numbered = FileServer("nas", "ganesha", "10.0.0.5", "/srv/cod")
    with pytest.raises(Refused, match="needs its host name"):
        kerberos.check_volume("krb5", RULES, numbered)
    kerberos.check_template("krb5p", "debian", configuration())
    plain = configuration('<personalise seed="nocloud"/>')
    kerberos.check_template("sys", "debian", plain)
    with pytest.raises(Refused, match=r'template debian are no clients .* kerberos="yes"'):
        kerberos.check_template("krb5p", "debian", plain)


def test_what_is_sealed_opens_for_its_own_words_and_key_only() -> None:
    sealer, other = Sealer(b"k" * 32), Sealer(b"o" * 32)
    sealed = sealer.seal(b"secret", "1.2")
    assert b"secret" not in sealed
    assert sealer.open(sealed, "1.2") == b"secret"
    assert sealer.seal(b"secret", "1.2") != sealed
    assert [each.open(sealed, words) for each, words in ((sealer, "1.3"), (other, "1.2"))] == [
        None,
        None,
    ]
    assert sealer.open(b"", "1.2") is None
    assert sealer.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), "1.2") is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('realm = "example.org"', "should be in capital letters, as realms are: EXAMPLE.ORG"),
        ('kdcs = ["kdc"]', "realm should be set where kdcs is"),
        ('realm = "EXAMPLE.ORG"\nkdcs = ["a b"]', "should be HOST or HOST:PORT"),
        ('realm = "EXAMPLE.ORG"\nkdcs = [""]', "should be HOST or HOST:PORT"),
        ('realm = "EXAMPLE.ORG"\nkdcs = ["kdc:88888"]', "should be HOST or HOST:PORT"),
        ('realm = "EXAMPLE.ORG"\nkeytab_command = "keytab"', "keytab_command"),
        ('[volumes]\nsec = "krb5p"', "sec=krb5p needs Kerberos"),
    ],
)
def test_a_site_file_that_contradicts_itself_is_refused(
    tmp_path: Path, said: str, words: str
) -> None:
    server = '[[fileserver]]\nname = "nas"\ndriver = "ganesha"\naddress = "nas.org"\nroot = "/srv"'
    file = tmp_path / "site.toml"
    file.write_text(f"{SITE.format(folder=tmp_path)}{server}\n[kerberos]\n{said}\n")
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        load(file)


def test_a_site_file_s_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(
        SITE.format(folder=tmp_path)
        + '[kerberos]\nrealm = "EXAMPLE.ORG"\nkdcs = ["kdc.example.org:88", "10.0.0.9"]\n'
    )
    site = load(file)[0]
    assert site.kerberos == KerberosRules("EXAMPLE.ORG", ("kdc.example.org:88", "10.0.0.9"))
    with pytest.raises(ValidationError):
        TypeAdapter(KerberosRules).validate_python({"realm": "EX AMPLE"})


def test_the_command_is_no_file_that_backups_keep() -> None:
    """Backups restore the files that the site file names as secrets, which nobody can run."""
    assert not any(key.file for key in keys(KerberosRules))


@pytest.mark.skipif(shutil.which("klist") is None, reason="needs krb5-user")
def test_krb5_conf_is_read_by_mit_s_library(tmp_path: Path) -> None:
    (tmp_path / "krb5.conf").write_text(kerberos.krb5_conf(RULES, ["cod.example.org"]))
    told = subprocess.run(
        ["klist", "-k", "/nonexistent"],
        env={"KRB5_CONFIG": str(tmp_path / "krb5.conf"), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "while starting keytab scan" in told.stderr, "and not: while initializing krb5"
