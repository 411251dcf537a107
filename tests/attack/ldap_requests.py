"""Requests of LDAP that are right, as SSSD, nslcd and ldapsearch send them, to be made wrong."""

from __future__ import annotations

import warnings

from ldaptor.protocols import pureber, pureldap

from cod.wire import ldap as wire

with warnings.catch_warnings():  # of pyparsing
    warnings.simplefilter("ignore")
    from ldaptor.ldapfilter import parseFilter

BASE = "dc=pool,dc=cod,dc=test"
FILTERS = (
    "(&(uid=ann)(objectclass=posixAccount)(uid=*)(&(uidNumber=*)(!(uidNumber=0))))",
    "(&(memberUid=ann)(objectClass=posixGroup)(cn=*)(&(gidNumber=*)(!(gidNumber=0))))",
    "(&(objectClass=sudoRole)(|(!(sudoHost=*))(sudoHost=ALL)(sudoHost=n1)(|(sudoHost=*?*)(sudoHost=*[[]*))))",
    "(&(cn=nodes)(objectclass=nisNetgroup))",
    "(|(uidNumber>=1)(uidNumber<=5)(cn~=x)(cn:dn:2.5.13.5:=x)(cn=a*b*c))",
)


def requests() -> list[bytes]:
    """Messages of each kind."""
    page = pureber.BERSequence([pureber.BERInteger(100), pureber.BEROctetString(b"5:3:7")]).toWire()
    searches = [
        pureldap.LDAPSearchRequest(
            baseObject=BASE,
            scope=scope,
            filter=parseFilter(text),
            attributes=["uid", "uidNumber", "sshPublicKey"],
        )
        for scope, text in zip((0, 1, 2, 2, 2), FILTERS, strict=True)
    ]
    others = [
        pureldap.LDAPBindRequest(),
        pureldap.LDAPBindRequest(dn=f"uid=ann,ou=people,{BASE}", auth="secret"),
        pureldap.LDAPBindRequest(auth=("PLAIN", "x"), sasl=True),
        pureldap.LDAPUnbindRequest(),
        pureldap.LDAPExtendedRequest(requestName=wire.WHO_AM_I),
        pureldap.LDAPAbandonRequest(id=1),
        pureldap.LDAPDelRequest(entry=f"uid=ann,ou=people,{BASE}"),
    ]
    return [pureldap.LDAPMessage(value, id=7).toWire() for value in [*searches, *others]] + [
        pureldap.LDAPMessage(each, controls=[(wire.PAGED.encode(), True, page)], id=8).toWire()
        for each in searches
    ]
