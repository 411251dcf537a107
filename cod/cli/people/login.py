"""`cod login`, `cod logout` and `cod open`: one server for all commands, and its portal."""

from __future__ import annotations

import getpass
import ipaddress
import os
import sys
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import click

from cod.cli.logins import Login, forget_login, keep_login, kept_login, login_file
from cod.cli.nodes.many import name_of
from cod.cli.show import SPAN, ask_password, client, print_result, there_is, when, with_json
from cod.client import ApiError, Client, Unreachable, path

PAGES = {
    "node": "nodes",
    "vcluster": "vclusters",
    "request": "requests",
    "image": "images",
    "template": "templates",
    "volume": "volumes",
    "group": "groups",
    "user": "people",
    "notice": "notices",
    "calendar": "calendar",
    "timeline": "timeline",
    "shares": "shares",
    "energy": "energy",
    "fault": "faults",
    "audit": "audit",
}
"""The portal's pages by the nouns of commands."""
OF_ONE = ("node", "vcluster", "notice")  # nouns that have a page for each


@click.command()
@click.argument("url")
@click.option("--name", help="Your name. [default: asked for]")
@click.option(
    "--expires", type=SPAN, default="7d", show_default=True, help="Life of the token: 8h, 90d."
)
@with_json
def login(ctx: click.Context, url: str, name: str | None, expires: float) -> None:
    """Log in at the server URL, for all commands that follow. The password is asked for, or read
    from a pipe; a token that you have already ($COD_TOKEN) is kept as it is.

    A file that only you may read keeps the token, --ca-file and --pin. --server, --site and their
    variables go before it.

    Example:
      cod login https://cod.example.org
      cod --ca-file web.crt login https://head:8443 --name ann
    """
    root = ctx.find_root().obj
    server = _checked(url)
    ca_file = str(Path(root["ca_file"]).absolute()) if root["ca_file"] else ""
    token, title, until = root["token"], "", None
    pin = root["pin"] or ""
    if not token:
        name = name or click.prompt("Name", default=getpass.getuser(), err=True)
        title = time.strftime("cli-%Y%m%d-%H%M%S")
        with Client(server, ca_file=ca_file or None, pin=pin) as api:
            made = api.sign_in(name=name, password=ask_password(), token=title, lifetime=expires)
        token, until = made["token"], time.time() + expires
    with Client(server, token, ca_file=ca_file or None, pin=pin) as api:
        me = api.get("/me")
    before = _before()
    if before is not None and before.token == token:
        title = before.name  # it is kept on, and `cod logout` revokes it
    else:
        _revoke(before)
    keep_login(Login(server, token, title, ca_file, pin))
    value = {"server": server, "name": me["name"], "file": str(login_file()), "until": until}
    ends = "" if until is None else f" until {when(until)}"
    print_result(value, f"{(me['user'] or me)['name']} is logged in at {server}{ends}")


@click.command()
@with_json
def logout(ctx: click.Context) -> None:
    """Forget the login, and revoke its token.

    Example:
      cod logout
    """
    revoked = _revoke(_before())
    forget_login()
    print_result({"revoked": revoked}, "logged out" + ("; the token is revoked" * revoked))


def _before() -> Login | None:
    """Return the earlier login, if there is one that can be read."""
    try:
        return kept_login()
    except click.ClickException as error:
        click.echo(f"{error.format_message()}; its token lives on until it expires", err=True)
        return None


def _revoke(kept: Login | None) -> bool:
    """Revoke the token that `cod login` made, if its server answers."""
    if kept is None or not kept.name:
        return False
    with suppress(ApiError, Unreachable):
        with Client(kept.server, kept.token, ca_file=kept.ca_file or None, pin=kept.pin) as api:
            api.delete(path("me", "tokens", kept.name))
        return True
    return False


def _checked(url: str) -> str:
    """Return the server's address with its scheme. Raises `click.UsageError` for an address to
    which passwords would be sent in clear text."""
    server = (url if "://" in url else f"https://{url}").rstrip("/")
    parts = urlsplit(server)
    try:
        near = (
            parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
        )
    except ValueError:
        near = False
    if parts.scheme != "https" and not (parts.scheme == "http" and near):
        raise click.UsageError(f"{url!r} should begin with https://, so that nobody else reads it")
    if not parts.hostname or parts.path or parts.query or parts.username:
        raise click.UsageError(f"{url!r} should be https://HOST or https://HOST:PORT")
    return server


@click.command("open")
@click.argument("thing", required=False)
@click.argument("name", required=False)
@with_json
def open_(ctx: click.Context, thing: str | None, name: str | None) -> None:
    """Open the portal in a browser, or print the address where there is none.

    THING is a cluster or a node, or the kind of the page: nodes, requests, calendar; with NAME, one
    node, vcluster or notice.

    Example:
      cod open
      cod open web
      cod open node 52-54-00-00-00-01
    """
    api = client(ctx)
    if urlsplit(api.server).scheme not in ("http", "https"):
        raise click.UsageError("name the server as browsers reach it: cod --server https://… open")
    url = api.server + _page(api, thing, name)
    browser = _has_browser() and webbrowser.open(url)
    print_result({"url": url, "opened": browser}, url)


def _page(api: Client, thing: str | None, name: str | None) -> str:
    """Return the path of a page. Raises `click.UsageError` and `ApiError`."""
    if thing is None:
        return "/"
    kind = next((noun for noun, page in PAGES.items() if thing in (noun, page)), "")
    if kind and name is None:
        return f"/{PAGES[kind]}"
    if kind in OF_ONE and name is not None:
        label = name_of(api, name) if kind == "node" else name
        api.get(path(PAGES[kind], label))  # fails where there is none
        return path(PAGES[kind], label)
    if name is not None:
        raise click.UsageError(f"only {', '.join(OF_ONE)} have a page for each NAME")
    if there_is(api, path("vclusters", thing)):
        return path("vclusters", thing)
    return path("nodes", name_of(api, thing))


def _has_browser() -> bool:
    """Return whether a browser can open a window. A browser in text mode is not used, because it
    would take over the terminal."""
    named = any(os.environ.get(each) for each in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
    return named or sys.platform == "darwin"
