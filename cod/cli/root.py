"""`cod`: the root of the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click

from cod.cli.terminal_text import json_text, printable
from cod.client import ApiError, Unreachable

# Name: (module, attribute, what it is for). Modules are loaded when their command is used: start-up
# time matters.
COMMANDS = {
    "init": ("cod.cli.server.serve", "init", "Create a new site: site file, folders, database."),
    "serve": ("cod.cli.server.serve", "serve", "Run the server."),
    "doctor": (
        "cod.cli.server.doctor",
        "doctor",
        "Check this server, and say how to fix what is wrong.",
    ),
    "permissions": (
        "cod.cli.server.permissions",
        "permissions",
        "Give the server's files to the users of its parts.",
    ),
    "backup": ("cod.cli.server.backup", "backup", "Back up the whole site into a folder."),
    "restore": ("cod.cli.server.backup", "restore", "Restore a site from its backups."),
    "db": ("cod.cli.server.db", "db", "Upgrade, back up, restore and check the database."),
    "server": (
        "cod.cli.server.hosts",
        "server",
        "The hosts that serve the site: parts, versions, who manages.",
    ),
    "monitoring": (
        "cod.cli.server.monitoring",
        "monitoring",
        "Dashboard, alert rules and targets for Grafana and Prometheus.",
    ),
    "token": ("cod.cli.server.token", "token", "Tokens for the REST API."),
    "trampoline": (
        "cod.cli.server.trampoline",
        "trampoline",
        "Build the Linux that machines boot into memory.",
    ),
    "states": ("cod.cli.server.serve", "states", "Show the nodes' lifecycle."),
    "bmc": ("cod.cli.server.bmc", "bmc", "BMCs on a network: find them, take over their power."),
    "apply": ("cod.cli.documents", "apply", "Make the site as documents in YAML files say."),
    "diff": ("cod.cli.documents", "diff", "Show what applying documents would change."),
    "get": ("cod.cli.documents", "get", "Print the site's configuration as documents."),
    "inventory": (
        "cod.cli.scheduler.inventory",
        "inventory",
        "Virtual clusters' nodes as an inventory of Ansible.",
    ),
    "node": ("cod.cli.nodes.node", "node", "Machines: list, approve, power, take out of service."),
    "type": (
        "cod.cli.nodes.type",
        "type_",
        "Node types: kinds of machines, their cost and power settings.",
    ),
    "block": ("cod.cli.nodes.block", "block", "Blocks: nodes that share a rack or a switch."),
    "switch": ("cod.cli.nodes.switch", "switch", "Switches whose ports COD puts into VLANs."),
    "port": ("cod.cli.nodes.switch", "port", "Switch ports of nodes: wanted and applied VLANs."),
    "image": ("cod.cli.images.image", "image", "Disk and partition images."),
    "template": ("cod.cli.images.template", "template", "Configuration templates."),
    "name": ("cod.cli.scheduler.name", "name", "Names beside nodes' host names, such as www."),
    "vcluster": (
        "cod.cli.scheduler.vcluster",
        "vcluster",
        "Virtual clusters: create, watch, resize, release.",
    ),
    "volume": (
        "cod.cli.volumes.volume",
        "volume",
        "Volumes on file servers, which vclusters mount.",
    ),
    "request": ("cod.cli.scheduler.request", "request", "Requests for nodes, and why they wait."),
    "plan": ("cod.cli.scheduler.plan", "plan", "What the resource manager's next pass would do."),
    "reclaim": (
        "cod.cli.scheduler.reclaim",
        "reclaim",
        "Nodes taken for requests of higher priority.",
    ),
    "vcm": ("cod.cli.server.vcm", "vcm", "Virtual cluster managers: enrol them, run one."),
    "group": (
        "cod.cli.people.group",
        "group",
        "Groups: owners of vclusters, with their priorities.",
    ),
    "shares": (
        "cod.cli.scheduler.shares",
        "shares",
        "Groups' shares of the site: usage, rank, guarantees, limits.",
    ),
    "user": ("cod.cli.people.user", "user", "Users: people who may sign in."),
    "member": ("cod.cli.people.member", "member", "Members of groups: owners, members, viewers."),
    "invite": ("cod.cli.people.member", "invite", "Invitation links."),
    "key": ("cod.cli.people.account", "key", "Your SSH keys, which nodes let in."),
    "session": (
        "cod.cli.people.account",
        "session",
        "Your browser sessions; a token for name and password.",
    ),
    "settings": (
        "cod.cli.server.settings",
        "settings",
        "Settings of the site: what they are, and changes of them.",
    ),
    "audit": (
        "cod.cli.server.audit",
        "audit",
        "Log of changes: who changed what, and when. Nodes' owners over time, checked.",
    ),
    "notice": ("cod.cli.notice", "notice", "Notices to groups, and their delivery."),
    "energy": (
        "cod.cli.nodes.energy",
        "energy",
        "Energy that nodes used, and energy saved by sleeping nodes.",
    ),
    "timeline": (
        "cod.cli.scheduler.timeline",
        "timeline",
        "Nodes held over time, by vcluster, group, type or state.",
    ),
    "calendar": (
        "cod.cli.scheduler.calendar",
        "calendar",
        "Nodes held until when, and nodes that come.",
    ),
    "series": (
        "cod.cli.scheduler.recurrence",
        "series",
        "Reservations that recur: a cluster for each day or week.",
    ),
    "maintenance": (
        "cod.cli.scheduler.maintenance",
        "maintenance",
        "Times in which nodes are out of service; racks that are drained.",
    ),
    "conflict": (
        "cod.cli.nodes.conflict",
        "conflict",
        "Conflicts of addresses and of machines' identities.",
    ),
    "fault": (
        "cod.cli.nodes.fault",
        "fault",
        "Faults of switches, file servers, BMCs, other DHCP servers: since when, and who waits.",
    ),
    "status": ("cod.cli.status", "status", "The site and your part of it, in eight lines."),
    "top": ("cod.cli.status", "top", "Nodes by state, watts and queues, live."),
    "ssh": ("cod.cli.nodes.ssh", "ssh", "Log in to nodes, or run a command on all of a cluster."),
    "login": ("cod.cli.people.login", "login", "Log in at a server, for all commands."),
    "logout": ("cod.cli.people.login", "logout", "Forget the login, and revoke its token."),
    "open": ("cod.cli.people.login", "open_", "Open the portal, or a page of it."),
    "completion": (
        "cod.cli.completion",
        "completion",
        "Completion of commands, options and names for a shell.",
    ),
    "events": ("cod.cli.events", "events", "Follow events, live."),
    "simulate": (
        "cod.cli.server.simulate",
        "simulate",
        "Simulate a site's demand under a policy, on a virtual clock.",
    ),
    "lab": ("cod.lab.commands", "lab", "Virtual bare metal to try COD on."),
}


TOKENLESS = (
    " (`cod login URL` keeps one; export COD_TOKEN=$(cod session start NAME) has one for a name and"
    " a password)"
)


class RefusedByServer(click.ClickException):
    """The server says no: one line, exit code 1."""

    def __init__(self, message: str, error: ApiError) -> None:
        super().__init__(message)
        self.error = error


class NoServer(click.ClickException):
    """No server answers: exit code 3."""

    exit_code = 3


class Root(click.Group):
    """Loads a noun's module when its command is used, and turns the client's errors into exit
    codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, and return the command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if ctx.resilient_parsing:  # a shell asks what to offer
            from cod.cli.completion import offer_names

            offer_names(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name. A noun's plural names the noun, and `ls` its
        list."""
        name, command, rest = super().resolve_command(
            ctx, [self._singular(ctx, args[0]), *args[1:]]
        )
        group = command
        for place, word in enumerate(rest):
            if not isinstance(group, click.Group):
                break
            if word == "ls" and word not in group.commands and "list" in group.commands:
                rest[place] = "list"
            group = group.commands.get(rest[place])
        return name, command, rest

    def _singular(self, ctx: click.Context, word: str) -> str:
        """Return the noun whose plural the word is; another word as it is."""
        for name in (word.removesuffix("s"), word.removesuffix("es")):
            if word not in COMMANDS and name in COMMANDS:
                command = self.get_command(ctx, name)
                if isinstance(command, click.Group) and "list" in command.commands:
                    return name
        return word

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without loading anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line. With --json or -o json a refusal is JSON, too, on standard error,
        with the same exit code."""
        words = sys.argv[1:] if args is None else args
        if not standalone_mode or not _wants_json(words):
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            click.echo(json_text({"error": _problem(error)}), err=True)
            code = error.exit_code
        except click.Abort:
            code = 1
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ApiError as error:
            hint = TOKENLESS if error.status == 401 and not ctx.params["token"] else ""
            sentences = printable("\n".join(error.sentences()))
            raise RefusedByServer(sentences + hint, error) from None
        except Unreachable as error:
            raise NoServer(str(error)) from None
        except KeyboardInterrupt:
            ctx.exit(130)


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether a refusal is to be JSON; words behind -- are another program's."""
    own = list(words[: words.index("--")] if "--" in words else words)
    formats = {("-o", "json"), ("--output", "json")}
    return bool({"--json", "-ojson", "--output=json"} & {*own} or formats & {*pairwise(own)})


def _problem(error: click.ClickException) -> dict[str, Any]:
    """Return a refusal as JSON values: those of the API's problem document, or what the command
    line itself says."""
    told: dict[str, Any] = {"exit_code": error.exit_code, "detail": error.format_message()}
    if isinstance(error, RefusedByServer):
        found = error.error
        return told | {
            "code": found.code,
            "status": found.status,
            "detail": found.detail,
            "field": found.field,
            "errors": found.errors,
        }
    kinds = {2: "usage", 3: "unreachable", 4: "timed_out"}
    return told | {"code": kinds.get(error.exit_code, "failed")}


@click.command(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no server answers, 4 timed out.",
)
@click.option(
    "--site",
    metavar="FILE",
    envvar="COD_SITE",
    help="Site file. It also names the server's socket.",
)
@click.option(
    "--server",
    metavar="URL",
    help="UNIX socket or http(s)://HOST:PORT. [default: $COD_SERVER, else the site file's socket]",
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="COD_TOKEN",
    help="Bearer token. $COD_TOKEN is safer: it does not show in the list of processes.",
)
@click.option(
    "--ca-file",
    metavar="FILE",
    envvar="COD_CA_FILE",
    help="Certificate of the authority that signs the server's certificate (PEM).",
)
@click.option(
    "--pin",
    metavar="SHA256",
    envvar="COD_PIN",
    help="SHA-256 fingerprint of the server's certificate.",
)
@click.version_option(None, "-V", "--version", package_name="cod", message="%(prog)s %(version)s")
@click.pass_context
def cod(ctx: click.Context, /, **_: str | None) -> None:
    """Cluster-on-Demand: shares a pool of bare-metal machines as virtual clusters.

    \b
    Example:
      cod init --dir /tmp/site && cod --site /tmp/site/site.toml serve
    """
    from cod.cli.logins import named_server  # slow to load

    ctx.obj = named_server(ctx)
