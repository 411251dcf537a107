"""`cod`: the root of the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from inspect import cleandoc
from itertools import pairwise
from typing import Any

import click

from cod.cli.terminal_text import json_text, printable
from cod.client import ApiError, Unreachable
from cod.quantity import first_few

# Name: (module below `cod`, what it is for). The command is the module's attribute of that name,
# or the one after a colon. Modules are loaded when their command is used: start-up time matters.
COMMANDS = {
    "init": ("cli.server.serve", "Create a new site: site file, folders, database."),
    "serve": ("cli.server.serve", "Run the server."),
    "doctor": ("cli.server.doctor", "Check this server, and say how to fix what is wrong."),
    "permissions": ("cli.server.permissions", "Give the server's files to the users of its parts."),
    "backup": ("cli.server.backup", "Back up the whole site into a folder."),
    "restore": ("cli.server.backup", "Restore a site from its backups."),
    "db": ("cli.server.db", "Upgrade, back up, restore and check the database."),
    "server": ("cli.server.hosts", "The hosts that serve the site: parts, versions, who manages."),
    "monitoring": (
        "cli.server.monitoring",
        "Dashboard, alert rules and targets for Grafana and Prometheus.",
    ),
    "token": ("cli.server.token", "Tokens for the REST API."),
    "trampoline": ("cli.server.trampoline", "Build the Linux that machines boot into memory."),
    "states": ("cli.server.serve", "Show the nodes' lifecycle."),
    "bmc": ("cli.server.bmc", "BMCs on a network: find them, take over their power."),
    "apply": ("cli.documents", "Make the site as documents in YAML files say."),
    "diff": ("cli.documents", "Show what applying documents would change."),
    "get": ("cli.documents", "Print the site's configuration as documents."),
    "inventory": ("cli.scheduler.ansible", "Virtual clusters' nodes as an inventory of Ansible."),
    "node": ("cli.nodes.node", "Machines: list, approve, power, take out of service."),
    "type": (
        "cli.nodes.type:type_",
        "Node types: kinds of machines, their cost and power settings.",
    ),
    "block": ("cli.nodes.block", "Blocks: nodes that share a rack or a switch."),
    "switch": ("cli.nodes.switch", "Switches whose ports COD puts into VLANs."),
    "port": ("cli.nodes.switch", "Switch ports of nodes: wanted and applied VLANs."),
    "image": ("cli.images.image", "Disk and partition images."),
    "template": ("cli.images.template", "Configuration templates."),
    "name": ("cli.scheduler.name", "Names beside nodes' host names, such as www."),
    "vcluster": ("cli.scheduler.vcluster", "Virtual clusters: create, watch, resize, release."),
    "volume": ("cli.volumes.volume", "Volumes on file servers, which vclusters mount."),
    "request": ("cli.scheduler.request", "Requests for nodes, and why they wait."),
    "plan": ("cli.scheduler.plan", "What the resource manager's next pass would do."),
    "reclaim": ("cli.scheduler.reclaim", "Nodes taken for requests of higher priority."),
    "vcm": ("cli.server.vcm", "Virtual cluster managers: enrol them, run one."),
    "group": ("cli.people.group", "Groups: owners of vclusters, with their priorities."),
    "shares": (
        "cli.scheduler.shares",
        "Groups' shares of the site: usage, rank, guarantees, limits.",
    ),
    "user": ("cli.people.user", "Users: people who may sign in."),
    "member": ("cli.people.member", "Members of groups: owners, members, viewers."),
    "invite": ("cli.people.member", "Invitation links."),
    "key": ("cli.people.account", "Your SSH keys, which nodes let in."),
    "session": ("cli.people.account", "Your browser sessions; a token for name and password."),
    "settings": (
        "cli.server.settings",
        "Settings of the site: what they are, and changes of them.",
    ),
    "audit": (
        "cli.server.audit",
        "Log of changes: who changed what, and when. Nodes' owners over time, checked.",
    ),
    "notice": ("cli.notice", "Notices to groups, and their delivery."),
    "energy": ("cli.nodes.energy", "Energy that nodes used, and energy saved by sleeping nodes."),
    "timeline": (
        "cli.scheduler.timeline",
        "Nodes held over time, by vcluster, group, type or state.",
    ),
    "calendar": ("cli.scheduler.calendar", "Nodes held until when, and nodes that come."),
    "series": (
        "cli.scheduler.recurrence",
        "Reservations that recur: a cluster for each day or week.",
    ),
    "maintenance": (
        "cli.scheduler.maintenance",
        "Times in which nodes are out of service; racks that are drained.",
    ),
    "conflict": ("cli.nodes.conflict", "Conflicts of addresses and of machines' identities."),
    "fault": (
        "cli.nodes.fault",
        "Faults of switches, file servers, BMCs, other DHCP servers: since when, and who waits.",
    ),
    "status": ("cli.status", "The site and your part of it, in eight lines."),
    "top": ("cli.status", "Nodes by state, watts and queues, live."),
    "ssh": ("cli.nodes.ssh", "Log in to nodes, or run a command on all of a cluster."),
    "login": ("cli.people.login", "Log in at a server, for all commands."),
    "logout": ("cli.people.login", "Forget the login, and revoke its token."),
    "open": ("cli.people.login:open_", "Open the portal, or a page of it."),
    "completion": ("cli.completion", "Completion of commands, options and names for a shell."),
    "events": ("cli.events", "Follow events, live."),
    "simulate": (
        "cli.server.simulate",
        "Simulate a site's demand under a policy, on a virtual clock.",
    ),
    "lab": ("lab.commands", "Virtual bare metal to try COD on."),
}


TOKENLESS = (
    " (`cod login URL` keeps one; export COD_TOKEN=$(cod session start NAME) has one for a name and"
    " a password)"
)


class RefusedByServer(click.ClickException):
    """The server refuses: one line, exit code 1."""

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
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(
            importlib.import_module(f"cod.{module}"), attribute or cmd_name
        )
        _keep_examples(command)
        if ctx.resilient_parsing:  # a shell asks what to offer
            from cod.cli.completion import offer_names

            offer_names(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name. A noun's plural means the noun, and `ls` its
        list. For a verb without a noun the error lists the nouns that have it."""
        word = self._singular(ctx, args[0])
        refuses = word not in COMMANDS and not ctx.resilient_parsing  # a shell is told nothing
        if refuses and (nouns := self._nouns_with(ctx, word)):
            meant = first_few([f"`cod {noun} {word}`" for noun in nouns], 3, " or ")
            ctx.fail(f"No such command {word!r}. Is {meant} meant?")
        name, command, rest = super().resolve_command(ctx, [word, *args[1:]])
        group = command
        for place, word in enumerate(rest):
            if not isinstance(group, click.Group):
                break
            if word == "ls" and word not in group.commands and "list" in group.commands:
                rest[place] = "list"
            group = group.commands.get(rest[place])
        return name, command, rest

    def _nouns_with(self, ctx: click.Context, verb: str) -> list[str]:
        """Return the nouns that have the verb. Imports the modules of all nouns."""
        groups = [(noun, self.get_command(ctx, noun)) for noun in COMMANDS]
        return [
            n for n, group in groups if isinstance(group, click.Group) and verb in group.commands
        ]

    def _singular(self, ctx: click.Context, word: str) -> str:
        """Return the noun whose plural the word is; any other word unchanged."""
        for name in (word.removesuffix("s"), word.removesuffix("es")):
            if word not in COMMANDS and name in COMMANDS:
                command = self.get_command(ctx, name)
                if isinstance(command, click.Group) and "list" in command.commands:
                    return name
        return word

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line. With --json or -o json a refusal is printed as JSON, too, on
        standard error, with the same exit code."""
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


def _keep_examples(command: click.Command) -> None:
    """Make help show the examples of a command, and of the commands below it, line by line as they
    are written."""
    mark = "\b\n"  # before lines that click is not to fill up
    command.help = cleandoc(command.help or "").replace("\n\nExample:", f"\n\n{mark}Example:")
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _keep_examples(below)


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether to print a refusal as JSON. Words after -- belong to another program."""
    own = list(words[: words.index("--")] if "--" in words else words)
    formats = {("-o", "json"), ("--output", "json")}
    return bool({"--json", "-ojson", "--output=json"} & {*own} or formats & {*pairwise(own)})


def _problem(error: click.ClickException) -> dict[str, Any]:
    """Return a refusal as JSON values: those of the API's problem document, or the command line's
    own error."""
    problem: dict[str, Any] = {"exit_code": error.exit_code, "detail": error.format_message()}
    if isinstance(error, RefusedByServer):
        found = error.error
        return problem | {
            "code": found.code,
            "status": found.status,
            "detail": found.detail,
            "field": found.field,
            "errors": found.errors,
        }
    kinds = {2: "usage", 3: "unreachable", 4: "timed_out"}
    return problem | {"code": kinds.get(error.exit_code, "failed")}


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
