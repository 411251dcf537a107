"""What is in a template's variables, as types, and which attributes the template reads that they
have not. Types are those of the values that pages were rendered with, and from there on those of
annotations, so that branches which no page took are looked at, too.
"""

from __future__ import annotations

import ast
import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from jinja2 import Environment, nodes
from jinja2.environment import TemplateModule
from pydantic import BaseModel

from cod.web.api.routes import Call

ANYTHING = "anything"
KEPT = {"list", "reverse", "sort", "unique", "select", "reject", "selectattr", "rejectattr"}
"""Filters whose result has items of the same kind."""


@dataclass(frozen=True)
class Many:
    """A list, or another sequence, of such items."""

    item: Type


@dataclass(frozen=True)
class Row:
    """A tuple of so many items."""

    items: tuple[Type, ...]


@dataclass(frozen=True)
class Map:
    """A mapping to such values."""

    value: Type


@dataclass(frozen=True)
class Names:
    """What has these names, each with its own type: a module, a mapping to values of several
    types."""

    types: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class Made:
    """A callable, by what it returns."""

    value: Type


@dataclass(frozen=True)
class Macro:
    """A macro, read with the types that each call gives it. `known`: what it sees of its own
    template."""

    template: str
    node: nodes.Macro = field(hash=False)
    known: dict[str, Type] = field(hash=False, compare=False)


Type = tuple[Any, ...]
"""One of these: a class, one of the records above, or `ANYTHING`."""
OPEN: Type = (ANYTHING,)


def either(*types_: Type) -> Type:
    """Return what is one of these."""
    return tuple(dict.fromkeys(one for each in types_ for one in each if one is not type(None)))


def of_value(value: Any) -> Type:
    """Return the type of what a page passes."""
    if isinstance(value, str | bytes | BaseModel):
        return (type(value),)
    if isinstance(value, types.ModuleType | TemplateModule):
        return (Names(tuple((name, OPEN) for name in vars(value))),)
    if isinstance(value, Call):  # its annotations are of any question
        return (Names(tuple((name, of_value(getattr(value, name))) for name in Call.__slots__)),)
    if isinstance(value, partial):
        return of_value(value.func)
    if inspect.isroutine(value):
        return (Made(_returned(value)),)
    if isinstance(value, Mapping):
        texts = all(isinstance(each, str) for each in value)
        if texts and len({*map(type, value.values())}) > 1:
            return (Names(tuple((name, of_value(each)) for name, each in value.items())),)
        return (Map(either(*map(of_value, value.values())) or OPEN),)
    if isinstance(value, tuple) and type(value) is tuple and value:
        return (Row(tuple(map(of_value, value))),)
    if isinstance(value, collections.abc.Iterable):
        there = list(value) if isinstance(value, collections.abc.Collection) else []
        return (Many(either(*map(of_value, there)) or OPEN),)
    return (type(value),)


