"""The site's Kerberos, as the site file describes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from cod.model.keys import Read, SiteTable, site_key
from cod.model.names import DNS_NAME

_SERVER = rf"{DNS_NAME}(:[0-9]{{1,5}})?"


def _server(text: str) -> str:
    if not re.fullmatch(_SERVER, text) or not 0 < int(text.partition(":")[2] or 88) < 65536:
        raise ValueError(f"{text!r} should be HOST or HOST:PORT, such as kdc.example.org")
    return text


def _realm(text: str) -> str:
    if text != text.upper():
        raise ValueError(f"should be in capital letters, as realms are: {text.upper()}")
    return text


@dataclass(frozen=True, slots=True)
class KerberosRules(SiteTable):
    """The realm that nodes belong to (docs/kerberos). Re-read on SIGHUP."""

    realm: Annotated[str, Read(_realm)] = site_key(
        "",
        "name of the realm, such as EXAMPLE.ORG; empty: the site has no Kerberos",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]*)?$",
        max_length=200,
    )
    kdcs: tuple[Annotated[str, Read(_server)], ...] = site_key(
        (), "its KDCs, HOST or HOST:PORT; none: nodes find them by DNS (SRV records)"
    )
    admin_server: Annotated[str, Read(lambda text: text and _server(text))] = site_key(
        "", "HOST or HOST:PORT at which people change passwords; empty: the first of kdcs"
    )
    # no `AbsolutePath`: backups would keep the program as a secret, and restore it as no program
    keytab_command: str = site_key(
        "",
        "program on COD's servers that makes a node's keytab and removes its principals, by its "
        "absolute path; empty: nodes get no keytab",
        pattern=r"^(/.*)?$",
    )
    logins: bool = site_key(
        True, "SSSD on nodes that have a keytab checks people's passwords by Kerberos"
    )
    idmap_domain: str = site_key(
        "",
        "NFSv4 domain of names, the same as on file servers; empty: the realm in small letters",
        pattern=rf"^({DNS_NAME})?$",
    )
