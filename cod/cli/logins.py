"""The server that the command line names; and a person's login by `cod login`, with its token."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from cod.cli.local_files import config_folder, write_private


@dataclass(frozen=True, slots=True)
class Login:
    """A person's login at a server. `name`: the token's name there, '' if another command made it;
    `ca_file`, `pin`: as in `Client`."""

    server: str
    token: str
    name: str = ""
    ca_file: str = ""
    pin: str = ""


def login_file() -> Path:
    """Return the path of the file with the login."""
    return config_folder() / "login.json"


def kept_login() -> Login | None:
    """Return the stored login; None if there is none. Raises `click.ClickException` for a file that
    others may read, or that cannot be read."""
    file = login_file()
    try:
        if file.stat().st_mode & 0o077:
            raise click.ClickException(f"others may read {file}: chmod 600 it, or `cod logout`")
        return Login(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise click.ClickException(f"{file} cannot be read ({error}); remove it") from None


def keep_login(login: Login) -> None:
    """Store a login in place of an earlier one. Raises `click.ClickException`."""
    write_private(login_file(), json.dumps(asdict(login)))


def forget_login() -> None:
    """Delete the stored login, if there is one."""
    login_file().unlink(missing_ok=True)


def named_server(ctx: click.Context) -> dict[str, str | None]:
    """Return the server, token and certificates in the root's options and variables."""
    given: dict[str, str | None] = {
        name: ctx.params.get(name) for name in ("site", "server", "token", "ca_file", "pin")
    }
    # $COD_SERVER goes before $COD_SITE
    named = ctx.get_parameter_source("site") is ParameterSource.COMMANDLINE
    return given | {"named": given["site"] if named else None}
