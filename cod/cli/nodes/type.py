"""`cod type`: kinds of machines, and their costs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import click

from cod.cli.nouns import Noun
from cod.cli.record_fields import (
    facts,
    fields_table,
)
from cod.cli.show import (
    client,
    for_programs,
    node_word,
    print_json,
    print_result,
    print_table,
    with_json,
)
from cod.client import path
from cod.model.views import TypeView
from cod.quantity import counted


@click.group("type")
def type_() -> None:
    """Node types: groups of equal machines. COD discovers them; name them, and set their costs and
    power settings.

    Example:
      cod type set type3 --name gpu-node --cost 10
    """


def _counts(counts: dict[str, int]) -> str:
    words: Counter[str] = Counter()
    for state, number in counts.items():
        words[node_word(state)] += number
    return ", ".join(f"{number} {word}" for word, number in sorted(words.items()))


def _mark(value: float | None) -> str:
    return "site's" if value is None else f"{value:g}"


def _hardware(facts: list[Any]) -> str:
    """Return the most important facts: product, memory, CPU, numbers of disks and NICs."""
    values = {fact["attribute"]: fact["value"] for fact in facts}
    texts = [values.get(key) for key in ("system/product", "memory/mib")]
    texts.append(f"{values['cpu/count']} CPUs" if "cpu/count" in values else None)
    parts = Counter(key.partition("/")[0] for key in values)
    for name in ("nic", "disk"):
        count = sum(each == name or each.startswith(f"{name} ") for each in parts)
        texts.append(counted(count, name))
    return ", ".join(filter(None, texts))


COLUMNS = (
    "name",
    "cost",
    ("Nodes", lambda v: str(v["nodes"])),
    ("States", lambda v: _counts(v["states"])),
    ("Warm", lambda v: f"{_mark(v['warm_low'])} to {_mark(v['warm_high'])}"),
    ("Hardware", lambda v: _hardware(v["facts"])),
)
type_table = partial(fields_table, TypeView, columns=COLUMNS)
noun = Noun(type_, "types", type_table)
noun.list("List node types with their nodes by state.", "cod type list")
noun.set(
    TypeView,
    "Change a node type's name, cost, power settings or watts.",
    "cod type set type3 --name gpu-node --cost 10 --warm-low 0 --warm-high 2",
)
noun.delete("Delete a node type without nodes.", "cod type delete type7")


@type_.command()
@click.argument("name")
@with_json
def show(ctx: click.Context, name: str) -> None:
    """Show a node type: its attributes, and its nodes.

    Example:
      cod type show gpu-node
    """
    value = client(ctx).get(path("types", name))
    if for_programs():
        print_json(value)
        return
    details = facts(TypeView, value, ("name", "cost", "created_at"))
    print_table(("", ""), [*details, ("Nodes", _counts(value["states"]))])
    print_table(
        ("ATTRIBUTE", "VALUE"), [(fact["attribute"], fact["value"]) for fact in value["facts"]]
    )
    print_table(
        ("NODE", "STATE", "BLOCK", "VCLUSTER"),
        [(n["name"], node_word(n["state"]), n["block"], n["vcluster"]) for n in value["members"]],
    )


@type_.command()
@with_json
def refresh(ctx: click.Context) -> None:
    """Recompute the types of all nodes after a change of [types] in the site file.

    Example:
      cod type refresh
    """
    api = client(ctx)
    looked = changed = after = 0
    while after is not None:
        done = api.post("/types/refresh", {"after": after})
        looked, changed, after = looked + done["looked"], changed + done["changed"], done["next"]
    print_result(
        {"looked": looked, "changed": changed},
        f"{looked} nodes looked at, {changed} of another type now",
    )
