"""Docstrings that are true: fields in their tables exist, what is said to be raised can be, and the
things of modules that docstrings and comments name exist."""

from __future__ import annotations

import ast
import builtins
import gc
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.sources import statements

ROOT = Path(__file__).resolve().parents[2]
FIELDS = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*) {2,}\S", re.MULTILINE)
RAISES = re.compile(r"\b[Rr]aises? ((?:`[\w.]+`(?:,| or| and)? ?)+)")
NAME = re.compile(r"`((?:cod\.)?[a-z_]\w*(?:\.[a-zA-Z_]\w*)+)`")
# keys of the site file and names of files begin so, too (`policy.patience`, `data.zst`); and what
# `cod.model` has comes from its modules by a star
AMBIGUOUS = (["data"], ["images"], ["model"], ["policy"], ["site"])
EXAMPLES = {"cod/choices.py: cod.power.name"}  # the module of any driver
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Functions = Mapping[tuple[str, str], set[str]]
BY_DEFERRED = {"cod.vcm.enroll: trade: Ended"}  # the link's Deferred fails with it


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module")
def modules() -> Iterator[Mapping[str, ast.Module]]:
    """All modules, parsed. The collector would visit millions of nodes, of which none is garbage,
    again and again, and at the process's end, if it looked while they are there."""
    gc.disable()
    found = {
        module(path): ast.parse(path.read_text())
        for folder in ("cod", "trampoline")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    yield found
    found.clear()
    gc.enable()


def definitions(tree: ast.AST) -> list[Definition]:
    return [each for each in statements(tree) if isinstance(each, Definition)]


def said(node: ast.AST) -> str:
    """Return the name that an expression ends with."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def untrue_fields(tree: ast.AST, of_classes: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield names at the beginning of a table's lines that are no field, argument or text of the
    definition."""
    for node in definitions(tree):
        found = FIELDS.findall(ast.get_docstring(node) or "")
        there: set[str] = set()
        for each in ast.walk(node) if found else ():
            there |= {said(each), getattr(each, "arg", ""), getattr(each, "name", "")}
            if isinstance(each, ast.Constant):
                there.add(str(each.value))
        if isinstance(node, ast.ClassDef) and node.keywords:  # ReplyOf[the record], whole=True
            for base in node.bases:
                there |= of_classes.get(said(getattr(base, "slice", base)), set())
        names = {name for line in found for name in line.split(", ")}
        yield from (f"{node.name}: {name}" for name in sorted(names - there))


def fields_of_classes(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Return the names of the fields of each class, by the class's name."""
    return {
        node.name: {said(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
        for tree in trees
        for node in definitions(tree)
        if isinstance(node, ast.ClassDef)
    }


def origins(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return where a module's imported names come from: (module, name)."""
    return {
        one.asname or one.name: (node.module or "", one.name)
        for node in statements(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }


def said_only(node: Definition) -> bool:
    """Return whether nothing is done in a function, as in a protocol's."""
    return all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in node.body
    )


def told(node: Definition) -> list[str]:
    """Return the exceptions of the tree that a docstring says are raised; those of libraries have
    the module in front."""
    text = ast.get_docstring(node) or ""
    names = [name for each in RAISES.findall(text) for name in re.findall(r"(?<=`)\w+(?=`)", each)]
    return [name for name in names if name not in dir(builtins)]


def raised(trees: Mapping[str, ast.Module]) -> Functions:
    """Return the names of exceptions that each (module, name) names, of a function, a class or
    another name for one, or that what it names does: things of its module, imported ones, those of
    an imported module, and any method of that name."""
    wanted = {name for tree in trees.values() for node in definitions(tree) for name in told(node)}
    made: dict[tuple[str, str], set[str]] = defaultdict(set)
    calls: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    methods: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, tree in trees.items():
        known = origins(tree)
        named = [(node.name, node) for node in definitions(tree)]
        named += [
            (each.id, node)
            for node in tree.body
            if isinstance(node, ast.Assign)
            for each in ast.walk(node.targets[0])
            if isinstance(each, ast.Name)
        ]
        for own, node in named:
            key = path, own
            methods[own].add(key)
            for each in ast.walk(node):
                if isinstance(each, ast.Name):
                    calls[key].add(known.get(each.id, (path, each.id)))
                elif isinstance(each, ast.Attribute):
                    owner = said(each.value)
                    whole = path if owner == "self" else ".".join(known.get(owner, ("", "")))
                    calls[key].add((whole if whole in trees else "", each.attr))
            made[key] |= {name for _, name in calls[key]} & wanted
    for key, found in calls.items():
        for _, name in [one for one in found if not one[0]]:
            made[key] |= set().union(*(made[one] for one in methods[name]))
    changed = True
    while changed:
        changed = False
        for key, found in calls.items():
            before = len(made[key])
            made[key] |= set().union(*(made[one] for one in found if one in made))
            changed = changed or len(made[key]) > before
    return made


def untrue_raises(path: str, tree: ast.Module, made: Functions) -> Iterator[str]:
    """Yield exceptions in docstrings that neither the function nor what it calls can raise."""
    for node in definitions(tree):
        if isinstance(node, ast.ClassDef) or said_only(node):
            continue
        there = made[path, node.name] | {each.arg for each in node.args.args}
        yield from (f"{node.name}: {name}" for name in told(node) if name not in there)


@pytest.mark.slow
def test_fields_in_docstrings_exist(modules: Mapping[str, ast.Module]) -> None:
    known = fields_of_classes(modules.values())
    found = {each for tree in modules.values() for each in untrue_fields(tree, known)}
    assert found == set()


@pytest.mark.slow
def test_what_docstrings_say_is_raised_can_be(modules: Mapping[str, ast.Module]) -> None:
    made = raised(modules)
    found = {
        f"{path}: {each}"
        for path, tree in modules.items()
        for each in untrue_raises(path, tree, made)
    }
    assert found - BY_DEFERRED == set()


def bound(tree: ast.Module) -> set[str]:
    """Return the names that a module, or a class of it, defines or imports."""
    names = set()
    for each in statements(tree):
        if isinstance(each, Definition):
            names.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in each.names}
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names |= {
                part.id for one in targets for part in ast.walk(one) if type(part) is ast.Name
            }
    return names


def lost(text: str, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the names in backquotes that begin with a module, such as `policy.dns.place`, and
    that the module does not have."""
    for name in re.findall(NAME, text):
        *first, last = name.removeprefix("cod.").split(".")
        while first and ".".join(["cod", *first]) not in trees:
            last = first.pop()
        place = ".".join(["cod", *first])
        if not first or first in AMBIGUOUS or f"{place}.{last}" in trees:
            continue
        if last not in bound(trees[place]):
            yield name


@pytest.mark.slow
def test_what_docstrings_and_comments_name_exists(modules: Mapping[str, ast.Module]) -> None:
    untrue = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("cod", "trampoline")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in lost(path.read_text(), modules)
    }
    assert untrue - EXAMPLES == set()
    assert list(lost("`store.engine.Tx` and `store.engine.Ty`", modules)) == ["store.engine.Ty"]


def test_untrue_docstrings_are_found() -> None:
    planted = ast.parse(
        '''
class Late(Exception):
    """A start that is over."""


class Start:
    """A start.

    at    when
    gone  not there
    """

    at: float


def wait(at: float) -> bool:
    """Return whether it waits. Raises `Late`."""
    return at > 0


def check(at: float) -> None:
    """Refuse a start that is over. Raises `Late`."""
    _refuse(at)


def _refuse(at: float) -> None:
    if at <= 0:
        raise Late
'''
    )
    assert list(untrue_fields(planted, {})) == ["Start: gone"]
    assert list(untrue_raises("x", planted, raised({"x": planted}))) == ["wait: Late"]
