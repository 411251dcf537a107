"""The site's Kerberos on nodes, and the volumes that can use it. Pure.

A seed gets two parts: public configuration (/etc/krb5.conf, and its use by NFS and OpenSSH), and
the node's keytab, which is secret.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from ipaddress import ip_address

from cod.model import FileServer, KerberosRules, NfsSecurity, Refused
from cod.policy.nodes.seed import SeedPart
from cod.policy.nodes.template import Configuration

LARGEST = 32 << 10  # bytes of a keytab: a dozen principals with all kinds of keys
_VERSION = b"\x05\x02"  # the first bytes of keytab files
# `rdns`: nodes' addresses have names by COD, but addresses of file servers may have none
_CONFIGURATION = """\
# Written by Cluster-on-Demand at the first boot.
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = {lookup}
    dns_lookup_realm = false
    rdns = false
    forwardable = true
{realms}
[domain_realm]
{domains}
"""
# systemd starts rpc.gssd only if /etc/krb5.keytab exists when NFS starts, which it did not.
_SCRIPT = """\
#!/bin/sh
# The site's Kerberos: /etc/krb5.conf, names of NFSv4, SSH by tickets.
umask 022
cat >/etc/krb5.conf <<'END'
{configuration}END
if [ -f /etc/idmapd.conf ] && grep -Eq '^#? *Domain *=' /etc/idmapd.conf; then
    sed -Ei 's/^#? *Domain *=.*/Domain = {idmap_domain}/' /etc/idmapd.conf
else
    printf '[General]\\nDomain = %s\\n' {idmap_domain} >>/etc/idmapd.conf
fi
if [ -s /etc/krb5.keytab ] && [ -d /etc/ssh/sshd_config.d ]; then
    # any name that the keytab has: gethostname(2) may tell a shorter one
    printf '%s\\n' "GSSAPIAuthentication yes" "GSSAPIStrictAcceptorCheck no" \\
        >/etc/ssh/sshd_config.d/20-cod-kerberos.conf
fi
if [ -d /run/systemd/system ]; then
    systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null
    systemctl restart rpc-gssd 2>/dev/null
fi
exit 0
"""
_KEYTAB = """\
#!/bin/sh
# The keys of this node, which nobody else has.
umask 077
base64 -d >/etc/krb5.keytab.new <<'END'
{keytab}
END
mv -f /etc/krb5.keytab.new /etc/krb5.keytab
exit 0
"""


def krb5_conf(rules: KerberosRules, domains: Iterable[str]) -> str:
    """Return the file krb5.conf(5) for nodes. `domains`: DNS domains or hosts that belong to the
    realm, besides the domain with the realm's name."""
    servers = "".join(f"        kdc = {kdc}\n" for kdc in rules.kdcs)
    if admin := rules.admin_server or next((each.partition(":")[0] for each in rules.kdcs), ""):
        servers += f"        admin_server = {admin}\n"
    realms = f"[realms]\n    {rules.realm} = {{\n{servers}    }}\n" if servers else ""
    own = dict.fromkeys((*domains, rules.realm.lower()))
    return _CONFIGURATION.format(
        realm=rules.realm,
        lookup="false" if rules.kdcs else "true",
        realms=realms,
        domains="\n".join(
            f"    {name} = {rules.realm}" for each in own for name in (f".{each}", each)
        ),
    )


def seed_part(
    rules: KerberosRules, configuration: Configuration, domain: str, servers: Iterable[FileServer]
) -> SeedPart:
    """Return the part that makes a node a client of the site's realm; an empty part if the site has
    no realm or the template does not use Kerberos.

    domain   the site's domain, to which nodes belong
    servers  file servers, which belong to the realm, too
    """
    if not (rules.realm and configuration.kerberos):
        return SeedPart()
    hosts = [each.address for each in servers if _is_name(each.address)]
    lines = krb5_conf(rules, [domain, *hosts])
    script = _SCRIPT.format(
        configuration=lines, idmap_domain=rules.idmap_domain or rules.realm.lower()
    )
    return SeedPart(scripts=(script,), files={"krb5.conf": lines})


def keytab_part(keytab: bytes) -> SeedPart:
    """Return the secret part with the node's keytab. Images that read the seed themselves find the
    keytab in base64."""
    text = b64encode(keytab).decode()
    return SeedPart(
        scripts=(_KEYTAB.format(keytab=text),), files={"krb5.keytab.base64": text}, secret=True
    )


def has_keytab(rules: KerberosRules, configuration: Configuration) -> bool:
    """Return whether a node with that template gets a keytab."""
    return bool(rules.realm and rules.keytab_command and configuration.kerberos)


def keytab_trouble(keytab: bytes) -> str:
    """Return why the output of the site's command is no keytab; '' if it looks like one."""
    if not keytab:
        return "it wrote nothing on its standard output, which should be the keytab"
    if len(keytab) > LARGEST:
        return f"the keytab has more than {LARGEST} bytes"
    if not keytab.startswith(_VERSION):
        return "what it wrote on its standard output is no keytab, which begins with 05 02 (hex)"
    return ""


def check_volume(sec: NfsSecurity, rules: KerberosRules, server: FileServer) -> None:
    """Raise `Refused` if a volume on that file server cannot have the security `sec`."""
    if sec == "sys":
        return
    if not rules.realm:
        raise Refused(
            "conflict",
            f"sec={sec} needs Kerberos, which this site does not have: an administrator sets realm"
            " in [kerberos] of the site file",
            "sec",
        )
    if not _is_name(server.address):
        raise Refused(
            "conflict",
            f"file server {server.name} has the address {server.address} in the site file; sec="
            f"{sec} needs its host name there, as in its principal nfs/NAME@{rules.realm}",
            "sec",
        )


def check_template(sec: NfsSecurity, name: str, configuration: Configuration) -> None:
    """Raise `Refused` if nodes with the template `name` cannot mount volumes with the security
    `sec`."""
    if sec != "sys" and not configuration.kerberos:
        raise Refused(
            "conflict",
            f"the volume has sec={sec}, and nodes with template {name} are no clients of Kerberos:"
            " its image needs rpc.gssd (Debian: nfs-common), and the template <personalise seed="
            '"nocloud" kerberos="yes"/>',
            "template",
        )


def _is_name(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return True
    return False