def of_hint(hint: Any) -> Type:
    """Return the type of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return of_hint(args[0])
    if origin in (typing.Union, types.UnionType):
        return either(*map(of_hint, args)) or OPEN
    if origin is typing.Literal:
        return (type(args[0]),)
    if origin is tuple and args[-1:] != (...,):
        return (Row(tuple(map(of_hint, args))),)
    known = origin if isinstance(origin, type) else None
    if known is not None and issubclass(known, Mapping):
        return (Map(of_hint(args[1])),)
    if known is not None and issubclass(known, collections.abc.Iterable):
        return (Many(of_hint(args[0])),)
    return (hint,) if isinstance(hint, type) and hint not in (object, Any) else OPEN


def _returned(call: Any) -> Type:
    try:
        hint = typing.get_type_hints(call).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return OPEN
    return of_hint(hint)


@cache
def member(of: type, name: str) -> Type | None:
    """Return the type of an attribute; None where there is none."""
    try:
        hints = typing.get_type_hints(of)
    except (NameError, TypeError):
        hints = {}
    if name in hints:
        return of_hint(hints[name])
    try:
        found = inspect.getattr_static(of, name)
    except AttributeError:
        return None
    if isinstance(found, property):
        return _returned(found.fget)
    return (Made(_returned(found)),) if inspect.isfunction(found) else OPEN


def attribute(of: Type, name: str) -> Type | None:
    """Return the type of an attribute; None where none of `of` has it."""
    found: list[Type] = []
    for one in of:
        if one == ANYTHING or isinstance(one, Made | Macro):
            found.append(OPEN)
        elif isinstance(one, Map):
            every: Mapping[str, Type] = {
                "items": (Made((Many((Row((OPEN, one.value)),)),)),),
                "values": (Made((Many(one.value),)),),
            }
            if name in every or hasattr(dict, name):
                found.append(every.get(name, OPEN))
            else:
                found.append(one.value)
        elif isinstance(one, Names):
            own = dict(one.types).get(name, OPEN if hasattr(dict, name) else None)
            found += [] if own is None else [own]
        elif isinstance(one, Many | Row):
            found += [OPEN] if hasattr(list, name) or name in ("next", "total") else []
        else:
            own = member(one, name)
            found += [] if own is None else [own]
    return either(*found) or OPEN if found else None


def item(of: Type) -> Type:
    """Return what a loop over it yields."""
    found = [
        one.item if isinstance(one, Many) else either(*one.items) if isinstance(one, Row) else OPEN
        for one in of
    ]
    return either(*found) or OPEN


def declared(load: Callable[..., Any]) -> dict[str, Type]:
    """Return the types of what a page's function returns by name, as far as annotations of what it
    calls say them: for lists that are empty when the page is rendered."""
    if load.__name__ == "<lambda>":
        return {}
    (function,) = ast.parse(inspect.getsource(load)).body
    assigned = {
        each.targets[0].id: each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }

    def made(node: ast.expr) -> Type:
        if isinstance(node, ast.IfExp):
            return either(made(node.body), made(node.orelse))
        if isinstance(node, ast.NamedExpr):
            return made(node.value)
        if isinstance(node, ast.Name) and node.id in assigned:
            return made(assigned.pop(node.id))
        if not isinstance(node, ast.Call):
            return ()
        try:  # a function of the module, or of one that it imports
            called = eval(ast.unparse(node.func), load.__globals__)
        except (NameError, AttributeError):
            return ()
        return _returned(called) if inspect.isfunction(called) else ()

    return {
        key.value: made(value)
        for each in ast.walk(function)
        if isinstance(each, ast.Dict)
        for key, value in zip(each.keys, each.values, strict=True)
        if isinstance(key, ast.Constant)
    }


@dataclass
class Reading:
    """What a template reads, with its variables' types. `faults` has sentences; `read`: attributes
    whose holder is known."""

    env: Environment
    faults: list[str] = field(default_factory=list)
    read: int = 0
    _at: str = ""

    def template(self, name: str, known: dict[str, Type]) -> None:
        """Read the whole template."""
        before, self._at = self._at, name
        assert self.env.loader is not None
        source, _, _ = self.env.loader.get_source(self.env, name)
        self._all(self.env.parse(source).body, known)
        self._at = before

    def _all(self, there: Iterable[nodes.Node], known: dict[str, Type]) -> None:
        for each in there:
            self._statement(each, known)

    def macros(self, name: str) -> dict[str, Type]:
        """Return what a template has for others, by name: macros that it defines at its top."""
        known: dict[str, Type] = {}
        self.template(name, known)
        return {key: each for key, each in known.items() if isinstance(each[0], Macro)}

    def _called(self, macro: Macro, node: nodes.Call, given: list[Type], known: Any) -> None:
        """Read a macro with what one call gives it."""
        names = [each.name for each in macro.node.args]
        defaults = names[len(names) - len(macro.node.defaults) :]
        inner = dict.fromkeys(names, OPEN) | {
            name: self.value(each, {})
            for name, each in zip(defaults, macro.node.defaults, strict=True)
        }
        inner |= dict(zip(names, given, strict=False))
        inner |= {each.key: self.value(each.value, known) for each in node.kwargs}
        before, self._at = self._at, macro.template
        self._all(macro.node.body, macro.known | inner | {"kwargs": OPEN, "caller": OPEN})
        self._at = before

    def _statement(self, node: nodes.Node, known: dict[str, Type]) -> None:
        if isinstance(node, nodes.Expr):
            self.value(node, known)
        elif isinstance(node, nodes.For):
            inner = known | {"loop": OPEN}
            self._bind(node.target, item(self.value(node.iter, known)), inner)
            if node.test is not None:
                self.value(node.test, inner)
            self._all([*node.body, *node.else_], inner)
        elif isinstance(node, nodes.Assign):
            self._bind(node.target, self.value(node.node, known), known)
        elif isinstance(node, nodes.Macro | nodes.CallBlock):
            if isinstance(node, nodes.CallBlock):
                self.value(node.call, known)
            for default in node.defaults:
                self.value(default, known)
            if isinstance(node, nodes.Macro):
                known[node.name] = (Macro(self._at, node, known),)
            else:
                self._all(node.body, known | {each.name: OPEN for each in node.args})
        elif isinstance(node, nodes.FromImport) and isinstance(node.template, nodes.Const):
            there = self.macros(node.template.value)
            for each in node.names:
                old, new = (each, each) if isinstance(each, str) else each
                known[new] = there.get(old, OPEN)
        elif isinstance(node, nodes.Include) and isinstance(node.template, nodes.Const):
            self.template(node.template.value, dict(known))
        else:
            self._all(node.iter_child_nodes(), known)

    def _bind(self, target: nodes.Node, value: Type, known: dict[str, Type]) -> None:
        if isinstance(target, nodes.Name):
            known[target.name] = value
        elif isinstance(target, nodes.Tuple):
            rows = [one.items for one in value if isinstance(one, Row)]
            for place, each in enumerate(target.items):
                fits = [row[place] for row in rows if len(row) > place]
                open_ = len(fits) < len(value)
                self._bind(each, OPEN if open_ else either(*fits) or OPEN, known)

    def value(self, node: nodes.Node, known: dict[str, Type]) -> Type:
        """Return the type of an expression, and note what in it is wrong."""
        if isinstance(node, nodes.Name):
            return known.get(node.name, OPEN)
        if isinstance(node, nodes.Const):
            return (type(node.value),) if node.value is not None else ()
        if isinstance(node, nodes.Getattr):
            return self._attribute(self.value(node.node, known), node.attr, node.lineno)
        if isinstance(node, nodes.Test) and node.name == "defined":
            return (bool,)
        parts = [self.value(each, known) for each in node.iter_child_nodes()]
        if isinstance(node, nodes.Getitem):
            return self._item(parts[0], node.arg)
        if isinstance(node, nodes.Call):
            for one in parts[0]:
                if isinstance(one, Macro):
                    self._called(one, node, parts[1 : 1 + len(node.args)], known)
            made = [one.value if isinstance(one, Made) else OPEN for one in parts[0]]
            return either(*made) or OPEN
        if isinstance(node, nodes.Filter) and node.node is not None:
            return self._filtered(node, parts[0])
        if isinstance(node, nodes.CondExpr):
            return either(*parts[1:])
        if isinstance(node, nodes.Or | nodes.And | nodes.Add):
            return either(*parts)
        if isinstance(node, nodes.List):
            return (Many(either(*parts) or OPEN),)
        return (Row(tuple(parts)),) if isinstance(node, nodes.Tuple) else OPEN

    def _attribute(self, of: Type, name: str, line: int) -> Type:
        if of and ANYTHING not in of:
            self.read += 1
        found = attribute(of, name) if of else OPEN
        if found is None:
            said = ", ".join(getattr(one, "__name__", type(one).__name__) for one in of)
            self.faults.append(f"{self._at}:{line}: {said} has no attribute {name!r}")
        return OPEN if found is None else found

    def _item(self, of: Type, key: nodes.Expr) -> Type:
        if isinstance(key, nodes.Slice):
            return of
        found: list[Type] = []
        for one in of:
            if isinstance(one, Names):
                found.append(OPEN)
            elif isinstance(one, Row) and isinstance(key, nodes.Const):
                fits = isinstance(key.value, int) and -len(one.items) <= key.value < len(one.items)
                found.append(one.items[key.value] if fits else OPEN)
            else:
                found.append(one.value if isinstance(one, Map) else item((one,)))
        return either(*found) or OPEN

    def _filtered(self, node: nodes.Filter, of: Type) -> Type:
        """Return what a filter makes; attributes are also named by its arguments."""
        named = [each.value for each in node.kwargs if each.key == "attribute"]
        if node.name in ("selectattr", "rejectattr"):
            named = node.args[:1]
        for each in named:
            if isinstance(each, nodes.Const) and isinstance(each.value, str):
                found = item(of)
                for step in each.value.split("."):
                    found = self._attribute(found, step, node.lineno)
                if node.name == "map":
                    return (Many(found),)
        if node.name in ("first", "last"):
            return item(of)
        return of if node.name in KEPT else OPEN


def faults(
    env: Environment,
    rendered: Mapping[str, Iterable[Mapping[str, Any]]],
    loads: Mapping[str, Callable[..., Any]],
) -> tuple[list[str], int]:
    """Return what is wrong with the templates that were rendered with these variables, and how many
    attributes were looked at. `loads`: the functions of their pages."""
    reading = Reading(env)
    shared = "_macros.html" in env.list_templates()
    m: Type = (Names(tuple(reading.macros("_macros.html").items())),) if shared else OPEN
    for name, every in rendered.items():
        known: dict[str, Type] = {each: of_value(value) for each, value in env.globals.items()}
        known["m"] = m
        for values in every:
            for key, value in values.items():
                known[key] = either(known.get(key, ()), of_value(value))
        for key, hint in declared(loads[name]).items() if name in loads else ():
            if known.get(key) in ((), (Many(OPEN),), (Map(OPEN),)) and hint:
                known[key] = hint
        reading.template(name, known)
    return reading.faults, reading.read


def recorded(
    rendered: Callable[..., Any], into: dict[str, list[Mapping[str, Any]]]
) -> Callable[..., Any]:
    """Return what renders as `Portal._rendered` does and keeps the variables by template."""

    def render(asked: Any, template: str, values: Mapping[str, Any], *rest: Any, **how: Any) -> Any:
        into.setdefault(template, []).append(values)
        return rendered(asked, template, values, *rest, **how)

    return render
