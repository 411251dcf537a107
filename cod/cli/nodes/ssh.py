"""`cod ssh`: runs the system's SSH client with a node's address and host key."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock, Thread
from typing import IO, Any

import click

from cod.cli.local_files import cache_folder, write_private
from cod.cli.nodes.many import ChosenNodes, listed
from cod.cli.show import client, node_word
from cod.cli.terminal_text import printable
from cod.client import ApiError, Client, path
from cod.quantity import first_few

TIMEOUT = "ConnectTimeout=20"  # without a limit ssh waits minutes for a silent host
FEW = 5  # names in a hint
MISSING = 255  # exit code of ssh(1) where it cannot connect
LONGEST = 65536  # bytes of a line of output; a longer one is printed in pieces
_COMMAND = "cod.ssh.command"
# The first key would be joined to a last line without a newline.
_ADD_KEYS = """\
umask 077; added=0
mkdir -p ~/.ssh && cd ~/.ssh && touch authorized_keys || exit 1
[ -z "$(tail -c 1 authorized_keys)" ] || echo >>authorized_keys
while IFS= read -r key; do
    grep -qxF "$key" authorized_keys && continue
    printf '%s\\n' "$key" >>authorized_keys || exit 1
    added=$((added + 1))
done
echo "$added added"
"""


class _WithCommand(click.Command):
    """A command whose words after `--` belong to another program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words after `--` unchanged."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@click.command(cls=_WithCommand, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, required=True, metavar="[CLUSTER] NODE [-- COMMAND...]")
@click.option("--all", "every", is_flag=True, help="Run COMMAND on all nodes of CLUSTER.")
@click.option(
    "--add-keys",
    is_flag=True,
    help="With --all: add the keys of the group's members to authorized_keys.",
)
@click.option("-l", "--login", default="root", show_default=True, help="User on the node.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of ssh, as in ssh_config. May be repeated. Those for host keys are COD's.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 500),
    default=32,
    show_default=True,
    help="With --all: how many at once.",
)
@click.pass_context
def ssh(
    ctx: click.Context,
    words: tuple[str, ...],
    every: bool,
    add_keys: bool,
    login: str,
    options: tuple[str, ...],
    parallel: int,
) -> None:
    """Log in to a node, or run COMMAND there, with ssh. COD names the address, and the host key
    where COD made the node's: a machine with another key is refused.

    NODE is named by its host name in CLUSTER, its name, a MAC, serial number or UUID. With --all
    each line of output begins with the host name; the exit code is the largest. A node that does
    not answer is left after 20 s, unless ssh_config or -o says otherwise: -o ConnectTimeout=60.

    Example:
      cod ssh web n1
      cod ssh node-525400000001 -- uptime
      cod ssh --all web -- systemctl is-active slurmd
      cod ssh --all web --add-keys
    """
    command: list[str] = ctx.meta[_COMMAND]
    api = client(ctx)
    more = [word for option in options for word in ("-o", option)]
    if add_keys and (command or not every):
        raise click.UsageError(
            "--add-keys wants --all and no command: cod ssh --all web --add-keys"
        )
    if not every:
        if len(words) > 2:
            raise click.UsageError("a command stands behind --: cod ssh web n1 -- uptime")
        node = _node(api, *words[-2:])
        _exec([*_Hosts(api, node["vcluster"]).reach(node, login), *more], node, command)
        return
    if len(words) != 1 or not (command or add_keys):
        raise click.UsageError("--all wants a cluster and a command: cod ssh --all web -- uptime")
    cluster = api.get(path("vclusters", words[0]))
    nodes = [node for node in cluster["nodes"] if node["address"]]
    if not nodes:
        raise click.ClickException(f"no node of {words[0]} has an address yet")
    hosts, lock, input_ = _Hosts(api, words[0]), Lock(), b""
    if add_keys:
        command = ["sh", "-c", shlex.quote(_ADD_KEYS)]
        keys = api.get(path("groups", cluster["group"], "keys"))["items"]
        input_ = "".join(f"{key['line']}\n" for key in keys).encode()

    def run(node: Any) -> int:
        reach = [*hosts.reach(node, login), "-T", "-o", "BatchMode=yes", *more]
        return _prefixed(reach, node, command, lock, input_)

    with ThreadPoolExecutor(parallel) as threads:
        ctx.exit(max(threads.map(run, nodes)))


def _node(api: Client, *words: str) -> Any:
    """Return the node in a cluster; without a cluster, in any. Raises `click.ClickException` and
    `ApiError`."""
    *cluster, label = words
    members = api.get(path("vclusters", cluster[0]))["nodes"] if cluster else []
    found = [each for each in members if label in (each["hostname"], each["name"])]
    if not found:
        try:
            only = {"vcluster": cluster[0]} if cluster else {}
            found = listed(api, ChosenNodes([label]), **only)
        except ApiError as error:
            if error.field != "names":
                raise
    if len(found) > 1:
        named = first_few([each["name"] for each in found], FEW)
        raise click.ClickException(f"{label!r} names {len(found)} nodes: name one of {named}")
    if not found:
        raise click.ClickException(_missing(api, label, *cluster))
    node = found[0]
    if node["vcluster"] is None or node["address"] is None:
        raise click.ClickException(
            f"{node['name']} cannot be reached: {node_word(node['state'])}, in no virtual cluster"
            if node["vcluster"] is None
            else f"{node['name']} has no address yet: {node_word(node['state'])}"
        )
    return node


