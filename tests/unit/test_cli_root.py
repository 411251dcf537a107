"""Which server the command line asks, and as whom; passwords; links."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cod.cli.people.links import print_link
from cod.cli.root import Root, cod
from cod.cli.show import password_option
from cod.client import ApiError

NOW = 1e6


def test_a_server_in_the_environment_goes_before_a_site_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever exports both speaks as the local administrator and takes it for their token's
    rights."""
    site = tmp_path / "site.toml"
    site.write_text(f'[server]\ndata_dir = "{tmp_path}"')
    monkeypatch.setenv("COD_SERVER", str(tmp_path / "other"))
    monkeypatch.setenv("COD_SITE", str(site))
    assert str(tmp_path / "other") in CliRunner().invoke(cod, ["session", "whoami"]).stderr
    named = CliRunner().invoke(cod, ["--site", str(site), "session", "whoami"])
    assert str(tmp_path / "run" / "api.sock") in named.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--at 2026-12-01T08:00", "--at and --before need --for: how long?"),
        ("--for 6h", "--for needs --at or --before."),
    ],
)
def test_a_reservation_s_missing_option_is_named(words: str, sentence: str) -> None:
    asked = CliRunner().invoke(cod, ["request", "submit", "web", "1", *words.split()])
    assert (asked.exit_code, sentence in asked.stderr) == (2, True)


@pytest.mark.slow
def test_a_folder_goes_before_a_site_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COD_SITE", str(tmp_path / "old.toml"))
    made = CliRunner().invoke(
        cod, ["init", "--dir", str(tmp_path / "new"), "--listen", "127.0.0.1:8443"]
    )
    assert made.exit_code == 0
    assert (tmp_path / "new" / "site.toml").exists()
    assert not (tmp_path / "old.toml").exists()


def test_who_shows_no_token_hears_how_to_have_one() -> None:
    refused = Root("x", callback=None, params=[click.Option(["--token"])])

    @refused.command()
    def asks() -> None:
        raise ApiError(401, "unauthorised", "show a token")

    refused.list_commands = lambda ctx: ["asks"]  # type: ignore[method-assign]
    refused.get_command = lambda ctx, cmd_name: asks  # type: ignore[method-assign]
    assert "cod session start" in CliRunner().invoke(refused, ["asks"]).stderr
    assert CliRunner().invoke(refused, ["--token", "t", "asks"]).stderr == "Error: show a token\n"


@pytest.mark.parametrize(
    ("arguments", "typed", "said"),
    [
        (["--password", "given"], "", "given"),
        ([], "from a pipe\nand more\n", "from a pipe"),
        ([], "", ""),
    ],
)
def test_a_password_is_given_or_piped_in(arguments: list[str], typed: str, said: str) -> None:
    @click.command()
    @password_option(new=True)
    def ask(password: str) -> None:
        click.echo(f"<{password}>")

    assert CliRunner().invoke(ask, arguments, input=typed).output == f"<{said}>\n"


def test_a_link_of_a_closed_portal_says_how_to_open_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = {"link": "/invitation#x", "expires_at": NOW, "mailed": False, "unsent": "", "email": ""}
    print_link(made)
    assert "`listen` in [api]" in capsys.readouterr().err
    print_link(made | {"link": "https://head:8443/invitation#x"})
    assert "listen" not in capsys.readouterr().err


@pytest.mark.parametrize("bits", ["/33", "99", "-1", "2x"])
def test_a_prefix_length_has_at_most_32_bits(bits: str) -> None:
    asked = ["vcluster", "create", "x", "--size", "1", "--template", "t", f"--network-size={bits}"]
    found = CliRunner().invoke(cod, ["--server", "none.sock", *asked])
    assert (found.exit_code, "should be a prefix length" in found.output) == (2, True)
