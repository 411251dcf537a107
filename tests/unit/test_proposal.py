"""`cod init` on hosts of several kinds: what it proposes, and what it refuses before anything is
written."""

from __future__ import annotations

import json
import subprocess
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from click.testing import CliRunner

from cod import data, host, init, proposal
from cod.cli.root import cod
from cod.host import Interface
from cod.proposal import Unfit
from cod.site import load


def interface(name: str, *addresses: str) -> Interface:
    return Interface(name, True, True, tuple(map(IPv4Interface, addresses)))


HOST = {
    each.name: each
    for each in (
        interface("eno1", "192.0.2.10/24"),
        interface("eno2.120", "10.77.0.1/16", "10.9.0.1/24"),
        interface("eno3"),
    )
}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            {"interface": "eno2.120"},
            {
                "name": "eno2-120",
                "interface": "eno2.120",
                "server": "10.77.0.1",
                "network": "10.77.0.0/16",
            },
        ),
        (
            {"interface": "eno2.120", "network": "10.9.0.0/24"},
            {
                "name": "eno2-120",
                "interface": "eno2.120",
                "server": "10.9.0.1",
                "network": "10.9.0.0/24",
            },
        ),
        (
            {"server": "192.0.2.10", "name": "office"},
            {
                "name": "office",
                "interface": "eno1",
                "server": "192.0.2.10",
                "network": "192.0.2.0/24",
            },
        ),
        (
            {"network": "10.77.0.0/16"},
            {
                "name": "eno2-120",
                "interface": "eno2.120",
                "server": "10.77.0.1",
                "network": "10.77.0.0/16",
            },
        ),
        (
            {"relay": "10.80.0.1", "network": "10.80.0.0/16", "server": "192.0.2.10"},
            {
                "name": "net-10-80-0-0",
                "interface": None,
                "relay": "10.80.0.1",
                "router": "10.80.0.1",
                "server": "192.0.2.10",
                "network": "10.80.0.0/16",
            },
        ),
        (
            {
                "relay": "10.80.0.1",
                "network": "10.80.0.0/16",
                "server": "192.0.2.10",
                "router": "10.80.0.254",
            },
            {
                "name": "net-10-80-0-0",
                "interface": None,
                "relay": "10.80.0.1",
                "router": "10.80.0.254",
                "server": "192.0.2.10",
                "network": "10.80.0.0/16",
            },
        ),
        ({}, {}),
    ],
)
def test_what_the_options_leave_open_is_taken_from_the_host(
    said: dict[str, str],
    wanted: dict[str, str],
    tmp_path: Path,
) -> None:
    found = proposal.subnet(said, HOST)
    assert found == wanted
    init.write_site_file(tmp_path / "site.toml", tmp_path, found)
    subnet = load.load(tmp_path / "site.toml")[0].subnets[0]
    assert (subnet.name, subnet.interface, subnet.relay) == (
        wanted.get("name", "lab"),
        wanted.get("interface", "eth1"),
        wanted.get("relay"),
    )


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"interface": "eth1"},
            (
                "no interface 'eth1'; it has eno1 (192.0.2.10/24), eno2.120 (10.77.0.1/16,"
                " 10.9.0.1/24), eno3 (no IPv4 address)"
            ),
        ),
        ({"interface": "eno3"}, "eno3 has no IPv4 address: ip addr add ADDRESS/BITS dev eno3"),
        (
            {"interface": "eno1", "server": "10.77.0.1"},
            "eno1 does not have the address 10.77.0.1; this host has eno1 (192",
        ),
        (
            {"interface": "eno1", "network": "10.77.0.0/16"},
            "eno1 (192.0.2.10/24) has no address on the network 10.77.0.0",
        ),
        (
            {"interface": "eno2.120", "network": "10.77.0.0/24"},
            "is on the network 10.77.0.0/16, not 10.77.0.0/24",
        ),
        (
            {"interface": "eno1", "network": "192.0.2.1/24"},
            "--network 192.0.2.1/24: should be a network such as",
        ),
        ({"server": "10.1.1.1"}, "no interface of this host has an address that fits"),
        ({"relay": "10.80.0.1"}, "--network is missing"),
        (
            {"relay": "10.80.0.1", "network": "10.80.0.0/16"},
            "--address is missing: which of this host's",
        ),
        (
            {"relay": "10.80.0.1", "network": "10.80.0.0/16", "server": "10.80.0.2"},
            "no interface of this host has the add",
        ),
        (
            {"relay": "10.80.0.1", "network": "10.80.0.0/16", "interface": "eno1"},
            "exclude each other",
        ),
        (
            {"relay": "router", "network": "10.80.0.0/16", "server": "192.0.2.10"},
            "--relay router: should be an address such as",
        ),
    ],
)
def test_what_the_host_does_not_have_is_refused(said: dict[str, str], sentence: str) -> None:
    with pytest.raises(Unfit) as refused:
        proposal.subnet(said, HOST)
    assert sentence in str(refused.value)


