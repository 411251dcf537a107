"""Parts of the manual that are made of the program when the manual is built.

A page has the mark `<!-- generated: NAME -->` where the text of the function NAME goes, so that no
copy of it can be old.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import click
from prometheus_client import REGISTRY

from cod import data, init, states
from cod.cli.root import cod
from cod.quantity import span
from cod.web.api import metrics as counted
from cod.web.api import openapi
from cod.web.api.openapi_texts import TAGS
from cod.web.portal.glossary import TERMS

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def filled(page: str) -> str:
    """Return a page with the generated parts in place of their marks. Raises KeyError."""
    return MARK.sub(lambda mark: PARTS[mark[1]](), page)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


# ---------------------------------------------------------------- the command line


def commands() -> str:
    """Return the help of every command, by noun."""
    parts = []
    root = click.Context(cod, info_name="cod")
    for name in cod.list_commands(root):
        command = cod.get_command(root, name)
        assert command is not None, name
        parts += [f"## cod {name}", *_helps(command, click.Context(command, root, name))]
    return "\n\n".join(parts)


def _helps(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield " ".join((command.help or "").replace("\b", "").split())
        for name, below in command.commands.items():
            yield f"### {context.command_path} {name}"
            yield from _helps(below, click.Context(below, context, name))
    else:
        yield f"```text\n{command.get_help(context)}\n```"


# ---------------------------------------------------------------- the REST API


def routes() -> str:
    """Return the operations of the REST API, by subject."""
    document = openapi.document()
    parts = []
    for tag, about in TAGS.items():
        parts += [f"## {tag}", f"{about}."]
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag in operation["tags"]:
                    parts += _operation(f"{method.upper()} {path}", operation, document)
    return "\n\n".join(parts)


def _operation(title: str, operation: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    yield f"### `{title}`"
    yield f"**{operation['summary']}.** {operation.get('description', '')}"
    rows = [
        (_code(one["name"]), one["in"], _kind(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
        if "name" in one
    ]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        body = schemas.get(_named(content.get("schema", {})), {})
        required = body.get("required", ())
        rows += [
            (
                _code(name),
                "body, required" if name in required else "body",
                _kind(field),
                field.get("description", ""),
            )
            for name, field in body.get("properties", {}).items()
        ]
    if rows:
        yield table(("Name", "In", "Type", "Meaning"), rows)


def _named(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f'"{each}"' for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return _named(schema) or str(schema.get("type", "any"))


# ---------------------------------------------------------------- tables of the program


def site_file() -> str:
    """Return the tables of the site file with their keys."""
    lines = init.reference().splitlines()
    return "\n".join(
        re.sub(r"^\*\*(\[?\[?[\w. ]+\]?\]?)\*\*(: )?", _heading, line) for line in lines
    )


def _heading(found: re.Match[str]) -> str:
    return f"## {found[1].capitalize() if found[1] == 'top level' else f'`{found[1]}`'}\n\n"


def node_states() -> str:
    """Return the states of nodes: what each is called, how long it lasts, where it leads."""
    rows = []
    for state, rule in states.NODE_RULES.items():
        leads = [
            f"{event} → {after}"
            for (before, event), after in states.NODE_TRANSITIONS.items()
            if before == state
        ]
        limit = f"{span(rule.deadline)}, {rule.retries} retries" if rule.deadline else ""
        rows.append(
            (_code(state), states.WORDS[state], rule.kind, rule.about, limit, "; ".join(leads))
        )
    return table(("State", "People see", "Kind", "Meaning", "Time limit", "Event → next"), rows)


def other_states() -> str:
    """Return the states of what else has a life."""
    parts = []
    for title, kind in {
        "Virtual clusters": states.VclusterState,
        "Requests": states.RequestState,
        "Reclaims": states.ReclaimState,
        "Captures": states.CaptureState,
        "Burn-ins": states.BurninState,
    }.items():
        parts += [f"## {title}", _life(kind)]
    return "\n\n".join(parts)


def _life(kind: type[StrEnum]) -> str:
    rows = [(_code(state), states.OTHER_WORDS.get(state, state)) for state in kind]
    about = " ".join((kind.__doc__ or "").split())
    return f"{about}\n\n{table(('State', 'People see'), rows)}"


def glossary() -> str:
    """Return the terms of the portal's pages."""
    return table(("Term", "Meaning"), sorted(TERMS.items()))


def metrics() -> str:
    """Return the metrics that `/metrics` can show."""
    for path in sorted(data.path("cod/net").rglob("*.py")):
        if "prometheus.Counter" in (text := path.read_text()) or "prometheus.Gauge" in text:
            name = path.relative_to(data.path("cod").parent).with_suffix("")
            importlib.import_module(".".join(name.parts))
    families = counted.families(counted.MetricsRows())
    found = [(family, vars(family)["_labelnames"]) for family in families]
    for metric in REGISTRY._collector_to_names:
        if hasattr(metric, "_labelnames"):
            found += [(family, metric._labelnames) for family in metric.describe()]
    rows = [
        (
            _code(family.name + ("_total" if family.type == "counter" else "")),
            family.type,
            ", ".join(map(_code, labels)),
            family.documentation,
        )
        for family, labels in sorted(found, key=lambda each: each[0].name)
    ]
    return table(("Metric", "Kind", "Labels", "Meaning"), rows)


PARTS: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (commands, routes, site_file, node_states, other_states, glossary, metrics)
}
