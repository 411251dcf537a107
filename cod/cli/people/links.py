"""New links, as `cod user` and `cod invite` print them."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.show import for_programs, print_json, when


def print_link(value: Any) -> None:
    """Print a new link, and where it was sent."""
    if for_programs():
        print_json(value)
        return
    click.echo(value["link"])
    if not value["link"].startswith("http"):
        click.echo(
            "(nobody can open it yet: the portal is closed. Set `listen` in [api] of the site file,"
            " start the server anew, and put https://SERVER:PORT in front)",
            err=True,
        )
    if value.get("fingerprint"):
        click.echo(
            f"(the site's certificate has the SHA-256 fingerprint {value['fingerprint']})", err=True
        )
    until = f"works once, until {when(value['expires_at'])}"
    sent = f"sent to {value['email']}; " if value["mailed"] else ""
    click.echo(
        f"({sent}{until})" if not value["unsent"] else f"(not sent: {value['unsent']}; {until})",
        err=True,
    )
