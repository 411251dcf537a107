"""What `cod doctor` says of servers elsewhere: each is connected to over loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cod.doctor.checks import dhcp, external_services, kerberos
from cod.doctor.checks.external_services import OutsideServer
from cod.model import FileServer, KerberosRules, Ldap, Mail, Oidc, Site
from cod.security import webcert


@contextmanager
def listening(greeting: bytes = b"") -> Iterator[int]:
    """A server that greets one client; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            line, _ = server.accept()
            with line:
                line.sendall(greeting)
                line.recv(1)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(30)


def test_a_server_that_answers_and_one_that_does_not() -> None:
    with listening() as port:
        assert external_services.fault(OutsideServer("x", "127.0.0.1", port)) == ""
    assert external_services.fault(OutsideServer("x", "127.0.0.1", port)) == "Connection refused"


def test_a_name_that_dns_cannot_have_is_one_servers_fault() -> None:
    """A group's webhook hides no other server's finding."""
    assert (
        external_services.fault(OutsideServer("x", f"{'a' * 64}.example", 80))
        == "this is no name of a host"
    )


def test_a_server_says_what_it_is() -> None:
    with listening(b"220 mail\r\n") as port:
        assert external_services.fault(OutsideServer("x", "127.0.0.1", port, banner=b"220")) == ""
    with listening(b"SSH-2.0-x\r\n") as port:
        said = external_services.fault(OutsideServer("x", "127.0.0.1", port, banner=b"220"))
    assert said == "it says b'SSH-2.0-x\\r\\n', which is no such service"


def test_a_certificate_that_nobody_trusts(tmp_path: Path) -> None:
    import ssl

    webcert.self_signed(tmp_path, ["localhost"])
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(tmp_path / "web.crt", tmp_path / "web.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                try:
                    theirs.wrap_socket(line, server_side=True).close()
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        said = external_services.fault(
            OutsideServer("x", "127.0.0.1", server.getsockname()[1], tls=True)
        )
        thread.join(30)
    assert said.startswith("its certificate is not trusted: ")


def test_each_server_of_the_site_file_is_asked(site: Site) -> None:
    files = FileServer("f", "kernel", "10.0.0.5", "/srv", ssh="root@files:2222")
    signin = replace(
        site.signin,
        ldap=Ldap("ldap://dir", "starttls", base="dc=x"),
        oidc=Oidc("https://login.example.org/realm"),
    )
    leaning = replace(
        site,
        fileservers=(files,),
        signin=signin,
        mail=Mail("mail"),
        dns=replace(site.dns, secondaries=(("10.0.0.6", 53),)),
        kerberos=KerberosRules("EXAMPLE.ORG", ("kdc1", "kdc2:750")),
    )
    assert [(peer.host, peer.port, peer.tls) for peer in external_services.named(leaning)] == [
        ("10.0.0.5", 2049, False),
        ("files", 2222, False),
        ("dir", 389, False),
        ("login.example.org", 443, True),
        ("mail", 587, False),
        ("kdc1", 88, False),
        ("kdc2", 750, False),
        ("10.0.0.6", 53, False),
    ]


def test_a_command_for_keytabs_that_nobody_can_run_is_told(site: Site, tmp_path: Path) -> None:
    command = tmp_path / "keytab"
    told = replace(site, kerberos=KerberosRules("EXAMPLE.ORG", keytab_command=str(command)))
    for mode, bad in ((None, True), (0o644, True), (0o755, False)):
        if mode is not None:
            command.write_text("#!/bin/sh\n")
            command.chmod(mode)
        assert bool(list(kerberos.findings(Mock(site=told)))) == bad
    command.unlink()
    command.mkdir()
    assert list(kerberos.findings(Mock(site=told))), "a folder"
    assert not list(kerberos.findings(Mock(site=site)))


def test_the_groups_of_a_webhook_are_told(site: Site) -> None:
    hooks = {"b": "https://chat.example/1", "a": "https://chat.example/2", "c": ""}
    known = [Mock(webhook=url) for url in hooks.values()]
    for group, name in zip(known, hooks, strict=True):
        group.name = name
    [peer] = external_services.webhooks(site, known)
    assert (peer.what, peer.host, peer.port) == ("the webhook of a, b", "chat.example", 443)
    assert peer.told_in == "the group"


@pytest.mark.parametrize(
    ("named", "addresses", "state"),
    [
        (True, ["192.0.2.9"], "good"),
        (True, [], "bad"),
        (True, ["127.0.1.1"], "bad"),
        (False, ["192.0.2.9"], "warning"),
        (False, ["127.0.1.1"], "warning"),
    ],
)
def test_links_begin_with_a_name_that_others_can_look_up(
    site: Site, named: bool, addresses: list[str], state: str
) -> None:
    signin = replace(site.signin, url="https://head:8443", named=named)
    [found] = external_services.links(replace(site, signin=signin), lambda _host: addresses)
    assert found.state == state
    assert bool(found.remedy) == (state != "good")


@pytest.mark.parametrize(
    ("firmware", "words"),
    [
        (["BIOS", "UEFI", "UEFI by HTTP"], "answers network-booting machines on"),
        (["UEFI by HTTP"], "answers network-booting machines (UEFI by HTTP only) on"),
    ],
)
def test_a_dhcp_server_that_answers_some_firmware_only(
    site: Site, firmware: list[str], words: str
) -> None:
    offers = [dhcp.Offer("10.77.0.9", "10.77.100.1", each, "x.efi") for each in firmware]
    found = dhcp.judged(site.subnets[0], offers)
    assert found.state == "bad"
    assert words in found.found


def test_the_probe_asks_as_each_kind_of_firmware() -> None:
    mac = b"\2\0\0\0\0\1"
    packets: dict[str, Any] = {each: dhcp.datagram(1, mac, each) for each in (*dhcp.FIRMWARE, "")}
    assert b"HTTPClient:Arch:00016" in packets["UEFI by HTTP"]
    assert b"\x5d\x02\x00\x07" in packets["UEFI"]
    assert b"\x5d\x02\x00\x00" in packets["BIOS"]
    assert b"Client" not in packets[""]
