"""What a body or a query string may say reaches its flow: nothing goes behind stars, where mypy
does not look, and no field is left unread. What flows are handed by name, mypy checks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from cod import model
from cod.core.nodes import node_settings
from cod.flows.nodes import nodes, types
from cod.flows.people import groups, people
from cod.flows.scheduler import shares
from cod.web.api.record_fields import record_of
from cod.web.api.resources import ROUTES
from cod.web.api.resources.documents import kinds
from cod.web.api.routes import Route

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "cod/web"
DOORS = {"format"}  # read by the channel
WHOLE = ("model_dump", "filters")  # reads all fields


def stars(source: str) -> Iterator[int]:
    """The lines on which a model's fields are handed on behind stars."""
    for node in ast.walk(ast.parse(source)):
        for each in node.keywords if isinstance(node, ast.Call) else ():
            value = each.value.func if isinstance(each.value, ast.Call) else each.value
            if each.arg is None and isinstance(value, ast.Attribute) and value.attr in WHOLE:
                yield each.value.lineno


@pytest.mark.slow
def test_no_fields_of_a_model_are_handed_on_behind_stars() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(WEB.rglob("*.py"))
        for line in stars(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("**a.body.model_dump()", True),
        ("**ask.query.model_dump(include={'by'})", True),
        ("**a.query.filters", True),
        ("**asked(ask.body)", False),  # a TypedDict, which mypy reads
        ("name=a.body.name", False),
    ],
)
def test_planted_stars_are_refused(call: str, wrong: bool) -> None:
    assert bool(list(stars(f"partial(flow, {call})"))) is wrong


def read(code: CodeType, known: dict[str, Any], seen: set[CodeType]) -> set[str]:
    """The names of all attributes that a function reads, and those of `cod.web` that it calls."""
    if code in seen:
        return set()
    seen.add(code)
    found = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= read(inner, known, seen)
    for name in code.co_names:
        found |= names(known.get(name), seen)
        for module in (known.get(each) for each in code.co_names):
            if getattr(module, "__name__", "").startswith("cod.web."):
                found |= names(getattr(module, name, None), seen)
    return found


def names(call: Any, seen: set[CodeType]) -> set[str]:
    """The names of all attributes that a callable of `cod.web` reads."""
    if isinstance(call, partial):
        return names(call.func, seen)
    if not isinstance(call, FunctionType) or not call.__module__.startswith("cod.web"):
        return set()
    inner: set[str] = set()
    for cell in call.__closure__ or ():
        inner |= names(cell.cell_contents, seen)
    return inner | read(call.__code__, call.__globals__, seen)


CHANGES: dict[str, tuple[Any, *tuple[ModuleType, ...]]] = {
    "POST /groups": (model.Group, groups),
    "PATCH /groups/{name}": (model.Group, groups),
    "PATCH /shares/{name}": (model.Group, shares),
    "POST /shares/{name}/preview": (model.Group, shares),
    "PATCH /types/{name}": (model.NodeType, types),
    "PATCH /users/{name}": (model.User, people),
    "PATCH /nodes/{name}": (model.Node, nodes, node_settings),
    "PATCH /me": (model.User, people),
    "PUT /groups/{name}": (model.Group, groups),
    "PUT /shares/{name}": (model.Group, shares),
    "PUT /types/{name}": (model.NodeType, types),
    "PUT /blocks/{name}": (model.BlockView, kinds),
    "PUT /templates/{name}": (model.Template, kinds),
    "PUT /volumes/{name}": (model.Volume, kinds),
    "PUT /vclusters/{name}/vcm": (model.Vcm, kinds),
}
"""What such a question changes, and the modules of its flow."""


def unread(route: Route[Any, Any, Any, Any]) -> set[str]:
    """The fields of a route's body and query string that none of its functions reads."""
    calls: tuple[Callable[..., Any] | None, ...] = (
        route.call,
        route.claims,
        route.before,
        route.act,
        route.work,
    )
    seen: set[CodeType] = set()
    there = {name for call in calls for name in names(call, seen)}
    models = [each for each in (route.body, route.query) if each]
    if "model_dump" in there:  # changes by their names, or null: columns, or what the flow names
        record, *modules = CHANGES[f"{route.method} {route.path}"]
        sources = [ast.walk(ast.parse(inspect.getsource(module))) for module in modules]
        there = {one.value for each in sources for one in each if isinstance(one, ast.Constant)}
        there |= set(record.__dataclass_fields__)
    if "set_values" in there:  # what is described of the record that the body is made of
        for base in (one for each in models for one in each.__mro__ if issubclass(one, BaseModel)):
            if record := record_of(base):
                there |= {one.name for one in model.described(record) if one.about.set_by}
    for each in models:
        made = [getattr(each, name, None) for name in there if isinstance(name, str)]
        there |= {
            name for one in made if isinstance(one, property) for name in names(one.fget, seen)
        }
    known = {name for each in models for name in each.model_fields}
    return known - there - DOORS - {"sort"}


def test_each_field_is_read() -> None:
    found = {f"{one.method} {one.path}": unread(one) for one in ROUTES if not one.upload}
    assert not {where: fields for where, fields in found.items() if fields}


@pytest.mark.parametrize("asked", [model.AskedVcluster, model.AskedNodes])
def test_what_is_asked_for_is_kept_or_read(asked: Any) -> None:
    kept = {one.name for one in model.described(asked.MAKES) if one.about.set_by}
    files = (*(ROOT / "cod/core").rglob("*.py"), *(ROOT / "cod/flows/scheduler").glob("*.py"))
    read = {name for each in files for name in re.findall(r"\basked\.(\w+)", each.read_text())}
    assert {each.name for each in fields(asked)} - kept <= read


def test_a_planted_field_that_is_not_read_is_refused() -> None:
    for path, method in (("/vclusters/{name}/resize", "POST"), ("/types/{name}", "PATCH")):
        [right] = [one for one in ROUTES if (one.path, one.method) == (path, method)]
        body: type[BaseModel] = create_model("Planted", __base__=right.body, remark=(str, ""))
        assert (unread(right), unread(replace(right, body=body))) == (set(), {"remark"})