def _missing(api: Client, label: str, cluster: str = "") -> str:
    """Return advice for a name that no node has: it may be a cluster's name, or a host name without
    its cluster."""
    sentence = f"no node {label!r} in {cluster}" if cluster else f"there is no node {label!r}"
    try:
        nodes = api.get(path("vclusters", cluster or label))["nodes"]
    except ApiError:
        return f"{sentence}: a host name stands behind its cluster, as in `cod ssh web n1`"
    if not nodes:
        return (
            f"{cluster or label} has no nodes yet: `cod vcluster show {cluster or label}` says why"
        )
    names = first_few([each["hostname"] or each["name"] for each in nodes], FEW)
    if cluster:
        return f"{sentence}, which has {names}"
    return (
        f"{label} is a virtual cluster: name one of its nodes too ({names}), as in "
        f"`cod ssh {label} {nodes[0]['hostname'] or nodes[0]['name']}`, or run a command on all: "
        f"`cod ssh --all {label} -- COMMAND`"
    )


class _Hosts:
    """The nodes of a cluster, with a known_hosts file of their host keys for the SSH client."""

    def __init__(self, api: Client, cluster: str) -> None:
        lines = api.get(path("vclusters", cluster, "known_hosts"))["lines"]
        self._names: dict[str, str] = {}
        for line in lines:
            names = line.split(" ")[0].split(",")
            self._names |= dict.fromkeys(names, names[0])
        digest = hashlib.sha256(f"{api.server} {cluster}".encode()).hexdigest()[:32]
        self._file = cache_folder() / f"known_hosts-{digest}"
        write_private(self._file, "".join(f"{line}\n" for line in lines))

    def reach(self, node: Any, login: str) -> list[str]:
        """Return the command line with which ssh reaches this node and no other machine. For a node
        that made its host key itself, ssh uses the user's own known_hosts."""
        address = node["address"]
        if address not in self._names:
            return ["ssh", "-l", login, "-o", f"HostName={address}"]
        file = str(self._file).replace("%", "%%")
        return [
            *("ssh", "-l", login),
            *("-o", f"HostName={address}"),
            *("-o", f"HostKeyAlias={self._names[address]}"),
            *("-o", f'UserKnownHostsFile="{file}"'),
            *("-o", "GlobalKnownHostsFile=none"),
            *("-o", "StrictHostKeyChecking=yes"),
            *("-o", "VerifyHostKeyDNS=no"),
            *("-o", "UpdateHostKeys=no"),
        ]


def _exec(words: Sequence[str], node: Any, command: Sequence[str]) -> None:
    """Replace this process by ssh. Raises `click.ClickException` if ssh is not installed."""
    try:
        os.execvp("ssh", [*_limited(words, node), "--", _host(node), *command])
    except FileNotFoundError:
        raise click.ClickException("there is no `ssh` here: install OpenSSH's client") from None


def _host(node: Any) -> str:
    """Return the host's name, as the user's ssh_config may have it."""
    return f"{node['hostname'] or node['name']}.{node['vcluster']}"


def _limited(words: Sequence[str], node: Any) -> list[str]:
    """Return the command line with a limit for connecting, unless it or the user's ssh_config has
    one for this host. `ssh -G` prints the options that would apply. Raises `FileNotFoundError`."""
    used = subprocess.run(
        [*words, "-G", "--", _host(node)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # ssh itself says what is wrong with its configuration
        check=False,
    ).stdout.splitlines()
    unset = b"connecttimeout none" in used or not used
    return [*words, "-o", TIMEOUT] if unset else [*words]


def _prefixed(
    words: Sequence[str], node: Any, command: Sequence[str], lock: Lock, input_: bytes = b""
) -> int:
    """Run a command on a node with `input_` as its input. Return its exit code.

    Each line of the output begins with the host's name. A terminal gets no control characters,
    because those of many nodes would mix there, and a node may be hostile.
    """
    host = str(node["hostname"] or node["name"])
    try:
        running = subprocess.Popen(
            [*_limited(words, node), "--", _host(node), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        with lock:
            click.echo(f"{host}: there is no `ssh` here: install OpenSSH's client", err=True)
        return MISSING

    def show(lines: IO[bytes], err: bool) -> None:
        terminal = (sys.stderr if err else sys.stdout).isatty()
        while line := lines.readline(LONGEST):
            line = line.rstrip(b"\r\n")
            if terminal:
                line = printable(line.decode(errors="replace")).encode()
            with lock:
                click.echo(f"{host}: ".encode() + line, err=err)

    with running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        beside = Thread(target=show, args=(running.stderr, True))
        beside.start()
        with suppress(BrokenPipeError), running.stdin as into:
            into.write(input_)
        show(running.stdout, False)
        beside.join()
    return MISSING if running.returncode < 0 else running.returncode
