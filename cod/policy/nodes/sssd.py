"""The part of a seed that lets the people of a vcluster log in to its nodes: SSSD, OpenSSH, PAM.
Pure.

The part is a script of the vendor data. In images without SSSD the script does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import KerberosRules, PosixRules
from cod.policy.nodes.seed import SeedPart
from cod.policy.people import ldap_tree

# A user whose shell is missing in an image gets the site's shell, but only if it is one of these
# shells. /usr/sbin/nologin, by which a directory locks a user out, stays in force.
_SHELLS = tuple(
    f"{folder}/{shell}"
    for folder in ("/bin", "/usr/bin", "/usr/local/bin")
    for shell in ("bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh")
)
# A new user is found within `entry_negative_timeout`; a user who has left is gone after
# `entry_cache_timeout`, or, while the server is away, when it is back: the cache is kept for ever.
# Without Kerberos there are no passwords: logins are by SSH key.
_CONFIGURATION = """\
# Written by Cluster-on-Demand at the first boot.
[sssd]
services = nss, pam, ssh, sudo, autofs
domains = cod

[nss]
entry_negative_timeout = 3
memcache_timeout = 0
allowed_shells = {shells}
shell_fallback = {shell}

[sudo]

[autofs]
autofs_negative_timeout = 3

[domain/cod]
id_provider = ldap
{authentication}access_provider = permit
sudo_provider = ldap
autofs_provider = ldap
ldap_uri = {uris}
ldap_id_use_start_tls = {start_tls}
ldap_tls_cacert = /etc/sssd/cod-ca.pem
ldap_tls_reqcert = demand
ldap_search_base = {base}
ldap_user_search_base = {people}
ldap_group_search_base = {groups}
ldap_netgroup_search_base = {netgroups}
ldap_sudo_search_base = {sudoers}
ldap_autofs_search_base = {automount}
ldap_schema = rfc2307
ldap_user_ssh_public_key = sshPublicKey
ldap_autofs_map_object_class = automountMap
ldap_autofs_map_name = automountMapName
ldap_autofs_entry_object_class = automount
ldap_autofs_entry_key = automountKey
ldap_autofs_entry_value = automountInformation
ldap_network_timeout = 3
ldap_opt_timeout = 5
ldap_search_timeout = 5
ldap_sudo_smart_refresh_interval = 30
ldap_sudo_full_refresh_interval = 45
offline_timeout = 10
offline_timeout_max = 60
entry_cache_timeout = 15
entry_cache_autofs_timeout = 30
entry_cache_sudo_timeout = 30
account_cache_expiration = 0
enumerate = false
case_sensitive = true
"""

_NO_PASSWORDS = """\
auth_provider = none
chpass_provider = none
"""
# `krb5_validate`: the KDC has to prove that it knows the node's own key. Otherwise a host that
# answers in the KDC's place could accept any password.
_KERBEROS = """\
auth_provider = krb5
chpass_provider = krb5
krb5_realm = {realm}
krb5_validate = true
krb5_canonicalize = false
krb5_auth_timeout = 10
krb5_renewable_lifetime = 7d
krb5_renew_interval = 1h
cache_credentials = false
krb5_store_password_if_offline = false
"""

_SCRIPT = """\
#!/bin/sh
# Accounts of the vcluster's people, by SSSD. An image without SSSD stays as it is.
command -v sssd >/dev/null || exit 0
umask 077
mkdir -p /etc/sssd
cat >/etc/sssd/cod-ca.pem <<'END'
{authority}END
chmod 644 /etc/sssd/cod-ca.pem
cat >/etc/sssd/sssd.conf <<'END'
{configuration}END
umask 022
for map in passwd group netgroup automount sudoers; do
    if ! grep -q "^$map:" /etc/nsswitch.conf; then
        echo "$map: files sss" >>/etc/nsswitch.conf
    elif ! grep -q "^$map:.*sss" /etc/nsswitch.conf; then
        sed -i "s/^$map:.*/& sss/" /etc/nsswitch.conf
    fi
done
if command -v pam-auth-update >/dev/null; then
    DEBIAN_FRONTEND=noninteractive pam-auth-update --enable mkhomedir
elif command -v authselect >/dev/null; then
    authselect select sssd with-mkhomedir with-sudo --force
    systemctl enable --now oddjobd
elif [ -f /etc/pam.d/sshd ] && ! grep -q pam_mkhomedir /etc/pam.d/sshd; then
    echo "session optional pam_mkhomedir.so umask=0077" >>/etc/pam.d/sshd
fi
if [ -x /usr/bin/sss_ssh_authorizedkeys ] && [ -f /etc/ssh/sshd_config ]; then
    own=/etc/ssh/sshd_config
    if [ -d /etc/ssh/sshd_config.d ] && grep -q "^Include /etc/ssh/sshd_config.d" $own; then
        own=/etc/ssh/sshd_config.d/20-cod-accounts.conf
    fi
    if ! grep -qs "^AuthorizedKeysCommand " $own; then
        before=$(cat $own 2>/dev/null)
        printf '%s\\n' "AuthorizedKeysCommand /usr/bin/sss_ssh_authorizedkeys" "AuthorizedKeysCommandUser nobody" \\
            "$before" >$own
    fi
fi
if [ -d /run/systemd/system ]; then
    systemctl enable sssd
    systemctl restart sssd
    systemctl reload ssh 2>/dev/null || systemctl reload sshd
    if systemctl cat autofs >/dev/null 2>&1; then
        systemctl enable autofs
        systemctl restart autofs
    fi
fi
exit 0
"""


def seed_part(
    vcluster: str,
    domain: str,
    servers: Sequence[str],
    authority: str,
    rules: PosixRules,
    kerberos: KerberosRules | None = None,
) -> SeedPart:
    """Return the seed's part that makes a node take its accounts from the vcluster's LDAP tree; an
    empty part if no authority is known or LDAP has no port.

    servers    addresses of COD's servers, the nearest first
    authority  PEM certificate of the site's authority, which signs the servers' certificates; '':
               it is not known
    kerberos   the realm that checks people's passwords; None: no passwords
    """
    if not authority or not (rules.port or rules.tls_port):
        return SeedPart()
    scheme, port = ("ldap", rules.port) if rules.port else ("ldaps", rules.tls_port)
    base = ldap_tree.base(vcluster, domain)
    units = {kind.unit: ldap_tree.unit(kind, base) for kind in ldap_tree.KINDS if kind.unit}
    configuration = _CONFIGURATION.format(
        uris=", ".join(f"{scheme}://{server}:{port}" for server in servers),
        base=base,
        shell=rules.shell,
        shells=", ".join(dict.fromkeys((rules.shell, *_SHELLS))),
        authentication=_authentication(kerberos) if kerberos else _NO_PASSWORDS,
        start_tls="true" if scheme == "ldap" else "false",
        **units,
    )
    return SeedPart(
        scripts=(_SCRIPT.format(authority=authority.strip() + "\n", configuration=configuration),)
    )


def _authentication(rules: KerberosRules) -> str:
    """Return the lines that make SSSD check passwords by Kerberos. If the site names no KDCs, SSSD
    finds them by DNS."""
    lines = _KERBEROS.format(realm=rules.realm)
    if rules.kdcs:
        lines += f"krb5_server = {', '.join(rules.kdcs)}\n"
    if rules.admin_server:
        lines += f"krb5_kpasswd = {rules.admin_server}\n"
    return lines
