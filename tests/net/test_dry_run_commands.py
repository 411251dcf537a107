"""Each command that makes one change takes `--dry-run`, says what would come of it, and changes
nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from cod.cli.root import cod
from cod.store import tables as t
from cod.store.engine import Tx
from tests.net.apiserver import Served, run, said
from tests.net.rights_world import World, made

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

# What is said after a command's name; {thing} is one of the group's own. '!' and what follows: the
# refusal that the change itself would get. '=': the thing is so already, and nothing would change.
COMMANDS = {
    "block add": "{block} {node}",
    "block delete": "rack2",
    "block remove": "{block} theirs-node",
    "group delete": "{group} !",
    "group set": "{group} --priority 7",
    "image delete": "{image} !",
    "maintenance end": "{maintenance}",
    "maintenance set": "{maintenance} --reason later",
    "member remove": "{group} {user}",
    "member set": "{group} {user} viewer",
    "name remove": "{label} --vcluster {vcluster}",
    "reclaim answer": "{reclaim} {node} !",
    "request change": "{request} --count 1",
    "request retry": "{request} !",
    "request submit": "{vcluster} 1",
    "request withdraw": "{request} !delete the vcluster instead",
    "series end": "{series}",
    "template retire": "{template} !is in use",
    "type delete": "{type} !",
    "type set": "{type} --cost 7",
    "user delete": "{user}",
    "user disable": "{user}",
    "user enable": "{user} =",
    "user set": "{user} --full-name Other",
    "vcluster delete": "{vcluster}",
    "vcluster extend": "{vcluster} 1d",
    "vcluster move": "{vcluster} theirs-cluster 1 !",
    "vcluster release": "{vcluster} {node} !",
    "vcluster rename": "{vcluster} other !revoke it",
    "vcluster resize": "{vcluster} 1",
    "vcluster set": "{vcluster} --description other",
    "volume attach": "{volume} {vcluster}",
    "volume delete": "{volume}",
    "volume detach": "{volume} {vcluster} !is not attached",
    "volume resize": "{volume} 40G",
    "volume restore": "{volume} !",
    "volume snapshot": "{volume} monday",
}


THEIRS_NODE = "theirs-node"


def dry(group: click.Group, before: str = "") -> Iterator[str]:
    """Yield the commands that take `--dry-run` of one change, by their names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from dry(command, f"{before}{name} ")
        elif command is not None and any(
            (getattr(one, "help", "") or "").startswith("Change nothing;") for one in command.params
        ):
            yield f"{before}{name}"


def test_the_commands_are_these() -> None:
    assert sorted(dry(cod)) == sorted(COMMANDS)


def everything(tx: Tx) -> dict[str, list[object]]:
    return {
        name: sorted(map(repr, tx.execute(table.select())))
        for name, table in t.metadata.tables.items()
    }


@pytest.fixture
def world(served: Served) -> World:
    world = served.tx(made)
    for name, node in (("rack1", THEIRS_NODE), ("rack2", "")):
        served.local.post("/blocks", {"name": name})
        if node:
            served.local.post(f"/blocks/{name}/add", {"nodes": [node]})
    served.tx(lambda tx: tx.execute(t.vclusters.update().values(state="active", expires_at=2e6)))
    world.ours |= {"maintenance": "1", "type": "type1", "block": "rack1"}
    return world


def test_they_say_what_would_change_and_change_nothing(served: Served, world: World) -> None:
    before = served.tx(everything)
    wrong = []
    for name, words in COMMANDS.items():
        words, refused, why = words.partition("!")
        words, same, _ = words.partition("=")
        filled = re.sub(r"{(\w+)}", lambda found: world.ours[found[1]], words).split()
        asked = ["--server", str(served.socket), *name.split(), *filled, "--dry-run", "--json"]
        found = CliRunner().invoke(cod, asked)
        if refused:
            ok = found.exit_code == 1 and why in found.output
        else:
            told = json.loads(found.stdout) if not found.exit_code else {}
            ok = bool(told) and (told["before"] == told["after"]) == bool(same)
        if not ok:
            wrong.append(f"{name}: {found.output}")
    assert not wrong, "\n".join(wrong)
    assert served.tx(everything) == before


def test_a_release_says_whose_work_stops_and_for_people_too(served: Served, world: World) -> None:
    shown = said(served, "vcluster", "delete", world.ours["vcluster"], "--dry-run")
    assert f"work of {world.ours['vcluster']}" in shown
    run(served, "vcluster", "delete", world.ours["vcluster"], "--yes")
