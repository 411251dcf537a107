"""`cod type`: what kinds of machines there are, and what they cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from cod.cli.show import (
    as_json,
    client,
    node_word,
    print_json,
    print_table,
    said,
    shown,
    table,
    when,
)
from cod.client import path

MARKS = ("warm_low", "warm_high", "watts_off", "watts_idle", "watts_busy")


@click.group("type")
def type_() -> None:
    """Node types: groups of equal machines. COD discovers them; name them, and set their costs and
    power settings.

    \b
    Example:
      cod type set type3 --name gpu-node --cost 10
    """


def type_table(values: list[Any]) -> Any:
    """Return types for people."""
    return table(
        ("TYPE", "COST", "NODES", "STATES", "WARM", "HARDWARE"),
        [
            (
                v["name"],
                f"{v['cost']:g}",
                str(v["nodes"]),
                _counts(v["states"]),
                f"{_mark(v['warm_low'])} to {_mark(v['warm_high'])}",
                _hardware(v["facts"]),
            )
            for v in values
        ],
    )


def _counts(counts: dict[str, int]) -> str:
    words: Counter[str] = Counter()
    for state, number in counts.items():
        words[node_word(state)] += number
    return ", ".join(f"{number} {word}" for word, number in sorted(words.items()))


def _mark(value: float | None) -> str:
    return "site's" if value is None else f"{value:g}"


def _hardware(facts: list[Any]) -> str:
    """Return the few facts that tell most: product, memory, CPU, how many disks and NICs."""
    values = {fact["attribute"]: fact["value"] for fact in facts}
    told = [values.get(key) for key in ("system/product", "memory/mib")]
    told.append(f"{values['cpu/count']} CPUs" if "cpu/count" in values else None)
    parts = Counter(key.partition("/")[0] for key in values)
    for name in ("nic", "disk"):
        count = sum(each == name or each.startswith(f"{name} ") for each in parts)
        told.append(f"{count} {name}{'' if count == 1 else 's'}")
    return ", ".join(filter(None, told))


@type_.command("list")
@as_json
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List node types with their nodes by state.

    \b
    Example:
      cod type list
    """
    shown(ctx, client(ctx).every("/types"), type_table, as_json)


@type_.command()
@click.argument("name")
@as_json
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show a node type: its attributes, and its nodes.

    \b
    Example:
      cod type show gpu-node
    """
    value = client(ctx).get(path("types", name))
    if as_json:
        print_json(value)
        return
    facts = [
        ("name", value["name"]),
        ("cost", f"{value['cost']:g}"),
        ("first seen", when(value["created_at"])),
        *((key.replace("_", " "), _mark(value[key])) for key in MARKS),
        ("nodes", _counts(value["states"])),
    ]
    print_table(("", ""), facts)
    print_table(
        ("ATTRIBUTE", "VALUE"), [(fact["attribute"], fact["value"]) for fact in value["facts"]]
    )
    print_table(
        ("NODE", "STATE", "BLOCK", "VCLUSTER"),
        [(n["name"], node_word(n["state"]), n["block"], n["vcluster"]) for n in value["members"]],
    )


class _OrSites(click.ParamType[float]):
    """A number, or 'site' for the site's (None in JSON)."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse it; 'site' stays, to be told from an option that was not given."""
        if value == "site":
            return value
        try:
            return float(value) if param is not None and "watts" in str(param.name) else int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor 'site'", param, ctx)


@type_.command("set")
@click.argument("name")
@click.option("--name", "new_name", help="Its new name.")
@click.option("--cost", type=float, help="Cost of a node; cheaper types are granted first.")
@click.option(
    "--warm-low",
    type=_OrSites(),
    help="Wake nodes while fewer free nodes than this are awake. 'site': the site's value.",
)
@click.option(
    "--warm-high",
    type=_OrSites(),
    help="Put idle nodes to sleep while more free nodes than this are awake.",
)
@click.option("--watts-off", type=_OrSites(), help="Watts of one node that sleeps.")
@click.option("--watts-idle", type=_OrSites(), help="Watts of one node that idles, awake.")
@click.option("--watts-busy", type=_OrSites(), help="In use.")
@as_json
@click.pass_context
def set_(
    ctx: click.Context, /, name: str, new_name: str | None, as_json: bool, **more: Any
) -> None:
    """Change a node type's name, cost, power settings or watts.

    \b
    Example:
      cod type set type3 --name gpu-node --cost 10 --warm-low 0 --warm-high 2
    """
    said_ = {key: value for key, value in {"name": new_name, **more}.items() if value is not None}
    if not said_:
        raise click.UsageError(
            "say what to set: --name, --cost, --warm-low, --warm-high or --watts-..."
        )
    body = {
        key: None if value == "site" and key in MARKS else value for key, value in said_.items()
    }
    shown(
        ctx,
        client(ctx).patch(path("types", name), body),
        lambda value: type_table([value]),
        as_json,
    )


@type_.command()
@click.argument("name")
@as_json
@click.pass_context
def delete(ctx: click.Context, name: str, as_json: bool) -> None:
    """Delete a node type without nodes.

    \b
    Example:
      cod type delete type7
    """
    client(ctx).delete(path("types", name))
    said(None, f"{name}: deleted", as_json)


@type_.command()
@as_json
@click.pass_context
def refresh(ctx: click.Context, as_json: bool) -> None:
    """Recompute the types of all nodes after a change of [types] in the site file.

    \b
    Example:
      cod type refresh
    """
    api = client(ctx)
    looked = changed = after = 0
    while after is not None:
        done = api.post("/types/refresh", {"after": after})
        looked, changed, after = looked + done["looked"], changed + done["changed"], done["next"]
    said(
        {"looked": looked, "changed": changed},
        f"{looked} nodes looked at, {changed} of another type now",
        as_json,
    )
