"""Look by `cod doctor` whether the resolver answers for the site's domain from COD: real DNS
servers on loopback."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cod.doctor.checks.delegation import findings
from cod.doctor.finding import GOOD, UNSEEN, WARNING, Finding
from cod.model import Site, SiteRef
from cod.net.dns.server import DnsServer
from tests.net.dns_stands import Start
from tests.net.test_dns_server import start

Look = Callable[..., Finding]


@pytest.fixture
def look(tmp_path: Path, site: Site) -> Look:
    """Return the check's finding on a host whose resolver is the server at a port."""

    def one(
        at: int, /, text: str = "# a comment\nsearch cod.test\nnameserver 127.0.0.1\n", **dns: Any
    ) -> Finding:
        file = tmp_path / "resolv.conf"
        file.write_text(text)
        asked: Any = SimpleNamespace(site=replace(site, dns=replace(site.dns, **dns)))
        [found] = findings(asked, file, at)
        return found

    return one


def test_a_resolver_that_answers_from_cod_is_good(start: Start, look: Look) -> None:
    found = look(start().port)
    assert (found.state, found.remedy) == (GOOD, "")
    assert found.found == "cod.test: this host's resolver (127.0.0.1) answers from ns.cod.test"


def test_a_resolver_that_does_not_know_the_domain_is_a_warning_with_a_remedy(
    start: Start, look: Look, reactor: Any, in_reactor: Any, pool: Any, site: Site
) -> None:
    other = DnsServer(
        reactor,
        pool,
        SiteRef(replace(site, domain="elsewhere.test")),
        "127.0.0.1",
        port=0,
        clock=lambda: 1000.0,
    )
    in_reactor(other.startService)
    try:
        found = look(other.port)
        assert found.state == WARNING
        assert "known to clients of COD's own name server only" in found.found
        assert found.remedy.startswith(
            "have the owner of the domain above delegate cod.test to ns.cod.test ("
        )
        assert (
            "port 5353; a delegation always leads to port 53" in look(other.port, port=5353).remedy
        )
    finally:
        in_reactor(other.stopService)


def test_another_primary_server_is_a_warning(start: Start, look: Look) -> None:
    found = look(start().port, name_servers=("ns.example.org",))
    assert found.state == WARNING
    assert "answers from ns.cod.test, not from ns.example.org" in found.found
    assert "delegate cod.test to ns.example.org" in found.remedy


@pytest.mark.slow
def test_a_resolver_that_is_silent_is_not_judged(look: Look) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        found = look(silent.getsockname()[1])
    assert found.state == UNSEEN
    assert "does not answer" in found.found


def test_what_cannot_be_looked_at_is_said(look: Look) -> None:
    assert "names no name server" in look(9, "search cod.test\n").found
    found = look(9, port=0)
    assert (found.state, found.remedy) == (UNSEEN, "")