def test_where_the_portal_listens_has_to_be_this_host() -> None:
    proposal.check_listen(
        ["0.0.0.0:8443", "127.0.0.1:1", "192.0.2.10:443", "[::]:443", "nonsense"], HOST
    )
    with pytest.raises(Unfit, match=r"--listen 192.0.2.11:443: no interface of this host"):
        proposal.check_listen(["192.0.2.11:443"], HOST)


def test_the_interfaces_of_this_host_are_those_that_ip_shows() -> None:
    rows = json.loads(
        subprocess.run(["ip", "-j", "addr"], check=True, capture_output=True, text=True).stdout
    )
    assert set(host.interfaces()) == {row["ifname"] for row in rows} - {"lo"}


@pytest.mark.slow
def test_init_refuses_and_writes_nothing(tmp_path: Path) -> None:
    words = ["init", "--dir", str(tmp_path / "site"), "--interface", "nosuch0"]
    result = CliRunner().invoke(cod, words)
    assert result.exit_code == 1
    assert "this host has no interface 'nosuch0'; it has " in result.stderr
    assert not (tmp_path / "site").exists()
    assert CliRunner().invoke(cod, [*words, "--no-check"]).exit_code == 0
    assert 'name = "nosuch0"' in (tmp_path / "site/site.toml").read_text()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ("cod.db", "the database cannot be used: unable to open database file"),
        ("webhook.key", "webhook.key should hold 64 hexadecimal digits"),
        ("ca/ca.crt", "ca.crt"),
    ],
)
def test_init_says_in_a_sentence_what_it_cannot_use(
    tmp_path: Path, spoil: str, sentence: str
) -> None:
    init.found(tmp_path, tmp_path / "site.toml", {}, 1000.0)
    spoilt = tmp_path / spoil
    spoilt.unlink()
    if spoil == "cod.db":
        spoilt.mkdir()
    else:
        spoilt.write_text("rubbish")
        spoilt.chmod(0o600)
    result = CliRunner().invoke(cod, ["init", "--dir", str(tmp_path)])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr


def test_init_never_takes_the_labs_trampoline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pass over the lab's trampoline, which has drivers for emulated machines alone."""
    for flavour in ("lab", "generic"):
        (tmp_path / flavour).mkdir()
        for name in ("vmlinuz", "ramdisk", "facts.json"):
            (tmp_path / flavour / name).write_text(flavour)

    def built(name: str) -> Path:
        if not (found := tmp_path / name.removeprefix("build/trampoline/")).exists():
            raise FileNotFoundError(name)
        return found

    monkeypatch.setattr(data, "path", built)
    (tmp_path / "boot").mkdir()
    assert init.copy_trampoline(tmp_path / "boot") == ["copied the generic trampoline"]
    assert (tmp_path / "boot/ramdisk").read_text() == "generic"
    for path in [*(tmp_path / "boot").iterdir(), *(tmp_path / "generic").iterdir()]:
        path.unlink()
    assert init.copy_trampoline(tmp_path / "boot")[0].startswith(
        "no trampoline yet: `cod trampoline build` makes it"
    )
    assert not list((tmp_path / "boot").iterdir())
