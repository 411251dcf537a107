"""The LDAP server for nodes: what each address sees, searches, pages, TLS, limits, faults."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ldaptor.protocols import pureldap
from sqlalchemy import Engine, update

from cod.model import PosixRules, Role, Site, SiteRef
from cod.net.ldap import connection as connections
from cod.net.ldap import server as servers
from cod.net.ldap.server import LdapServer
from cod.net.servertls import ServerTls
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca
from cod.states import NodeState
from cod.store import tables as t
from cod.store.people import people as rows
from cod.wire import ldap as wire
from tests import ldap_site
from tests.net.ldapclient import LdapClient
from tests.waiting import until

BASE = "dc=pool,dc=cod,dc=test"
# of pyparsing, by ldaptor's parser of filters
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ANN, PHYSICS = f"uid=ann,ou=people,{BASE}", f"cn=physics,ou=groups,{BASE}"
# as SSSD asks
POSIX_ACCOUNT = "(&(uid={})(objectclass=posixAccount)(uid=*)(&(uidNumber=*)(!(uidNumber=0))))"


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


@pytest.fixture
def sites(site: Site) -> SiteRef:
    return SiteRef(site)


@pytest.fixture
def ldap(
    reactor: Any, in_reactor: Any, pool: Pool, sites: SiteRef, ca: Ca, engine: Engine
) -> Iterator[LdapServer]:
    in_transaction(engine, ldap_site.physics_and_chemistry)
    tls = ServerTls(ca, ["127.0.0.1"], time.time)
    server = LdapServer(reactor, pool, sites, ["127.0.0.1"], tls, port=0, tls_port=0)
    in_reactor(server.startService)
    yield server
    in_reactor(server.stopService)


@pytest.fixture
def connect(ldap: LdapServer) -> Iterator[Callable[..., LdapClient]]:
    with contextlib.ExitStack() as stack:

        def connect(source: str = "127.0.7.1", tls: ssl.SSLContext | None = None) -> LdapClient:
            port = ldap.ports[0 if tls is None else 1].getHost().port
            client = LdapClient(port, source, tls)
            stack.callback(client.close)
            return client

        yield connect


Connect = Callable[..., LdapClient]


def names(found: dict[str, Any]) -> set[str]:
    return {dn.partition(",")[0] for dn in found}


# ---------------------------------------------------------------- who sees what


def test_a_node_sees_the_people_of_its_vcluster_and_no_others(connect: Connect) -> None:
    code, found = connect().search("(objectClass=posixAccount)")
    assert (code, names(found)) == (0, {"uid=ann", "uid=bob"})
    assert found[ANN]["uidNumber"] == found[ANN]["gidNumber"] == ["20000"]
    assert found[ANN]["homeDirectory"] == ["/home/ann"]
    assert [key.split()[2] for key in found[ANN]["sshPublicKey"]] == ["ann@desk0", "ann@desk1"]
    other = connect("127.0.8.1").search("(objectClass=posixAccount)", base="dc=web,dc=cod,dc=test")
    assert names(other[1]) == {"uid=carl"}


def test_a_tree_of_another_vcluster_is_not_there(connect: Connect) -> None:
    assert connect("127.0.8.1").search("(uid=ann)", base=BASE) == (32, {})
    assert connect("127.0.8.1").search("(uid=ann)", base="dc=cod,dc=test") == (32, {})
    assert connect("127.0.8.1").search("(uid=ann)", base="") == (32, {})


def test_other_addresses_see_nothing(connect: Connect) -> None:
    stranger = connect("127.0.9.9")
    assert stranger.search("(objectClass=*)") == (32, {})
    code, found = stranger.search(base="", scope=0)
    assert code == 0
    assert "namingContexts" not in found[""]


@pytest.mark.parametrize(
    "state", [s for s in NodeState if s not in (NodeState.ACTIVE, NodeState.BOOT)]
)
def test_a_node_that_does_not_run_its_own_system_sees_nothing(
    connect: Connect, engine: Engine, state: NodeState
) -> None:
    with engine.begin() as tx:
        tx.execute(update(t.nodes).where(t.nodes.c.hostname == "n1").values(state=state))
    assert connect().search() == (32, {})
    assert connect("127.0.7.2").search()[0] == 0


def test_the_root_names_the_tree_of_the_address(connect: Connect) -> None:
    code, found = connect().search(
        base="", scope=0, attributes=("*", "namingContexts", "supportedControl")
    )
    assert (code, found[""]["namingContexts"]) == (0, [BASE])
    assert wire.PAGED in found[""]["supportedControl"]
    assert wire.START_TLS in found[""]["supportedExtension"]
    assert connect("127.0.8.1").search(base="", scope=0)[1][""]["namingContexts"] == [
        "dc=web,dc=cod,dc=test"
    ]


@pytest.mark.parametrize("how", ["removed", "disabled", "absent", "viewer"])
def test_who_may_not_log_in_any_more_is_out_at_once(
    connect: Connect, engine: Engine, how: str
) -> None:
    client = connect()
    assert client.search(POSIX_ACCOUNT.format("bob"))[1]
    with engine.begin() as tx:
        bob, group = rows.named(tx, "bob"), ldap_site.group_id(tx, "physics")
        if how == "removed":
            rows.set_role(tx, group, bob.id, None)
        elif how == "viewer":
            rows.set_role(tx, group, bob.id, Role.VIEWER)
        else:
            rows.change(tx, bob.id, **{f"{how}_at": 1.0})
    assert client.search(POSIX_ACCOUNT.format("bob")) == (0, {})
    assert client.search(f"(member=uid=bob,ou=people,{BASE})") == (0, {})
    assert client.search("(memberUid=bob)") == (0, {})
    assert client.search("(nisNetgroupTriple=*bob*)") == (0, {})


def test_administrators_have_accounts_where_the_site_says_so(
    connect: Connect, sites: SiteRef
) -> None:
    assert connect().search("(uid=ada)") == (0, {})
    sites.current = replace(sites.current, posix=PosixRules(administrators=True))
    client = connect()
    assert names(client.search("(uid=ada)")[1]) == {"uid=ada"}
    (rule,) = client.search("(&(objectClass=sudoRole)(cn=owners))")[1].values()
    assert rule["sudoUser"] == ["#20000", "#20004"]


def test_an_administrator_who_looks_on_in_the_group_keeps_the_rights_of_one(
    connect: Connect, sites: SiteRef, engine: Engine
) -> None:
    sites.current = replace(sites.current, posix=PosixRules(administrators=True))
    with engine.begin() as tx:
        rows.set_role(tx, ldap_site.group_id(tx, "physics"), rows.named(tx, "ada").id, Role.VIEWER)
    (rule,) = connect().search("(&(objectClass=sudoRole)(cn=owners))")[1].values()
    assert rule["sudoUser"] == ["#20000", "#20004"]


def test_a_user_who_is_called_like_an_account_of_images_is_left_out(
    connect: Connect, engine: Engine
) -> None:
    with engine.begin() as tx:
        ldap_site.user(tx, "debian", {"physics": "member"})
    assert connect().search("(|(uid=debian)(memberUid=debian)(cn=debian))") == (0, {})


# ---------------------------------------------------------------- groups, netgroups, sudo,
# automount


def test_groups_are_of_both_schemas(connect: Connect) -> None:
    client = connect()
    # as SSSD does
    asked = "(&(memberUid=ann)(objectClass=posixGroup)(cn=*)(&(gidNumber=*)(!(gidNumber=0))))"
    (found,) = client.search(asked)[1].items()
    assert found == (
        PHYSICS,
        {
            "objectClass": ["top", "groupOfNames", "posixGroup"],
            "cn": ["physics"],
            "gidNumber": ["50000"],
            "memberUid": ["ann", "bob"],
            "member": [ANN, f"uid=bob,ou=people,{BASE}"],
        },
    )
    assert names(client.search(f"(member={ANN.upper()})")[1]) == {"cn=physics"}
    assert names(client.search("(&(gidNumber=20001)(objectClass=posixGroup))")[1]) == {"cn=bob"}
    assert names(client.search("(objectClass=posixGroup)")[1]) == {"cn=physics", "cn=ann", "cn=bob"}


def test_netgroups_sudo_and_automount(connect: Connect, sites: SiteRef) -> None:
    client = connect()
    (nodes,) = client.search("(&(cn=nodes)(objectClass=nisNetgroup))")[1].values()
    assert nodes["nisNetgroupTriple"] == ["(n1.pool.cod.test,-,)", "(n2.pool.cod.test,-,)"]
    rules = client.search("(objectClass=sudoRole)")[1]
    assert {rule["cn"][0]: rule["sudoUser"] for rule in rules.values()} == {
        "members": ["%physics"],
        "owners": ["#20000"],
    }
    assert names(
        client.search("(&(automountMapName=auto.master)(objectClass=automountMap))")[1]
    ) == {"automountMapName=auto.master"}
    sites.current = replace(sites.current, posix=PosixRules(sudo="owners"))
    assert names(connect().search("(objectClass=sudoRole)")[1]) == {"cn=owners"}
    sites.current = replace(sites.current, posix=PosixRules(sudo="none"))
    assert connect().search("(objectClass=sudoRole)") == (0, {})


# ---------------------------------------------------------------- searches


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ("(uid=ann)", {"uid=ann"}),
        ("(UID=ANN)", {"uid=ann"}),
        ("(uidNumber=20001)", {"uid=bob"}),
        ("(uidNumber>=20001)", {"uid=bob"}),
        ("(uidNumber<=20000)", {"uid=ann"}),
        ("(|(uid=ann)(uidNumber=20001))", {"uid=ann", "uid=bob"}),
        ("(&(uid=ann)(uidNumber=20001))", set()),
        ("(&(uid=ann)(uid=bob))", set()),
        ("(&(objectClass=posixAccount)(!(uid=ann)))", {"uid=bob"}),
        ("(cn=ann ex*)", {"uid=ann"}),
        ("(cn=*n*exa*le)", {"uid=ann"}),
        ("(cn=*ann*ann*)", set()),
        ("(mail=*@example.org)", {"uid=ann", "uid=bob"}),
        ("(homeDirectory=/HOME/ann)", set()),
        ("(!(objectClass=*))", set()),
        ("(nonsense=*)", set()),
        ("(&(objectClass=posixAccount)(!(nonsense=*)))", {"uid=ann", "uid=bob"}),
        ("(sshPublicKey=ssh-ed25519*bob@desk0)", {"uid=bob"}),
        ("(cn:caseExactMatch:=ann)", set()),
        ("(!(cn:caseExactMatch:=ann))", set()),
        ("(uidNumber=99999999999999999999999)", set()),
    ],
)
def test_filters(connect: Connect, filter: str, wanted: set[str]) -> None:
    code, found = connect().search(filter)
    assert (code, names(found)) == (0, wanted)


@pytest.mark.parametrize(
    ("base", "scope", "wanted"),
    [
        (BASE, 0, {"dc=pool"}),
        (BASE, 1, {"ou=automount", "ou=groups", "ou=netgroups", "ou=people", "ou=sudoers"}),
        (f"ou=people,{BASE}", 0, {"ou=people"}),
        (f"ou=people,{BASE}", 1, {"uid=ann", "uid=bob"}),
        ("OU=People, DC=pool , dc=cod,dc=TEST", 2, {"ou=people", "uid=ann", "uid=bob"}),
        (ANN, 0, {"uid=ann"}),
        (ANN, 1, set()),
        (ANN, 2, {"uid=ann"}),
        (PHYSICS, 0, {"cn=physics"}),
        (f"cn=bob,ou=groups,{BASE}", 0, {"cn=bob"}),
        (f"automountMapName=auto.master,ou=automount,{BASE}", 1, set()),
    ],
)
def test_scopes(connect: Connect, base: str, scope: int, wanted: set[str]) -> None:
    code, found = connect().search(base=base, scope=scope)
    assert (code, names(found)) == (0, wanted)


@pytest.mark.parametrize(
    "base",
    [
        f"uid=vera,ou=people,{BASE}",
        f"uid=carl,ou=people,{BASE}",
        f"uid=ann,ou=groups,{BASE}",
        f"ou=nowhere,{BASE}",
        f"cn=x,uid=ann,ou=people,{BASE}",
        "rubbish",
        f"x{BASE}",
        "dc=test",
    ],
)
def test_a_base_that_is_not_there(connect: Connect, base: str) -> None:
    for scope in (0, 1, 2):
        assert connect().search(base=base, scope=scope) == (32, {})


def test_attributes_that_are_asked_for(connect: Connect) -> None:
    client = connect()
    assert client.search("(uid=ann)", attributes=("uidnumber", "nonsense"))[1] == {
        ANN: {"uidNumber": ["20000"]}
    }
    assert client.search("(uid=ann)", attributes=("1.1",))[1] == {ANN: {}}
    assert client.search("(uid=ann)", attributes=("uid",), types_only=True)[1] == {ANN: {"uid": []}}
    assert "sshPublicKey" in client.search("(uid=ann)", attributes=("*",))[1][ANN]


def test_a_size_limit(connect: Connect) -> None:
    code, found = connect().search("(objectClass=posixAccount)", size=1)
    assert (code, names(found)) == (4, {"uid=ann"})
    assert connect().search("(objectClass=posixAccount)", size=2)[0] == 0


def test_pages(connect: Connect) -> None:
    whole = connect().search()[1]
    client, cookie, seen = connect(), b"", []
    for _ in range(100):
        code, found, cookie = client.page(3, cookie)
        assert (code, len(found) <= 3) == (0, True)
        seen += list(found)
        client = connect()  # a cookie is good on any connection: the server keeps nothing
        if not cookie:
            break
    assert sorted(seen) == sorted(whole)
    assert client.page(0, b"0:0:0")[:2] == (0, {})
    for wrong in (b"x", b"99:0:0", b"1:2", b"1:-2:0", b"\xff:1:1"):
        assert client.page(3, wrong)[:2] == (53, {})


@pytest.mark.slow
def test_more_than_an_answer_holds_wants_pages(
    connect: Connect, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cod.flows.people.ldap.MOST", 20)
    monkeypatch.setattr("cod.flows.people.ldap.ROWS", 7)
    with engine.begin() as tx:
        for number in range(40):
            ldap_site.user(tx, f"user{number}", {"physics": "member"}, keys=0)
    code, found = connect().search("(objectClass=posixAccount)")
    assert (code, len(found)) == (4, 20)
    client, cookie, seen = connect(), b"", set()
    while True:
        code, found, cookie = client.page(1000, cookie, "(objectClass=posixAccount)")
        seen |= found.keys()
        if not cookie:
            break
    assert len(seen) == 42


# ---------------------------------------------------------------- binds, writes, controls,
# extensions


def test_binds(connect: Connect) -> None:
    client = connect()
    bind = lambda **told: client.ask(pureldap.LDAPBindRequest(**told)).resultCode  # noqa: E731
    assert bind() == 0
    assert bind(dn=ANN, auth="") == 0  # unauthenticated, RFC 4513 section 5.1.2
    assert bind(dn=ANN, auth="secret secret") == 48
    assert bind(dn="", auth=("EXTERNAL", ""), sasl=True) == 7
    assert bind(version=2) == 2
    assert client.search("(uid=ann)")[1]


def test_writes_are_refused(connect: Connect) -> None:
    client = connect()
    for request, answer in (
        (pureldap.LDAPDelRequest(entry=ANN), pureldap.LDAPDelResponse),
        (pureldap.LDAPAddRequest(entry=ANN, attributes=[]), pureldap.LDAPAddResponse),
        (pureldap.LDAPModifyRequest(object=ANN, modification=[]), pureldap.LDAPModifyResponse),
        (
            pureldap.LDAPModifyDNRequest(entry=ANN, newrdn="uid=x", deleteoldrdn=0),
            pureldap.LDAPModifyDNResponse,
        ),
    ):
        found = client.ask(request)
        assert (type(found), found.resultCode) == (answer, 53)
    assert client.search("(uid=ann)")[1]


def test_controls(connect: Connect) -> None:
    client = connect()
    assert client.search("(uid=ann)", controls=[(b"1.2.3", True, None)]) == (12, {})
    assert client.search("(uid=ann)", controls=[(b"1.2.3", False, None)])[0] == 0
    assert client.search("(uid=ann)", controls=[(b"1.2.3", None, b"x")])[0] == 0


def test_extensions(connect: Connect) -> None:
    client = connect()
    assert client.ask(pureldap.LDAPExtendedRequest(requestName=wire.WHO_AM_I)).response == b""
    assert client.ask(pureldap.LDAPExtendedRequest(requestName="1.2.3")).resultCode == 2


# ---------------------------------------------------------------- TLS


def trusting(ca: Ca) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca.certificate.decode())


def test_tls_from_the_first_byte(connect: Connect, ca: Ca) -> None:
    client = connect(tls=trusting(ca))
    assert client.search("(uid=ann)")[1]
    assert client.ask(pureldap.LDAPExtendedRequest(requestName=wire.START_TLS)).resultCode == 1
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(tls=ssl.create_default_context())


def test_start_tls(connect: Connect, ca: Ca) -> None:
    client = connect()
    assert client.ask(pureldap.LDAPExtendedRequest(requestName=wire.START_TLS)).resultCode == 0
    client.secure(trusting(ca))
    assert names(client.search("(objectClass=posixAccount)")[1]) == {"uid=ann", "uid=bob"}


def test_what_follows_start_tls_in_the_clear_is_not_taken(connect: Connect) -> None:
    client = connect()
    request = pureldap.LDAPMessage(
        pureldap.LDAPExtendedRequest(requestName=wire.START_TLS), id=1
    ).toWire()
    client.sock.sendall(request + request)
    assert client.message().value.resultCode == 2
    with pytest.raises(EOFError):
        client.message()


# ---------------------------------------------------------------- faults and limits


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x30\x80",
        b"\x30\x85\x00\x00\x00\x00\x01",
        b"\x30\x84\x7f\xff\xff\xff",
        b"\x30\x00",
        b"\x30\x03\x02\x01\x01",
        b"\x30\x05\x02\x01\x01\x42\x01",
        b"\x30\x06\x02\x01\x01\x7f\x01\x00",
        b"\x30\x05\x02\x01\x00\x42\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_messages_end_the_connection_with_a_reason(
    connect: Connect, rubbish: bytes
) -> None:
    client = connect()
    client.sock.sendall(rubbish)
    message = client.message()
    assert (message.id, message.value.resultCode) == (0, 2)
    assert message.value.errorMessage
    with pytest.raises((EOFError, ConnectionError)):
        client.message()
    assert connect().search("(uid=ann)")[1]


def test_filters_in_filters_have_an_end(connect: Connect) -> None:
    for deep, code in ((20, 0), (40, 2), (4000, 2)):
        client = connect()
        client.send(
            pureldap.LDAPSearchRequest(
                baseObject=BASE, scope=2, filter=_nested(deep), attributes=[]
            )
        )
        assert client.message().value.resultCode == code


class _Raw(bytes):
    """Bytes that ldaptor takes for something that it can encode."""

    def toWire(self) -> bytes:
        return bytes(self)


def _nested(deep: int) -> _Raw:
    """A filter inside `deep` times an even number of nots."""
    inner = pureldap.LDAPFilter_present("nonsense").toWire()
    for _ in range(deep):
        size = len(inner)
        head = bytes([0xA2, size]) if size < 128 else bytes([0xA2, 0x82]) + size.to_bytes(2, "big")
        inner = head + inner
    return _Raw(inner)


def test_requests_that_are_sent_at_once_are_answered_in_turn(connect: Connect) -> None:
    client = connect()
    request = pureldap.LDAPSearchRequest(
        baseObject=BASE, scope=0, filter=pureldap.LDAPFilterMatchAll, attributes=[]
    )
    client.sock.sendall(
        b"".join(pureldap.LDAPMessage(request, id=number).toWire() for number in range(1, 201))
    )
    for number in range(1, 201):
        assert client.message().id == client.message().id == number


def test_connections_of_an_address_have_a_limit(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MOST_OF_AN_ADDRESS", 3)
    first, *_ = [connect() for _ in range(3)]
    with pytest.raises((EOFError, ConnectionError)):
        connect().search()
    assert connect("127.0.7.2").search()[0] == 0
    first.send(pureldap.LDAPUnbindRequest())
    assert first.sock.recv(1) == b""
    assert connect().search()[0] == 0


def test_a_silent_client_is_dropped(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE", 0.3)
    silent, slow = connect(), connect()
    slow.sock.sendall(b"\x30\x20\x02")
    for client in (silent, slow):
        with pytest.raises((EOFError, ConnectionError)):
            client.message()


@pytest.mark.slow
def test_a_client_that_takes_no_answers_is_dropped(
    connect: Connect, ldap: LdapServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.begin() as tx:
        for number in range(300):
            ldap_site.user(tx, f"user{number}", {"physics": "member"})
    monkeypatch.setattr(connections, "IDLE", 1.0)
    client = connect()
    request = pureldap.LDAPSearchRequest(
        baseObject=BASE, scope=2, filter=pureldap.LDAPFilterMatchAll, attributes=[]
    )
    message = pureldap.LDAPMessage(request, id=1).toWire()
    client.sock.settimeout(60)
    with contextlib.suppress(ConnectionError):
        while True:
            client.sock.sendall(message * 100)
    until(lambda: not ldap.connections and not ldap.waiting)


def test_the_system_client_finds_people(
    connect: Connect, ldap: LdapServer, ca: Ca, tmp_path: Path
) -> None:
    """OpenLDAP's ldapsearch, by StartTLS with the site's authority, paged."""
    (tmp_path / "ca.pem").write_bytes(ca.certificate)
    port = ldap.ports[0].getHost().port
    command = [
        "ldapsearch",
        "-x",
        "-LLL",
        "-ZZ",
        "-H",
        f"ldap://127.0.0.1:{port}",
        "-b",
        BASE,
        "-E",
        "pr=2/noprompt",
        "(objectClass=posixAccount)",
        "uid",
    ]
    environment = {
        **os.environ,
        "LDAPTLS_CACERT": str(tmp_path / "ca.pem"),
        "LDAPTLS_REQCERT": "demand",
        "LDAPSOCKET_BIND_ADDRESSES": "127.0.7.1",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("dn: uid=") == 2
