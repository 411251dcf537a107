"""The server that the command line names; a person's logins by `cod login`, with their tokens."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from cod.cli.local_files import config_folder, write_private


@dataclass(frozen=True, slots=True)
class Login:
    """A person's login at a server. `name`: the token's name there, '' where another command made
    it; `ca_file`, `pin`: as `Client` takes them."""

    server: str
    token: str
    name: str = ""
    ca_file: str = ""
    pin: str = ""


def login_file() -> Path:
    """Return the file with the login."""
    return config_folder() / "login.json"


def kept_login() -> Login | None:
    """Return the login that is kept; None: none is. Raises `click.ClickException` for a file that
    others may read, or that nobody can."""
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
    """Keep a login in place of another one. Raises `click.ClickException`."""
    write_private(login_file(), json.dumps(asdict(login)))


def forget_login() -> None:
    """Delete the stored login, if there is one."""
    login_file().unlink(missing_ok=True)


def named_server(ctx: click.Context) -> dict[str, str | None]:
    """Return what the root's options and variables say of the server."""
    given: dict[str, str | None] = {
        name: ctx.params.get(name) for name in ("site", "server", "token", "ca_file", "pin")
    }
    # $COD_SERVER goes before $COD_SITE
    named = ctx.get_parameter_source("site") is ParameterSource.COMMANDLINE
    return given | {"named": given["site"] if named else None}
